"""Plain queries: a streaming DataFrame that keeps state, kept alive by one changed line."""

from holdfast.queries.explaining import explain
from holdfast.queries.importing import Imported, import_state
from holdfast.queries.stateful import NotCovered
from holdfast.queries.writer import Query, Writer, writeStream

__all__ = ["Imported", "NotCovered", "Query", "Writer", "explain", "import_state", "writeStream"]
