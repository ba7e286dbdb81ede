"""Outputs: each sink task's epoch once, under its own name, as Parquet that any tool reads.

A run may be broken off, so what it made waits under ``output/staged``. Placing gives it its name, after its checksum
was put down (sums.py); from then on it is what everybody reads, for ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid
from holdfast.state import sums
from holdfast.state.entries import Damaged, checksum
from holdfast.state.files import Files
from holdfast.state.names import folder_task, task_folder
from holdfast.state.sums import Key, Sums

Kind = Literal["final", "tentative"]
KINDS: tuple[Kind, ...] = ("final", "tentative")
STAGED = "output/staged"
OWN = ("epoch", "task", "fidelity")
"""Columns that Holdfast adds."""
THREADS_FROM = 1 << 20
"""Bytes from which on several threads read an output."""
T = TypeVar("T")
R = TypeVar("R")
_NAME = re.compile(r"(-?\d+)-(.+-\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """A sink task's rows of an epoch, written but not yet what anybody reads."""

    epoch: int
    task: str
    kind: Kind
    path: str
    bytes: int
    checksum: str
    rows: int
    fidelity: float = 1.0
    """Of a tentative one: what its rows say of themselves."""

    @property
    def target(self) -> str:
        """The name under which everybody will read it."""
        return output_name(self.kind, self.epoch, self.task)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StagedOutput:
        try:
            return cls(**content)
        except TypeError as error:
            raise Invalid(f"staged output: {error}") from error


def folder(kind: Kind) -> str:
    if kind not in KINDS:
        raise Invalid(f"output: kind must be final or tentative, got {kind!r}")
    return f"output/{kind}"


def output_name(kind: Kind, epoch: int, task: str) -> str:
    return f"{folder(kind)}/{epoch:012d}-{task_folder(task)}.parquet"


def stage(
    files: Files, label: str, kind: Kind, epoch: int, task: str, table: pa.Table, fidelity: float, sync: bool
) -> StagedOutput:
    """Write a sink task's rows of an epoch where they wait. ``label``: the writer and the run that made them.

    ``sync``: the bytes outlive a machine's crash; the name need not, until they are placed.
    """
    if not (math.isfinite(fidelity) and 0.0 <= fidelity <= 1.0):
        raise Invalid(f"output of {task}: fidelity must be between 0 and 1, got {fidelity}")
    if clash := [name for name in OWN if name in table.schema.names]:
        raise Invalid(f"output of {task}: column {clash[0]!r} is Holdfast's own, give yours another name")
    own = {"epoch": pa.scalar(epoch, pa.int64()), "task": pa.scalar(str(task), pa.string())}
    if kind == "tentative":
        own["fidelity"] = pa.scalar(fidelity, pa.float64())
    columns = [*(pa.repeat(value, len(table)) for value in own.values()), *table.columns]
    rows = pa.table(columns, names=[*own, *table.schema.names])
    return _stage(files, label, kind, epoch, str(task), rows, fidelity, sync)


def _stage(
    files: Files, label: str, kind: Kind, epoch: int, task: str, rows: pa.Table, fidelity: float, sync: bool
) -> StagedOutput:
    """Write rows with Holdfast's own columns where they wait."""
    name = output_name(kind, epoch, task).rpartition("/")[2]
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    data = sink.getvalue()
    proof = checksum(data)
    # Its content is in its name, so that nobody who was given up and writes late puts other bytes in its place.
    path = f"{STAGED}/{label}-{kind}-{proof}-{name}"
    files.put(path, data, "data" if sync else False)
    return StagedOutput(epoch, task, kind, path, data.size, proof, len(rows), fidelity)


