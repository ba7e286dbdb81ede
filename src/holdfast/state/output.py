"""Outputs: each sink task's epoch once, under its own name, as Parquet that any tool reads.

A run may be broken off, so what it made waits under ``output/staged``. Placing gives it its name, after its checksum
was put down; from then on it is what everybody reads, for ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid
from holdfast.state.entries import Damaged, checksum
from holdfast.state.files import Files
from holdfast.state.names import folder_task, task_folder

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

    @property
    def target(self) -> str:
        """The name under which everybody will read it."""
        return output_name(self.kind, self.epoch, self.task)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

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


def sums_folder(kind: Kind) -> str:
    """Where empty files have the checksums of outputs in their names."""
    return f"output/sums/{kind}"


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
    name = output_name(kind, epoch, task).rpartition("/")[2]
    own = {"epoch": pa.scalar(epoch, pa.int64()), "task": pa.scalar(str(task), pa.string())}
    if kind == "tentative":
        own["fidelity"] = pa.scalar(fidelity, pa.float64())
    columns = [*(pa.repeat(value, len(table)) for value in own.values()), *table.columns]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, names=[*own, *table.schema.names]), sink)
    data = sink.getvalue()
    proof, exact = checksum(data), 1.0 if kind == "final" else fidelity
    # Its content is in its name, so that nobody who was given up and writes late puts other bytes in its place.
    path = f"{STAGED}/{label}-{kind}-{proof}-{name}"
    files.put(path, data, "data" if sync else False)
    return StagedOutput(epoch, str(task), kind, path, data.size, proof, len(table), exact)


def place(files: Files, staged: Sequence[StagedOutput], sync: bool) -> list[bool]:
    """Give staged rows their names; for each whether this call did it (False: it was there before, whole).

    The staged names stay, for whoever has the time to delete them.
    May be repeated after any failure, and says then of what the failed call has placed that it was there: whoever must
    hear of every output asks the cursor. ``sync``: done is durable, also what was there before.
    """
    first: dict[str, StagedOutput] = {}
    for one in staged:
        first.setdefault(one.target, one)
    there = dict(zip(first, _each(files, lambda one: _there(files, one), list(first.values())), strict=True))
    ordered = list(_last_of_each_kind(list(first.values()), sync))

    def prove(each: tuple[StagedOutput, bool]) -> None:
        one, durable = each
        files.put(_sum_name(one.kind, one.target, there[one.target] or one.checksum), b"", durable)

    def name(each: tuple[StagedOutput, bool]) -> bool:
        one, durable = each
        if there[one.target] is None:
            return _name(files, one, durable)
        if durable:
            files.delete(one.path)
            files.move(one.path, one.target, durable)
        return False

    # The checksums first: an output that has its name and none could not be told from one that a crash has damaged.
    _each(files, prove, ordered)
    new = dict(zip(first, _each(files, name, ordered), strict=True))
    return [new[one.target] and one is first[one.target] for one in staged]


def confirm(files: Files, kind: Kind, epoch: int, task: str) -> None:
    """This output, which is there and whole, and all others of its kind that have their names: durable from now on."""
    path = output_name(kind, epoch, task)
    files.put(_sum_name(kind, path, checksum(files.map(path))), b"", True)
    files.move(f"{STAGED}/{path.rpartition('/')[2]}", path, True)  # nothing of that name is ever staged


def _name(files: Files, one: StagedOutput, durable: bool) -> bool:
    """Give what is staged its name; False if somebody else just has given it to something whole."""
    try:
        if files.link(one.path, one.target, durable, one.bytes):
            return True
    except FileNotFoundError:
        if _there(files, one) is not None:
            raise  # whoever took over has deleted ours and placed its own
        raise Damaged(f"{one.path} is missing or cut, and {one.target} is not whole either") from None
    if _there(files, one) is None:
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
    proofs = sums(files, kind)
    gone = [path for (epoch, _), path in written(files, kind).items() if epoch <= until]
    # The outputs first: one without its checksum could not be told from one that was damaged.
    for some in (gone, [_sum_name(kind, path, proof) for path in gone for proof in proofs.get(path, ())]):
        if some:
            files.delete_many(some)
    return len(gone)


def checked(
    files: Files, kind: Kind, concerned: Callable[[int, str], bool]
) -> tuple[dict[tuple[int, str], tuple[str, str]], list[tuple[int, str]]]:
    """Outputs of a kind that are not whole, by epoch and task: the file and what is wrong with it; and those that are.

    ``concerned``: of which epochs and tasks; others are not read. Those without a checksum, from before there were any,
    are whole if they can be read.
    """
    proofs = sums(files, kind)
    asked = [(facts, path) for facts, path in written(files, kind).items() if concerned(*facts)]
    told = _each(files, lambda each: problem(files.read(each[1]), proofs.get(each[1])), asked)
    wrong = {facts: (path, what) for (facts, path), what in zip(asked, told, strict=True) if what is not None}
    return wrong, [facts for facts, _ in asked if facts not in wrong]


def lost(files: Files, kind: Kind, concerned: Callable[[int, str], bool]) -> dict[tuple[int, str], tuple[str, str]]:
    """Outputs of a kind of which nothing but the checksum is there: they were lost, or never placed."""
    there = written(files, kind)
    only = {facts: path for facts, path in _by_facts(sums(files, kind)).items() if facts not in there}
    return {facts: (path, "is missing") for facts, path in only.items() if concerned(*facts)}


def read(files: Files, kind: Kind, epoch: int, task: str) -> pa.Table:
    """The rows of an output, with Holdfast's own columns; Damaged, naming the file, if it is not whole."""
    path = output_name(kind, epoch, task)
    try:
        data = files.map(path)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    # Its own checksum by name: a listing of all of them only where that one is not there.
    if not _is_proved(files, kind, path, checksum(data)) and (wrong := problem(data, sums(files, kind).get(path))):
        raise Damaged(f"{path} {wrong}")
    try:
        return _rows(data)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def written(files: Files, kind: Kind) -> dict[tuple[int, str], str]:
    """The output files of a kind by epoch and task, in that order."""
    return dict(sorted(_by_facts(f"{folder(kind)}/{name}" for name in files.list(folder(kind))).items()))


