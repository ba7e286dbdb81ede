"""Files on a local disk and behind fsspec: the same answers, and every write may be done again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pyarrow as pa
import pytest
from crashing import Refusing
from fsspec.implementations.memory import MemoryFileSystem

from holdfast.errors import Invalid
from holdfast.state import files as files_module
from holdfast.state import remote as remote_module
from holdfast.state.files import Files, LocalFiles, Unusable, link_between, open_files
from holdfast.state.remote import RemoteFiles

_unique = itertools.count()


@pytest.fixture(params=["local", "memory", "moving", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    if request.param == "s3":
        return open_files(request.getfixturevalue("s3_url"))
    if request.param == "moving":
        monkeypatch.setattr(remote_module, "_ATOMIC_PUT", frozenset())
    return open_files(tmp_path / "store" if request.param == "local" else f"memory://files-{next(_unique)}")


def text(files: Files, name: str) -> str:
    assert files.map(name).equals(files.read(name))
    return files.read(name).to_pybytes().decode()


def test_a_file_is_moved_onto_whatever_is_there_and_moving_again_does_nothing(files: Files) -> None:
    files.put("a/one", b"1", True)
    files.put("b/two", b"2", True)
    files.move("a/one", "b/two", True)
    assert text(files, "b/two") == "1" and files.list("a") == []
    files.move("a/one", "b/two", True)
    assert text(files, "b/two") == "1"
    files.move("b/two", "new/deep/three", False)
    assert text(files, "new/deep/three") == "1"
    for sync in (True, False):
        with pytest.raises(FileNotFoundError):
            files.move("a/one", "nowhere/four", sync)


def test_a_link_is_a_file_of_its_own_and_passes_over_what_is_there(files: Files) -> None:
    files.put("a/one", b"1", False)
    assert files.link("a/one", "b/two")
    files.put("a/one", b"other", False)
    assert not files.link("a/one", "b/two")
    assert text(files, "b/two") == "1"
    files.delete("a/one")
    assert text(files, "b/two") == "1"
    with pytest.raises(FileNotFoundError):
        files.link("a/one", "b/three")


def test_a_view_below_a_folder_and_a_tree_that_goes(files: Files) -> None:
    view = files.within("node-1").within("main")
    assert type(view) is type(files) and view.url.endswith("node-1/main")
    view.put("O-0/x", b"x", False)
    view.put("y", b"y", False)
    assert text(files, "node-1/main/O-0/x") == "x" and view.list("") == ["O-0", "y"]
    files.put("node-2/z", b"z", False)
    link_between(view, "y", files.within("node-2"), "deep/y")
    assert text(files, "node-2/deep/y") == "y"
    assert files.tree("node-2") == ["deep/y", "z"] and view.tree("") == ["O-0/x", "y"]
    view.delete_tree("O-0")
    # Some services name an empty folder for a while.
    assert [name for name in view.list("") if name == "y" or view.tree(name)] == ["y"]
    files.delete_tree("node-1")
    files.delete_tree("node-1")
    assert files.tree("node-1") == files.tree("nowhere") == [] and files.list("node-2") == ["deep", "z"]


def test_many_go_at_once_whether_they_are_there_or_not(files: Files) -> None:
    names = [f"a/{number}" for number in range(1, 6)]
    for name in names:
        files.put(name, b"x", False)
    files.put("a/stays", b"x", False)
    files.delete_many([*names, "a/never"])
    files.delete_many(names[:1])
    assert files.list("a") == ["stays"]


def test_an_empty_file_is_a_file(files: Files) -> None:
    files.put("empty", b"", True)
    assert text(files, "empty") == "" and files.size("empty") == 0


def test_created_once_by_anybody_and_again_only_with_the_same_bytes(files: Files) -> None:
    files.create("fence/1", b"mine", True)
    files.create("fence/1", b"mine", True)
    with pytest.raises(FileExistsError):
        files.create("fence/1", b"other", True)
    assert text(files, "fence/1") == "mine" and files.list("fence") == ["1"]


def test_what_was_mapped_stays_though_its_name_goes(files: Files) -> None:
    files.put("a", b"as it was", False)
    mapped = files.map("a")
    files.put("a", b"something else", False)
    files.delete("a")
    assert mapped.to_pybytes() == b"as it was"


WRITES = {
    "put": lambda files: files.put("a/new", b"new", True),
    "put over": lambda files: files.put("a/old", b"new", True),
    "create": lambda files: files.create("a/new", b"new", True),
    "move": lambda files: files.move("a/old", "b/old", True),
    "link": lambda files: files.link("a/old", "b/old"),
    "delete": lambda files: files.delete("a/old"),
    "delete_folder": lambda files: files.delete_folder("a"),
    "delete_tree": lambda files: files.delete_tree("a"),
}


def everything(files: Files) -> dict[str, bytes]:
    return {
        f"{folder}/{name}": files.read(f"{folder}/{name}").to_pybytes()
        for folder in files.list("")
        for name in files.list(folder)
    }


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_a_service_refused_is_done_by_repeating_it(
    write: str, after: bool, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not atomic:
        monkeypatch.setattr(remote_module, "_ATOMIC_PUT", frozenset())
    memory = fsspec.filesystem("memory")

    def fresh(system: Any) -> RemoteFiles:
        root = f"/service-{next(_unique)}"
        RemoteFiles(root, memory, root).put("a/old", b"old", True)
        return RemoteFiles(root, system, root)

    undisturbed = fresh(memory)
    WRITES[write](undisturbed)
    for at in itertools.count(1):
        files = fresh(Refusing(memory, at, after))
        try:
            WRITES[write](files)
            break
        except Unusable as error:
            assert "503 Slow Down" in str(error)
        WRITES[write](files)
        assert everything(files) == everything(undisturbed)
    assert at > 1


def test_errors_of_a_client_that_are_no_os_errors_are_trouble_too() -> None:
    class HttpError(Exception):
        pass

    service = mock.Mock(protocol="gs")
    service.pipe_file.side_effect = HttpError("503")
    with pytest.raises(Unusable, match="store gs://b: cannot write a: HttpError: 503"):
        RemoteFiles("gs://b", service, "b").put("a", b"x", True)


class Late(MemoryFileSystem):
    """A client that looks first and writes then; somebody else's bytes are put over ours at once."""

    protocol = "late"
    cachable = False

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        super().mv(path1, path2, **kwargs)
        self.pipe_file(path2, b"theirs")


