"""Options of the writer by name: those that Holdfast reads, and those that Spark's writers of files take."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from holdfast.runtime.options import Flat
from holdfast.runtime.spark.option_names import FORMATS, declared, near, unknown

OURS = ("checkpointLocation", "path")
WRITERS = ("maxRecordsPerFile", "partitionOverwriteMode", "mergeSchema", "overwriteSchema", "timeZone")
"""What DataFrameWriter takes for any format of files, and for tables."""
CONSOLE = ("numRows", "truncate")
KNOWN = {name.lower(): name for name in (*OURS, *CONSOLE)}
"""Options that Holdfast reads, in upper or lower case."""
METHODS = ("foreachBatch", "toTable")
RESILIENCE = frozenset({"nodes", "parallelism", *Flat.__annotations__})
FEW = 8
"""The most names that a message lists."""


def writer_notes(spark: SparkSession, what: str, given: Iterable[str]) -> list[str]:
    """What to say of options that do nothing. ``what``: a format, ``foreachBatch`` or ``toTable``."""
    known = (*OURS, *(CONSOLE if what == "console" else ()))
    if what in FORMATS or what == "toTable":
        source = str(spark.conf.get("spark.sql.sources.default", "parquet")) if what == "toTable" else what
        known += (*WRITERS, *(declared(spark, FORMATS[source]) if source in FORMATS else ()))
    notes = []
    for option in unknown(given, known):
        of = what if what in METHODS else f"format {what}"
        said = f"option {option} of {of} is not known and does nothing"
        if option in RESILIENCE:
            notes.append(f"{said}; say .resilience({option}=...)")
        elif (meant := near(option, known)) is not None:
            notes.append(f"{said}; did you mean {meant}?")
        elif what != "toTable":  # a table may have any format, with further options
            notes.append(f"{said}; known: {', '.join(known)}" if len(known) <= FEW else said)
    return notes
