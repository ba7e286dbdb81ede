"""States brought to the store by a process of its own: whole, in pieces, again after it was killed, and tidied up."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest

from holdfast.runtime.spark.checkpoint_process import SHARED, CheckpointProcess, NotSaved, Pool
from holdfast.runtime.spark.runner import SparkRunner
from holdfast.runtime.worker.versions import Saved, Upload, main_branch
from holdfast.state import Change, LocalState, StateSchema, Store, Sync, TaskState, Unusable, Writer
from waiting import DEADLINE, until

SCHEMA = StateSchema(pa.schema({"k": pa.int64()}), pa.schema({"v": pa.int64()}))
NOTHING = SCHEMA.key.empty_table()
TABLES = ("even", "odd")


def change(epoch: int) -> dict[str, Change]:
    """Every epoch changes one of the two tables: most keys, some of them deleted."""
    keys = np.random.default_rng(epoch).permutation(50)
    gone = pa.table({"k": keys[:5]})
    return {TABLES[epoch % 2]: Change(pa.table({"k": keys[10:], "v": np.full(40, epoch)}), gone)}


def versions(last: int) -> dict[int, TaskState]:
    made = {-1: TaskState.empty(dict.fromkeys(TABLES, SCHEMA), -1)}
    for epoch in range(last + 1):
        made[epoch] = made[epoch - 1].apply(change(epoch), epoch)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", Sync(checkpoints=False))


@pytest.fixture
def writer(store: Store) -> Iterator[Writer]:
    with store.writer("test", fold_at=0) as writer:
        yield writer


@pytest.fixture
def process(store: Store, writer: Writer) -> Iterator[CheckpointProcess]:
    process = CheckpointProcess(store.url, writer.token, store.sync)
    yield process
    process.close()


def wanted(tmp_path: Path, since: int, epoch: int, retain: int = -1) -> Upload:
    return Upload(str(tmp_path / "node"), "O/0", since, epoch, 0, retain)


def test_checkpoints_hold_what_the_node_has_and_its_folder_stays_small(
    tmp_path: Path, store: Store, writer: Writer, process: CheckpointProcess
) -> None:
    made, local = versions(79), LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", made[-1])
    since = -1
    for epoch in range(80):
        local.save("O/0", epoch, change(epoch))
        if epoch % 10 == 9:
            writer.commit_checkpoint(epoch, process.save([wanted(tmp_path, since, epoch, since)]).entries)
            assert store.restore("O/0", epoch) == (made[epoch], epoch)
            for needed in range(max(since, 0), epoch + 1):
                assert LocalState(local.files).load("O/0", needed) == made[needed]
            since = epoch
    assert len(local.epochs("O/0")) <= 30


def test_a_process_that_was_killed_is_begun_again(
    tmp_path: Path, store: Store, writer: Writer, process: CheckpointProcess
) -> None:
    made, local = versions(3), LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", made[-1])
    for epoch in range(4):
        local.save("O/0", epoch, change(epoch))
    process.save([wanted(tmp_path, -1, 1)])
    SHARED.end()
    writer.commit_checkpoint(3, process.save([wanted(tmp_path, -1, 3)]).entries)
    assert store.restore("O/0") == (made[3], 3)


def test_a_process_serves_all_jobs_and_the_next(
    tmp_path: Path, store: Store, writer: Writer, process: CheckpointProcess
) -> None:
    SHARED.end()
    process.save([])
    (first,) = SHARED._waiting
    beside, elsewhere = (CheckpointProcess(url, writer.token, store.sync) for url in (store.url, "memory://other"))
    beside.begin()
    elsewhere.begin()
    process.close()
    local = LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", versions(0)[-1])
    assert set(beside.save([wanted(tmp_path, -1, -1)]).entries) == {"O/0"}
    assert SHARED._waiting == [first] and elsewhere._pool._waiting[0] is not first, "no folder: it has its own"
    (own,) = elsewhere._pool._waiting
    elsewhere.close()
    beside.close()
    assert own.poll() is not None and first.poll() is None


def test_no_more_processes_than_that_and_who_waits_for_one_can_be_closed(store: Store, writer: Writer) -> None:
    pool = Pool(1)
    taken, over, asks = pool.take(lambda: True), threading.Event(), threading.Event()
    waiting = CheckpointProcess(store.url, writer.token, store.sync)
    waiting._pool = pool

    def ask() -> None:
        asks.set()
        with pytest.raises(NotSaved, match="the job has ended"):
            waiting.save([])
        over.set()

    threading.Thread(target=ask, daemon=True).start()
    assert asks.wait(DEADLINE) and not over.is_set()
    waiting.close()
    assert over.wait(DEADLINE)
    pool.give_back(taken)
    assert pool._waiting == [taken]
    pool.end()


def test_a_job_that_ends_kills_what_it_has_asked_for(store: Store, writer: Writer) -> None:
    """And nothing else: another job's request is not touched."""
    process = CheckpointProcess(store.url, writer.token, store.sync)
    silent = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process._pool = Pool(1)
    process._pool._waiting.append(silent)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(NotSaved, match="has ended"):
            process.save([])
        said.append("over")

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    until(lambda: process._busy is silent)
    process.close()
    asking.join(DEADLINE)
    assert said == ["over"] and silent.poll() is not None


