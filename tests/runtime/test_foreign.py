"""A checkpoint of Structured Streaming where a store is to be made, in a folder and behind URLs; without Spark."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.errors import Invalid
from holdfast.runtime.spark.foreign import refuse_checkpoint
from holdfast.state import Store

NOBODY = cast(Any, None)


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    return tmp_path.as_uri() if request.param == "folder" else f"memory://{uuid.uuid4().hex}"


def test_a_checkpoint_is_refused_until_there_is_a_store(url: str) -> None:
    place = Store(url)
    refuse_checkpoint(NOBODY, url, place)
    place.files.put("metadata", b"{}", False)
    refuse_checkpoint(NOBODY, url, place)  # it has read nothing yet
    place.files.put("offsets/0", b"v1", False)
    place.files.put("commits/0", b"v1", False)
    before = place.files.tree("")
    with pytest.raises(Invalid, match=rf"holdfast import-state {url} FILE\.py:NAME --store NEW_FOLDER --mode update"):
        refuse_checkpoint(NOBODY, url, place, "update")
    assert place.files.tree("") == before
    with place.writer("an earlier version"):
        refuse_checkpoint(NOBODY, url, place)
