"""Half of the nodes die: how late is the next answer, and when is it exact? Holdfast and Structured Streaming by turns.

    .venv/bin/python benchmarks/failover.py                              # both tables, three triggers
    .venv/bin/python benchmarks/failover.py --settings same --trigger 1,none --repeat 2
    .venv/bin/python benchmarks/failover.py --keys 2000000 --trigger 1                           # with more state
    .venv/bin/python benchmarks/failover.py --matrix [--workload top-k] [--pair 1,2] [--seeds 1]   # every workload

The same keyed count over the same stream on four nodes of one core each; two of them are killed with SIGKILL. An answer
is a batch whose output is there: for Structured Streaming a batch that ``foreachBatch`` has written as Parquet, for
Holdfast output in its place, tentative or final, with rows in it. Every task of this query is a sink.

**Lateness** is the time of an answer less the time at which the undisturbed schedule of the same run would have given
it. The schedule comes from the last eight answers before the kill: epoch ``n`` is due at ``phase + n * pace``. The pace
is the trigger interval where the system keeps up with it, else the median time between two answers; the phase is the
median over those eight. A batch has the same rows whenever it is read, so without a trigger too an epoch is compared
with when the same rows would have been answered. ``worst`` is the latest of the next three answers: what a failure
delays may be the second one. Time that is lost is not made up for: a trigger that was missed is not repeated.

**The kill** comes at a random moment between two answers: turn ``t`` of ``n`` draws it from the ``t``-th of ``n`` equal
parts of the pace. Which two nodes die is drawn too. ``--seed`` decides both, and both systems get the same draws.

**Turns**: in each, one system follows the other for every trigger, and the order changes from turn to turn. Each system
has a driver process, which keeps its JVM for all turns; each turn has a new session with four new executors, and the
other driver is idle then, without a session.

**Settings**: ``same`` is the session of ``holdfast.spark_session`` for both, with Spark's defaults for retries and for
the wait for locality; no replicas, checkpoints and RocksDB snapshots every ten epochs. ``chosen`` is what a good
operator would choose for each. failing.py has both lists.

``--cluster standalone``: a master and four workers on loopback; worker and executor of a node die together, and nothing
replaces them before the turn is over. ``local-cluster``: executors die and Spark starts new ones at once, which
take CPU from the survivors.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from failing import DEADLINE, SETTINGS, SYSTEMS, Turn, run
from lateness import ANSWER, EXACT
from measuring import Record, say, spread, written
from standalone import LOOPBACK, NODES, Standalone, standalone

LIMITED = ("answer", "late", "worst", "exact")
"""What did not come in time counts as the deadline."""
TOLD = (*LIMITED, "exact_by", "pace", "fidelity")
MARK = "turn: "


class Drivers:
    """A driver process for each system, started at its first turn."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def turn(self, turn: Turn, master: str) -> dict[str, Any]:
        if turn.system not in self._processes:
            command = [sys.executable, __file__, "--serve"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._processes[turn.system] = subprocess.Popen(command, env=LOOPBACK, text=True, **pipes)  # type: ignore[call-overload]
        process = self._processes[turn.system]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([master, asdict(turn)]) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith(MARK):
                found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if "failed" in found:
                    sys.exit(f"{turn.system}, {turn.settings} settings: {found['failed']}")
                return found
        sys.exit(f"the driver of {turn.system} ended with {process.wait()}")

    def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()  # an idle one ends at that, and its JVM with it
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def serve() -> None:
    """Turns as JSON lines on stdin, outcomes on stdout, until stdin ends."""
    for line in sys.stdin:
        master, fields = json.loads(line)
        fields["victims"] = tuple(fields["victims"])
        print(MARK + json.dumps(apart(Turn(**fields), master)), flush=True)


def apart(turn: Turn, master: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-failover-", ignore_cleanup_errors=True) as name:
        try:
            return run(turn, master, Path(name))
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}


@contextmanager
def masters(cluster: str, folder: Path) -> Iterator[tuple[str, Standalone | None]]:
    """A master to connect to, and what brings nodes back that were killed."""
    if cluster == "standalone":
        with standalone(folder) as made:
            yield made.url, made
    else:
        yield f"local-cluster[{NODES},1,1400]", None


def turns(asked: argparse.Namespace, settings: str, keys: int) -> Iterator[list[Turn]]:
    """All turns of a table, in the order in which they are made; a list has both systems at the same moment."""
    for number in range(asked.repeat):
        for interval in asked.trigger:
            drawn = random.Random(f"{asked.seed} {settings} {keys} {interval} {number}")
            moment, victims = (number + drawn.random()) / asked.repeat, sorted(drawn.sample(range(NODES), 2))
            rows = max(20_000, keys // 10)
            each = [
                Turn(
                    system,
                    settings,
                    interval,
                    keys,
                    rows,
                    moment,
                    (victims[0], victims[1]),
                    asked.epochs,
                    asked.seconds,
                )
                for system in SYSTEMS
            ]
            yield each if number % 2 == 0 else each[::-1]


def measured(asked: argparse.Namespace, settings: str, cluster: str, keys: int, record: Record) -> list[dict[str, Any]]:
    """A line for each trigger."""
    found: dict[float | None, dict[str, list[dict[str, Any]]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-failover-")))
        master, nodes = stack.enter_context(masters(cluster, folder))
        drivers = Drivers()
        stack.callback(drivers.close)
        for each in turns(asked, settings, keys):
            for turn in each:
                record.pause()
                one = drivers.turn(turn, master)
                if nodes is not None:
                    nodes.workers(len(turn.victims))
                found.setdefault(turn.interval, {}).setdefault(turn.system, []).append(one)
                say(
                    f"{settings}, {keys:,} keys, {_trigger(turn.interval)}, moment {turn.moment:.2f}: {told(turn, one)}"
                )
    return [
        {
            "settings": settings, "cluster": cluster, "keys": keys, "trigger": interval, "turns": asked.repeat,
            "systems": {system: summary(systems[system]) for system in SYSTEMS},
        }
        for interval, systems in found.items()
    ]  # fmt: skip


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Spreads over the turns; ``parts``: the median of each part, over the turns that have it."""
    limited = [{**each, **{name: DEADLINE for name in LIMITED if each[name] is None}} for each in runs]
    told: dict[str, Any] = {}
    for name in TOLD:
        if known := [each[name] for each in limited if each[name] is not None]:
            told[name] = spread(known)
    parted = [each["parts"] for each in runs if each["parts"] is not None]
    if parted:
        told["parts"] = {
            name: float(f"{statistics.median(known):.3g}")
            for name in (*ANSWER, *EXACT)
            if (known := [each[name] for each in parted if name in each])
        }
    if silent := sum(each["answer"] is None for each in runs):
        told["unanswered"] = silent
    return told


def told(turn: Turn, one: dict[str, Any]) -> str:
    def seconds(value: float | None) -> str:
        return f"none within {DEADLINE:.0f} s" if value is None else f"{value:.2f} s"

    return (
        f"{turn.system}: answer {seconds(one['answer'])}, late {seconds(one['late'])}, worst {seconds(one['worst'])}, "
        f"exact {seconds(one['exact'])} by epoch +{one['exact_by']}, pace {one['pace']:.2f} s"
    )


def _trigger(interval: float | None) -> str:
    return "no trigger" if interval is None else f"trigger {interval:g} s"


def lines(row: dict[str, Any]) -> Iterator[str]:
    """What is printed of a line of the table."""
    where = f"{row['settings']} settings, {row['cluster']}, {row['keys']:,} keys"
    yield f"{where}, {_trigger(row['trigger'])}, {row['turns']} turns"
    for system, found in row["systems"].items():
        cells = [
            f"{name} {found[name]['median']:.2f} ({found[name]['least']:.2f}-{found[name]['most']:.2f})"
            for name in TOLD
            if name in found
        ]
        yield f"  {system:<12}{', '.join(cells)}"
        if "parts" in found:
            yield "  " + " " * 12 + ", ".join(f"{name} {value:.2f}" for name, value in found["parts"].items())


def triggers(text: str) -> list[float | None]:
    found: list[float | None] = []
    for word in text.split(","):
        try:
            interval = None if word == "none" else float(word)
        except ValueError:
            interval = 0.0
        if interval is not None and not 0.05 <= interval <= 60:
            raise argparse.ArgumentTypeError(
                f"{word!r}: seconds from 0.05 to 60 are needed, or none, such as 1,0.2,none"
            )
        found.append(interval)
    return found


def parser_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--settings", choices=SETTINGS, action="append", help="both if not given")
    parser.add_argument("--trigger", type=triggers, help="intervals in seconds, or none; 1,0.2,none if not given, "
                        "of the matrix 0.5")  # fmt: skip
    parser.add_argument("--keys", type=int, action="append", help="100,000 if not given")
    parser.add_argument("--cluster", choices=["standalone", "local-cluster"], action="append")
    parser.add_argument("--repeat", type=int, help="turns; 3 if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of the nodes that are killed")
    parser.add_argument("--epochs", type=int, default=14, help="least answers before the kill; a checkpoint is at 10")
    parser.add_argument("--seconds", type=float, default=6.0, help="least seconds from the first answer to the kill")
    parser.add_argument("--quick", action="store_true", help="one short turn with a trigger of 0.2 s: whether it works")
    parser.add_argument("--matrix", action="store_true", help="every workload, every pair of nodes; standalone")
    parser.add_argument("--workload", action="append", help="of the matrix; all of them if not given")
    parser.add_argument("--pair", action="append", help="of the matrix: nodes to kill, such as 1,2; else all six")
    parser.add_argument("--seeds", type=int, default=3, help="of the matrix: so many inputs")
    parser.add_argument("--rate", type=int, default=5000, help="of the matrix: rows an epoch")
    parser.add_argument("--no-replicas", action="store_true", help="of the matrix: only without replicas")
    parser.add_argument("--keep", type=Path, help="of the matrix: keep the store of every run in this folder")
    parser.add_argument("--json", type=Path, help="write what was found here; of the matrix a line a run, as it ends: "
                        "runs that are there already are not run again")  # fmt: skip
    parser.add_argument("--one", nargs=2, metavar=("MASTER", "TURN"), help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = parser_of()
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    if asked.one:
        fields = json.loads(asked.one[1])
        print(json.dumps(apart(Turn(**{**fields, "victims": tuple(fields["victims"])}), asked.one[0])))
        return
    if asked.quick:
        asked.repeat, asked.seconds = asked.repeat or 1, 1.0
    asked.trigger = asked.trigger or ([0.5] if asked.matrix else [0.2] if asked.quick else [1.0, 0.2, None])
    asked.repeat = 3 if asked.repeat is None else asked.repeat
    for option in ("seeds", "rate", "repeat", "epochs"):
        if getattr(asked, option) < 1:
            parser.error(f"--{option} must be at least 1, got {getattr(asked, option)}")
    if wrong := [keys for keys in asked.keys or () if keys < 1]:
        parser.error(f"--keys must be at least 1, got {wrong[0]}")
    if asked.json is not None and not asked.json.absolute().parent.is_dir():
        parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}; make it first")
    if asked.matrix:
        matrix(parser, asked)
        return
    record, rows = Record("failover.py", sys.argv[1:]), []
    for settings in asked.settings or SETTINGS:
        for cluster in asked.cluster or ["standalone"]:
            for keys in asked.keys or [100_000]:
                for row in measured(asked, settings, cluster, keys, record):
                    rows.append(row)
                    print("\n".join(lines(row)), flush=True)
    written(asked.json, record.to_json(rows))


def matrix(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    from holdfast.workloads import WORKLOADS
    from matrix import all_cases, all_pairs, recorded, run

    if unknown := [name for name in asked.workload or () if name not in WORKLOADS]:
        parser.error(f"--workload {unknown[0]}: there are {', '.join(WORKLOADS)}")
    if wrong := [pair for pair in asked.pair or () if not re.fullmatch(r"([0-3]),(?!\1)[0-3]", pair)]:
        parser.error(f"--pair {wrong[0]}: two different nodes of 0 to 3 are needed, such as 1,2")
    pairs = [(int(pair[0]), int(pair[2])) for pair in asked.pair or ()] or all_pairs()
    replicas = ["none"] if asked.no_replicas else ["none", "25 %"]
    names, intervals = asked.workload or list(WORKLOADS), asked.trigger
    cases = all_cases(names, pairs, asked.seeds, asked.rate, replicas, intervals)
    try:
        recorded(asked.json, cases)
    except (ValueError, KeyError, TypeError):
        parser.error(f"--json {asked.json}: a line of it is no run of a matrix; name another file")
    run(cases, (asked.cluster or ["standalone"])[0], asked.json, asked.keep)


if __name__ == "__main__":
    main()