def stamped(
    files: Files, staged: Sequence[StagedOutput], fidelities: Sequence[float], sync: bool
) -> Sequence[StagedOutput]:
    """The same tentative outputs, none of which says that it is worth more than this: such as do are staged anew.

    May be repeated. Damaged, if what was staged is not what was written.
    """

    def stamp(each: tuple[StagedOutput, float]) -> StagedOutput:
        one, fidelity = each
        if fidelity >= one.fidelity:
            return one
        try:
            data = files.map(one.path)
        except FileNotFoundError:
            raise Damaged(f"{one.path} is missing") from None
        if checksum(data) != one.checksum:
            raise Damaged(f"{one.path} is torn or was altered")
        rows = _rows(data)
        column = pa.repeat(pa.scalar(fidelity, pa.float64()), len(rows))
        rows = rows.set_column(rows.schema.get_field_index("fidelity"), "fidelity", column)
        label = "-".join(one.path.rpartition("/")[2].split("-", 2)[:2])
        return _stage(files, label, one.kind, one.epoch, one.task, rows, fidelity, sync)

    return _each(files, stamp, list(zip(staged, fidelities, strict=True)))


def place(files: Files, staged: Sequence[StagedOutput], sync: bool) -> list[bool]:
    """Give staged rows their names; for each whether this call did it (False: it was there before, whole).

    The staged names stay, for whoever has the time to delete them.
    May be repeated after any failure, and says then of what the failed call has placed that it was there: whoever must
    hear of every output asks the cursor. ``sync``: done is durable, also what was there before.
    """
    first: dict[str, StagedOutput] = {}
    for one in staged:
        first.setdefault(one.target, one)
    known = Sums(files)
    there = dict(zip(first, _each(files, lambda one: _there(files, one, known), list(first.values())), strict=True))
    proofs: dict[tuple[Kind, int], dict[str, str]] = {}
    for target, one in first.items():
        proofs.setdefault((one.kind, one.epoch), {})[one.task] = there[target] or one.checksum

    def name(each: tuple[StagedOutput, bool]) -> bool:
        one, durable = each
        if there[one.target] is None:
            return _name(files, one, durable, known)
        if durable:
            files.delete(one.path)
            files.move(one.path, one.target, durable)
        return False

    # The checksums first: an output that has its name and none could not be told from one that a crash has damaged.
    for (kind, epoch), last in _last_of_each_kind(proofs, [kind for kind, _ in proofs]):
        sums.put_down(files, kind, epoch, proofs[kind, epoch], sync and (last or "data"))
    ordered = [
        (one, sync and last) for one, last in _last_of_each_kind(first.values(), [one.kind for one in first.values()])
    ]
    new = dict(zip(first, _each(files, name, ordered), strict=True))
    return [new[one.target] and one is first[one.target] for one in staged]


def confirm(files: Files, kind: Kind) -> None:
    """The outputs of a kind that have their names, and what was put down for them, are durable from now on."""
    for folder_ in (sums.folder(kind), folder(kind)):
        if there := files.list(folder_):
            files.move(f"{STAGED}/{there[-1]}", f"{folder_}/{there[-1]}", True)  # nothing of that name is ever staged


def _name(files: Files, one: StagedOutput, durable: bool, known: Sums) -> bool:
    """Give what is staged its name; False if somebody else just has given it to something whole."""
    try:
        if files.link(one.path, one.target, durable, one.bytes):
            return True
    except FileNotFoundError:
        if _there(files, one, known) is not None:
            raise  # whoever took over has deleted ours and placed its own
        raise Damaged(f"{one.path} is missing or cut, and {one.target} is not whole either") from None
    if _there(files, one, known) is None:
        files.move(one.path, one.target, durable)
        return True
    return False


def _each(files: Files, act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """All of these in their order, or as many at once as the place takes."""
    if files.at_once == 1 or len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(files.at_once, len(items))) as pool:
        return list(pool.map(act, items))


def clear_staged(files: Files, keep: Callable[[str], bool] = lambda _: False) -> int:
    """Delete what was staged and never placed, but for paths to ``keep``; how many files went."""
    gone = [path for name in files.list(STAGED) if not keep(path := f"{STAGED}/{name}")]
    if gone:
        files.delete_many(gone)
    return len(gone)


