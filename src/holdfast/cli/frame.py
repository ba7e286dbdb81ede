"""The streaming DataFrame that a command is pointed at: ``FILE.py:NAME``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.loading import loaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def frame_of(query: str) -> DataFrame:
    """A DataFrame of a Python file, or what a function of none there makes; Invalid if it is neither."""
    from pyspark.sql import DataFrame

    from holdfast.runtime.spark.shipping import first_cause

    found = loaded(query, "query")
    try:
        frame = found() if callable(found) else found
    except Exception as error:
        raise Invalid(f"{query}: it fails: {type(error).__name__}: {first_cause(error)}") from None
    if not isinstance(frame, DataFrame):
        raise Invalid(
            f"{query}: a streaming DataFrame is needed, or a function that makes one, got {type(frame).__name__}"
        )
    return frame
