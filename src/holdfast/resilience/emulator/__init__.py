"""The emulator: the model of a strategy in virtual time under random failures, with measured spreads of checkpoints."""

from holdfast.resilience.emulator.emulate import Effort, Emulation, emulate, emulate_option

__all__ = ["Effort", "Emulation", "emulate", "emulate_option"]
