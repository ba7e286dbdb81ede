"""Ctrl-C: raised where our own code runs, kept while Spark's does, raised if somebody insists."""

from __future__ import annotations

import os
import signal
import types

import pytest

from holdfast.cli import interrupts

SPARK = types.ModuleType("py4j.pretended")
exec("def call(f):\n    f()\n    return 'answered'\n", SPARK.__dict__)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_our_own_code_is_interrupted_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        press()
    assert signal.getsignal(signal.SIGINT) is before
    interrupts.check()


def test_a_word_to_the_jvm_is_not_broken_but_the_interrupt_is_not_lost() -> None:
    with interrupts.held():
        assert SPARK.call(press) == "answered"
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()


def test_who_insists_is_heard_everywhere() -> None:
    with interrupts.held():
        SPARK.call(press)
        with pytest.raises(KeyboardInterrupt):
            SPARK.call(press)
        interrupts.check()
