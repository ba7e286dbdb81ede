"""Carries a fault script out on a simulation: each fault when its epoch has begun, or its second has come."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runtime.faults import Fault, expand_faults
from holdfast.runtime.simulation.shell import Simulation


def schedule_faults(simulation: Simulation) -> None:
    """Set every fault of the scenario; ``join ... after`` counts from the loss of the nodes that precedes it."""
    scenario = simulation.scenario
    lost_at: dict[str, Fault] = {}
    for fault in expand_faults(scenario.faults, scenario.names, scenario.epochs, scenario.domains):
        action = _action(simulation, fault)
        if fault.what in ("kill", "unreachable"):
            lost_at.update(dict.fromkeys(fault.nodes, fault))
        if fault.when.after and (before := next((lost_at[n] for n in fault.nodes if n in lost_at), None)) is not None:
            _at(simulation, before, _later(simulation, fault.when.seconds or 0.0, action))
        else:
            _at(simulation, fault, action)


def _at(simulation: Simulation, fault: Fault, action: Callable[[], None]) -> None:
    if fault.when.epoch is not None:
        simulation.at_epoch(fault.when.epoch, action)
    else:
        simulation.clock.after(fault.when.seconds or 0.0, action)


def _later(simulation: Simulation, seconds: float, action: Callable[[], None]) -> Callable[[], None]:
    return lambda: (simulation.clock.after(seconds, action), None)[1]


def _action(simulation: Simulation, fault: Fault) -> Callable[[], None]:
    def happen() -> None:
        simulation.note("fault", {"fault": str(fault)})
        match fault.what:
            case "kill":
                simulation.die(fault.nodes)
            case "join":
                simulation.boot(fault.nodes)
            case "slow":
                _slow(simulation, fault)
            case "unreachable":
                simulation.stall(fault.nodes, fault.seconds or 0.0)
            case "fill":
                simulation.fill(fault.seconds or 0.0)
            case "damage":
                simulation.store.damage()
            case "restart":
                simulation.restart()

    return happen


def _slow(simulation: Simulation, fault: Fault) -> None:
    for name in fault.nodes:
        machine = simulation.machines.get(name)
        if machine is not None:
            machine.speed = 1.0 / (fault.factor or 1.0)

            def recover(name: str = name) -> None:
                if name in simulation.machines:
                    simulation.machines[name].speed = 1.0

            simulation.clock.after(fault.seconds or 0.0, recover)
