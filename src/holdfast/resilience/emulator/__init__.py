"""The emulator: does a strategy, run as its model says, keep the uptime it was sized for? Virtual time, real state."""

from holdfast.resilience.emulator.emulate import Effort, Emulation, emulate, emulate_option

__all__ = ["Effort", "Emulation", "emulate", "emulate_option"]
