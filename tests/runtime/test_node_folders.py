"""Folders of nodes: where Spark has its own, private, and cleared away when whoever used them is gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Invalid
from holdfast.runtime.spark import folders

HOLD = "import sys; from holdfast.runtime.spark.folders import claim; claim(sys.argv[1]); print(flush=True); input()"


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an executor of a standalone cluster has."""
    mine = tmp_path / "spark-1" / "executor-1" / "blockmgr-1"
    mine.mkdir(parents=True)
    monkeypatch.setenv(folders.DIRS, str(mine))
    monkeypatch.setattr(folders, "_held", {})
    return mine


def left_by_the_dead(place: Path) -> Path:
    folder = place / f"{folders.PREFIX}old"
    folder.mkdir(parents=True)
    (folder / folders.ALIVE).touch()
    (folder / "state.arrow").touch()
    return folder


def test_a_folder_without_a_place_is_under_what_spark_has(disks: Path) -> None:
    name = f"{folders.PREFIX}job"
    assert folders.place("/tmp/x") == "/tmp/x"
    assert folders.place(name) == str(disks / name)
    folders.claim(name)
    assert stat.S_IMODE((disks / name).stat().st_mode) == 0o700
    folders.let_go(name)
    assert not (disks / name).exists()


def test_an_executor_uses_one_of_its_disks_and_others_use_others(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = set()
    for executor in range(20):
        monkeypatch.setenv(folders.DIRS, f"/a/blockmgr-{executor},/b/blockmgr-{executor}")
        chosen.add(folders.place("job")[:2])
        assert folders.place("job/one").rpartition("/")[0] == folders.place("job/two").rpartition("/")[0]
    assert chosen == {"/a", "/b"}


def test_what_the_dead_have_left_near_goes_and_what_is_in_use_stays(disks: Path, tmp_path: Path) -> None:
    dead = [
        left_by_the_dead(place)
        for place in (
            disks,
            disks.parent / "blockmgr-2",
            disks.parent.parent / "executor-2" / "blockmgr-3",
            tmp_path / "spark-2" / "executor-1" / "blockmgr-4",
        )
    ]
    used = disks.parent.parent / "executor-3" / "blockmgr-5" / f"{folders.PREFIX}live"
    used.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(used)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline()
        folders.claim(f"{folders.PREFIX}new")
        assert not any(folder.exists() for folder in dead)
        assert used.is_dir()
    finally:
        holder.kill()
        holder.communicate()
    assert folders.clear(used) and not used.exists()


def test_a_folder_of_somebody_else_is_not_used(disks: Path) -> None:
    (disks / f"{folders.PREFIX}job").mkdir(mode=0o777)
    (disks / f"{folders.PREFIX}job").chmod(0o777)
    with pytest.raises(Invalid, match="belongs to this user alone"):
        folders.claim(f"{folders.PREFIX}job")


def test_an_executor_s_folder_stays_though_its_python_processes_come_and_go(tmp_path: Path) -> None:
    """A run that is called off ends them. The JVM goes on, and so does what it keeps."""
    used, java = tmp_path / f"{folders.PREFIX}live", tmp_path / "java"
    java.symlink_to(sys.executable)
    works = (
        f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', {HOLD!r}, {str(used)!r}], input=b'x\\n')"
    )
    executor = subprocess.Popen(
        [java, "-c", f"{works}; print('gone', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert executor.stdout is not None
        assert b"gone" in iter(executor.stdout.readline, b"").__next__() + executor.stdout.readline()
        assert not folders.clear(used) and used.is_dir()
    finally:
        executor.kill()
        executor.communicate()
    assert folders.clear(used) and not used.exists()


def test_what_an_executor_had_before_it_was_given_up_goes_when_it_is_a_node_again(tmp_path: Path) -> None:
    for name in ("node-0.3", "node-1.3.1", "node-0.3.2", "node-0.4", "node-2.33"):
        (tmp_path / name / "main").mkdir(parents=True)
    assert folders.node_folder(str(tmp_path / "node-0.4")) == str(tmp_path / "node-0.4")
    assert len(list(tmp_path.iterdir())) == 5
    assert folders.node_folder(str(tmp_path / "node-0.3.2")) == str(tmp_path / "node-0.3.2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-0.3.2", "node-0.4", "node-2.33"]
