"""S3 itself, a real server: what is asked of it, what is asked again when it is busy, and what nobody may read."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.history import remote
from holdfast.runtime.history.history import read_history, remote_history
from holdfast.state import Cursor, Journal, JournalEpoch, Store, TaskState, Unusable, cursor, output
from holdfast.state import s3 as s3_module
from holdfast.state.files import Files, open_files
from holdfast.state.journal import piece_name
from object_store import BUCKET, KEY, SECRET, Proxy, Server, proxied
from waiting import DEADLINE, until


@pytest.fixture(scope="module")
def one_proxy(s3: Server) -> Iterator[Proxy]:
    with proxied(s3) as before:
        yield before


@pytest.fixture
def proxy(one_proxy: Proxy) -> Proxy:
    """One for all tests, since each address has a client of its own; as if nothing had been asked."""
    one_proxy.refuse.clear()
    one_proxy.seen.clear()
    one_proxy.after = False
    return one_proxy


@pytest.fixture
def files(proxy: Proxy) -> Iterator[Files]:
    with mock.patch.object(s3_module, "FIRST_PAUSE", 0.001):
        yield open_files(f"s3://{BUCKET}/{uuid.uuid4().hex}", {**proxy.options, "attempts": 4, "timeout": DEADLINE})


WRITES = {
    "put": (lambda files: files.put("a/new", b"new", True), {"put": 1}),
    "create": (lambda files: files.create("a/new", b"new", True), {"create": 1}),
    "move": (lambda files: files.move("a/old", "b/old", True), {"copy": 1, "delete": 1}),
    "link": (lambda files: files.link("a/old", "b/old"), {"copy": 1}),
    "delete": (lambda files: files.delete("a/old"), {"delete": 1}),
    "delete_many": (lambda files: files.delete_many([f"a/{n}" for n in range(5)]), {"delete many": 1}),
    "delete_tree": (lambda files: files.delete_tree("a"), {"list": 1, "delete many": 1}),
    "read": (lambda files: files.read("a/old"), {"get": 1}),
    "size": (lambda files: files.size("a/old"), {"head": 1}),
    "list": (lambda files: files.list("a"), {"list": 1}),
    "tree": (lambda files: files.tree(""), {"list": 1}),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_what_is_refused_or_not_answered_is_asked_again_up_to_a_limit(
    write: str, after: bool, files: Files, proxy: Proxy
) -> None:
    """Refused before it took effect, and after: a second answer that says "taken" or "gone" is our own doing then."""
    act, costs = WRITES[write]
    # Silence ends after half a second, and so does a request for which this machine is too busy: more may be needed.
    hasty = open_files(files.url, {**proxy.options, "attempts": 40, "timeout": 0.5})
    files.put("a/old", b"old", True)
    proxy.seen.clear()
    act(files)
    assert proxy.counts() == costs
    for refused in ([503, 429, 500], [None, 503]) if write in ("put", "create", "read") else ([503, 429, 500],):
        for name in ("a/new", "b/old"):
            files.delete(name)
        files.put("a/old", b"old", True)
        proxy.after, proxy.refuse[:] = after, refused
        act(hasty if None in refused else files)
        assert not proxy.refuse
    proxy.after, proxy.refuse[:] = False, [503] * 4
    with pytest.raises(Unusable, match=r"503 .*\(4 times\)|503 .*SlowDown") as told:
        act(files)
    assert not proxy.refuse
    assert SECRET not in str(told.value) and KEY not in str(told.value)
    act(files) if write not in ("move",) else None


def test_an_answer_that_will_not_change_is_not_asked_for_again(files: Files, proxy: Proxy) -> None:
    proxy.refuse[:] = [403, 503]
    with pytest.raises(Unusable, match="403"):
        files.size("a")
    assert proxy.refuse == [503]


def test_of_many_who_create_a_file_at_once_one_succeeds(files: Files) -> None:
    won: list[int] = []
    gate = threading.Barrier(8)

    def create(number: int) -> None:
        gate.wait()
        try:
            files.create("fence/1", str(number).encode(), True)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(won) == 1 and files.read("fence/1").to_pybytes() == str(won[0]).encode()


def test_many_are_deleted_and_listed_in_few_requests(files: Files, proxy: Proxy) -> None:
    with mock.patch.object(s3_module, "AT_ONCE", 20):
        for number in range(50):
            files.put(f"a/{number:03d}", b"x", False)
        proxy.seen.clear()
        files.delete_many([f"a/{number:03d}" for number in range(50)])
    assert proxy.counts() == {"delete many": 3} and files.tree("a") == []


def _in_a_child(files: Files, name: str) -> None:
    files.put(name, b"child", True)
    os._exit(0 if files.read(name).to_pybytes() == b"child" else 1)


def test_a_client_is_not_used_after_a_fork(files: Files) -> None:
    """Spark's Python workers are forked from a daemon: connections of the parent must not be theirs."""
    files.put("parent", b"parent", True)
    made = dict(s3_module._clients.made)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_in_a_child, args=(files, f"child-{n}")) for n in range(3)]
    for child in children:
        child.start()
    for _ in range(10):
        assert files.read("parent").to_pybytes() == b"parent"
    for child in children:
        child.join(DEADLINE)
        assert child.exitcode == 0
    assert s3_module._clients.made == made


