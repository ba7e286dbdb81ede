"""Where to inject: only where a fault shows a behaviour that none upstream of it shows (paper 001, section 4.2)."""

from __future__ import annotations

from holdfast.topology import Topology


def injection_targets(topology: Topology) -> tuple[str, ...]:
    """Every source, and breadth-first each operator that meets one of the rules.

    An upstream operator feeds more than one consumer; or it has more than one input; or its upstream is stateful.
    """
    return tuple(name for name in _breadth_first(topology) if _differs(topology, name))


def behaves_as(topology: Topology) -> dict[str, str]:
    """For every operator the target whose faults stand for its own: itself, or the nearest upstream that is one."""
    found: dict[str, str] = {}
    for operator in topology.operators:  # upstream first
        inputs = topology.inputs_of(operator.name)
        found[operator.name] = operator.name if _differs(topology, operator.name) else found[inputs[0].source]
    return found


def _differs(topology: Topology, name: str) -> bool:
    inputs = topology.inputs_of(name)
    if len(inputs) != 1:
        return True
    (upstream,) = (stream.source for stream in inputs)
    return len(topology.outputs_of(upstream)) > 1 or topology.operator[upstream].stateful


def _breadth_first(topology: Topology) -> list[str]:
    order = [operator.name for operator in topology.sources]
    for name in order:
        order += [stream.target for stream in topology.outputs_of(name) if stream.target not in order]
    return order
