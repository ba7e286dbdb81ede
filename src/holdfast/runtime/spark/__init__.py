"""The real edges of the driver: the only room that knows Spark."""

from holdfast.runtime.spark.job import Job
from holdfast.runtime.spark.session import growing, spark_session
from holdfast.runtime.spark.starting import start

__all__ = ["Job", "growing", "spark_session", "start"]
