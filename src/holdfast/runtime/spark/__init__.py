"""The Spark shell: the only room that knows Spark."""

from holdfast.runtime.spark.job import Job, start
from holdfast.runtime.spark.session import spark_session

__all__ = ["Job", "spark_session", "start"]
