"""A fuzz of malformed stores: every file of a real small store is changed in many ways, and everything that reads it
must give the right answer or refuse in words of its own.

    python tests/runtime/malformed_stores.py --count 1000 --seed 0     every file in 1,000 ways (make fuzz-stores)

The store is one of a job that lost a node, was scaled, and whose driver died: it has checkpoints, a journal that must
be replayed, outputs of both kinds, claims and a history. Two sorts of changes: damage, which the checksums must show;
and forgery, where whoever changed a document has put the right checksum under it. Forged values may lead to another
answer, but never out of the store and never to an error that is not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.errors import HoldfastError
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import NAME, History
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.auditing import operator_of, rows_of
from holdfast.runtime.simulation.disk import ONLOOKER, Disk
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import cut_batches
from holdfast.runtime.simulation.pipelines import counted_words, drawn_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import STORE, JobRefused, Simulation, Unfinished
from holdfast.state import Damaged, output, pages
from holdfast.state.entries import checksum

EPOCHS, DIES_AT = 12, 9
Files = dict[str, bytes]
Rows = dict[tuple[int, str], Counter[Any]]
TIMING = Timing(interval=0.25)


class Dies(BaseException):
    """The driver of the store that is looked at ends here."""


@dataclass(frozen=True)
class Real:
    """A store as a driver that died has left it, and what must come out in the end."""

    files: Files
    committed: int
    lives: int
    now: float
    expected: Rows


@dataclass(frozen=True)
class Change:
    """Files that are not what was written any more. ``forged``: with checksums that are right."""

    told: str
    files: Files
    forged: bool = False


def case(faults: str = "", scaled: bool = False) -> Case:
    pipeline = counted_words()
    schedule = FaultSchedule(
        pipeline.coordinated,
        Settings(nodes=3, checkpoint_every=3),
        nodes=3,
        epochs=EPOCHS,
        faults=parse_faults(faults),
        timing=TIMING,
        scalings=((0.3, "counts", 4),) if scaled else (),
        longest=70.0,
    )
    return Case(schedule, pipeline, cut_batches(drawn_batches(pipeline, EPOCHS, 7)))


@cache
def real() -> Real:
    """The store, made once."""
    given = case("kill node-1 at epoch 7; join node-1 after 1s", scaled=True)
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(given.schedule, given.pipeline, list(given.batches), History(Path(folder) / NAME))

        def watch(*_: object) -> None:
            if simulation.committed >= DIES_AT:
                raise Dies

        simulation.watchers.append(watch)
        # However small its tables are, their files are in pages.
        small = [mock.patch.object(pages, what, size) for what, size in (("LARGE", 1), ("PAGE", 64))]
        with small[0], small[1], contextlib.suppress(Dies):
            simulation.run()
        history = (Path(folder) / NAME).read_bytes()
    prefix = f"{STORE}/"
    files = {
        path.removeprefix(prefix): held.data
        for path in simulation.disk.paths()
        if path.startswith(prefix) and (held := simulation.disk.get(path)) is not None
    }
    expected: Rows = {}
    for (epoch, task), rows in given.expected().items():
        expected.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(rows))
    return Real({**files, NAME: history}, simulation.committed, simulation.lives, simulation.world.now, expected)


# What is changed


def _swapped(name: str, random: Random, files: Files) -> Files:
    alike = [other for other in files if other != name and other.rpartition(".")[2] == name.rpartition(".")[2]]
    other = random.choice(alike or [each for each in files if each != name])
    return {name: files[other], other: files[name]}


def _raw(name: str, random: Random, files: Files) -> tuple[str, Files]:
    data = files[name]
    at = random.randrange(len(data)) if data else 0
    kind = random.choice(
        ("cut", "flip", "bytes", "zeros", "insert", "repeat", "empty", "noise", "swap", "nest", "huge")
    )
    match kind:
        case "cut":
            changed = data[:at]
        case "flip":
            changed = data[:at] + bytes([(data[at] if data else 0) ^ (1 << random.randrange(8))]) + data[at + 1 :]
        case "bytes":
            changed = data[:at] + random.randbytes(random.randrange(1, 9)) + data[at + 8 :]
        case "zeros":
            changed = data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :]
        case "insert":
            changed = data[:at] + random.randbytes(3) + data[at:]
        case "repeat":
            changed = data + data[at:]
        case "empty":
            changed = b""
        case "noise":
            changed = random.randbytes(len(data))
        case "nest":
            deep = random.choice((b'{"a":', b"["))
            changed = deep * 100_000 if random.random() < 0.5 else data[:at] + deep * 20_000
        case "huge":
            changed = data.replace(b"1", b"9" * random.choice((20, 400, 5000)), random.randrange(1, 4))
        case _:
            return kind, _swapped(name, random, files)
    return kind, {name: changed}


ODD: tuple[Any, ...] = (
    None, True, "", "x", "../../../etc/passwd", "/etc/passwd", "a/../../b", "..", "\x00", "state/../../x", [], {}, [[]],
    -1, 0, 1, 2**31, 2**63, 2**64, 10**30, 1e308, 0.5, "9" * 400, {"a": {"b": []}},
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document something stands."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield (*path, key)
        yield from _places(each, (*path, key))


def _edited(body: Any, random: Random) -> str:
    """Change one thing in a document; what it was."""
    places = list(_places(body))
    *above, last = random.choice(places)
    held = body
    for key in above:
        held = held[key]
    match random.choice(("delete", "odd", "odd", "odd", "swap", "number", "rename", "deep")):
        case "delete":
            del held[last]
            how = "deleted"
        case "swap":
            *above, other = random.choice(places)
            there = body
            for key in above:
                there = there[key]
            held[last], there[other] = json.loads(json.dumps([there[other], held[last]]))
            how = f"swapped with {other}"
        case "number" if isinstance(held[last], int | float):
            held[last] = random.choice((held[last] + 1, held[last] - 1, -held[last], held[last] * 1000))
            how = f"now {held[last]}"
        case "rename" if isinstance(held, dict):
            held[random.choice(("x", "../x", f"{last}x", "count/0", ""))] = held.pop(last)
            how = "renamed"
        case "deep":
            for _ in range(500):
                held[last] = [held[last]]
            how = "nested"
        case _:
            held[last] = random.choice(ODD)
            how = f"now {held[last]!r:.30}"
    return f"{'.'.join(map(str, [*above, last]))} {how}"


def _signed(body: dict[str, Any]) -> bytes:
    body.pop("checksum", None)
    plain = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "checksum": checksum(plain)}).encode()


def drawn(name: str, random: Random, files: Files) -> Change:
    """One way to change a file."""
    document = name.endswith((".json", ".beat"))
    if document and random.random() < 0.6:
        body = json.loads(files[name])
        forged = random.random() < 0.7
        told = _edited(body, random)
        return Change(f"{name}: {told}", {name: _signed(body) if forged else json.dumps(body).encode()}, forged)
    if name == NAME and random.random() < 0.7:
        lines = files[name].splitlines()
        at = random.randrange(len(lines))
        body = json.loads(lines[at])
        told = _edited(body, random)
        lines[at] = json.dumps(body).encode()
        return Change(f"{name}: line {at + 1}: {told}", {name: b"\n".join(lines) + b"\n"}, forged=True)
    kind, changed = _raw(name, random, files)
    return Change(f"{name}: {kind}", changed, forged=name == NAME)


# What reads it


def restarted(change: Change) -> str | None:
    """A driver goes on from the changed store; what is wrong with how that ends."""
    given = case()
    found = real()
    simulation = Simulation(given.schedule, given.pipeline, list(given.batches))
    simulation.disk = Disk(lambda: simulation.world.now)
    for name, data in {**found.files, **change.files}.items():
        if name != NAME:
            simulation.disk.put(f"{STORE}/{name}", data, True)
    simulation.committed, simulation.lives = found.committed, found.lives + 1
    simulation.world.now = found.now + 60.0
    try:
        simulation.run()
    except JobRefused as refused:
        return None if isinstance(refused.error, HoldfastError) else f"restart: {_last(refused.error)}"
    except HoldfastError as error:
        return f"restart: not refused, but broke: {_last(error)}"
    except Unfinished as error:
        return None if change.forged else f"restart: does not end: {str(error)[:200]}"
    except Exception as error:
        return f"restart: {_last(error)}"
    files = simulation.disk.files(ONLOOKER, STORE)
    outside = [path for path in simulation.disk.paths() if not path.startswith((f"{STORE}/", "node-"))]
    if outside:
        return f"restart: wrote {outside[0]}"
    if change.forged:
        return None
    said: Rows = {}
    unread: set[tuple[int, str]] = set()
    for epoch, task in output.written(files, "final"):
        try:
            rows = output.read(files, "final", epoch, task)
        except Damaged:
            unread.add((epoch, operator_of(task)))
            continue
        plain = rows.drop_columns([each for each in output.OWN if each in rows.column_names])
        said.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(plain))
    for place in {*said, *found.expected} - unread:
        if said.get(place, Counter()) != found.expected.get(place, Counter()):
            return f"restart: silently wrong: {place[1]} in epoch {place[0]}"
    return None


def looked_at(folder: Path, change: Change) -> str | None:
    """Everything that looks into a store without going on from it; what is wrong with what it says."""
    return said(folder, change) or read(folder)


def said(folder: Path, change: Change) -> str | None:
    """What is wrong with what commands say."""
    commands = [["store", "check", str(folder)], ["store", str(folder)], ["state", str(folder)]]
    if any(name == NAME for name in change.files):
        commands = [["history", str(folder)], ["history", str(folder), "--events"]]
        commands += [["report", str(folder), "--out", str(folder.parent / "page.html")]]
    for words in commands:
        result = CliRunner().invoke(app, words)
        error = result.exception
        if error is not None and not isinstance(error, HoldfastError | SystemExit):
            return f"{' '.join(words[:2])}: {_last(error)}"
        if "check" in words and not result.exit_code and not change.forged and _matters(change):
            return "check: finds nothing wrong"
    return None


def read(folder: Path) -> str | None:
    """What is wrong with the outputs as they are read."""
    for view in ("final", "latest"):
        try:
            rows = read_output(folder, view)  # type: ignore[arg-type]
        except HoldfastError:
            continue
        except Exception as error:
            return f"read_output {view}: {_last(error)}"
        if view == "final" and rows.num_rows != _rows():
            return f"read_output: silently wrong: {rows.num_rows} rows instead of {_rows()}"
    return None


@cache
def _rows() -> int:
    """Final rows that are in the store."""
    with laid_out(real().files) as folder:
        return int(read_output(folder, "final").num_rows)


def _matters(change: Change) -> bool:
    """Whether a document says something else than it did, or a file has other bytes."""
    for name, data in change.files.items():
        before = real().files[name]
        if name == NAME or data == before:
            continue
        try:
            if json.loads(data) == json.loads(before):
                continue
        except (ValueError, RecursionError):
            pass
        return True
    return False


@contextlib.contextmanager
def laid_out(files: Files) -> Iterator[Path]:
    """The store as a folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-malformed-") as parent:
        folder = Path(parent) / "store"
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield folder