def test_of_two_that_create_a_file_at_once_who_is_written_over_is_told() -> None:
    files = RemoteFiles("late://x", Late(), f"/late-{next(_unique)}")
    with pytest.raises(FileExistsError):
        files.create("fence/1", b"mine", True)
    assert text(files, "fence/1") == "theirs" and files.list("fence") == ["1"]
    files.put("a", b"mine", True)
    files._system.pipe_file(files._path("a"), b"mine")
    assert not files.link("a", "b")


def test_what_a_client_was_given_is_in_no_message() -> None:
    given = {"token": "s3cret-token", "client_kwargs": {"headers": ["s3cret-header"]}, "number": 3}

    def saying(kind: type[Exception]) -> Any:
        service = mock.Mock(protocol="gs")
        service.cat_file.side_effect = kind("401 for s3cret-token,\n  s3cret-header")
        return service

    for kind in (OSError, RuntimeError):
        with mock.patch("fsspec.core.url_to_fs", return_value=(saying(kind), "b")):
            files = open_files("gs://b", given).within("deep")
        with pytest.raises(Unusable, match=r"cannot read a: .*401 for \*\*\*, \*\*\*$") as told:
            files.read("a")
        assert told.value.__suppress_context__
    for error, refused in ((ValueError, Invalid), (RuntimeError, Unusable)):
        with (
            mock.patch("fsspec.core.url_to_fs", side_effect=error("no s3cret-token")),
            pytest.raises(refused, match=r"store gs://b: .*no \*\*\*$"),
        ):
            open_files("gs://b", given)


@pytest.mark.parametrize("operation", ["fsync", "unlink"])
def test_a_local_create_that_was_refused_late_is_done_by_repeating_it(operation: str, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    owner: Any = os if operation == "fsync" else Path
    real, calls = getattr(owner, operation), []

    def once(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == (2 if operation == "fsync" else 1):
            raise OSError("no")
        return real(*args, **kwargs)

    with mock.patch.object(owner, operation, once), pytest.raises(Unusable):
        files.create("1", b"mine", True)
    assert text(files, "1") == "mine"
    files.create("1", b"mine", True)
    assert list(tmp_path.iterdir()) == [tmp_path / "1"], "temporary files are left"


SIZE = 1 << 20


@pytest.mark.parametrize("url", ["", "memory://state-files"])
def test_what_is_read_is_arrows_own_memory(url: str, tmp_path: Path) -> None:
    """Arrow's threads may let go of it last. They would need Python for memory of Python's, and if that is just about
    to end, the process aborts: on a busy machine one program in twenty died that read its output as the last thing.
    """
    files = open_files(url or tmp_path)
    files.put("file", b"x" * SIZE, sync=False)
    before = pa.total_allocated_bytes()
    data = files.read("file")
    assert data.size == SIZE and data.to_pybytes() == b"x" * SIZE
    assert pa.total_allocated_bytes() - before >= SIZE
    files.put("empty", b"", sync=False)
    assert files.read("empty").size == 0


def test_two_processes_may_make_one_folder_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is not there when one of them writes, and is when it looks why that failed."""
    write = files_module.write_whole

    def beaten(path: Path, data: bytes, sync: bool) -> None:
        try:
            write(path, data, sync)
        except FileNotFoundError:
            path.parent.mkdir()
            raise

    monkeypatch.setattr(files_module, "write_whole", beaten)
    LocalFiles(tmp_path).put("journal/7", b"rows", sync=True)
    assert (tmp_path / "journal" / "7").read_bytes() == b"rows"


def test_a_folder_that_another_takes_away_as_it_was_empty_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deleted the last of it removes it, between the moment it was made and the moment of writing."""
    write, taken = files_module.write_whole, [1, 2]

    def hurried(path: Path, data: bytes, sync: bool) -> None:
        if path.parent.exists() and taken:
            taken.pop()
            path.parent.rmdir()
        write(path, data, sync)

    monkeypatch.setattr(files_module, "write_whole", hurried)
    LocalFiles(tmp_path).put("output/staged/7", b"rows", sync=False)
    assert not taken and (tmp_path / "output" / "staged" / "7").read_bytes() == b"rows"
