"""Outputs: staged, placed once with their checksums, checked when read; whatever fails in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from crashing import Refusing, cut_everywhere

from holdfast.errors import Invalid
from holdfast.state import Damaged, Store, Unusable
from holdfast.state import remote as remote_module
from holdfast.state.entries import document
from holdfast.state.files import Files, LocalFiles, open_files
from holdfast.state.names import task_folder
from holdfast.state.output import (
    STAGED,
    Kind,
    StagedOutput,
    checked,
    clear_staged,
    forget,
    output_name,
    place,
    read,
    stage,
    stamped,
    written,
)
from holdfast.state.remote import RemoteFiles
from holdfast.state.sums import Sums
from holdfast.state.verify import verify

_unique = itertools.count()


def drop_damaged(files: Files, after: int) -> list[str]:
    """As a launch does with those that replay makes again."""
    asked = [key for key in written(files, "final") if key[0] > after]
    wrong = [name for name, _ in checked(files, "final", asked, Sums(files))[0].values()]
    files.delete_many(wrong)
    return wrong


def before_documents(files: Files) -> None:
    """Checksums as they were before: each the name of an empty file."""
    for (epoch, task), proofs in Sums(files).list("final").items():
        for proof in proofs:
            files.put(f"output/sums/final/{epoch:012d}-{task_folder(task)}-{proof}", b"", False)
    files.delete_many([f"output/sums/final/{name}" for name in files.list("output/sums/final") if "json" in name])


ROWS = pa.table({"page": ["a", "b"], "visits": [3, 4]})


@pytest.fixture(params=["local", "memory", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "s3":
        return open_files(request.getfixturevalue("s3_url"))
    return open_files(tmp_path / "store" if request.param == "local" else f"memory://outputs-{next(_unique)}")


def staged(files: Files, kind: Kind, epoch: int, task: str, *values: int, label: str = "1-7") -> StagedOutput:
    return stage(files, label, kind, epoch, task, pa.table({"n": values}), 0.5, True)


def values(files: Files, kind: Kind, epoch: int, task: str) -> list[int]:
    table = read(files, kind, epoch, task)
    assert table["epoch"].to_pylist() == [epoch] * len(table) and table["task"].to_pylist() == [task] * len(table)
    return list(table["n"].to_pylist())


def test_outputs_are_placed_once_and_any_tool_reads_them(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    first = stage(files, "1-7", "final", 4, "O5/0", ROWS, 1.0, True)
    assert StagedOutput.from_json(asdict(first)) == first
    assert first.rows == 2
    assert first.path == f"output/staged/1-7-final-{first.checksum}-000000000004-O5-0.parquet"
    tentative = stage(files, "1-7", "tentative", 4, "O5/0", ROWS, 0.5, True)
    assert not (tmp_path / "output/final").exists()
    assert place(files, [first, tentative], True) == [True, True]
    again = stage(files, "1-8", "final", 4, "O5/0", ROWS.slice(0, 1), 1.0, True)
    empty = stage(files, "1-8", "final", 5, "O5/0", ROWS.slice(0, 0), 1.0, True)
    assert place(files, [again, empty], True) == [False, True]
    table = ds.dataset(tmp_path / "output/final").to_table()
    assert table.to_pylist() == [
        {"epoch": 4, "task": "O5/0", "page": "a", "visits": 3},
        {"epoch": 4, "task": "O5/0", "page": "b", "visits": 4},
    ]
    assert ds.dataset(tmp_path / "output/tentative").to_table()["fidelity"].to_pylist() == [0.5, 0.5]
    assert list(written(files, "final")) == [(4, "O5/0"), (5, "O5/0")]
    told = json.loads((tmp_path / "output/sums/final/000000000004-0.json").read_bytes())
    assert (told["kind"], told["epoch"], told["sums"]) == ("final", 4, {"O5/0": first.checksum})


def test_of_two_for_one_name_in_one_call_the_first_counts(files: Files) -> None:
    both = [staged(files, "final", 1, "O/0", 1), staged(files, "final", 1, "O/0", 2, label="1-8")]
    assert place(files, both, True) == [True, False]
    assert values(files, "final", 1, "O/0") == [1]


def test_what_is_not_whole_is_replaced_and_what_is_stays(files: Files) -> None:
    place(files, [staged(files, "final", 1, f"O/{i}", i) for i in range(4)], True)
    whole = files.read(output_name("final", 1, "O/1")).to_pybytes()
    files.put(output_name("final", 1, "O/0"), b"", False)
    files.put(output_name("final", 1, "O/1"), whole[:-20], False)
    # Readable, and yet not what was put down: another task's file under this name.
    files.put(output_name("final", 1, "O/2"), whole, False)
    repeat = [staged(files, "final", 1, f"O/{i}", i, i) for i in range(4)]
    assert place(files, repeat, True) == [True, True, True, False]
    assert [values(files, "final", 1, f"O/{i}") for i in range(4)] == [[0, 0], [1, 1], [2, 2], [3]]
    for one in repeat[:3]:
        assert one.checksum in Sums(files).list("final")[one.epoch, one.task]


def test_a_staged_file_that_is_gone_or_cut_is_told_unless_the_output_is_there(files: Files) -> None:
    gone, cut = staged(files, "final", 1, "O/0", 1), staged(files, "final", 1, "O/1", 1)
    files.delete(gone.path)
    files.put(cut.path, files.read(cut.path).to_pybytes()[:-1], False)
    for one in (gone, cut):
        with pytest.raises(Damaged, match=f"{one.path} is missing or cut, and {one.target} is not whole either"):
            place(files, [one], True)
    assert written(files, "final") == {}
    place(files, [staged(files, "final", 1, "O/0", 1)], True)
    assert place(files, [gone], True) == [False]


def test_what_a_reader_is_told_of_a_damaged_output(files: Files) -> None:
    place(files, [staged(files, "final", 1, "O/0", 5), staged(files, "tentative", 1, "O/0", 6)], True)
    assert read(files, "tentative", 1, "O/0")["fidelity"].to_pylist() == [0.5]
    name = output_name("final", 1, "O/0")
    whole = files.read(name).to_pybytes()
    for data in (b"", whole[:-9], whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]):
        files.put(name, data, False)
        with pytest.raises(Damaged, match=f"{name} is torn or was altered"):
            read(files, "final", 1, "O/0")
    with pytest.raises(Damaged, match=r"output/final/000000000002-O-0.parquet is missing"):
        read(files, "final", 2, "O/0")


def test_outputs_from_before_there_were_checksums_are_judged_by_reading_them(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer("job").close()
    files = store.files
    for epoch in (1, 2):
        place(files, [staged(files, "final", epoch, "O/0", epoch)], True)
    files.delete_tree("output/sums")
    assert verify(store).whole and values(files, "final", 1, "O/0") == [1]
    assert place(files, [staged(files, "final", 1, "O/0", 7)], True) == [False]
    path = tmp_path / output_name("final", 2, "O/0")
    path.write_bytes(path.read_bytes()[:-20])
    assert [one.path for one in verify(store).findings] == ["output/final/000000000002-O-0.parquet"]
    with pytest.raises(Damaged, match=r"000000000002-O-0.parquet cannot be read"):
        read(files, "final", 2, "O/0")
    assert drop_damaged(files, 0) == ["output/final/000000000002-O-0.parquet"]


def test_outputs_whose_checksums_are_empty_files_are_proven_by_them(files: Files) -> None:
    """As they were put down before there were documents; and beside what is placed from now on."""
    store = Store(files)
    store.writer("job").close()
    given = [staged(files, "final", 1, f"O/{i}", i) for i in range(5)]
    place(files, given, True)
    before_documents(files)
    assert not any(name.endswith(".json") for name in files.list("output/sums/final"))
    assert verify(store).whole and values(files, "final", 1, "O/0") == [0]
    files.delete(given[3].target)
    for number, data in ((1, files.read(given[1].target).to_pybytes()[:-20]), (2, files.read(given[0].target))):
        files.put(given[number].target, data, False)
        with pytest.raises(Damaged, match=f"{given[number].target} is torn or was altered"):
            read(files, "final", 1, f"O/{number}")
    assert [(one.path, one.problem.split(" ", 1)[1][:10]) for one in verify(store).findings] == [
        (given[3].target, "is missing"), (given[1].target, "is torn or"), (given[2].target, "is torn or"),
    ]  # fmt: skip
    repeat = [staged(files, "final", 1, f"O/{i}", i, i) for i in range(5)]
    assert place(files, repeat, True) == [False, True, True, True, False]
    assert verify(store).whole and [values(files, "final", 1, f"O/{i}") for i in (0, 1, 4)] == [[0], [1, 1], [4]]
    assert forget(files, "final", 1) == 5
    assert files.list("output/sums/final") == [] and written(files, "final") == {}


def test_each_epoch_placed_at_once_has_one_document_and_parts_of_it_one_each(files: Files) -> None:
    first = [staged(files, "final", epoch, f"O/{i}", i) for epoch in (1, 2) for i in range(3)]
    for _ in range(2):  # again, after a failure that came late: nothing new
        place(files, first, True)
        assert files.list("output/sums/final") == ["000000000001-0.json", "000000000002-0.json"]
    place(files, [staged(files, "final", 2, "O/3", 3)], True)
    assert files.list("output/sums/final")[1:] == ["000000000002-0.json", "000000000002-1.json"]
    known = Sums(files)
    assert [values(files, "final", 2, f"O/{i}") for i in range(4)] == [[i] for i in range(4)]
    assert known.prove("final", 2, "O/3", staged(files, "final", 2, "O/3", 3).checksum)
    assert {task for epoch, task in known.list("final", 2) if epoch == 2} == {f"O/{i}" for i in range(4)}


def test_a_document_of_checksums_that_is_damaged_is_named_and_proves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer("job").close()
    files = store.files
    place(files, [staged(files, "final", epoch, "O/0", epoch) for epoch in (1, 2)], True)
    name, other = (f"output/sums/final/00000000000{epoch}-0.json" for epoch in (1, 2))
    whole = (tmp_path / name).read_bytes()
    for data, words in (
        (whole[:-9], f"{name} is torn or was altered"),
        ((tmp_path / other).read_bytes(), f"{name} is of final outputs of epoch 2: files were swapped"),
        (
            document(files, "sums", {"kind": "final", "epoch": 1, "sums": {"..": "0"}}),
            f"{name} has a checksum of what is no",
        ),
    ):
        files.put(name, data, False)
        (found,) = [one for one in verify(store).findings if one.path == name]
        assert found.problem.startswith(words)
        known = Sums(files)
        assert values(files, "final", 1, "O/0") == [1], "it can be read, as if there had never been a checksum"
        assert not known.list("final", 1, 1) and known.damaged[name].startswith(words)
    path = tmp_path / output_name("final", 1, "O/0")
    path.write_bytes(path.read_bytes()[:-20])
    assert drop_damaged(files, 0) == [output_name("final", 1, "O/0")]


def test_damaged_finals_after_the_checkpoint_are_dropped_so_that_replay_makes_them_again(files: Files) -> None:
    place(files, [staged(files, "final", epoch, "O/0", epoch) for epoch in range(1, 6)], True)
    names = [output_name("final", epoch, "O/0") for epoch in range(1, 6)]
    files.put(names[1], b"", False)
    files.put(names[3], b"", False)
    files.put(names[4], files.read(names[0]), False)
    assert drop_damaged(files, 3) == names[3:]
    assert list(written(files, "final")) == [(1, "O/0"), (2, "O/0"), (3, "O/0")]
    assert drop_damaged(files, 3) == []
    assert place(files, [staged(files, "final", 4, "O/0", 4)], True) == [True]
    assert values(files, "final", 4, "O/0") == [4]


def test_what_nobody_placed_is_cleared_but_for_what_is_kept(files: Files) -> None:
    kept = [staged(files, "final", 1, f"O/{i}", i, label=f"1-{i}") for i in range(3)]
    assert clear_staged(files, lambda path: path == kept[1].path) == 2
    assert files.list(STAGED) == [kept[1].path.rpartition("/")[2]]
    assert clear_staged(files) == 1 and clear_staged(files) == 0


def test_what_does_not_fit_is_refused(files: Files) -> None:
    for bad, words in (
        ({"fidelity": 1.5}, "fidelity must be between 0 and 1, got 1.5"),
        ({"fidelity": float("nan")}, "fidelity must be between 0 and 1, got nan"),
        ({"table": pa.table({"task": ["x"]})}, "output of O5/0: column 'task' is Holdfast's own"),
        ({"table": pa.table({"fidelity": ["x"]})}, "column 'fidelity' is Holdfast's own"),
        ({"task": "O5"}, "expected operator/number, such as O3/0"),
        ({"kind": "guess"}, "kind must be final or tentative, got 'guess'"),
    ):
        given = {"kind": "final", "epoch": 9, "task": "O5/0", "table": ROWS, "fidelity": 1.0} | bad
        with pytest.raises(Invalid, match=words):
            stage(files, "1-7", sync=True, **given)  # type: ignore[arg-type]
    assert files.list(STAGED) == []


def _before(root: Path) -> Files:
    """One output there and whole, one there and damaged."""
    files = LocalFiles(root)
    place(files, [staged(files, "final", 1, "O/0", 1), staged(files, "final", 1, "O/1", 1)], True)
    files.put(output_name("final", 1, "O/1"), b"", False)
    return files


def _four(files: Files) -> list[StagedOutput]:
    """One in place of a damaged one, two that are new, and last one that is there already."""
    return [
        staged(files, "final", 1, "O/1", 2),
        staged(files, "tentative", 2, "O/0", 3),
        staged(files, "final", 2, "O/0", 4),
        staged(files, "final", 1, "O/0", 9, 9),
    ]


def _all_there(files: Files) -> bool:
    expected: Sequence[tuple[Kind, int, str, list[int]]] = [
        ("final", 1, "O/0", [1]),
        ("final", 1, "O/1", [2]),
        ("tentative", 2, "O/0", [3]),
        ("final", 2, "O/0", [4]),
    ]
    return all(values(files, kind, epoch, task) == rows for kind, epoch, task, rows in expected)


def test_placing_cut_anywhere_is_finished_by_repeating_it(tmp_path: Path) -> None:
    given = _four(_before(tmp_path / "before"))
    for cut in cut_everywhere(
        tmp_path / "before", lambda root: place(LocalFiles(root), given, True) and None, tmp_path
    ):
        files = LocalFiles(cut.root)
        if not cut.finished:
            place(files, given, True)
        assert _all_there(files)
        assert place(files, given, True) == [False] * 4


def test_after_a_loss_of_power_outputs_are_whole_or_made_again_and_placed_ones_are_there(tmp_path: Path) -> None:
    _before(tmp_path / "before")

    def act(root: Path) -> None:
        files = LocalFiles(root)
        place(files, _four(files), True)

    right = {(1, "O/0"): [1], (1, "O/1"): [2], (2, "O/0"): [4]}
    cuts = dropped = 0
    for cut in cut_everywhere(tmp_path / "before", act, tmp_path):
        cuts += 1
        for root in cut.lost:
            files = LocalFiles(root)
            if cut.finished:
                assert _all_there(files)
                assert drop_damaged(files, 0) == []
                continue
            dropped += len(drop_damaged(files, 0))
            for epoch, task in written(files, "final"):
                assert values(files, "final", epoch, task) == right[epoch, task]
            clear_staged(files)
            place(files, _four(files), True)
            assert _all_there(files)
    assert cuts > 30 and dropped > 30


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("after", [False, True])
def test_a_service_that_refuses_once_is_asked_again_and_nothing_is_lost(
    after: bool, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any single call of those that placing makes is answered with 503, before or after it took effect."""
    if not atomic:
        monkeypatch.setattr(remote_module, "_ATOMIC_PUT", frozenset())
    memory = fsspec.filesystem("memory")
    at = 0
    while True:
        at += 1
        root = f"/refusing-{next(_unique)}"
        files = RemoteFiles(f"memory:/{root}", memory, root)
        place(files, [staged(files, "final", 1, "O/0", 1), staged(files, "final", 1, "O/1", 1)], True)
        files.put(output_name("final", 1, "O/1"), b"", False)
        given = _four(files)
        service = Refusing(memory, at, after)
        refusing = RemoteFiles(files.url, service, root)
        try:
            place(refusing, given, True)
            assert service.calls < at
        except Unusable as error:
            assert "503 Slow Down" in str(error)
            place(refusing, given, True)
        assert _all_there(files)
        if service.calls < at:
            break
    assert at > 15


