"""The Spark shell: the only room that knows Spark."""

from holdfast.runtime.spark.job import Job, start
from holdfast.runtime.spark.session import growing, spark_session

__all__ = ["Job", "growing", "spark_session", "start"]
