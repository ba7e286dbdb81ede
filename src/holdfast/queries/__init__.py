"""Plain queries: a streaming DataFrame with an aggregate, kept alive by one changed line."""

from holdfast.queries.explaining import explain
from holdfast.queries.split import NotCovered
from holdfast.queries.writer import Query, Writer, writeStream

__all__ = ["NotCovered", "Query", "Writer", "explain", "writeStream"]