def test_credentials_are_shown_nowhere(s3: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"key": KEY, "secret": "not-this-one", "endpoint_url": s3.endpoint}
    with pytest.raises(Invalid, match=r"S3 does not know who asks \(SignatureDoesNotMatch\)") as refused:
        open_files(f"s3://{BUCKET}/x", wrong).put("a", b"", True)
    with pytest.raises(Invalid, match=r"storage_options 'secrt': did you mean secret\?") as unknown:
        open_files(f"s3://{BUCKET}/x", {"secrt": "not-this-one"})
    with pytest.raises(Invalid, match=r"no password in a store's URL") as in_url:
        open_files(f"s3://{KEY}:not-this-one@{BUCKET}/x")
    nowhere = {**proxy.options, "endpoint_url": "http://127.0.0.1:9", "attempts": 1}
    with pytest.raises(Unusable, match="EndpointConnectionError") as silent:
        open_files(f"s3://{BUCKET}/x", nowhere).size("a")
    for told in (refused, unknown, in_url, silent):
        assert "not-this-one" not in str(told.value) and KEY not in str(told.value) and SECRET not in str(told.value)
    assert SECRET not in repr(s3_module.S3Options.of("s3://x", proxy.options))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(Invalid, match="each machine needs credentials"):
        open_files(f"s3://{BUCKET}/x", {"endpoint_url": s3.endpoint}).size("a")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attempts": "6"}, "'attempts' must be a whole number of at least 1, got a value of type str"),
        ({"attempts": 0}, "'attempts' must be a whole number of at least 1, got 0"),
        ({"timeout": True}, "'timeout' must be a number of seconds above 0, got True"),
        ({"timeout": None}, "'timeout' must be a number of seconds above 0, got a value of type NoneType"),
        ({"key": ["hidden"]}, "'key' must be a text, got a value of type list"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid, match=re.escape(f"storage_options {told}")):
        open_files("s3://bucket/x", options)
    assert open_files("s3://bucket/x", {"attempts": 2, "timeout": 1, "region": None}).url == "s3://bucket/x"


