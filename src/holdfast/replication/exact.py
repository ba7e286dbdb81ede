"""exact: the best plan there is, with a proof, by mixed-integer programming (HiGHS).

Survival of a task is ``replicated * mean of what comes in``: a binary times a bounded number, which is linear. A join
multiplies its input streams, which is not; but a mean of survivals is linear in what the sources send, so the product
of two streams is the second stream with its sources sending only what the first one delivered. Joins thus cost copies
of what is upstream of them (one for each level that is sent) and no approximation.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from holdfast.errors import Invalid
from holdfast.fidelity import priorities, shares, stream_rates
from holdfast.replication.problem import Assume, Problem, ReplicationPlan
from holdfast.replication.solver import quiet
from holdfast.replication.structure_aware import structure_aware
from holdfast.topology import Stream, Topology

TIME_LIMIT = 30.0
MOST_VARIABLES = 200_000
PROOF = 1e-6
"""Relative gap at which a plan counts as proven; the solver's own tolerances are of this size."""

OPTIONS = {"mip_rel_gap": PROOF / 10, "presolve": False}
"""Presolve of HiGHS 1.14 drops optimal solutions of such programs and calls the rest optimal (ERGO-Code/HiGHS#3094)."""

Expression = dict[int, float]
ONE = 0
"""The variable that is always 1: the level at which sources send when no join is above."""


def exact(topology: Topology, budget: float, assume: Assume = "all", time_limit: float = TIME_LIMIT) -> ReplicationPlan:
    """The optimum, ``optimal=True``; or the best plan found within ``time_limit`` seconds, ``optimal=False``."""
    if not time_limit > 0:
        raise Invalid(f"time limit must be above 0 seconds, got {time_limit}")
    problem = Problem(topology, budget, assume)
    known = structure_aware(topology, budget, assume)
    if known.fidelity >= 1.0:
        return problem.plan("exact", topology.mask(known.replicas), True)
    program = _Program(problem)
    solved = program.solve(time_limit) if program.variables <= MOST_VARIABLES else None
    if solved is None:
        return problem.plan("exact", topology.mask(known.replicas), False)
    chosen, bound = solved
    best = max(
        (problem.plan("exact", mask) for mask in (problem.useful(chosen), topology.mask(known.replicas))),
        key=lambda plan: (plan.objective, -plan.cost),
    )
    scale = float(priorities(topology).sum())
    proven = bound - best.objective <= PROOF * scale
    return problem.plan("exact", topology.mask(best.replicas), proven)


