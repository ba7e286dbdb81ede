"""Java classes by name, each looked up once.

For every part of a name py4j asks the JVM, which looks through all its jars for a class of that name: a name that is
none, such as ``org`` or ``java.util``, costs some milliseconds. So what was found is remembered. The names that PySpark
itself asks for with every job are told in full, and what they stand for is put where it looks: it need not ask.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from py4j.java_gateway import JavaPackage, java_import
from pyspark import SparkContext

OFTEN = {
    "PairwiseRDD": (),
    "PythonPartitioner": (),
    "PythonRDD": ("collectAndServe",),
    "PythonUtils": ("getBroadcastThreshold",),
    "SimplePythonFunction": (),
}
"""Classes of ``org.apache.spark.api.python``, each with methods of it."""


class Names:
    """A package, or the root of all: classes and packages in it are its attributes."""

    def __init__(self, package: Any) -> None:
        self._package = package

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._package, name)
        known = Names(found) if isinstance(found, JavaPackage) else found
        setattr(self, name, known)
        return known


def java(context: SparkContext) -> Any:
    """The names of a context's JVM."""
    return _names(context._jvm)


@lru_cache(maxsize=2)
def _names(jvm: Any) -> Names:
    for name, methods in OFTEN.items():
        java_import(jvm, f"org.apache.spark.api.python.{name}")
        known = getattr(jvm, name)
        for method in methods:
            setattr(known, method, getattr(known, method))
        setattr(jvm, name, known)
    java_import(jvm, "org.apache.spark.sql.api.python.PythonSQLUtils")
    return Names(jvm)


def scala_object(package: Any, name: str) -> Any:
    """A Scala object. Its methods that are private to a package have no static forwarders, and are reached this way."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
