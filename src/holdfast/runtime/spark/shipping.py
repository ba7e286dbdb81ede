"""What travels to the workers, and what they say when they fail."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.operators import Pipeline
from holdfast.runtime.worker.worker import JobContext


def as_bytes(sent: JobContext | Pipeline) -> bytes:
    """For the way to the workers only. Code that is not installed, such as a user's own modules, travels by value."""
    from pyspark import cloudpickle

    tool: Any = cloudpickle
    known = tool.list_registry_pickle_by_value()
    pipeline = sent if isinstance(sent, Pipeline) else sent.pipeline
    own = [each for each in _modules(pipeline) if not _installed(each) and each.__name__ not in known]
    for module in own:
        tool.register_pickle_by_value(module)
    try:
        return bytes(tool.dumps(sent))
    finally:
        for module in own:
            tool.unregister_pickle_by_value(module)


def _modules(pipeline: Pipeline) -> list[ModuleType]:
    """The modules that the operators of a pipeline, and functions they hold, come from."""
    found: dict[str, ModuleType] = {}
    for step in pipeline.steps:
        for thing in (type(step.operator), *vars(step.operator).values()):
            module = sys.modules.get(getattr(thing, "__module__", None) or "")
            if module is not None and module.__name__ != "__main__":
                found[module.__name__] = module
    return list(found.values())


def _installed(module: ModuleType) -> bool:
    """Whether a worker, which runs the same Python but not in this folder, can import it."""
    file = getattr(module, "__file__", None)
    roots = [*sysconfig.get_paths().values(), str(Path(holdfast.__file__).parent)]
    return file is None or any(Path(file).is_relative_to(root) for root in roots)


def arrow_schema(spark: SparkSession, frame: DataFrame) -> bytes:
    """The schema of the Arrow batches that Spark makes of a frame: those themselves do not say it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    large = frame.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    schema: pa.Schema = to_arrow_schema(frame.schema, timezone=zone, prefers_large_types=large)
    return bytes(schema.serialize())


class SparkFailed(Exception):
    """Spark could not finish something; the message is the first cause, in one line."""


def first_cause(error: BaseException) -> str:
    """What went wrong in one line: what was raised in Python, if anything was, without anybody's frames."""
    lines = str(error).splitlines()
    raised = [
        line.strip()
        for start, text in enumerate(lines)
        if text.rstrip().endswith("Traceback (most recent call last):")
        for line in [next((after for after in lines[start + 1 :] if after[:1].strip()), "")]
        if line and not line.startswith(_WRAPPERS)
    ]
    plain = [line.strip() for line in lines if line.strip() and not line.strip().startswith(_WRAPPERS)]
    text = next(iter(raised or plain), type(error).__name__)
    return " ".join(text.split())[:300]


_WRAPPERS = (
    "py4j.",
    "pyspark.errors.",
    "org.apache.spark.api.python.PythonException",
    "An error occurred while calling",
)