class _Program:
    """The mixed-integer program: a binary for each task at risk, a survival for each task, scenario and level."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.topology = problem.topology
        self.variables = 1 + len(self.topology.tasks)  # ONE, then the binaries
        self._rows: list[Expression] = []
        self._survivals: dict[tuple[int, int, int], int] = {}
        self._means: dict[tuple[int, Stream, int], int] = {}
        self._streams = {o.name: self._ordered(o.name) for o in self.topology.operators}
        self._weights = {o.name: self._stream_weights(o.name) for o in self.topology.operators}
        self._ancestors: dict[int, list[int]] = {}
        scenarios = problem.risk.shape[1]
        self._touched = [self._downstream(problem.risk[:, number]) for number in range(scenarios)]
        self.objective = [self._value(number) for number in range(scenarios) if self.variables <= MOST_VARIABLES]

    def _ordered(self, name: str) -> list[Stream]:
        """Full streams first: all tasks of a join then share one level, and one copy of what the other inputs need."""
        return sorted(self.topology.inputs_of(name), key=lambda stream: stream.partitioning != "full")

    def _joins(self, name: str) -> bool:
        return self.topology.operator[name].inputs == "correlated" and len(self._streams[name]) > 1

    def _stream_weights(self, name: str) -> NDArray[np.float64]:
        rates = [stream_rates(self.topology, stream) for stream in self._streams[name]]
        if not rates:
            return np.empty((0, 0))
        stacked = np.stack(rates)
        stacked = np.where(stacked.sum(axis=0) > 0, stacked, 1.0)
        return np.asarray(stacked / stacked.sum(axis=0))

    def _downstream(self, risk: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tasks that this scenario can touch: those at risk and everything downstream of them."""
        touched = risk.copy()
        for place, task in enumerate(self.topology.tasks):
            for stream in self.topology.inputs_of(task.operator):
                senders = self._senders(stream, place)
                touched[place] |= touched[senders.start : senders.stop].any()
        return touched

    def _senders(self, stream: Stream, place: int) -> range:
        start = self.topology.span[stream.source].start
        senders = self.topology.senders(stream, self.topology.tasks[place].number)
        return range(start + senders.start, start + senders.stop)

    def _value(self, scenario: int) -> Expression:
        """The objective in this scenario."""
        value: Expression = {}
        for query in self.topology.queries:
            span = self.topology.span[query.sink]
            share = shares(self.topology.rates[span]) * query.priority
            for place, weight in zip(range(span.start, span.stop), share, strict=True):
                _add(value, self._survival(scenario, place, ONE), float(weight))
        return value

    def _survival(self, scenario: int, place: int, level: int) -> int:
        """The variable ``level x survival of the task``; ancestors first, so that long chains do not recurse deeply."""
        if not self._touched[scenario][place]:
            return level
        if (scenario, place, level) not in self._survivals:
            for ancestor in self._upstream(place):
                if self._touched[scenario][ancestor] and (scenario, ancestor, level) not in self._survivals:
                    self._survivals[scenario, ancestor, level] = self._make(scenario, ancestor, level)
                if self.variables > MOST_VARIABLES:
                    return level
        return self._survivals[scenario, place, level]

    def _upstream(self, place: int) -> list[int]:
        """The task and those upstream that are needed at the same level (of a join the first input), sources first."""
        if place not in self._ancestors:
            found, waiting = {place}, [place]
            while waiting:
                at = waiting.pop()
                name = self.topology.tasks[at].operator
                for stream in self._streams[name][: 1 if self._joins(name) else None]:
                    fresh = set(self._senders(stream, at)) - found
                    found |= fresh
                    waiting += fresh
            self._ancestors[place] = sorted(found)
        return self._ancestors[place]

    def _make(self, scenario: int, place: int, level: int) -> int:
        task = self.topology.tasks[place]
        streams = self._streams[task.operator]
        binary = 1 + place
        at_risk = bool(self.problem.risk[place, scenario])
        if not streams and level == ONE:
            return binary
        arriving: Expression = {}
        if not streams:
            arriving[level] = 1.0
        elif self._joins(task.operator):
            for stream in streams:
                level = self._variable(self._mean(scenario, stream, place, level))
            arriving[level] = 1.0
        else:
            for stream, weights in zip(streams, self._weights[task.operator], strict=True):
                for variable, share in self._mean(scenario, stream, place, level).items():
                    _add(arriving, variable, share * float(weights[task.number]))
        if not at_risk:
            return self._variable(arriving)
        return self._variable(arriving, {binary: 1.0})

    def _mean(self, scenario: int, stream: Stream, place: int, level: int) -> Expression:
        """The survival of an input stream of this task; for a full stream one variable that all receivers share."""
        if stream.partitioning == "full" and (scenario, stream, level) in self._means:
            return {self._means[scenario, stream, level]: 1.0}
        senders = self._senders(stream, place)
        share = shares(self.topology.rates[senders.start : senders.stop])
        mean: Expression = {}
        for sender, part in zip(senders, share, strict=True):
            _add(mean, self._survival(scenario, sender, level), float(part))
        if stream.partitioning != "full":
            return mean
        self._means[scenario, stream, level] = self._variable(mean)
        return {self._means[scenario, stream, level]: 1.0}

    def _variable(self, *limits: Expression) -> int:
        """A variable that is at most each of these; an expression that is a variable needs no new one."""
        if len(limits) == 1 and list(limits[0].values()) == [1.0]:
            return next(iter(limits[0]))
        fresh = self.variables
        self.variables += 1
        for limit in limits:
            row = {variable: -weight for variable, weight in limit.items()}
            row[fresh] = 1.0
            self._rows.append(row)
        return fresh

    def solve(self, time_limit: float) -> tuple[NDArray[np.bool_], float] | None:
        """The replicated tasks and a bound that no plan exceeds; None when nothing was found in time."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and seldom needed

        tasks = len(self.topology.tasks)
        goal: Expression = {}
        if self.problem.assume == "worst-domain":
            worst = self.variables
            self.variables += 1
            for value in self.objective:
                self._rows.append({worst: 1.0} | {variable: -weight for variable, weight in value.items()})
            goal[worst] = 1.0
        else:
            for value in self.objective:
                for variable, weight in value.items():
                    _add(goal, variable, weight / len(self.objective))
        upper = np.ones(self.variables)
        upper[1 : 1 + tasks] = self.problem.at_risk
        scale = float(priorities(self.topology).sum())
        if self.problem.assume == "worst-domain":
            upper[-1] = scale
        lower = np.zeros(self.variables)
        lower[ONE] = 1.0
        whole = np.zeros(self.variables)
        whole[1 : 1 + tasks] = 1
        costs = self.topology.costs / max(float(self.topology.costs.max()), 1e-300)
        affordable = self.problem.limit / max(float(self.topology.costs.max()), 1e-300)
        budget_row = {1 + place: float(cost) for place, cost in enumerate(costs) if cost > 0}
        rows = [*self._rows, budget_row]
        limits = [*(0.0 for _ in self._rows), affordable]
        deadline = time.monotonic() + time_limit
        while (left := deadline - time.monotonic()) > 0:
            with quiet():
                result = milp(
                    -_vector(goal, self.variables) / scale,
                    integrality=whole,
                    bounds=Bounds(lower, upper),
                    constraints=LinearConstraint(_matrix(rows, self.variables), -np.inf, limits),
                    options=OPTIONS | {"time_limit": left},
                )
            if result.x is None:
                return None
            chosen = np.asarray(result.x[1 : 1 + tasks] > 0.5)
            if self.problem.cost(chosen) <= self.problem.limit:
                bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
                return chosen, -float(bound) * scale
            # The solver forgives a small excess of the budget, we do not: cut this set off, and whatever contains it.
            rows.append({1 + int(place): 1.0 for place in np.flatnonzero(chosen)})
            limits.append(float(chosen.sum()) - 1.0)
        return None


def _add(expression: Expression, variable: int, weight: float) -> None:
    if weight:
        expression[variable] = expression.get(variable, 0.0) + weight


def _vector(expression: Expression, size: int) -> NDArray[np.float64]:
    vector = np.zeros(size)
    vector[list(expression)] = list(expression.values())
    return vector


def _matrix(rows: list[Expression], size: int) -> csr_array:
    lengths = [len(row) for row in rows]
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    columns = np.fromiter((variable for row in rows for variable in row), np.int64, int(pointers[-1]))
    weights = np.fromiter((weight for row in rows for weight in row.values()), np.float64, int(pointers[-1]))
    return csr_array((weights, columns, pointers), shape=(len(rows), size))
