"""Hosts that are cut off or frozen while a job runs on them: how long do readers wait, and is the output right?

    sudo .venv/bin/python benchmarks/hosts.py [--fault cut] [--fault frozen] [--repeat 3] [--answer-within 1500ms]

Master, driver and four workers, each in a network namespace with an address of its own and a temporary folder of its
own, joined by a bridge; the store is a folder that all of them see. Word counts, an epoch a second. In the middle of
the run one or two hosts lose their cable, for good or for six seconds, or all their processes are stopped for six
seconds. Prints for each run: seconds from the fault until somebody read the next rows, their fidelity, until everything
was exact again, whether the final output is that of a plain loop, and what is left on the hosts at the end. Needs root
for the namespaces; says so and exits with 2 where it cannot have them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark

from holdfast.errors import Invalid
from holdfast.runtime.history.history import read_history
from holdfast.runtime.settings import within_of
from holdfast.workloads import Options
from kills import expected, found

NET = "10.78.0"
MASTER, DRIVER, *WORKERS = NAMES = ("hf-master", "hf-driver", "hf-1", "hf-2", "hf-3", "hf-4")
SWITCH = "hf-switch"
EPOCHS, FAULT_AT = 24, 10
START = 120.0


@dataclass(frozen=True)
class Trouble:
    """What happens to how many hosts; ``lasting``: seconds after which it is over, None for good."""

    what: str
    hosts: int
    lasting: float | None


TROUBLES = {
    "cut": Trouble("cut", 2, None),
    "cut for a while": Trouble("cut", 2, 6.0),
    "frozen": Trouble("frozen", 1, 6.0),
    "frozen for good": Trouble("frozen", 2, None),
}


def address(name: str) -> str:
    return f"{NET}.{10 + NAMES.index(name)}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def network() -> Iterator[None]:
    """The hosts and what joins them; everything that runs there ends with it."""
    try:
        ip("netns", "add", SWITCH)
        ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
        ip("-n", SWITCH, "link", "set", "br0", "up")
        for name in NAMES:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", SWITCH, "link", "add", cable(name), "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", SWITCH, "link", "set", cable(name), "master", "br0", "up")
            ip("-n", name, "addr", "add", f"{address(name)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield
    finally:
        for name in NAMES:
            for process in processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", SWITCH], capture_output=True, check=False)


def cable(name: str) -> str:
    return f"p-{name}"


def processes(name: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(each) for each in listed.stdout.split()]


def begin(name: str, words: Sequence[str], shared: Path, log: Path) -> subprocess.Popen[bytes]:
    """A process on a host: a temporary folder of its own, and nothing of this machine's but what is shared."""
    project = Path(__file__).resolve().parent.parent
    seen = {str(project), sys.prefix, str(shared)}
    binds = "; ".join(
        f'mkdir -p "/mnt/hf{n}"; mount --bind "{each}" "/mnt/hf{n}"' for n, each in enumerate(sorted(seen))
    )
    back = "; ".join(
        f'mkdir -p "{each}"; mount --bind "/mnt/hf{n}" "{each}"'
        for n, each in enumerate(sorted(seen))
        if each.startswith("/tmp/")
    )
    script = f'{binds}; mount -t tmpfs -o size=2g tmpfs /tmp; chmod 1777 /tmp; {back or ":"}; exec "$@"'
    env = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(project / "src"),
        "SPARK_LOCAL_IP": address(name),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.worker.timeout=6",
    }
    unshared = ["unshare", "-m", "--propagation", "private", "bash", "-ec", script, "--", *words]
    with log.open("ab") as out:
        return subprocess.Popen(["ip", "netns", "exec", name, *unshared], stdout=out, stderr=out, env=env)


def play(trouble: Trouble, hosts: Sequence[str]) -> None:
    for host in hosts:
        if trouble.what == "cut":
            ip("-n", SWITCH, "link", "set", cable(host), "down")
        else:
            signalled(host, signal.SIGSTOP)


def mend(trouble: Trouble, hosts: Sequence[str]) -> None:
    for host in hosts:
        if trouble.what == "cut":
            ip("-n", SWITCH, "link", "set", cable(host), "up")
        else:
            signalled(host, signal.SIGCONT)