def stub(script: str) -> subprocess.Popen[str]:
    command = ["sh", "-c", script]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


ANSWER = json.dumps({"done": Saved({}, {}).to_json()})
ANSWERS = f"while read asked; do echo '{ANSWER}'; done"
HANGS = "exec sleep 600"


@pytest.fixture
def stubs() -> Iterator[Callable[..., list[subprocess.Popen[str]]]]:
    """What a job's pool has: processes that do as these scripts say, the last one first."""
    begun: list[subprocess.Popen[str]] = []

    def have(pool: Pool, *scripts: str) -> list[subprocess.Popen[str]]:
        made = [stub(script) for script in scripts]
        begun.extend(made)
        pool._waiting.extend(made)
        return made

    yield have
    for process in begun:
        process.kill()
        process.wait()


Stubs = Callable[..., list[subprocess.Popen[str]]]


def job_of(store: Store, pool: Pool) -> CheckpointProcess:
    job = CheckpointProcess(store.url, 1, store.sync)
    job._pool = pool
    return job


@pytest.mark.parametrize(
    "says",
    [
        "printf '\\377\\n'",  # no text at all
        "echo a warning of some library",
        "echo 7",
        "printf '{\"done\": '; exec >&-",
        "exec >&-",
    ],
)
def test_a_process_whose_answer_was_not_read_whole_serves_nobody_else(store: Store, stubs: Stubs, says: str) -> None:
    """Its answer may come late, and the next job would take it for its own."""
    pool = Pool(2)
    odd = stubs(pool, f"read asked; {says}; echo '{ANSWER}'; {HANGS}")[0]
    with pytest.raises(NotSaved, match="has ended"):
        job_of(store, pool).save([])
    assert pool._waiting == [] and pool._taken == 0 and odd.poll() is not None