def _last(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    ours = [at for at in frames if "holdfast" in at.filename]
    if ours:
        where += f" in {'/'.join(Path(ours[-1].filename).parts[-2:])}:{ours[-1].lineno}"
    return f"{type(error).__name__}: {str(error)[:160]}{where}"


def wrong(change: Change, folder: Path, turn: int | None) -> str | None:
    """What does not hold under a change; the folder is as it was afterwards. ``turn``: look in one of three ways."""
    told = None
    try:
        for name, data in change.files.items():
            (folder / name).write_bytes(data)
        if turn is None or turn % 3 == 0 or set(change.files) == {NAME}:
            told = said(folder, change)
        if told is None and (turn is None or turn % 3 == 1):
            told = read(folder)
    finally:
        for name in change.files:
            (folder / name).write_bytes(real().files[name])
    if told is None and set(change.files) != {NAME} and (turn is None or turn % 3 == 2):
        told = restarted(change)
    return told


def fuzz(names: list[str], count: int, seed: int, tell: Callable[[str], None], in_turn: bool = False) -> list[str]:
    """Change each of these files in so many ways; what did not hold, with what shows it again.

    ``in_turn``: of the three ways to read a store each change meets one, by its number.
    """
    found: list[str] = []
    with laid_out(real().files) as folder:
        for name in names:
            for number in range(count):
                change = drawn(name, Random(f"{seed} {name} {number}"), real().files)
                if (told := wrong(change, folder, number if in_turn else None)) is not None:
                    found.append(f"{change.told}{' (forged)' if change.forged else ''}: {told} [seed {seed} {number}]")
                    tell(found[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Change every file of a store in many ways.")
    parser.add_argument("--count", type=int, default=1000, help="ways for each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files whose names contain this")
    given = parser.parse_args()
    names = sorted(name for name in real().files if given.only in name)
    began = time.monotonic()
    found = fuzz(names, given.count, given.seed, lambda line: print(line, flush=True))
    total = len(names) * given.count
    print(f"{len(names)} files, {total:,} changes in {time.monotonic() - began:.0f} s: {len(found)} do not hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
