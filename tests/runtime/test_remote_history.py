"""The history of a store by URL, on a store that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.history import remote
from holdfast.runtime.history.history import remote_history
from holdfast.state import Unusable
from holdfast.state.files import open_files


@pytest.fixture(autouse=True)
def put_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put before the end because some seconds have passed."""
    monkeypatch.setattr(remote, "EVERY", 3600.0)


def test_the_last_events_are_put_once_more_when_the_store_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_files(tmp_path)
    history = remote_history(files)
    real, refused = files.put, list[str]()

    def put(name: str, data: bytes, sync: bool) -> None:
        if history._closed and not refused:
            refused.append(name)
            raise Unusable("503 Slow Down")
        real(name, data, sync)

    monkeypatch.setattr(files, "put", put)
    history.add({"time": 1.0, "kind": "epoch", "epoch": 0})
    history.close()
    assert len(refused) == 1 and not history._thread.is_alive()
    told = b"".join(files.read(f"history/{name}").to_pybytes() for name in files.list("history"))
    assert told.count(b'"epoch"') >= 1, "it was dropped"


def test_a_store_that_refuses_for_good_lets_the_history_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = open_files(tmp_path)
    history = remote_history(files)
    tries: list[int] = []

    def put(*_: object) -> None:
        tries.append(1)
        raise Unusable("503 Slow Down")

    monkeypatch.setattr(files, "put", put)
    history.add({"time": 1.0, "kind": "epoch", "epoch": 0})
    history.close()
    assert len(tries) == 2
