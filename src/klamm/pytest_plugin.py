"""pytest fixtures that give tests a broker; loaded by pytest itself wherever klamm is installed.

``klamm_broker``: a broker of its own for each test. ``klamm_session_broker``: one for all tests of the run.
``make_klamm_broker``: as many as a test wants, with the arguments of ``klamm.Broker``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.embedded.broker import Broker


def _broker(**options: object) -> Broker:
    from klamm.embedded.broker import Broker  # noqa: PLC0415 - a run that uses no fixture of ours pays nothing

    return Broker(**options)  # type: ignore[arg-type]  # the caller's options are checked by Broker itself


@pytest.fixture
def klamm_broker() -> Iterator[Broker]:
    """Give the test an empty broker that runs; it is stopped and its data are removed afterwards."""
    with _broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def klamm_session_broker() -> Iterator[Broker]:
    """Give all tests of the run one broker; they share its topics."""
    with _broker() as broker:
        yield broker


@pytest.fixture
def make_klamm_broker() -> Iterator[Callable[..., Broker]]:
    """Give the test a function that starts brokers, with the arguments of ``klamm.Broker``."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(_broker(**options))
