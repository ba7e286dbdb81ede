"""The process from which Spark forks its Python workers, with the heavy imports done once, before any fork.

A worker that begins by importing Arrow, polars and Holdfast takes a second or more to its first row, and Spark begins a
new one whenever the last has not come back yet. Only modules are imported here: nothing starts a thread before a fork.

After every task a worker collects garbage, and the next task waits for it: 30 to 60 ms with all these modules to walk
through, most of an idle epoch. Frozen, they are not looked at, and their pages stay shared.
"""

from __future__ import annotations

import gc

import polars  # noqa: F401 - imported for its children
import pyarrow.parquet  # noqa: F401
from pyspark.daemon import manager

from holdfast.runtime.spark import stages  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
