"""A signal interrupts waits for input and output; other code is interrupted by a second Ctrl-C only."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from klamm.cli.console.interrupts import Interrupts

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_first_signal_interrupts_next_wait(pipe: tuple[int, int]) -> None:
    interrupts = Interrupts()
    with interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.wait_for(pipe[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_interrupts_next_wait_once(pipe: tuple[int, int], number: signal.Signals) -> None:
    # given
    inherited = signal.signal(number, signal.default_int_handler)  # nohup lets SIGHUP be ignored
    interrupts = Interrupts()
    try:
        with interrupts.deferred():
            # when
            for each in (number, signal.SIGTERM, number):  # the end of a login session sends several
                signal.raise_signal(each)
            # then
            with pytest.raises(SystemExit) as ended:
                interrupts.wait_for(pipe[0])
            assert ended.value.code == 128 + number
            signal.raise_signal(signal.SIGTERM)
            # Only Ctrl-C does not wait for the records.
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(number, inherited)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_ignored_signal_stays_ignored(pipe: tuple[int, int], number: signal.Signals) -> None:
    inherited = signal.signal(number, signal.SIG_IGN)
    interrupts = Interrupts()
    try:
        with interrupts.deferred():
            signal.raise_signal(number)
            os.write(pipe[1], b"x")
            interrupts.wait_for(pipe[0])
    finally:
        signal.signal(number, inherited)


def test_second_signal_interrupts_at_once() -> None:
    interrupts = Interrupts()
    with interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signal_interrupts_effective_block_at_once() -> None:
    interrupts = Interrupts()
    with interrupts.deferred():
        with pytest.raises(KeyboardInterrupt), interrupts.effective():
            signal.raise_signal(signal.SIGINT)
        interrupts.check()  # it has taken effect


def test_wait_supports_descriptors_above_1023(pipe: tuple[int, int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        high = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, 1024)
        os.write(pipe[1], b"x")
        try:
            Interrupts().wait_for(high)
        finally:
            os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_signal_interrupts_wait(pipe: tuple[int, int]) -> None:
    interrupts = Interrupts()
    with interrupts.deferred():
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                interrupts.wait_for(pipe[0])
        finally:
            timer.join()  # before the handler is removed: the signal would end pytest


def test_input_ends_wait_and_handler_is_restored(pipe: tuple[int, int]) -> None:
    interrupts, handler = Interrupts(), signal.getsignal(signal.SIGINT)
    with interrupts.deferred():
        os.write(pipe[1], b"x")
        interrupts.wait_for(pipe[0])
    assert signal.getsignal(signal.SIGINT) is handler
