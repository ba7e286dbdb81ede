"""A task's state: its named tables at one epoch. Immutable; forking or going back is a choice of version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.errors import Invalid
from holdfast.state.change import Change
from holdfast.state.ranges import KeyRange
from holdfast.state.run import raise_first
from holdfast.state.schema import StateSchema
from holdfast.state.table import UNCOUNTED, Spill, StateTable, merge


@dataclass(frozen=True, slots=True)
class TaskState:
    """Named tables, all at the version of ``epoch``."""

    epoch: int
    tables: Mapping[str, StateTable] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))

    @classmethod
    def empty(cls, schemas: Mapping[str, StateSchema], epoch: int = 0, spilling: Spill | None = None) -> TaskState:
        return cls(epoch, {name: StateTable.empty(schema, epoch, spilling) for name, schema in schemas.items()})

    def __getitem__(self, name: str) -> StateTable:
        try:
            return self.tables[name]
        except KeyError:
            raise Invalid(f"state: no table {name!r}, there is {', '.join(self.tables) or 'none'}") from None

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables.values())

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.tables.values())

    @property
    def afar(self) -> bool:
        """Whether some of it is elsewhere, and comes as it is asked for."""
        return any(table.afar for table in self.tables.values())

    @property
    def counted(self) -> bool:
        """Whether it is known how many rows it has."""
        return all(table.rows != UNCOUNTED for table in self.tables.values())

    def tell(self) -> None:
        """Raise what came in between as something of it was asked for, though nobody may have said so."""
        raise_first(table.tell for table in self.tables.values())

    def apply(self, changes: Mapping[str, Change], epoch: int) -> TaskState:
        """The next version: tables that ``changes`` does not name stay as they are; one it names first is created."""
        tables = {}
        for name in [*self.tables, *(name for name in changes if name not in self.tables)]:
            change = changes.get(name)
            table = self.tables.get(name)
            if table is None:
                assert change is not None
                table = StateTable.empty(change.schema, self.epoch)
            tables[name] = table.apply(Change.none(table.schema) if change is None else change, epoch)
        return TaskState(epoch, tables)

    def apply_stored(self, changes: Mapping[str, Change], epoch: int) -> TaskState:
        """``apply`` for changes that were written before or after columns were added."""
        grown = {
            name: table.evolve(changes[name].schema)
            if name in changes and not table.schema.differences(changes[name].schema)
            else table
            for name, table in self.tables.items()
        }
        return TaskState(self.epoch, grown).apply(changes, epoch)

    def evolve(self, schemas: Mapping[str, StateSchema]) -> TaskState:
        """The same state under newer schemas: added nullable columns and added tables are fine, else Invalid."""
        tables = dict(self.tables)
        for name, schema in schemas.items():
            try:
                tables[name] = tables[name].evolve(schema) if name in tables else StateTable.empty(schema, self.epoch)
            except Invalid as error:
                raise Invalid(f"table {name!r}: {error}") from None
        if gone := [name for name in self.tables if name not in schemas]:
            raise Invalid(f"state schema: only new tables may be added; table {gone[0]!r} is gone")
        return TaskState(self.epoch, tables)

    def with_spill(self, spilling: Spill | None) -> TaskState:
        """The same version under a memory limit for each table."""
        return TaskState(self.epoch, {name: table.with_spill(spilling) for name, table in self.tables.items()})

    def partition(self, ranges: Sequence[KeyRange]) -> list[TaskState]:
        """One state a key range, all tables cut alike."""
        cut = {name: table.partition(ranges) for name, table in self.tables.items()}
        return [TaskState(self.epoch, {name: parts[i] for name, parts in cut.items()}) for i in range(len(ranges))]


def merge_states(states: Sequence[TaskState]) -> TaskState:
    """The inverse of ``TaskState.partition``."""
    if not states:
        raise Invalid("merge: at least one state is needed")
    names = list(states[0].tables)
    for state in states[1:]:
        if sorted(state.tables) != sorted(names):
            raise Invalid(f"merge: the states have different tables, {sorted(names)} and {sorted(state.tables)}")
        if state.epoch != states[0].epoch:
            raise Invalid(f"merge: the states are of different epochs, {states[0].epoch} and {state.epoch}")
    return TaskState(states[0].epoch, {name: merge([state.tables[name] for state in states]) for name in names})
