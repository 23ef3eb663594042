"""Pytest fixtures that start brokers. Pytest loads this plugin automatically wherever klamm is installed.

- ``klamm_broker``: a separate broker for each test.
- ``klamm_session_broker``: one broker shared by all tests of the run.
- ``make_klamm_broker``: a function that starts any number of brokers, with the arguments of ``klamm.Broker``.

The report of a failed test shows the end of the log of every broker that the test uses as a fixture or started.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.embedded.broker import Broker

_MADE: Final = pytest.StashKey["list[Broker]"]()
_MODULE: Final = "klamm.embedded.broker"


def _broker(**options: object) -> Broker:
    from klamm.embedded.broker import Broker  # noqa: PLC0415 - a run that uses no fixture of ours pays nothing

    return Broker(**options)  # type: ignore[arg-type]  # the caller's options are checked by Broker itself


@pytest.fixture
def klamm_broker() -> Iterator[Broker]:
    """Provide a running, empty broker; it is stopped and its data are removed after the test."""
    with _broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def klamm_session_broker() -> Iterator[Broker]:
    """Provide one broker to all tests of the run; they share its topics."""
    with _broker() as broker:
        yield broker


@pytest.fixture
def make_klamm_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Provide a function that starts brokers, with the arguments of ``klamm.Broker``."""
    made: list[Broker] = request.node.stash.setdefault(_MADE, [])
    with ExitStack() as stack:

        def make(**options: object) -> Broker:
            broker = _broker(**options)
            made.append(broker)
            return stack.enter_context(broker)

        yield make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Attach the logs of the test's brokers to the report of a failure."""
    report = yield
    if report.failed and _MODULE in sys.modules:
        for broker in _brokers_of(item):
            report.sections.append((f"log of {broker!r}", broker.log_text() or "(empty)"))
    return report


def _brokers_of(item: pytest.Item) -> list[Broker]:
    """Return the brokers of the test's fixtures, including those of other plugins, and brokers that it started."""
    kind: type[Broker] = sys.modules[_MODULE].Broker
    fixtures = getattr(item, "funcargs", {}).values()
    return [one for one in (*fixtures, *item.stash.get(_MADE, [])) if isinstance(one, kind)]