def test_credentials_that_are_gone_for_a_while_are_trouble_and_those_that_never_were_are_a_mistake() -> None:
    """As when the service that gives a machine its role does not answer for a moment."""
    from botocore.exceptions import NoCredentialsError

    options = {"key": KEY, "secret": SECRET, "endpoint_url": "http://127.0.0.1:9", "attempts": 2}
    files = open_files("s3://bucket/x", options)
    api = mock.Mock()
    made = {s3_module.S3Options.of("", options): api}
    with (
        mock.patch.object(s3_module._clients, "made", made),
        mock.patch.object(s3_module._clients, "known", set()),
        mock.patch.object(s3_module, "FIRST_PAUSE", 0.001),
    ):
        api.head_object.side_effect = NoCredentialsError()
        with pytest.raises(Invalid, match="S3 does not know who asks"):
            files.size("a")
        api.head_object.side_effect = [{"ContentLength": 3}, NoCredentialsError(), {"ContentLength": 4}]
        assert (files.size("a"), files.size("a")) == (3, 4)
        api.head_object.side_effect = NoCredentialsError()
        with pytest.raises(Unusable, match=r"cannot read a: NoCredentialsError.*\(2 times\)"):
            files.size("a")


def test_an_epoch_lists_nothing_and_a_checkpoint_little(files: Files, proxy: Proxy) -> None:
    """What a driver and two tasks ask of the store in an epoch with two outputs, and for a checkpoint."""
    store = Store(files)
    writer = store.writer("job")
    known = Journal.load(store, -1)
    reached, there = Cursor(), None

    def epoch(number: int) -> None:
        nonlocal reached, there
        pieces = tuple(store.journal_write(number, piece_name(1, n, 2), b"x", token=writer.token) for n in range(2))
        known.append(writer, JournalEpoch(number, pieces, {}))
        table = pa.table({"n": [number]})
        made = [
            output.stage(files, f"{writer.token}-{number}", "final", number, f"O/{n}", table, 1.0, True)
            for n in range(2)
        ]
        writer.check()
        output.place(files, made, True)
        for each in made:
            output.read(files, "final", number, each.task)
            reached = reached.with_("final", each.task, number)
        there = cursor.write(files, reached, writer.token, True, there)

    epoch(0)
    for number in range(1, 4):
        proxy.seen.clear()
        epoch(number)
        counts = proxy.counts()
        assert "list" not in counts, proxy.seen
        assert counts["create"] == 2 and counts["copy"] == 2 and counts["delete many"] <= 2
        assert sum(counts.values()) <= 26, counts
    proxy.seen.clear()
    for number in (1, 2, 3):
        state = TaskState.empty({}, number)
        writer.commit_checkpoint(number, {"O/0": store.write_task("O/0", number, state, token=writer.token)})
    assert proxy.counts()["list"] == 3 * 2
    proxy.seen.clear()
    writer.trim()
    assert proxy.counts() == {"list": 1, "head": 4, "delete many": 2}
    writer.close()


def test_the_history_of_a_store_by_url_is_put_now_and_then(
    files: Files, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "EVERY", 3600.0)
    monkeypatch.setattr(remote, "PART_BYTES", 2000)
    proxy.seen.clear()
    for sitting in range(2):
        history = remote_history(files)
        history.add({"time": 1.0 + sitting, "kind": "started", "job": str(sitting)})
        for number in range(100):
            history.add({"time": 2.0 + sitting, "kind": "epoch", "epoch": number, "sitting": sitting})
        history.close()
    assert proxy.counts()["put"] < 30
    events = list(read_history(files.url, files))
    assert [event["kind"] for event in events].count("started") == 2
    told = [(event["sitting"], event["epoch"]) for event in events if event["kind"] == "epoch"]
    assert told == [(sitting, number) for sitting in range(2) for number in range(100)]


def test_a_history_that_the_store_refuses_is_put_later(
    files: Files, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "EVERY", 0.05)
    history = remote_history(files)
    proxy.refuse[:] = [503] * 6
    history.add({"time": 1.0, "kind": "started"})
    until(lambda: not proxy.refuse and bool(files.list("history")))
    history.close()
    assert [event["kind"] for event in read_history(files.url, files)] == ["started"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    with pytest.raises(Invalid, match=r"pip install 'holdfast\[s3\]'"):
        open_files(f"s3://{BUCKET}/x")
    with pytest.raises(HoldfastError, match="storage_options are for a store by URL"):
        open_files(tmp_path, {"key": "k"})
