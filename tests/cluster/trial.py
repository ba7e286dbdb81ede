"""One fault on a cluster of hosts: a job runs, something goes wrong for a while, and all is looked at afterwards."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checker import Fault, Seen, Verdict, judged
from counting_job import RATE
from spark_hosts import DRIVER, MASTER, NAMES, STANDBY, STORE, WORKERS, Cluster, Run, Stuck, until

from holdfast.workloads import Options
from plain_counts import expected_counts

AT = 6
"""Epochs that are answered before the fault."""
AFTER = 3
"""Epochs after it, all exact, before the job is stopped."""
RECOVERED = 90.0
GONE = 20.0
"""Seconds that what a job left may take to go."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """``lasting``: seconds; None: until another driver has taken over."""

    what: str
    hosts: tuple[str, ...]
    lasting: float | None


W1, W2, W3, W4 = WORKERS
TROUBLES = {
    "two hosts cut off for 15 s": Trouble("cut", (W1, W2), 15.0),
    "nothing reaches a host for 15 s": Trouble("deaf", (W3,), 15.0),
    "nothing leaves a host for 15 s": Trouble("mute", (W4,), 15.0),
    "a host and the other workers do not hear one another for 15 s": Trouble("parted", (W2,), 15.0),
    "30 % of a host's packets lost for 15 s": Trouble("loss", (W1,), 15.0),
    "a host frozen for 15 s": Trouble("frozen", (W2,), 15.0),
    "a host's disk full for 10 s": Trouble("full", (W3,), 10.0),
    "the Master killed, back after 8 s": Trouble("killed", (MASTER,), 8.0),
    "a host cut off for 5 s": Trouble("cut", (W4,), 5.0),
    "a host's processes killed, its worker back after 6 s": Trouble("killed", (W1,), 6.0),
    "the driver's host cut off, another stands by": Trouble("cut", (DRIVER,), None),
}
*ONE, CUT, KILLED, LAST = TROUBLES
JOBS = {"on S3": ("s3", ONE), "in a shared folder": ("folder", [CUT, KILLED]), "two drivers": ("s3", [LAST])}
"""A job goes through several: its store, and which."""


@dataclass(frozen=True, slots=True)
class Told:
    """``stored``: the final rows in the store are those of a plain loop. ``left``: what remained, by host.

    ``crashes``: why the driver had to be started again, each time.
    """

    names: tuple[str, ...]
    verdict: Verdict
    stored: bool
    left: dict[str, list[str]]
    crashes: tuple[str, ...]
    codes: dict[str, int]

    @property
    def right(self) -> bool:
        return self.verdict.right and self.stored

    def lines(self) -> list[str]:
        """Rows of the table."""
        right = "yes" if self.right else f"NO: {self.verdict.words()}"
        found = []
        for name, seen in zip(self.names, self.verdict.faults, strict=True):
            next_, exact = (f"{s:.1f} s" if s is not None else "not seen" for s in (seen.next_s, seen.exact_s))
            of = f"{seen.of}, {seen.fidelity:.2f}" if seen.fidelity is not None else ""
            left = sum(len(self.left.get(host, ())) for host in seen.fault.hosts) or "nothing"
            found.append(f"| {name} | {next_} | {of} | {seen.gap_s:.1f} s | {exact} | {right} | {left} |")
        return found


COLUMNS = ("fault", "next answer", "as, fidelity", "longest silence", "exact", "output right", "left behind")
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def play(cluster: Cluster, what: str, host: str) -> None:
    match what:
        case "cut":
            cluster.network.cut(host)
        case "deaf":
            cluster.network.drop(host, coming=100)
        case "mute":
            cluster.network.drop(host, going=100)
        case "parted":
            cluster.network.part(host, [each for each in WORKERS if each != host])
        case "loss":
            cluster.network.drop(host, coming=30, going=30)
        case "frozen":
            cluster.network.freeze(host)
        case "full":
            cluster.network.fill(host)
        case "killed":
            cluster.network.kill(host)


def mend(cluster: Cluster, what: str, host: str) -> None:
    match what:
        case "frozen":
            cluster.network.thaw(host)
        case "full":
            cluster.network.empty(host)
        case "killed" if host == MASTER:
            cluster.master()
        case "killed":
            cluster.worker(host)
        case _:
            cluster.network.mend(host)


def tried(
    cluster: Cluster,
    store: str,
    names: Sequence[str],
    seed: int,
    within: str = "",
    heard: Callable[[str, Seen], None] = lambda name, seen: None,
) -> Told:
    """One job through these troubles, each when all is well after the one before. ``within``: as ``answer_within``.

    ``heard``: told of each when it is got over.
    """
    standby = any(TROUBLES[name].lasting is None for name in names)
    drivers = (DRIVER, STANDBY) if standby else (DRIVER,)
    cluster.ready()
    run = Run(cluster, f"job-{uuid.uuid4().hex[:8]}", seed, store, drivers[:1], within)
    try:
        awaited(run, f"epoch {AT}", AT)
        if standby:
            run.supervise(STANDBY)
            said = "ready to take over"
            until("the second driver stands by", lambda: said in run.log(STANDBY).read_text(errors="replace"))
            awaited(run, "answers beside a driver that stands by", complete(run) + AFTER)
        faults = []
        for name in names:
            cluster.ready(free=False)
            settled(run, name)
            faults.append(suffered(cluster, run, name))
            heard(name, judged(faults[-1:], run.deliveries(), []).faults[0])
        codes = run.stop()
    except BaseException:
        for host in drivers:
            cluster.network.kill(host)
        raise
    held = run.held()
    (cluster.logs / f"{run.name}.json").write_text(json.dumps(held["events"]))  # to look into, if something was wrong
    epochs = 1 + max((event["epoch"] for event in held["events"] if event["kind"] == "answered"), default=-1)
    expected = expected_counts(Options(rate=RATE, epochs=epochs, seed=seed))
    verdict = judged(faults, run.deliveries(), expected, epochs)
    stored = [tuple(row) for row in held["rows"]] == expected
    crashes = [event["cause"] for host in drivers for event in run.told(host) if event["kind"] == "crashed"]
    return Told(tuple(names), verdict, stored, remaining(cluster), tuple(crashes), codes)


def suffered(cluster: Cluster, run: Run, name: str) -> Fault:
    """A trouble comes, goes, and is got over."""
    trouble, at = TROUBLES[name], time.time()
    try:
        for host in trouble.hosts:
            play(cluster, trouble.what, host)
        if trouble.lasting is None:
            until("the second driver answers", lambda: run.deliveries()[-1].driver.startswith(STANDBY))
            settled(run, name)
        else:
            until("the fault's end", lambda: time.time() - at >= (trouble.lasting or 0.0))
    finally:
        for host in trouble.hosts:
            mend(cluster, trouble.what, host)
    over = time.time()
    if trouble.lasting is None:
        until("the first driver knows", lambda: any(each["kind"] == "superseded" for each in run.told(DRIVER)))
    settled(run, name)
    return Fault(trouble.what, trouble.hosts, at, over, time.time())


def complete(run: Run) -> int:
    """Epochs that every task has answered for good."""
    return judged([], run.deliveries(), []).epochs


def awaited(run: Run, what: str, epochs: int) -> None:
    def there() -> bool:
        run.check()
        return complete(run) >= epochs

    until(what, there, pause=0.1)


def settled(run: Run, name: str) -> None:
    """From now on some epochs in a row that were exact from the first."""
    begun = time.time()

    def there() -> bool:
        run.check()
        late = [each for each in run.deliveries() if each.time > begun and not each.again]
        doubtful = max((each.epoch for each in late if each.kind == "tentative"), default=-1)
        first = min((each.epoch for each in late), default=0)
        return bool(late) and complete(run) - 1 >= max(doubtful, first) + AFTER

    try:
        until(f"{name}: exact answers", there, RECOVERED, 0.1)
    except Stuck as error:
        raise Stuck(f"{error}; {complete(run)} epochs were answered") from None


def remaining(cluster: Cluster) -> dict[str, list[str]]:
    """Processes and files of jobs that are still on hosts when they have had their time to go."""

    def found() -> dict[str, list[str]]:
        each = {host: [*cluster.strays(host), *cluster.network.left(host)] for host in NAMES if host != STORE}
        return {host: left for host, left in each.items() if left}

    end = time.monotonic() + GONE
    while (left := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return left
