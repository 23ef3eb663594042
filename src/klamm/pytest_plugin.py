"""Pytest fixtures that start brokers. Pytest loads this plugin automatically wherever klamm is installed.

- ``klamm_broker``: a separate, empty broker for each test.
- ``klamm_module_broker``: one broker for the tests of a module.
- ``klamm_session_broker``: one broker for all tests of the run; with pytest-xdist, one for each worker.
- ``make_klamm_broker``: a function that starts any number of brokers, with the arguments of ``klamm.Broker``.
- ``klamm_topic``: the name of a new topic on ``klamm_session_broker``, deleted after the test.
- ``make_klamm_topic``: a function that creates such topics, with the arguments of ``Broker.create_topic``.
- ``make_klamm_gateway``: a function that starts any number of gateways, with the arguments of ``klamm.Gateway``.
- ``klamm_broker_options``: arguments of ``klamm.Broker`` for the first three. Override it to change them.

``@pytest.mark.klamm(topics=["orders"], config={...})`` changes the arguments of ``klamm.Broker`` for ``klamm_broker``
in a test, a class or a module; topics and configs are added to those of ``klamm_broker_options``. On
``klamm_module_broker`` and ``klamm_session_broker`` it creates missing topics.

All brokers have ``control=True``, unless their arguments change it. After each test, the faults of the shared brokers
are removed, stopped broker ids are started, a paused one resumes, and one that the test has stopped or killed starts
again. The report of a failed test shows, for every broker that the test uses as a fixture or started, the injected
faults, its last requests and the end of its log.
"""

from __future__ import annotations

import inspect
import re
import secrets
import sys
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from klamm.embedded.broker import Broker
    from klamm.embedded.gateway import Gateway

__tracebackhide__ = True
_MADE: Final = pytest.StashKey["list[Broker]"]()
_SHARED_BROKERS: Final = pytest.StashKey["list[Broker]"]()
"""Running brokers that several tests share. A test may also request them while it runs (``getfixturevalue``)."""
_MODULE: Final = "klamm.embedded.broker"
_SHARED: Final = ("klamm_module_broker", "klamm_session_broker")
_MARKER: Final = "klamm"
_MERGED: Final = frozenset({"topics", "config"})
"""Arguments of which the options and the markers of a test, its class and its module add up, by name of the topic or
config."""
_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})
_SHOWN_LINES: Final = 20
"""Last requests of a broker in the report of a failed test. Equal ones in a row share a line."""
_MAX_CHARACTERS: Final = 100
"""Characters of a test's name in the name of its topic, which Kafka limits to 249."""


def _broker(**options: Any) -> Broker:
    from klamm.embedded.broker import Broker  # noqa: PLC0415 - a run that uses no fixture of ours pays nothing

    return Broker(**{"control": True, **options})


@contextmanager
def _running(fixture: str, options: Mapping[str, Any], marked: Mapping[str, Any] = _NO_ARGUMENTS) -> Iterator[Broker]:
    """Yield the running broker of a fixture. A wrong argument or a failed start fails the test, without a traceback.

    Args:
        fixture: Name of the fixture.
        options: Arguments of ``klamm.Broker``.
        marked: Arguments of the test's markers. Topics and configs add up with those of ``options``.
    """
    from klamm.embedded.controls import new_topics  # noqa: PLC0415
    from klamm.embedded.server_process import BrokerStartError  # noqa: PLC0415

    reason = ""
    with ExitStack() as stack:
        try:
            arguments = {**options, **marked}
            if "config" in marked:
                arguments["config"] = {**(options.get("config") or {}), **marked["config"]}
            if "topics" in marked:
                arguments["topics"] = {**new_topics(options.get("topics", ())), **marked["topics"]}
            broker = stack.enter_context(_broker(**arguments))
        except (BrokerStartError, TypeError, ValueError) as error:
            reason = str(error)
        else:
            yield broker
    __tracebackhide__ = False  # or pytest reports, below the message, that all lines are hidden
    if reason:  # outside of the handler: pytest would show the original error, too
        pytest.fail(f"{fixture}: klamm.Broker: {reason}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Any:
    """Ignore the deprecation warnings of kafka-python's schema loader on Python 3.11: users cannot act on them."""
    early_config.addinivalue_line("filterwarnings", "ignore:(open|read)_text is deprecated:DeprecationWarning")
    return (yield)


@pytest.fixture(scope="session")
def klamm_broker_options() -> Mapping[str, Any]:
    """Provide arguments of ``klamm.Broker``, for example ``config``. Override it in a conftest.py or a test module.

    ``klamm_session_broker`` takes the options of the test that uses it first, so override them for it in the topmost
    conftest.py.
    """
    return {}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "klamm(topics=..., config=..., brokers=...): arguments of klamm.Broker for the fixture klamm_broker"
    )