def test_a_process_that_was_not_heard_out_serves_nobody_else(store: Store, stubs: Stubs) -> None:
    pool = Pool(2)
    (process,) = stubs(pool, ANSWERS)
    interrupted = patch.object(CheckpointProcess, "_answer", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        job_of(store, pool).save([])
    assert pool._waiting == [] and pool._taken == 0 and process.poll() is not None


def ask(job: CheckpointProcess) -> tuple[threading.Thread, list[str]]:
    """A save on a thread of its own, and what became of it."""
    said: list[str] = []

    def save() -> None:
        try:
            job.save([])
            said.append("saved")
        except NotSaved as error:
            said.append(str(error))

    asking = threading.Thread(target=save, daemon=True)
    asking.start()
    return asking, said


def test_a_checkpoint_that_is_called_off_ends_the_process_that_has_it(store: Store, stubs: Stubs) -> None:
    pool = Pool(1)
    _, silent = stubs(pool, ANSWERS, HANGS)
    job = job_of(store, pool)
    runner = SparkRunner.__new__(SparkRunner)
    runner._process, runner._context, runner._spark = job, Mock(), Mock()
    asking, said = ask(job)
    until(lambda: job._busy is silent)
    runner.cancel_save(7)
    asking.join(DEADLINE)
    assert said == ["the process that brings states to the store has ended"]
    until(lambda: silent.poll() is not None)
    job.save([])
    assert pool._taken == 0 and len(pool._waiting) == 1, "tried again, it is another's"


def test_a_checkpoint_that_is_called_off_waits_no_more_for_a_process(store: Store) -> None:
    pool = Pool(1)
    pool._taken = 1
    job = job_of(store, pool)
    asking, said = ask(job)
    until(lambda: bool(pool._changed._waiters))  # type: ignore[attr-defined]
    job.cancel()
    asking.join(DEADLINE)
    assert said == ["it was called off"] and pool._taken == 1


def test_who_has_waited_long_gets_a_process_beyond_the_limit(
    store: Store, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores that hang would otherwise keep every other job from a checkpoint."""
    monkeypatch.setattr("holdfast.runtime.spark.checkpoint_process.PATIENCE", 0.05)
    pool = Pool(1)
    monkeypatch.setattr("holdfast.runtime.spark.checkpoint_process.SHARED", pool)
    (silent,) = stubs(pool, HANGS)
    hung = job_of(store, pool)
    asking, said = ask(hung)
    until(lambda: hung._busy is silent)
    (other,) = stubs(pool, ANSWERS)
    beside, answered = ask(job_of(store, pool))
    beside.join(DEADLINE)
    assert answered == ["saved"] and said == [] and pool._waiting == [other] and pool._taken == 1
    hung.close()
    asking.join(DEADLINE)
    assert pool._taken == 0 and silent.poll() is not None
    (more,) = stubs(pool, ANSWERS)
    taken = [pool.take(lambda: True), pool.take(lambda: True)]
    assert taken == [more, other]
    for each in taken:
        pool.give_back(each)
    assert pool._waiting == [more] and other.poll() is not None, "no more of them are kept than that"


@pytest.mark.parametrize("shared", [True, False])
def test_a_job_that_ends_as_it_gets_its_process_asks_for_nothing(
    store: Store, stubs: Stubs, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(Pool):
        def take(self, needed: Callable[[], bool]) -> subprocess.Popen[str] | None:
            taken = super().take(needed)
            job.close()
            return taken

    pool = Late(2)
    (process,) = stubs(pool, ANSWERS)
    if shared:
        monkeypatch.setattr("holdfast.runtime.spark.checkpoint_process.SHARED", pool)
    job = job_of(store, pool)
    with pytest.raises(NotSaved, match="the job has ended"):
        job.save([])
    assert pool._taken == 0 and pool._waiting == ([process] if shared else [])
    assert (process.poll() is None) is shared


def test_what_is_missing_is_told_and_the_process_goes_on(tmp_path: Path, process: CheckpointProcess) -> None:
    local = LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", versions(0)[-1])
    saved = process.save([wanted(tmp_path, 0, 4)])
    assert saved.entries == {} and "the changes of (0, 4] are not all whole" in saved.missing["O/0"]
    local.save("O/0", 0, change(0))
    assert len(process.save([wanted(tmp_path, -1, 0)]).entries["O/0"]) == 2
    process.close()
    with pytest.raises(NotSaved, match="the job has ended"):
        process.save([wanted(tmp_path, -1, 0)])


def test_a_damaged_file_of_the_node_makes_its_task_missing_and_no_other(
    tmp_path: Path, process: CheckpointProcess
) -> None:
    local, made = LocalState(tmp_path / "node" / main_branch(0)), versions(1)
    for task in ("O/0", "O/1"):
        local.restore(task, made[-1])
        local.save(task, 0, change(0))
        local.save(task, 1, change(1))
    (hit, *_) = [path for path in (tmp_path / "node").rglob("*.arrow") if "O-0" in str(path) and ".1of" in path.name]
    hit.write_bytes(hit.read_bytes()[:-9] + b"something")
    saved = process.save([wanted(tmp_path, -1, 1), Upload(str(tmp_path / "node"), "O/1", -1, 1, 0, -1)])
    assert "task O/0: version 1 is not whole" in saved.missing["O/0"] and set(saved.missing) == {"O/0"}
    assert set(saved.entries) == {"O/1"}
    assert Saved.from_json(saved.to_json()) == saved


def test_a_store_that_takes_nothing_is_told_as_such(tmp_path: Path, store: Store, process: CheckpointProcess) -> None:
    local = LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", versions(0)[-1])
    process.save([])
    (tmp_path / "store" / "state").write_text("in the way")
    with pytest.raises(Unusable, match="cannot write state"):
        process.save([wanted(tmp_path, -1, -1)])


def test_long_chains_are_folded_by_the_process_too(
    tmp_path: Path, store: Store, writer: Writer, process: CheckpointProcess
) -> None:
    made, local = versions(11), LocalState(tmp_path / "node" / main_branch(0))
    local.restore("O/0", made[-1])
    for epoch in range(12):
        local.save("O/0", epoch, change(epoch))
        writer.commit_checkpoint(epoch, process.save([wanted(tmp_path, epoch - 1, epoch)]).entries)
    writer.folded = process.fold
    before, after = writer.compact()["O/0"]
    assert after < before
    assert store.restore("O/0") == (made[11], 11)