def test_a_stamp_is_lowered_before_anybody_reads_it_and_never_raised(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    tasks = [stage(files, "3-7", "tentative", 4, f"O/{number}", ROWS, 0.8, True) for number in range(3)]
    assert [one.fidelity for one in tasks] == [0.8] * 3
    again = stamped(files, tasks, [0.9, 0.8, 0.25], True)
    assert list(again[:2]) == tasks[:2], "what says no more than is true stays as it is"
    assert stamped(files, tasks, [0.9, 0.8, 0.25], True) == again, "it may be repeated"
    assert again[2].path.rpartition("/")[2].startswith("3-7-tentative-"), "whose it is, is told by its name"
    place(files, again, True)
    said = [read(files, "tentative", 4, f"O/{number}") for number in range(3)]
    assert [each["fidelity"].to_pylist() for each in said] == [[0.8, 0.8], [0.8, 0.8], [0.25, 0.25]]
    assert all(each.select(["page", "visits"]).equals(ROWS) for each in said)
    assert [each.schema.names for each in said] == [["epoch", "task", "fidelity", "page", "visits"]] * 3


@pytest.mark.parametrize("how", ["missing", "altered"])
def test_what_is_not_as_it_was_staged_is_not_stamped(how: str, tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    one = stage(files, "3-7", "tentative", 4, "O/0", ROWS, 0.8, True)
    (tmp_path / one.path).write_bytes(b"PAR1") if how == "altered" else (tmp_path / one.path).unlink()
    with pytest.raises(Damaged, match="output/staged/3-7-tentative"):
        stamped(files, [one], [0.5], True)
