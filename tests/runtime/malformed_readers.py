"""A real small store, and everything that reads one: a restart of the job, commands, ``read_output``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import typer
from malformed_changes import Change, Files
from malformed_sharing import Changed

from holdfast.cli import app as cli
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
from holdfast.state import journal, output, pages

EPOCHS, DIES_AT = 11, 9
"""A restart has four epochs to replay, and one to go on with."""
Rows = dict[tuple[int, str], Counter[Any]]
TIMING = Timing(interval=0.25)
MEMORY = "/dev/shm"


class Dies(BaseException):
    """The driver of the store that is looked at ends here."""


@dataclass(frozen=True)
class Real:
    """A store as a driver that died has left it with the source's log, and what must come out in the end."""

    files: Files
    log: Files
    committed: int
    lives: int
    now: float
    expected: Rows


def case(faults: str = "", scaled: bool = False, chance: int = 0) -> Case:
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
        seed=chance,
    )
    return Case(schedule, pipeline, cut_batches(drawn_batches(pipeline, EPOCHS, 7 + chance)))


@cache
def real() -> Real:
    """The store, made once."""
    return _left_by(0)


@cache
def another() -> Files:
    """Another store of the same pipeline, whose driver died at the same epoch, with other rows."""
    return _left_by(2).files


def _left_by(chance: int) -> Real:
    given = case("kill node-1 at epoch 7; join node-1 after 1s", scaled=True, chance=chance)
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
    files, log = _below(f"{STORE}/", simulation.disk), _below("", simulation.source_log.disk)
    expected: Rows = {}
    for (epoch, task), rows in given.expected().items():
        expected.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(rows))
    return Real({**files, NAME: history}, log, simulation.committed, simulation.lives, simulation.world.now, expected)


def _below(prefix: str, disk: Disk) -> Files:
    there = {path: disk.get(path) for path in disk.paths() if path.startswith(prefix)}
    return {path.removeprefix(prefix): held.data for path, held in there.items() if held is not None}


@dataclass(frozen=True)
class End:
    """What came of reading a changed store. ``told``: what is wrong with it, if anything is."""

    how: Literal["refused", "right answer", "harmless"]
    told: str | None = None


Hear = Callable[[Disk | None], AbstractContextManager[Any]]
"""Within it is heard what is asked of the store; on which disk, if it is a simulated one."""


def deaf(_: Disk | None) -> AbstractContextManager[Any]:
    return contextlib.nullcontext()


@cache
def _without_faults() -> Case:
    return case()


def restarted(change: Change, hear: Hear = deaf, files: Files | None = None) -> End:
    """A driver goes on from the changed store. ``files``: what was there before the change, if not the real store."""
    given, found = _without_faults(), real()
    simulation = Simulation(given.schedule, given.pipeline, list(given.batches))
    simulation.disk = Disk(lambda: simulation.world.now)
    for name, data in (found.files if files is None else files).items():
        if name != NAME:
            there = Changed.of(name, change.files[name]) if name in change.files else data
            simulation.disk.put(f"{STORE}/{name}", there, True)
    for path, data in found.log.items():
        simulation.source_log.disk.put(path, data, True)
    simulation.committed, simulation.lives = found.committed, found.lives + 1
    simulation.world.now = found.now + 60.0
    with hear(simulation.disk):
        return _gone_on(simulation, change)


def _gone_on(simulation: Simulation, change: Change) -> End:
    try:
        simulation.run()
    except JobRefused as refused:
        ours = isinstance(refused.error, HoldfastError)
        return End("refused", None if ours else f"restart: {_last(refused.error)}")
    except HoldfastError as error:
        return End("harmless", f"restart: not refused, but broke: {_last(error)}")
    except Unfinished as error:
        return End("harmless", None if change.forged else f"restart: does not end: {str(error)[:200]}")
    except Exception as error:
        return End("harmless", f"restart: {_last(error)}")
    outside = [path for path in simulation.disk.paths() if not path.startswith((f"{STORE}/", "node-"))]
    if outside:
        return End("harmless", f"restart: wrote {outside[0]}")
    said, unread = _finally(simulation)
    expected = real().expected
    for place in {*said, *expected} - unread:
        if said.get(place, Counter()) != expected.get(place, Counter()):
            told = f"restart: silently wrong: {place[1]} in epoch {place[0]}"
            return End("harmless", None if change.forged else told)
    return End("refused" if unread else "right answer")


