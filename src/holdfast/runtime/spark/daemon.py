"""The process from which Spark forks its Python workers, with the heavy imports done once, before any fork.

A worker that begins by importing Arrow, polars and Holdfast takes a second or more to its first row, and Spark begins a
new one whenever the last has not come back yet. Only modules are imported here: nothing starts a thread before a fork.
"""

from __future__ import annotations

import polars  # noqa: F401 - imported for its children
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

from holdfast.runtime.spark import stages  # noqa: F401

if __name__ == "__main__":
    manager()
