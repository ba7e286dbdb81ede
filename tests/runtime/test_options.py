"""Options of a job: each name arrives where it belongs, alone or in its group; what is wrong is said in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import holdfast
from holdfast import Drill, Failover, Replication, Scaling, Storage
from holdfast.errors import Invalid
from holdfast.runtime.domains import Domains
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.options import Flat, Options
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.pipelines import counted_words
from holdfast.runtime.spark.source import Edge
from holdfast.state import Sync
from holdfast.topology import Task

FAULTS = tuple(parse_faults(["kill node-1 at epoch 3"]))
RACKS = Domains({"node-0": "rack-1"})
ARRIVES: dict[str, tuple[object, Callable[[JobConfig, Options], object]]] = {
    "budget": (2.0, lambda config, _: config.budget),
    "survive": (1, lambda config, _: config.settings.survive),
    "domains": (RACKS, lambda _, options: options.replication.apart()),
    "recovery": ("blocking", lambda config, _: config.settings.recovery),
    "scheduler": ("best-density", lambda config, _: config.settings.scheduler),
    "capacity": (3.0, lambda config, _: config.settings.capacity),
    "ceiling": (0.5, lambda config, _: config.settings.ceiling),
    "patience": (7.0, lambda config, _: config.settings.patience),
    "parallel_recovery": (2, lambda config, _: config.settings.parallel_recovery),
    "rebalance": (False, lambda config, _: config.settings.rebalance),
    "answer_within": (2.0, lambda config, _: config.settings.within),
    "elastic": ({"threshold": 0.5}, lambda config, _: config.scaling.elastic),
    "max_nodes": (9, lambda config, _: config.most_nodes),
    "pool": (2, lambda config, _: config.settings.standby),
    "shed_above": (1.5, lambda config, _: config.scaling.shed_above),
    "checkpoint_every": (4, lambda config, _: config.settings.checkpoint_every),
    "outputs": (False, lambda config, _: config.storage.outputs),
    "memory_limit": (1000, lambda config, _: config.storage.memory_limit),
    "sync": (Sync(journal=False), lambda _, options: options.storage.sync),
    "force": (True, lambda config, _: config.storage.force),
    "allow_changed": (("counts",), lambda config, _: config.storage.allow_changed),
    "storage_options": ({"key": "k"}, lambda config, _: config.storage.storage_options),
    "spark_log": ("/log", lambda _, options: options.storage.spark_log),
    "lease": (6.0, lambda config, _: config.storage.lease),
    "standby": (True, lambda _, options: options.storage.standby),
    "faults": (FAULTS, lambda _, options: options.drill.faults),
    "rejoin_after": (0.5, lambda _, options: options.drill.rejoin_after),
    "verify": (True, lambda config, _: config.verify),
}
GROUPS = tuple(type(group) for group in Options())


def taken(*groups: Any, **flat: Any) -> Options:
    return Options().taking(groups, flat, "start")  # type: ignore[arg-type]


def config(options: Options, **rest: Any) -> JobConfig:
    return JobConfig.of("job", counted_words(), 3, options, **rest)


def test_names_and_types_are_those_of_the_groups() -> None:
    both = [(name, kind) for group in GROUPS for name, kind in get_type_hints(group).items()]
    assert both == list(get_type_hints(Flat).items())
    assert Flat.__annotations__.keys() == ARRIVES.keys() | {"replicas"}
    assert all(name in inspect.signature(holdfast.start).parameters for name in ("store", "nodes", "epochs", "trigger"))


@pytest.mark.parametrize("name", ARRIVES)
def test_a_name_arrives_where_it_belongs_alone_and_in_its_group(name: str) -> None:
    value, found = ARRIVES[name]
    group = next(group for group in GROUPS if name in {field.name for field in fields(group)})
    assert found(config(Options()), Options()) != value, "the usual is something else"
    for options in (taken(**{name: value}), taken(group(**{name: value}))):
        assert found(config(options), options) == value
        assert sum(one != usual for one, usual in zip(options, Options(), strict=True)) == 1


def test_replicas_are_tasks_of_the_pipeline() -> None:
    wanted = (Task("counts", 0), Task("counts", 1))
    for given in (["counts/0", "counts/1"], iter(wanted)):
        assert config(taken(replicas=given)).settings.replicas == wanted
    with pytest.raises(Invalid, match="counts/7"):
        config(taken(replicas=["counts/7"]))


def test_what_follows_from_nothing_or_from_one_another() -> None:
    usual = config(Options())
    assert usual.settings == Settings(nodes=3, young=True) and usual.most_nodes == 3
    assert not config(taken(checkpoint_every=10)).settings.young
    assert config(taken(answer_within="500ms")).settings.restore_within == 0.5
    assert config(taken(pool=2)).most_nodes == 5


def test_groups_with_the_same_fields_are_equal() -> None:
    for group in GROUPS:
        assert group() == group()
    racks = {"node-0": "rack-1"}
    assert Replication(replicas=["counts/0"], domains=racks) == Replication(replicas=("counts/0",), domains=racks)


@pytest.mark.parametrize("value", [object(), {"deep": {1, 2}}, b"bytes"])
def test_options_of_a_client_that_cannot_travel_are_refused(value: object) -> None:
    with pytest.raises(Invalid, match=r"storage_options 'token': a text, a number, .* got a value of type"):
        taken(storage_options={"token": value})


def test_a_name_departs_from_the_group_it_is_given_with() -> None:
    options = taken(Failover(recovery="blocking", capacity=2.0), capacity=3.0)
    assert options.failover == Failover(recovery="blocking", capacity=3.0)
    assert options.taking((), {"ceiling": 0.5}, "resilience").failover.capacity == 3.0


@pytest.mark.parametrize(
    ("given", "flat", "told"),
    [
        ((), {"budgets": 3}, "start 'budgets': did you mean budget? there are: budget, replicas, survive, domains, "),
        ((), {"zzz": 3}, "start 'zzz': there are: budget, replicas, "),
        (
            (Replication(), Replication()),
            {},
            "start: options come by name or as one each of Replication, Failover, Scaling, Storage, Drill, got "
            "Replication, Replication",
        ),
        (({"budget": 2},), {}, "start: options come by name or as one each of Replication, Failover, "),
        ((Replication,), {}, "start: options come by name or as one each of Replication, Failover, "),
        ((Replication(budget=1.0),), {"replicas": ["counts/0"]}, "replicas and budget: give one of them; "),
    ],
)
def test_what_is_no_option_is_refused_in_one_line(given: tuple[Any, ...], flat: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid) as caught:
        taken(*given, **flat)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "wrong", "told"),
    [
        (Replication, {"budget": -1}, "budget must be a finite number, 0 or more, got -1"),
        (Replication, {"budget": float("inf")}, "budget must be a finite number, 0 or more, got inf"),
        (Replication, {"budget": "2"}, "budget must be a finite number, 0 or more, got '2'"),
        (Replication, {"survive": 0}, "survive must be a number of nodes, 1 or more, or domain, got 0"),
        (Replication, {"survive": "rack"}, "survive must be a number of nodes, 1 or more, or domain, got 'rack'"),
        (Replication, {"replicas": "counts/0"}, """replicas must be a list of tasks, such as ["counts/0"], got 'c"""),
        (Replication, {"replicas": [3]}, 'replicas must be a list of tasks, such as ["counts/0"], got [3]'),
        (Replication, {"domains": {}}, "domains: a mapping of nodes or hosts to the names of domains is needed"),
        (Failover, {"recovery": "hope"}, "recovery must be one of incremental, blocking, source-replay, upstream-"),
        (Failover, {"scheduler": "lucky"}, "scheduler must be one of "),
        (Failover, {"capacity": -1.0}, "capacity must be 0 or more, in task costs, got -1.0"),
        (Failover, {"ceiling": 1.5}, "ceiling must be above 0 and at most 1, got 1.5"),
        (Failover, {"ceiling": None}, "ceiling must be above 0 and at most 1, got None"),
        (Failover, {"patience": float("nan")}, "patience must be 0 seconds or more, got nan"),
        (Failover, {"parallel_recovery": 1.5}, "parallel_recovery must be at least 1, got 1.5"),
        (Failover, {"answer_within": "soon"}, "answer_within 'soon': a time is needed, such as 500ms"),
        (Failover, {"answer_within": [2]}, "answer_within must be a time such as 2s, seconds, or never, got [2]"),
        (Scaling, {"elastic": "yes"}, "elastic must be a bool, a mapping or a Policy, got 'yes'"),
        (Scaling, {"elastic": {"treshold": 1}}, "elastic 'treshold': did you mean threshold? there are: every, "),
        (Scaling, {"elastic": {"threshold": 2}}, "scaling policy: threshold must be above 0 and at most 1"),
        (Scaling, {"max_nodes": 0}, "max_nodes must be at least 1, got 0"),
        (Scaling, {"pool": -1}, "pool must be 0 or more nodes, got -1"),
        (Scaling, {"shed_above": 0}, "shed_above must be more than 0 seconds, got 0"),
        (Storage, {"checkpoint_every": 0}, "checkpoint_every must be at least 1, got 0"),
        (Storage, {"memory_limit": "1g"}, "memory_limit must be a number of bytes, 0 or more, got '1g'"),
        (Storage, {"sync": True}, "sync must be a holdfast.state.Sync, got True"),
        (Storage, {"allow_changed": "counts"}, """allow_changed must be a list of names of operators, such as ["co"""),
        (
            Drill,
            {"faults": ["kill node-1 at epoch 3"]},
            "faults must be a list of faults, as parse_faults of holdfast.",
        ),
        (Drill, {"rejoin_after": -1}, "rejoin_after must be 0 seconds or more, got -1"),
        (Edge, {"trigger": {}, "bounded": True}, "bounded: say how many epochs there are, epochs=..."),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(make: type, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid) as caught:
        make(**wrong)
    assert str(caught.value).startswith(told) and "\n" not in str(caught.value)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(Invalid, match=r"^max_nodes must be at least nodes and pool together, 4, got 3$"):
        config(taken(Scaling(pool=1, max_nodes=3)))
    with pytest.raises(Invalid, match=r"^epochs must be at least 1, got 0$"):
        config(Options(), epochs=0)