def _finally(simulation: Simulation) -> tuple[Rows, set[tuple[int, str]]]:
    """The final rows that are in the store in the end, and of which epochs some are refused."""
    files = simulation.disk.files(ONLOOKER, STORE)
    said: Rows = {}
    unread: set[tuple[int, str]] = set()
    for epoch, task in output.written(files, "final"):
        try:
            rows = output.read(files, "final", epoch, task)
        except HoldfastError:
            unread.add((epoch, operator_of(task)))
            continue
        plain = rows.drop_columns([each for each in output.OWN if each in rows.column_names])
        said.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(plain))
    return said, unread


def said(folder: Path, change: Change, hear: Hear = deaf) -> End:
    """What commands say."""
    # One file at a time: how many are read at once changes nothing but the time, and a run must be the same again.
    commands = [["store", "check", str(folder), "--jobs", "1"], ["store", str(folder)], ["state", str(folder)]]
    if any(name == NAME for name in change.files):
        commands = [["history", str(folder)], ["history", str(folder), "--events"]]
        commands += [["report", str(folder), "--out", str(folder.parent / "page.html")]]
    refused = False
    with hear(None):
        for words in commands:
            code, broke = _command(words)
            if broke is not None:
                return End("harmless", f"{' '.join(words[:2])}: {broke}")
            if "check" in words and not code and not change.forged and matters(change):
                return End("harmless", "check: finds nothing wrong")
            refused = refused or code != 0
    return End("refused" if refused else "harmless")


def _command(words: list[str]) -> tuple[int, str | None]:
    """The exit code of a command, and with what it broke if it did."""
    # As pipes are: what cannot be written as UTF-8 is an error on stdout, and is escaped on stderr.
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    told = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(told),
        mock.patch.object(sys, "argv", ["holdfast", *words]),
        mock.patch.object(cli, "app", _commands()),
        mock.patch.object(cli, "loaded", _loaded),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception as error:
            return 1, _last(error)
        out.flush()
    told.flush()
    lines = told.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    if code and not out.buffer.tell() and (len(lines) != 1 or not lines[0].startswith("holdfast: ")):
        return code, f"refuses in {len(lines)} lines: {' '.join(lines)[:160]}"
    return code, None


@cache
def _commands() -> Any:
    """The application's commands, put together once."""
    return typer.main.get_command(cli.app)


_loaded = cache(cli.loaded)


def read(folder: Path, hear: Hear = deaf) -> End:
    """The outputs as they are read."""
    refused = False
    with hear(None):
        for view in ("final", "latest"):
            try:
                rows = read_output(folder, view)  # type: ignore[arg-type]
            except HoldfastError:
                refused = True
                continue
            except Exception as error:
                return End("harmless", f"read_output {view}: {_last(error)}")
            if view == "final" and rows.num_rows != _rows():
                return End("harmless", f"read_output: silently wrong: {rows.num_rows} rows instead of {_rows()}")
    return End("refused" if refused else "right answer")


@cache
def _rows() -> int:
    """Final rows that are in the store."""
    with laid_out(real().files) as folder:
        return int(read_output(folder, "final").num_rows)


def matters(change: Change) -> bool:
    """Whether a document says something else than it did, or a file that counts has other bytes."""
    for name, data in change.files.items():
        before = real().files[name]
        if name == NAME or name in _left_over() or data == before:
            continue
        try:
            if json.loads(data) == json.loads(before):
                continue
        except (ValueError, RecursionError):
            pass
        return True
    return False


@cache
def _left_over() -> frozenset[str]:
    """Pieces of the journal that no commit names: a run that broke has left them, and nobody reads them."""
    files = real().files
    commits = b"".join(data for name, data in files.items() if name.startswith(journal.COMMITS))
    pieces = {name for name in files if name.startswith(f"{journal.FOLDER}/") and name.endswith(".arrow")}
    return frozenset(name for name in pieces if name.encode() not in commits)


@contextlib.contextmanager
def laid_out(files: Files) -> Iterator[Path]:
    """The store as a folder, in memory where that is possible: files are written over a hundred thousand times."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-malformed-", dir=place) as parent:
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
