"""Signals that end a mirror in order."""

from __future__ import annotations

import os
import signal

import pytest

from klamm.mirror.run import signals_as_event


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_set_event_and_handlers_are_restored(number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.default_int_handler)  # nohup lets SIGHUP be ignored
    try:
        with signals_as_event() as stopping:
            os.kill(os.getpid(), number)
            assert stopping.wait(10)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, inherited)


def test_nohup_mirror_ignores_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_event() as stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
