"""What stands between two stateful nodes of a plan, run by tasks in Arrow: projections, filters, windows.

Spark evaluates everything below the first such node and above the last; between them rows do not pass through a JVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.queries.expressions.compiling import Compiler, not_covered
from holdfast.queries.expressions.evaluation import Evaluation
from holdfast.queries.expressions.values import Column, Expression, Value, columns_of, digest_of
from holdfast.queries.plans import Plans, items, kind

Scope: TypeAlias = dict[int, Value | tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Keep:
    """A filter: the rows for which the condition holds."""

    condition: Expression


@dataclass(frozen=True, slots=True)
class Multiply:
    """An Expand: ``times`` rows for each, which differ in these columns."""

    times: int
    columns: tuple[tuple[str, tuple[Expression, ...]], ...]


@dataclass(frozen=True, slots=True)
class Between:
    """From the answers of the lower node, whose columns ``reads`` it needs, to columns under the names ``wanted``.

    ``version``: another one for another computation; the same in every process, whatever the ids in Spark's plan were.
    """

    reads: tuple[str, ...]
    steps: tuple[Keep | Multiply, ...]
    wanted: tuple[tuple[str, Expression], ...]
    version: str

    def apply(self, table: pa.Table) -> pa.Table:
        """As Spark would; HoldfastError where it would raise an ANSI error."""
        table = table.select(self.reads or table.column_names[:1]).combine_chunks()  # of many tasks, in many pieces
        for step in self.steps:
            if isinstance(step, Keep):
                table = table.filter(Evaluation(table).column(step.condition).fill_null(False))
            else:
                table = _multiplied(step, table)
        evaluation = Evaluation(table)
        return pa.Table.from_arrays([evaluation.column(each) for _, each in self.wanted], schema=self.schema)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, each.type) for name, each in self.wanted])


def between(
    plans: Plans,
    nodes: Sequence[Any],
    given: Mapping[int, tuple[str, ...]],
    wanted: Sequence[tuple[str, Any]],
) -> Between:
    """Compiles ``nodes`` from the top to the bottom, and expressions over them under the names ``wanted``.

    A node is a Project, a Filter or an Expand; or a list of named expressions, which is a Project that nobody has made.
    ``given``: the columns that an expression id of the lower node's answers travels as, as ``Environment`` has them;
    those of ``Stateful.values`` are. Raises NotCovered by name.
    """
    compiler = Compiler(plans)
    environment: Scope = {**given}
    steps: list[Keep | Multiply] = []
    for node in reversed(nodes):
        if isinstance(node, list) or kind(node) == "Project":
            named = node if isinstance(node, list) else items(node.projectList())
            environment = {_id(each): compiler.compiled(each, environment) for each in named}
        elif kind(node) == "Filter":
            steps.append(Keep(compiler.whole(compiler.compiled(node.condition(), environment))))
        elif kind(node) == "Expand":
            environment = _expanded(compiler, node, environment, steps)
        else:
            raise not_covered(kind(node), str(node.simpleString(80)))
    columns = [(name, compiler.whole(compiler.compiled(each, environment))) for name, each in wanted]
    return Between(_reads(steps, columns), tuple(steps), tuple(columns), _version(steps, columns))


def _expanded(compiler: Compiler, node: Any, environment: Scope, steps: list[Keep | Multiply]) -> Scope:
    """What an Expand's output stands for; where its projections differ, a new column."""
    projections = [items(each) for each in items(node.projections())]
    found: Scope = {}
    added: list[tuple[str, tuple[Expression, ...]]] = []
    for place, attribute in enumerate(items(node.output())):
        versions = [compiler.compiled(each[place], environment) for each in projections]
        found[_id(attribute)] = versions[0]
        if any(each != versions[0] for each in versions):
            added.append((f".{len(steps)}.{place}", tuple(map(compiler.whole, versions))))
            found[_id(attribute)] = Column(added[-1][0], versions[0].type)
    steps.append(Multiply(len(projections), tuple(added)))
    return found


def _multiplied(step: Multiply, table: pa.Table) -> pa.Table:
    """Each row's versions stand together, as Spark has them."""
    evaluation, rows = Evaluation(table), table.num_rows
    together = np.arange(rows * step.times).reshape(step.times, rows).T.ravel()
    made = {
        name: pa.concat_arrays([evaluation.column(each) for each in versions]).take(pa.array(together))
        for name, versions in step.columns
    }
    table = table.take(pa.array(np.repeat(np.arange(rows), step.times)))
    for name, values in made.items():
        table = table.append_column(name, values)
    return table


def _reads(steps: list[Keep | Multiply], columns: list[tuple[str, Expression]]) -> tuple[str, ...]:
    used = [each for _, each in columns]
    added = set()
    for step in steps:
        if isinstance(step, Keep):
            used.append(step.condition)
        else:
            added |= {name for name, _ in step.columns}
            used += [each for _, versions in step.columns for each in versions]
    return tuple(sorted(columns_of(used) - added))


def _version(steps: list[Keep | Multiply], columns: list[tuple[str, Expression]]) -> str:
    known: dict[int, str] = {}
    words: list[str] = []
    for step in steps:
        if isinstance(step, Keep):
            words += ["keep", digest_of(step.condition, known)]
        else:
            words += [f"multiply {step.times}"]
            words += [f"{name} {digest_of(each, known)}" for name, made in step.columns for each in made]
    words += [f"{name} {digest_of(each, known)}" for name, each in columns]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _id(named: Any) -> int:
    return int(named.exprId().id())
