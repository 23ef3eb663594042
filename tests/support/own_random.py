"""Random numbers of the tests, the same ones in each run, and others for background threads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from tests.support.by_thread import for_this_thread

if TYPE_CHECKING:
    import pytest

_DRAWS: Final = (
    "choice", "choices", "expovariate", "gauss", "getrandbits", "randbytes", "randint", "random", "randrange", "sample",
    "shuffle", "uniform",
)  # fmt: skip


def give_threads_their_own() -> None:
    """Let every thread but the main one draw from a generator of its own.

    Clients of kafka-python draw in threads that may outlive their test. Hypothesis compares the state of the global
    generator before and after it draws an example, and takes a draw of such a thread for one of the example.
    """
    own = random.Random()
    for name in _DRAWS:
        setattr(random, name, for_this_thread(getattr(random, name), getattr(own, name)))


def seed(item: pytest.Item) -> None:
    """Let a test draw the same numbers in each run.

    pytest-randomly does so, too, in each phase of a test and for NumPy as well. That costs 2 s of CPU time in the unit
    tests, so only a run in random order loads it.
    """
    random.seed(item.nodeid)


def draw_no_constants_of_modules() -> None:
    """Let hypothesis draw the same examples in each worker.

    One in twenty values is a constant from the source of a module that the process has imported by then, which depends
    on the files that the worker has run. To read all sources for it takes each worker 0.4 s of CPU time.
    """
    providers._get_local_constants = Constants