def signalled(host: str, number: int) -> None:
    for process in processes(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def history(folder: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(Invalid, OSError, ValueError):
        return list(read_history(folder))
    return []


def answers(folder: Path) -> int:
    return sum(event["kind"] == "answered" for event in history(folder))


def wait_for(what: str, done: Any, process: subprocess.Popen[bytes], deadline: float) -> None:
    until = time.monotonic() + deadline
    while not done():
        if process.poll() is not None:
            raise Invalid(f"{what}: the job ended before, with {process.returncode}")
        if time.monotonic() > until:
            raise Invalid(f"{what}: not within {deadline:.0f} s")
        time.sleep(0.02)


def one(trouble: Trouble, seed: int, within: str | None, shared: Path) -> dict[str, Any]:
    """One job on fresh hosts."""
    store, logs = shared / "store", shared / "logs"
    logs.mkdir()
    options = Options(rate=500, epochs=EPOCHS, seed=seed)
    spark = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with network():
        url = f"spark://{address(MASTER)}:7077"
        master = ["org.apache.spark.deploy.master.Master", "--host", address(MASTER), "--port", "7077"]
        begin(MASTER, [spark, *master], shared, logs / MASTER)
        for name in WORKERS:
            own = ["--host", address(name), "--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work"]
            begin(name, [spark, "org.apache.spark.deploy.worker.Worker", *own, url], shared, logs / name)
        run = [
            sys.executable, "-m", "holdfast", "run", "word-count", "--master", url, "--nodes", "4",
            "--parallelism", "4", "--epochs", str(EPOCHS), "--rate", "500", "--seed", str(seed), "--trigger", "1s",
            "--out", str(store), "--quiet", *(["--answer-within", within] if within else []),
        ]  # fmt: skip
        job = begin(DRIVER, run, shared, logs / DRIVER)
        wait_for(f"epoch {FAULT_AT}", lambda: answers(store) >= FAULT_AT, job, START)
        hosts = WORKERS[: trouble.hosts]
        at = time.time()
        play(trouble, hosts)
        if trouble.lasting is not None:
            wait_for("the fault's end", lambda: time.time() - at > trouble.lasting, job, START)
            mend(trouble, hosts)
        job.wait(START)
        events = history(store)
        left = {name: leftovers(name) for name in WORKERS if trouble.lasting is not None or name not in hosts}
    return {**judged(events, at), "right": found(store) == expected(options), "left": sum(left.values())}


def leftovers(name: str) -> int:
    """Folders of the job that are still on a host. Its workers outlive the job, so its temporary folder is there."""
    for process in processes(name):
        with contextlib.suppress(OSError):
            return len(list(Path(f"/proc/{process}/root/tmp").glob("holdfast-*")))
    return 0


def judged(events: Sequence[dict[str, Any]], at: float) -> dict[str, Any]:
    """What readers saw after the fault."""
    begun = max((e["epoch"] for e in events if e["kind"] == "answered" and e["time"] <= at), default=-1)
    said = [e for e in events if e["kind"] == "published" and e["rows"] and max(e["epochs"]) > begun]
    first = next((e for e in said if e["time"] > at), None)
    gaps = [b["time"] - a["time"] for a, b in pairwise(said)]
    exact = next((e for e in events if e["kind"] == "epoch" and e["epoch"] > begun and disturbed(events, e, at)), None)
    return {
        "next_s": None if first is None else first["time"] - at,
        "of": None if first is None else first["of"],
        "fidelity": None if first is None else first["fidelity"],
        "longest_gap_s": max(gaps, default=0.0),
        "exact_s": None if exact is None else exact["time"] - at,
    }


def disturbed(events: Sequence[dict[str, Any]], epoch: dict[str, Any], at: float) -> bool:
    """Whether an epoch is the first that is exact after all that the fault has led to."""
    trouble = [e["time"] for e in events if e["kind"] in ("answer late", "stood in", "nodes lost") and e["time"] > at]
    stopped = next((e["time"] for e in events if e["kind"] == "stopped"), float("inf"))
    last = max((t for t in trouble if t < stopped), default=at)
    return epoch["time"] > last and not epoch["absent"] and not epoch["tentative"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--fault", choices=sorted(TROUBLES), action="append", help="all of them unless named")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, with seeds from 1")
    parser.add_argument("--answer-within", help="as holdfast run has it; its default unless given")
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {asked.repeat}")
    try:
        within_of(asked.answer_within, "--answer-within")
    except Invalid as error:
        parser.error(str(error))
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        parser.error("network namespaces need root and the commands ip and unshare (Debian: iproute2, util-linux)")
    print(
        f"{'fault':18} {'next rows':>9} {'as':>9} {'fidelity':>8} {'longest gap':>11} {'exact':>8}  right  left",
        flush=True,
    )
    wrong = False
    for name in asked.fault or TROUBLES:
        waits = []
        for seed in range(1, asked.repeat + 1):
            folder = Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))
            told = one(TROUBLES[name], seed, asked.answer_within, folder)
            shutil.rmtree(folder)
            wrong |= not told["right"]
            waits.append(told["next_s"])
            exact = "(not seen)" if told["exact_s"] is None else f"{told['exact_s']:6.2f} s"
            print(
                f"{name:18} {told['next_s']:7.2f} s {told['of']:>9} {told['fidelity']:8.3f} "
                f"{told['longest_gap_s']:9.2f} s {exact:>8}  {'yes' if told['right'] else 'NO':5}  {told['left']}",
                flush=True,
            )
        print(f"{name:18} {statistics.median(waits):7.2f} s median, {max(waits):.2f} s most", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
