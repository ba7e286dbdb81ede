"""The contract between a user's function and the runtime: what an operator is given and what it answers.

An operator must be deterministic: the same inputs and state give the same output, so that an epoch replayed gives the
same bytes. Its instance holds configuration only; everything it remembers between epochs is in its state tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators.description import Description, Version, name_of
from holdfast.state import Change, StateSchema, StateTable, compose
from holdfast.state.index import ByRank, ByTime
from holdfast.state.keys import in_one_form
from holdfast.topology import Task

DEFAULT_TABLE = "state"
FOUND = "found"
"""The column of a look-up that tells an absent key from a stored null; no value column may have this name."""


class TableView:
    """One state table as an operator sees it during an epoch: it reads its own writes."""

    def __init__(self, table: StateTable, epoch: int) -> None:
        self._table = table
        self._epoch = epoch
        self._changes: list[Change] = []
        self._looked_up = 0
        self._searched = False

    @property
    def schema(self) -> StateSchema:
        return self._table.schema

    def __len__(self) -> int:
        self._searched = True
        return len(self._table)

    def lookup(self, keys: pa.Table) -> pa.Table:
        """The value columns for these keys, row for row, null where absent, and a boolean column ``found``."""
        self._looked_up += keys.num_rows
        values, found = self._table.find(keys)
        columns = dict(zip(values.schema.names, values.columns, strict=True))
        return pa.table({**columns, FOUND: pa.array(found)})

    def update(self, rows: pa.Table) -> None:
        """Insert or replace rows: key and value columns; the last row of a key wins."""
        if rows.num_rows:
            self._change(Change(self._in_one_form(rows), self.schema.key.empty_table()))

    def delete(self, keys: pa.Table) -> None:
        """Remove these keys; those that are not there are passed over."""
        if keys.num_rows:
            self._change(Change(self.schema.arrow.empty_table(), keys.select(self.schema.key.names)))

    def scan(self) -> pa.Table:
        """Every row, in a deterministic order."""
        self._searched = True
        return self._in_one_form(self._table.to_table())

    def upto(self, by: ByTime, time: int) -> pa.Table:
        """The rows whose time is at or before this one, in the order of ``scan``. It costs what it answers."""
        self._searched = True
        return self._in_one_form(self._table.upto(by, time))

    def best(self, by: ByRank, groups: pa.Table, count: int | None) -> pa.Table:
        """Few rows, among them the first ``count`` of each of these groups (all, without one), in ``scan``'s order."""
        self._searched = True
        return self._in_one_form(self._table.best(by, groups, count))

    def _in_one_form(self, rows: pa.Table) -> pa.Table:
        """A store of an earlier version may have -0.0, and any NaN, in keys."""
        return in_one_form(rows, self.schema.key.names)

    def _change(self, change: Change) -> None:
        self._table = self._table.apply(change, self._epoch)
        self._changes.append(change)

    @property
    def table(self) -> StateTable:
        """The version that holds all changes made so far."""
        return self._table

    @property
    def asked(self) -> int | None:
        """How many keys were looked up; None if something else was asked, which may need every row."""
        return None if self._searched else self._looked_up

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    @property
    def change(self) -> Change:
        """All changes of this epoch as one."""
        if not self._changes:
            return Change.none(self.schema)
        return self._changes[0] if len(self._changes) == 1 else compose(self._changes)


class State:
    """A task's state during one epoch: its tables, and what the epoch is.

    ``watermark`` is the event time, in microseconds, up to which the inputs are complete once this epoch's rows are in;
    ``watermark_before`` is what it was when the epoch began, by which late rows are judged. None: not known yet.
    ``tentative``: the answer is, since rows may be missing, in this epoch or in the state.
    """

    def __init__(
        self,
        tables: Mapping[str, StateTable],
        task: Task,
        epoch: int,
        watermark: int | None = None,
        watermark_before: int | None = None,
        tentative: bool = False,
    ) -> None:
        self._views = {name: TableView(table, epoch) for name, table in tables.items()}
        self.task = task
        self.epoch = epoch
        self.watermark = watermark
        self.watermark_before = watermark_before
        self.tentative = tentative
        self.counters: dict[str, int] = {}

    def table(self, name: str) -> TableView:
        if name not in self._views:
            known = ", ".join(self._views) or "none"
            raise Invalid(
                f"state table {name!r}: operator {self.task.operator} declares no such table; it has: {known}"
            )
        return self._views[name]

    def lookup(self, keys: pa.Table) -> pa.Table:
        return self.table(DEFAULT_TABLE).lookup(keys)

    def update(self, rows: pa.Table) -> None:
        self.table(DEFAULT_TABLE).update(rows)

    def delete(self, keys: pa.Table) -> None:
        self.table(DEFAULT_TABLE).delete(keys)

    def scan(self) -> pa.Table:
        return self.table(DEFAULT_TABLE).scan()

    def count(self, what: str, rows: int) -> None:
        """Add to a counter that is reported with the epoch, such as the rows that came too late."""
        self.counters[what] = self.counters.get(what, 0) + rows

    @property
    def views(self) -> Mapping[str, TableView]:
        return self._views