def _by_facts(paths: Iterable[str]) -> dict[tuple[int, str], str]:
    """Paths of outputs by the epoch and task in their names; others are none."""
    found = ((_NAME.fullmatch(path.rpartition("/")[2]), path) for path in paths)
    return {(int(match[1]), folder_task(match[2])): path for match, path in found if match}


def sums(files: Files, kind: Kind) -> dict[str, set[str]]:
    """For each output of a kind the checksums put down; several, if what was staged first was never placed."""
    proofs: dict[str, set[str]] = {}
    for name in files.list(sums_folder(kind)):
        label, _, proof = name.rpartition("-")
        proofs.setdefault(f"{folder(kind)}/{label}.parquet", set()).add(proof)
    return proofs


def problem(data: pa.Buffer, proofs: set[str] | None) -> str | None:
    """What is wrong with the bytes of an output; None if nothing is."""
    if proofs is not None and checksum(data) not in proofs:
        return "is torn or was altered: its checksum is not the one that was put down"
    if proofs is not None:
        return None
    try:
        _rows(data)
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {error}"
    return None


def _rows(data: pa.Buffer) -> pa.Table:
    """What a Parquet file says. As one file, not as a dataset, and a small one without threads: a tenth of the time."""
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        return file.read(use_threads=data.size > THREADS_FROM)


def _there(files: Files, one: StagedOutput) -> str | None:
    """The checksum of what has the target's name already; None if nothing has, or nothing whole."""
    try:
        if files.size(one.target) == 0:
            return None
        data = files.map(one.target)
    except FileNotFoundError:
        return None
    proof = checksum(data)
    if proof == one.checksum or _is_proved(files, one.kind, one.target, proof):
        return proof
    return proof if problem(data, sums(files, one.kind).get(one.target)) is None else None


def _last_of_each_kind(staged: Sequence[StagedOutput], sync: bool) -> Iterator[tuple[StagedOutput, bool]]:
    """Each output, and whether its name is to be synced: the last in a folder makes all names there durable."""
    last = {one.kind: number for number, one in enumerate(staged)}
    for number, one in enumerate(staged):
        yield one, sync and number == last[one.kind]


def _is_proved(files: Files, kind: Kind, path: str, proof: str) -> bool:
    try:
        files.size(_sum_name(kind, path, proof))
    except FileNotFoundError:
        return False
    return True


def _sum_name(kind: Kind, path: str, proof: str) -> str:
    return f"{sums_folder(kind)}/{path.rpartition('/')[2].removesuffix('.parquet')}-{proof}"