def staged_by(path: str) -> int:
    """The token of the writer whose run staged a file; 0 where its name does not say."""
    token = path.rpartition("/")[2].partition("-")[0]
    return int(token) if token.isdecimal() else 0


def forget(files: Files, kind: Kind, until: int) -> int:
    """Delete the outputs of a kind up to this epoch, with their checksums; how many."""
    proofs = [f"{sums.folder(kind)}/{name}" for _, name in sums.names(files, kind, last=until)]
    gone = [path for (epoch, _), path in written(files, kind).items() if epoch <= until]
    # The outputs first: one without its checksum could not be told from one that was damaged.
    for some in (gone, proofs):
        if some:
            files.delete_many(some)
    return len(gone)


def checked(
    files: Files, kind: Kind, asked: Iterable[Key], known: Sums
) -> tuple[dict[Key, tuple[str, str]], list[Key]]:
    """Of these outputs, which are there, those that are not whole, with the file and what is wrong, and those that are.

    Those without a checksum, from before there were any, are whole if they can be read.
    """

    keys = list(asked)
    told = dict(zip(keys, _each(files, lambda key: _wrong_with(files, kind, key, known), keys), strict=True))
    wrong = {key: (output_name(kind, *key), what) for key, what in told.items() if what is not None}
    return wrong, [key for key in keys if key not in wrong]


def _wrong_with(files: Files, kind: Kind, key: Key, known: Sums) -> str | None:
    return problem(files.read(output_name(kind, *key)), kind, *key, known)


def read(files: Files, kind: Kind, epoch: int, task: str, known: Sums | None = None) -> pa.Table:
    """The rows of an output, with Holdfast's own columns; Damaged, naming the file, if it is not whole.

    ``known``: for who reads several, so that what proves them is read once.
    """
    path = output_name(kind, epoch, task)
    try:
        data = files.map(path)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    if (wrong := problem(data, kind, epoch, task, known or Sums(files))) is not None:
        raise Damaged(f"{path} {wrong}")
    try:
        return _rows(data)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def written(files: Files, kind: Kind) -> dict[Key, str]:
    """The output files of a kind by epoch and task, in that order."""
    names = ((_NAME.fullmatch(name), name) for name in files.list(folder(kind)))
    found = {(int(match[1]), folder_task(match[2])): f"{folder(kind)}/{name}" for match, name in names if match}
    return dict(sorted(found.items()))


def problem(data: pa.Buffer, kind: Kind, epoch: int, task: str, known: Sums) -> str | None:
    """What is wrong with the bytes of an output; None if nothing is."""
    proof = checksum(data)
    if known.prove(kind, epoch, task, proof):
        return None
    if (proofs := known.of(kind, epoch, task)) is not None:
        told = "is torn or was altered: its checksum is not the one that was put down"
        return None if proof in proofs else told
    return unreadable(data)


def unreadable(data: pa.Buffer) -> str | None:
    """Why the bytes of an output cannot be read; None if they can."""
    try:
        _rows(data)
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {error}"
    return None


def _rows(data: pa.Buffer) -> pa.Table:
    """What a Parquet file says. As one file, not as a dataset, and a small one without threads: a tenth of the time."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        return file.read(use_threads=data.size > THREADS_FROM)


def _there(files: Files, one: StagedOutput, known: Sums) -> str | None:
    """The checksum of what has the target's name already; None if nothing has, or nothing whole."""
    try:
        if files.size(one.target) == 0:
            return None
        data = files.map(one.target)
    except FileNotFoundError:
        return None
    proof = checksum(data)
    return proof if proof == one.checksum or problem(data, one.kind, one.epoch, one.task, known) is None else None


def _last_of_each_kind(each: Iterable[T], kinds: Sequence[Kind]) -> Iterator[tuple[T, bool]]:
    """Each of these, and whether it is the last of its kind: syncing its name makes all names in its folder durable."""
    last = {kind: number for number, kind in enumerate(kinds)}
    for number, one in enumerate(each):
        yield one, number == last[kinds[number]]