class Operator:
    """What every parallel task of an operator does with its rows of an epoch.

    Subclass it and write ``process``; or ``process_inputs`` where there are several input streams. Declare state tables
    in ``tables``. ``process`` is called once an epoch, with the rows of all senders in a fixed order, also when there
    are none: a window may close.
    """

    tables: Mapping[str, StateSchema] = {}
    """State tables by name. One table named ``state`` is reached by ``state.lookup`` and its like."""

    by: tuple[str, ...] = ()
    """Columns whose equal rows must meet at one task; an input stream without a key of its own is keyed by them."""

    together: bool = False
    """True where all rows must meet at one task, since there is no key: a pipeline with more tasks is refused."""

    event_time: bool = False
    """True for operators that need the watermark."""

    horizon: int | None = None
    """So many microseconds of event time an answer rests on; None: everything that ever came. Tells how much an answer
    after a failure lacks."""

    version: Version = 1
    """Of an operator of one's own: another one says that its state does not fit what was kept before."""

    passes: bool | None = None
    """Whether rows leave with all the columns they came with, read or not. None: nobody has said so."""

    def reads(self, stream: str) -> frozenset[str] | None:
        """The columns that it looks at in the rows of this input; None: perhaps all.

        What nobody looks at is not read from the stream. It counts where ``passes`` is said, too. A class that derives
        from one with ``reads``, and has another ``prepare`` or ``process``, says for itself what these look at; else it
        is given all.
        """
        return None

    def describe(self) -> Description:
        """What the operator does, as JSON: a store whose state was made by something else is refused.

        Of an operator of one's own that is its class and version. To have its settings compared too, say
        ``return {**super().describe(), "limit": self.limit}``.
        """
        return {"kind": "operator", "class": type(self).__qualname__, "version": self.version}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        """Runs on the sender's side, before the rows of this input stream are routed: combine here what can be."""
        return batch

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        """The output rows for this batch; None for none."""
        raise NotImplementedError(f"{type(self).__name__} has neither process nor process_inputs")

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
        """The output rows for one batch of each input stream, by the name of the upstream operator."""
        if len(inputs) != 1:
            names = ", ".join(inputs)
            raise Invalid(f"operator {state.task.operator} has {len(inputs)} inputs ({names}): write process_inputs")
        (batch,) = inputs.values()
        return self.process(batch, state)


class FunctionOperator(Operator):
    """A plain function as an operator: ``f(batch)`` or ``f(batch, state)``.

    What it does cannot be seen from outside: a store takes another function for the same one if name and version are.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        state: StateSchema | Mapping[str, StateSchema] | None = None,
        *,
        version: Version = 1,
    ) -> None:
        self.function = function
        self.version = version
        self.takes_state = _parameters(function) >= 2
        if isinstance(state, StateSchema):
            state = {DEFAULT_TABLE: state}
        self.tables = dict(state or {})

    def describe(self) -> Description:
        return {"kind": "function", "function": name_of(self.function), "version": self.version}

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        if self.takes_state:
            return as_table(self.function(batch, state))
        # Nothing came, not even columns: a function of the rows alone has nothing to look at.
        return as_table(self.function(batch)) if batch.num_columns else None


def description_of(operator: Operator) -> Description:
    """What ``describe`` says; and of a class derived from a described one, its name and version as well."""
    described = next(each for each in type(operator).__mro__ if "describe" in vars(each))
    does = operator.describe()
    if described is Operator or described is type(operator):
        return does
    return {**does, "class": type(operator).__qualname__, "version": operator.version}


def columns_read(operator: Operator, stream: str) -> frozenset[str] | None:
    """What ``reads`` says, if it speaks of the methods that this operator has."""
    lines, methods = type(operator).__mro__, ("prepare", "process", "process_inputs")
    if operator.passes is None or not vars(operator).keys().isdisjoint(methods):
        return None

    def defined(method: str) -> int:
        return next(place for place, each in enumerate(lines) if method in vars(each))

    known = all(defined("reads") <= defined(method) for method in methods)
    said: Any = operator.reads(stream) if known else None
    if said is None:
        return None
    # A copy: what a class keeps for itself is not to be changed by whoever adds to it.
    if isinstance(said, str) or not isinstance(said, Iterable) or not all(isinstance(name, str) for name in said):
        raise Invalid(
            f"{type(operator).__name__}.reads: give the names of columns, as a frozenset, or None; got {said!r}"
        )
    return frozenset(said)


def as_operator(what: Operator | Callable[..., Any]) -> Operator:
    """The operator itself, or a plain function made one."""
    if isinstance(what, Operator):
        return what
    if isinstance(what, type) and issubclass(what, Operator):
        raise Invalid(f"operator {what.__name__}: pass an instance, {what.__name__}(...), not the class")
    if callable(what):
        return FunctionOperator(what)
    raise Invalid(f"an operator is a holdfast.Operator or a function of (batch) or (batch, state), got {what!r}")


def as_table(answer: Any) -> pa.Table | None:
    """What a function returned, as an Arrow table; anything that speaks Arrow's C stream interface will do."""
    if answer is None or isinstance(answer, pa.Table):
        return answer
    if isinstance(answer, pa.RecordBatch):
        return pa.Table.from_batches([answer])
    if hasattr(answer, "__arrow_c_stream__"):
        return pa.table(answer)
    raise Invalid(f"an operator answers with a pyarrow.Table or None, got {type(answer).__name__}")


def _parameters(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(
        parameter.kind in positional and parameter.default is inspect.Parameter.empty for parameter in parameters
    )
