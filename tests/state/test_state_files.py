"""Files of a store, by themselves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.state.files import open_files

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
