"""How tests run Spark: for seconds, over a handful of rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# A JVM of a test lives for seconds: to compile its code thoroughly takes longer than that saves. With room for what is
# new and for classes it seldom collects garbage; the launcher has less memory than that. Code that is compiled so has
# 48 MB, which some hundred queries fill: then nothing more is compiled.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ROOM = "-XX:NewSize=256m -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=240m"
CLASSES = Path(sys.prefix, "spark.jsa")  # made by make setup
for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    options = [SHORT_LIVED]
    if name != "SPARK_LAUNCHER_OPTS":
        options += [ROOM, f"-XX:SharedArchiveFile={CLASSES}"] if CLASSES.is_file() else [ROOM]
    os.environ.setdefault(name, " ".join(options))

# The logs and states of Structured Streaming are written by plain renames. As it is otherwise, Hadoop starts a readlink
# of its own for each, three for every file. And Spark compiles no code for a handful of rows: a fifth of what a query
# costs here. Programs with a Spark of their own run as users have it.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

RETAINED = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""With these Spark's own log keeps every batch."""