def _marked(node: pytest.Item) -> dict[str, Any]:
    """Return the arguments of all markers of a test. Topics and configs add up; otherwise the nearest marker wins.

    A wrong argument fails the test.
    """
    options: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(_MARKER))):
        arguments = {**marker.kwargs, **_check(marker)}
        for name in _MERGED & arguments.keys():
            arguments[name] = {**options.get(name, {}), **arguments[name]}
        options |= arguments
    return options


def _check(marker: pytest.Mark) -> dict[str, Any]:
    """Return the topics of a marker as a mapping, if it has this argument.

    A marker with an argument that a broker cannot take fails the test, with a message and no traceback.
    """
    from klamm.embedded.broker import Broker  # noqa: PLC0415
    from klamm.embedded.controls import new_topics  # noqa: PLC0415
    from klamm.properties import did_you_mean  # noqa: PLC0415

    allowed = inspect.signature(Broker).parameters
    if marker.args:
        _fail(f"{', '.join(map(repr, marker.args))}: takes named arguments only", allowed)
    for name in marker.kwargs:
        if name not in allowed:
            _fail(f"{name}=...: there is no such argument{did_you_mean(name, allowed)}", allowed)
    if not isinstance(config := marker.kwargs.get("config", {}), Mapping):
        _fail(f"config={config!r}: expected a mapping", ())
    reason = ""
    try:
        topics = new_topics(marker.kwargs.get("topics", ()))
    except (TypeError, ValueError) as error:
        reason = str(error)
    if reason:  # outside of the handler: pytest would show the original error, too
        _fail(reason, ())
    return {"topics": topics} if "topics" in marker.kwargs else {}


def _fail(fault: str, allowed: Iterable[str]) -> NoReturn:
    __tracebackhide__ = False  # or pytest reports, below the message, that all lines are hidden
    names = ", ".join(allowed)
    pytest.fail(f"@pytest.mark.{_MARKER}: {fault}" + (f" (allowed: {names})" if names else ""), pytrace=False)


