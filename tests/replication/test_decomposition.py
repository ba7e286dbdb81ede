"""Sub-topologies, units and segments: the paper's figures 3 and 4 by hand, and what must hold of any topology."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fidelity import count_trees
from holdfast.replication import SubTopology, decompose
from holdfast.topology import Knobs, Operator, Query, Stream, Topology, random_topology

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def operators_of(parts: tuple[SubTopology, ...]) -> list[tuple[str, set[str]]]:
    return [(part.kind, set(part.operators)) for part in parts]


def test_figure_4_is_cut_at_the_full_stream() -> None:
    widths = {"O1": 4, "O2": 4, "O3": 2, "O4": 2, "O5": 4, "O6": 3}
    streams = (
        Stream("O1", "O3", "merge"),
        Stream("O2", "O3", "merge"),
        Stream("O3", "O4", "full"),
        Stream("O3", "O5", "full"),
        Stream("O4", "O6", "split"),
        Stream("O5", "O6", "merge"),
    )
    figure = Topology(tuple(Operator(name, width) for name, width in widths.items()), streams)
    assert operators_of(decompose(figure)) == [("structured", {"O1", "O2", "O3"}), ("structured", {"O4", "O5", "O6"})]


def test_figure_3a_merge_then_split_is_a_boundary() -> None:
    operators = (Operator("O1", 4), Operator("O2", 2), Operator("O3", 4))
    (part,) = decompose(Topology(operators, (Stream("O1", "O2", "merge"), Stream("O2", "O3", "split"))))
    assert [(unit.operators, len(unit.segments)) for unit in part.units] == [(("O1",), 4), (("O2", "O3"), 4)]
    assert [str(link) for link in part.links] == ["O1 -> O2"]


def test_figure_3b_a_join_with_a_merged_input_is_a_boundary() -> None:
    operators = (Operator("O1", 4), Operator("O2", 1), Operator("O3", 2, inputs="correlated"))
    (part,) = decompose(Topology(operators, (Stream("O1", "O3", "merge"), Stream("O2", "O3", "split"))))
    assert [(unit.operators, len(unit.segments)) for unit in part.units] == [(("O1",), 4), (("O2", "O3"), 2)]


def test_a_chain_of_full_streams_is_one_full_part() -> None:
    chain = Topology(
        (Operator("X", 2), Operator("S", 2), Operator("A", 3), Operator("B", 2)),
        (Stream("X", "S", "one-to-one"), Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    assert operators_of(decompose(chain)) == [("structured", {"X", "S"}), ("full", {"A", "B"})]


def test_a_query_that_feeds_others_ends_segments_of_its_own() -> None:
    chain = Topology((Operator("A", 2), Operator("B", 1)), (Stream("A", "B", "merge"),), (Query("A", 3), Query("B", 1)))
    (part,) = decompose(chain)
    assert part.units[0].segments == ((0,), (1,), (0, 2), (1, 2))
    (alone,) = decompose(chain, "A")
    assert alone.operators == ("A",)


any_topology = st.builds(
    random_topology,
    st.integers(0, 100_000),
    st.builds(
        Knobs,
        operators=st.just((2, 14)),
        parallelism=st.sampled_from([(1, 4), (1, 12)]),
        queries=st.sampled_from([(1, 1), (2, 6)]),
        joins=st.sampled_from([0.0, 0.5, 1.0]),
        full=st.sampled_from([0.0, 0.3, 1.0]),
    ),
)


@SETTINGS
@given(any_topology)
def test_parts_cover_the_topology_and_only_full_streams_run_between_them(topology: Topology) -> None:
    parts = decompose(topology)
    names = [name for part in parts for name in part.operators]
    assert sorted(names) == sorted(operator.name for operator in topology.operators)
    place = {name: number for number, part in enumerate(parts) for name in part.operators}
    for stream in topology.streams:
        inside = place[stream.source] == place[stream.target]
        if not inside or parts[place[stream.source]].kind == "full":
            assert stream.partitioning == "full"


@SETTINGS
@given(any_topology)
def test_units_cover_a_structured_part_and_segments_stay_few(topology: Topology) -> None:
    for part in decompose(topology):
        if part.kind == "full":
            continue
        assert sorted(name for unit in part.units for name in unit.operators) == sorted(part.operators)
        tasks = {place for name in part.operators for place in range(*topology.span[name].indices(10**6))}
        segments = [segment for unit in part.units for segment in unit.segments]
        assert {place for segment in segments for place in segment} == tasks
        assert len(set(segments)) == len(segments)
        assert len(segments) <= 8 * len(tasks)


@SETTINGS
@given(any_topology)
def test_units_of_a_query_with_no_boundary_hold_its_complete_trees(topology: Topology) -> None:
    for query in topology.queries:
        parts = decompose(topology, query.sink)
        if len(parts) > 1 or parts[0].kind == "full" or parts[0].links:
            continue
        alone = Topology(
            tuple(o for o in topology.operators if o.name in parts[0].operators),
            tuple(s for s in topology.streams if {s.source, s.target} <= set(parts[0].operators)),
            (Query(query.sink),),
        )
        if any(stream.partitioning == "full" for stream in alone.streams):
            continue  # a full stream beside a structured path: a boundary as well
        ends = set(range(*topology.span[query.sink].indices(10**6)))
        complete = [segment for segment in parts[0].units[0].segments if ends & set(segment)]
        assert len(complete) == count_trees(alone)
