"""Places where no store can be: one line that says why, before anything is read or written there."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from holdfast.errors import Invalid
from holdfast.state import Store
from holdfast.state.files import open_files

Command = Callable[..., CompletedProcess[str]]


@contextmanager
def nobody() -> Iterator[None]:
    """Not as root, who may read and write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def refused(holdfast: Command, place: str, told: str) -> None:
    with pytest.raises(Invalid, match=told) as error:
        open_files(place).list("")
    assert "\n" not in str(error.value)
    for words in (["state"], ["store", "check"], ["history"], ["report"]):
        done = holdfast(*words, place)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, (words, done.stderr)
        assert done.stderr.startswith("holdfast: ") and place in done.stderr and done.stdout == ""


def test_a_root_that_is_a_file(holdfast: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(holdfast, f"{tmp_path}/file/job/x", rf"store {tmp_path}/file/job/x: {tmp_path}/file is a file")


def test_a_root_that_this_user_may_not_look_into(holdfast: Command) -> None:
    commands = ["state"], ["store", "check"], ["history"], ["report"]
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders are closed to others
        for words in commands:
            holdfast(*words, made)  # what it imports may be closed too
        closed = Path(made, "closed")
        (closed / "job").mkdir(parents=True)
        Path(made).chmod(0o755)
        closed.chmod(0)
        try:
            with nobody():
                for place in (closed / "job", closed):
                    with pytest.raises(Invalid, match=f"store {place}: cannot be read: Permission denied"):
                        open_files(str(place))
                    for words in commands:
                        done = holdfast(*words, str(place))
                        told = f"{place}: cannot be read: Permission denied\n"
                        assert done.returncode == 2 and done.stderr.endswith(told), done.stderr
                        assert len(done.stderr.splitlines()) == 1
        finally:
            closed.chmod(0o700)


def test_hdfs_without_its_client(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    for place in ("hdfs://host/jobs", "hdfs:///jobs"):
        refused(holdfast, place, rf"store {place}: .*libhdfs.*JAVA_HOME, HADOOP_HOME and CLASSPATH")


def test_a_url_with_one_slash(holdfast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid, match="store hdfs:/jobs: a URL has two slashes, hdfs:///jobs or hdfs://host/jobs"):
        open_files("hdfs:/jobs")
    assert holdfast("state", "hdfs:/jobs").returncode == 2 and not list(tmp_path.iterdir())
    assert open_files(f"file:{tmp_path}/job").url == open_files(f"file://{tmp_path}/job").url == f"{tmp_path}/job"


def test_a_scheme_that_nobody_knows(holdfast: Command) -> None:
    refused(holdfast, "foo://host/jobs", "store foo://host/jobs: Protocol not known: foo; give a folder, s3://")


def test_a_bucket_that_is_not_there(holdfast: Command, s3_url: str) -> None:
    place = f"s3://no-{uuid.uuid4().hex[:12]}/job"
    refused(holdfast, place, rf"store {place}: there is no bucket no-\w+")
    with pytest.raises(Invalid, match="there is no bucket"):
        Store(place).writer("job")