@pytest.fixture
def klamm_broker(klamm_broker_options: Mapping[str, Any], request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Provide a running, empty broker; it is stopped and its data are removed after the test."""
    with _running("klamm_broker", klamm_broker_options, _marked(request.node)) as broker:
        yield broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Create the topics of the marker on a shared broker before the test runs.

    Other arguments of the marker, which a running broker cannot take, fail the test.
    """
    fixtures = getattr(item, "funcargs", {})
    shared = next((fixtures[name] for name in _SHARED if name in fixtures), None)
    options = {} if shared is None or "klamm_broker" in fixtures else _marked(item)
    if other := options.keys() - {"topics"}:
        _fail(f"{', '.join(sorted(other))}: a shared broker takes topics only, use klamm_broker instead", ())
    if shared is None or not options:
        return
    from klamm.embedded.controls import new_topics  # noqa: PLC0415 - a run that uses no fixture of ours pays nothing

    for topic, arguments in new_topics(options["topics"]).items():
        if not shared.has_topic(topic):
            shared.create_topic(topic, **arguments)


@contextmanager
def _shared(fixture: str, pytestconfig: pytest.Config, options: Mapping[str, Any]) -> Iterator[Broker]:
    """Yield the running broker of a fixture, whose faults are removed after each test."""
    brokers = pytestconfig.stash.setdefault(_SHARED_BROKERS, [])
    with _running(fixture, options) as broker:
        brokers.append(broker)
        try:
            yield broker
        finally:
            brokers.remove(broker)


@pytest.fixture(scope="module")
def klamm_module_broker(klamm_broker_options: Mapping[str, Any], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """Provide one broker to the tests of a module; they share its topics."""
    with _shared("klamm_module_broker", pytestconfig, klamm_broker_options) as broker:
        yield broker


@pytest.fixture(scope="session")
def klamm_session_broker(klamm_broker_options: Mapping[str, Any], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """Provide one broker to all tests of the run; they share its topics. With pytest-xdist, each worker has its own."""
    with _shared("klamm_session_broker", pytestconfig, klamm_broker_options) as broker:
        yield broker


@pytest.fixture
def make_klamm_broker(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Provide a function that starts brokers, with the arguments of ``klamm.Broker``."""
    made: list[Broker] = request.node.stash.setdefault(_MADE, [])
    with ExitStack() as stack:

        def make(**options: Any) -> Broker:
            broker = _broker(**options)
            made.append(broker)
            stack.callback(broker.stop)
            return broker.start()

        yield make


@pytest.fixture
def make_klamm_gateway() -> Iterator[Callable[..., Gateway]]:
    """Provide a function that starts gateways, with the arguments of ``klamm.Gateway``; they stop after the test."""
    from klamm.embedded.gateway import Gateway  # noqa: PLC0415 - a run that uses no fixture of ours pays nothing

    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Gateway(*arguments, **options))


@pytest.fixture
def make_klamm_topic(request: pytest.FixtureRequest, klamm_session_broker: Broker) -> Iterator[Callable[..., str]]:
    """Provide a function that creates topics on ``klamm_session_broker`` and returns their names.

    It takes ``partitions`` and ``configs`` of ``Broker.create_topic``. The names contain the name of the test and are
    unique, so they also serve as group ids and transactional ids. The topics are deleted after the test.
    """
    made: list[str] = []
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:_MAX_CHARACTERS].strip("-")

    def make(**options: Any) -> str:
        topic = f"{readable}-{secrets.token_hex(4)}"
        klamm_session_broker.create_topic(topic, **options)
        made.append(topic)
        return topic

    yield make
    for topic in made if klamm_session_broker.is_running else ():
        with suppress(LookupError):  # the test has deleted it
            klamm_session_broker.delete_topic(topic)


@pytest.fixture
def klamm_topic(make_klamm_topic: Callable[..., str]) -> str:
    """Provide the name of a new topic with one partition on ``klamm_session_broker``; it is deleted after the test."""
    return make_klamm_topic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Any:
    """Remove the faults of shared brokers before the fixtures of the test end."""
    try:
        for broker in item.config.stash.get(_SHARED_BROKERS, []):
            _remove_faults(broker)
    finally:  # an error above must not keep the fixtures of this test alive, or all later tests fail
        result = yield
    return result


def _remove_faults(broker: Broker) -> None:
    if broker._is_of_other_process():  # pytest-forked runs the test in a fork, which cannot control the broker
        return
    if not broker.is_running:
        broker.start()
        return
    if not broker._has_control:  # it has no faults, and cannot be asked
        return
    try:
        broker.resume()
        broker.clear_faults()
        broker.start_nodes()
    except RuntimeError:  # a time limit of the test, for example, interrupted a command, which closed the channel
        broker.restart()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Attach faults, last requests and logs of the test's brokers to the report of a failure."""
    report = yield
    if report.failed and _MODULE in sys.modules:
        for broker in _brokers_of(item):
            report.sections += _exchanges(broker)
            report.sections.append((f"log of {broker!r}", broker.log_text() or "(empty)"))
    return report


def _exchanges(broker: Broker) -> list[tuple[str, str]]:
    """Return the injected faults and the last requests as sections of a report; none if the broker cannot be asked."""
    try:
        faults, requests = broker.faults(), broker.requests()
    except RuntimeError:  # it is paused, or has ended
        return []
    lines = [
        f"{request.api} v{request.version} from {request.client_id or '-'} to broker {request.node_id}"
        + (f" for {', '.join(_place(*each) for each in request.partitions)}" if request.partitions else "")
        + (f", group {request.group_id}" if request.group_id else "")
        + (f": {request.fault}" if request.fault else "")
        for request in requests
    ]
    folded = [(line, sum(1 for _ in equal)) for line, equal in groupby(lines)][-_SHOWN_LINES:]
    shown = "\n".join(line if count == 1 else f"{count:,} x {line}" for line, count in folded)
    sections = [(f"last requests of {broker!r}", shown)] if lines else []
    return [*sections, (f"injected faults of {broker!r}", "\n".join(faults))] if faults else sections


def _place(topic: str, partition: int | None) -> str:
    return topic if partition is None else f"{topic}-{partition}"


def _brokers_of(item: pytest.Item) -> list[Broker]:
    """Return the brokers of the test's fixtures, including those of other plugins, and brokers that it started."""
    kind: type[Broker] = sys.modules[_MODULE].Broker
    fixtures = getattr(item, "funcargs", {}).values()
    return [one for one in (*fixtures, *item.stash.get(_MADE, [])) if isinstance(one, kind)]
