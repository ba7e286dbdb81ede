"""What may pass and what does not: how often code of the user's is called again after it raised.

An error of I/O may pass, and so may one of Spark that says nothing against the rows or the program. Anything else is
tried once more, in case two threads or two drivers met.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.runtime.raised import Thrown, parsed, thrown
from holdfast.state import Unusable

ONCE_MORE = 2
"""Calls of what cannot get better: the first and one more."""
WORDS = re.compile(
    "Timeout|Deadline|Connect|Network|Transport|Unavailable|Operational|Interface|Throttl|TooMany|HTTP|Http|Rpc|Server|"
    "Client|Conflict|Concurrent|Commit|Lock|IOException|Py4J"
)
"""Names of exceptions of I/O in libraries that do not derive them from OSError."""
PASSING = (OSError, EOFError, Unusable)
STATES = ("0A", "21", "22", "23", "38", "39", "42", "P0")
"""Classes of SQLSTATE by which Spark says that rows or program are wrong."""


def may_pass(error: BaseException) -> bool:
    """Whether trying again may help: it, or what it was raised from, is an error of I/O."""
    return any(_passes(each) for each in _chain(error))


@dataclass(slots=True)
class Failures:
    """How often something failed in a row. ``limit``: calls of what may pass."""

    limit: int
    count: int = 0
    lasting: int = 0

    def over(self, error: BaseException) -> bool:
        """Counts this one; whether it was the last try."""
        self.count += 1
        self.lasting += not may_pass(error)
        return self.lasting >= ONCE_MORE or self.count >= self.limit


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _passes(error: BaseException) -> bool:
    if chain := thrown(error):
        return _spark_passes(chain)
    return _is_io(type(error))


def _spark_passes(chain: list[Thrown]) -> bool:
    raised = [each for link in chain for each in parsed(link.message)]
    if raised:
        return any(_is_io(_known(each.module, each.name)) or WORDS.search(each.name) for each in raised)
    if any(WORDS.search(each.name) for each in chain):
        return True
    return not any(each.state.startswith(STATES) for each in chain)


def _is_io(kind: type | None) -> bool:
    if kind is None:
        return False
    return issubclass(kind, PASSING) or any(WORDS.search(each.__name__) for each in kind.__mro__)


def _known(module: str, name: str) -> type | None:
    """A class by its name, if its module is loaded here."""
    found = vars(sys.modules.get(module, builtins)).get(name)
    return found if isinstance(found, type) else None
