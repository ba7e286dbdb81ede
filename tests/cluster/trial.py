"""One fault on a cluster of hosts: a job runs, something goes wrong for a while, and all is looked at afterwards."""

from __future__ import annotations

import time
import uuid
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
    """``lasting``: seconds; for the driver's host as long as the other needs. ``store``: s3, or a shared folder."""

    what: str
    hosts: tuple[str, ...]
    lasting: float
    store: str = "s3"
    standby: bool = False


W1, W2, *_ = WORKERS
TROUBLES = {
    "two hosts cut off": Trouble("cut", (W1, W2), 15.0),
    "a host cut off briefly": Trouble("cut", (W1,), 5.0, "folder"),
    "nothing reaches a host": Trouble("deaf", (W1,), 15.0),
    "nothing leaves a host": Trouble("mute", (W1,), 15.0),
    "30 % loss": Trouble("loss", (W1,), 15.0),
    "a host frozen": Trouble("frozen", (W1,), 15.0),
    "its disk full": Trouble("full", (W1,), 10.0),
    "its processes killed": Trouble("killed", (W1,), 6.0, "folder"),
    "the Master gone": Trouble("killed", (MASTER,), 8.0),
    "the driver's host cut off": Trouble("cut", (DRIVER,), 0.0, standby=True),
}


@dataclass(frozen=True, slots=True)
class Told:
    """``stored``: the final rows in the store are those of a plain loop. ``left``: what remained, by host.

    ``crashes``: why the driver had to be started again, each time.
    """

    name: str
    verdict: Verdict
    stored: bool
    left: dict[str, list[str]]
    crashes: tuple[str, ...]
    codes: dict[str, int]

    @property
    def seen(self) -> Seen:
        return self.verdict.faults[0]

    def line(self) -> str:
        """A row of the table."""
        seen = self.seen
        next_, exact = (f"{s:.1f} s" if s is not None else "not seen" for s in (seen.next_s, seen.exact_s))
        of = f"{seen.of}, {seen.fidelity:.2f}" if seen.fidelity is not None else ""
        right = "yes" if self.verdict.right and self.stored else f"NO: {self.verdict.words()}"
        left = sum(map(len, self.left.values()))
        return f"| {self.name} | {next_} | {of} | {seen.gap_s:.1f} s | {exact} | {right} | {left or 'nothing'} |"


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


def tried(cluster: Cluster, name: str, seed: int, within: str = "") -> Told:
    """One job through one trouble, on a cluster that is well by then. ``within``: as ``answer_within``."""
    trouble = TROUBLES[name]
    cluster.ready()
    drivers = (DRIVER, STANDBY) if trouble.standby else (DRIVER,)
    run = Run(cluster, f"job-{uuid.uuid4().hex[:8]}", seed, trouble.store, drivers[:1], within)
    mended = False
    try:
        awaited(run, f"epoch {AT}", AT)
        if trouble.standby:
            run.supervise(STANDBY)
            said = "standing by"
            until("the second driver stands by", lambda: said in run.log(STANDBY).read_text(errors="replace"))
            awaited(run, "answers beside a driver that stands by", complete(run) + AFTER)
        at = time.time()
        for host in trouble.hosts:
            play(cluster, trouble.what, host)
        if trouble.standby:
            until("the second driver answers", lambda: run.deliveries()[-1].driver.startswith(STANDBY))
            settled(run)
        else:
            until("the fault's end", lambda: time.time() - at >= trouble.lasting)
        for host in trouble.hosts:
            mend(cluster, trouble.what, host)
        mended, over = True, time.time()
        if trouble.standby:
            until("the first driver knows", lambda: any(e["kind"] == "superseded" for e in run.told(DRIVER)))
        settled(run)
        codes = run.stop()
    except BaseException:
        if not mended:
            for host in trouble.hosts:
                mend(cluster, trouble.what, host)
        for host in drivers:
            cluster.network.kill(host)
        raise
    held = run.held()
    epochs = 1 + max((event["epoch"] for event in held["events"] if event["kind"] == "answered"), default=-1)
    expected = expected_counts(Options(rate=RATE, epochs=epochs, seed=seed))
    verdict = judged([Fault(trouble.what, trouble.hosts, at, over)], run.deliveries(), expected, epochs)
    stored = [tuple(row) for row in held["rows"]] == expected
    crashes = [event["cause"] for host in drivers for event in run.told(host) if event["kind"] == "crashed"]
    return Told(name, verdict, stored, remaining(cluster), tuple(crashes), codes)


def complete(run: Run) -> int:
    """Epochs that every task has answered for good."""
    return judged([], run.deliveries(), []).epochs


def awaited(run: Run, what: str, epochs: int) -> None:
    def there() -> bool:
        run.check()
        return complete(run) >= epochs

    until(what, there, pause=0.1)


def settled(run: Run) -> None:
    """From now on some epochs in a row that were exact from the first."""
    begun = time.time()

    def there() -> bool:
        run.check()
        late = [each for each in run.deliveries() if each.time > begun and not each.again]
        doubtful = max((each.epoch for each in late if each.kind == "tentative"), default=-1)
        first = min((each.epoch for each in late), default=0)
        return bool(late) and complete(run) - 1 >= max(doubtful, first) + AFTER

    try:
        until("exact answers after the fault", there, RECOVERED, 0.1)
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
