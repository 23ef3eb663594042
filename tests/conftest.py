"""Fixtures for every test: real Apache Kafka, klamm's broker, and a visible report of tests that could not run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist import is_xdist_worker  # type: ignore[import-untyped]

from tests.support import placeholders
from tests.support.browser import Browser, find_browser
from tests.support.class_archives import offer_spark_archive
from tests.support.distribution import (
    LENT,
    SHARED,
    FileScheduling,
    is_fast,
    last_of_group,
    rank,
    shares_kafka,
    shares_something,
)
from tests.support.java import (
    KAFKA_RELEASE,
    JavaUnavailableError,
    broker_class_path,
    class_path,
    java_executable,
)
from tests.support.kafka import NO_PROPERTIES, KafkaCluster
from tests.support.kafka_python import mend_kafka_python
from tests.support.left_open import close_log_files, nothing_left
from tests.support.left_open import install as register_log_files
from tests.support.own_random import draw_no_constants_of_modules, give_threads_their_own, seed
from tests.support.process_guard import guarded, install
from tests.support.process_state import restored
from tests.support.processes import allow_slow_starts
from tests.support.shared_cluster import SharedCluster
from tests.support.skips import report_skips, skip_loudly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.lent_kafka import LentKafka


# A change is judged by the same examples everywhere; the soak looks for new ones.
settings.register_profile("fixed", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=2_000, deadline=None)
settings.register_profile("few", max_examples=5, deadline=None, derandomize=True)
_IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
settings.load_profile("soak" if _IS_SOAK else "fixed")
if not _IS_SOAK:
    draw_no_constants_of_modules()

_MAX_ASYNC_TEST_S = 300.0
"""An ``async def`` test that waits in vain fails after this time."""

_GARBAGE_THRESHOLDS = (10_000, 10, 10)
"""With Python's own, a tenth of the processor time of the unit tests goes into garbage collections."""
_OWN_LOGGERS = frozenset({"klamm", "examples", "tests", "asyncio"})
"""First parts of the names of the loggers whose records a test sees."""
_LAST = pytest.StashKey[dict[str, Path | None]]()
"""Last files with tests that may use the clusters ``SHARED`` and ``LENT``."""
_LENT: pytest.StashKey[dict[str, LentKafka]] = pytest.StashKey()
"""Nodes that files borrow, by their release."""
_CLUSTERS = pytest.StashKey[dict[int, SharedCluster]]()
"""Shared clusters of real Kafka that were started, by their number of nodes."""
RACKS = {
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


install()
register_log_files()
mend_kafka_python()
give_threads_their_own()
allow_slow_starts()
# A shell lets its background jobs ignore Ctrl-C. Tests send it to themselves and to the commands that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the real Kafka of the tests and for their order."""
    parser.addoption(
        "--against-kafka", action="store_true", help="play the interop tests against real Apache Kafka 4.4, as a check"
    )
    parser.addoption(
        "--kafka-release",
        default=KAFKA_RELEASE,
        help="release of the real Apache Kafka, for the mirror and the clients, which work with older ones, too",
    )
    parser.addoption("--long", action="store_true", help="run the tests with the mark long, too (make test-long)")
    parser.addoption("--sharing", action="store_true", help="run only tests that share Kafka, Spark or a browser")
    parser.addoption("--reverse", action="store_true", help="run the tests in the reverse of their order")


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of pytest-xdist collect each file when they run it, and the long tests use Spark's archive."""
    config.pluginmanager.register(placeholders)
    offer_spark_archive(is_offered=_IS_SOAK or config.getoption("long"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let ``caplog.text`` keep its format.

    pytest adds its handler to all loggers that do not propagate. pyspark's loggers of errors are among them, from the
    first error on, and set the format of each handler to their own.
    """
    logs: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    logs.caplog_handler.setFormatter = lambda _: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what the collection of the tests creates to the end of the process: the garbage collector skips it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GARBAGE_THRESHOLDS)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> Iterator[None]:
    """Leave out the long tests, and let workers begin with the files that take longest."""
    kept = placeholders.in_items(items)
    yield
    items[:] = kept or items
    if not _IS_SOAK:
        marks = ["soak"] if session.config.getoption("long") else ["soak", "long"]
        _leave_out(items, [item for item in items if any(map(item.get_closest_marker, marks))])
    if is_xdist_worker(session):
        items.sort(key=rank)
    if session.config.getoption("sharing"):
        items[:] = filter(shares_something, items)
    if session.config.getoption("reverse"):
        items.reverse()
    items[:] = placeholders.in_pairs(items)
    session.stash.setdefault(_LAST, {group: last_of_group(group, items) for group in (SHARED, LENT)})


def _leave_out(items: list[pytest.Item], unwanted: list[pytest.Item]) -> None:
    if unwanted:
        left_out = set(unwanted)
        items[:] = [item for item in items if item not in left_out]
        unwanted[0].config.hook.pytest_deselected(items=unwanted)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileScheduling | None:
    """Distribute the tests by files, and by what the files share."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let only marked unit tests start processes."""
    return (yield from guarded(item))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random numbers of a test and of its fixtures."""
    seed(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test in an event loop of its own, for a limited time."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    running = test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})
    asyncio.run(asyncio.wait_for(running, None if _IS_SOAK else _MAX_ASYNC_TEST_S))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Keep what a test sets in its process from the tests after it."""
    return (yield from restored())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Close log files and check shared clusters.

    Real Kafka is stopped after the last test that may use it: an idle node takes 3 % of a core.
    """
    yield
    close_log_files()
    clusters = item.session.stash.get(_CLUSTERS, {})
    if shares_kafka(item):
        for shared in clusters.values():
            shared.check()
    last = item.session.stash[_LAST]
    is_end_of_file = nextitem is None or nextitem.path != item.path
    if is_end_of_file and item.path == last[SHARED] and 3 in clusters:
        clusters.pop(3).cluster.stop()
    if is_end_of_file and item.path == last[LENT]:
        for node in item.session.stash.get(_LENT, {}).values():
            node.stop()
    if nextitem is not None and is_fast(nextitem) and is_xdist_worker(item.session):
        while clusters:
            clusters.popitem()[1].cluster.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the reasons of skipped tests at the end of the run."""
    report_skips(terminalreporter)


@pytest.fixture(scope="module", autouse=True)
def _nothing_left() -> Iterator[None]:
    """Clients that a file of tests starts end with it."""
    yield from nothing_left()


class _OwnRecords(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] in _OWN_LOGGERS


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Only what klamm logs: threads of other libraries log as well, also after the test that started them."""
    with caplog.filtering(_OwnRecords()):
        yield caplog


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest) -> None:
    """Java and Kafka's jars. Without them, every test that uses them is skipped with a visible reason."""
    try:
        java_executable()
        class_path()
        broker_class_path(request.config.getoption("kafka_release"))
    except JavaUnavailableError as error:
        skip_loudly(f"needs real Apache Kafka: {error}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium. Without it, every test that uses it is skipped with a visible reason."""
    program = find_browser()
    if program is None:
        skip_loudly("needs a Chromium or Chrome: install chromium, or set CHROMIUM to the program")
    with Browser(program) as running:
        yield running


@pytest.fixture(scope="session")
def real_kafka(java: None, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """One node of real Apache Kafka 4.4, shared by the whole run: use topic names of your own."""
    yield from _cluster(1, request)


@pytest.fixture(scope="session")
def real_kafka_3(java: None, request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Three nodes of real Apache Kafka 4.4 in racks of their own, shared by the whole run.

    A test that kills a node starts it again before it ends.
    """
    yield from _cluster(3, request, RACKS)


@pytest.fixture(scope="session")
def lent_kafka(java: None, request: pytest.FixtureRequest) -> Iterator[LentKafka]:
    """A node of real Apache Kafka 4.4 that files borrow: it is empty for each, but for Kafka's internal topics."""
    with _lent(KAFKA_RELEASE, request) as node:
        yield node


@pytest.fixture(scope="session")
def lent_kafka_of_release(java: None, request: pytest.FixtureRequest) -> Iterator[LentKafka]:
    """The same, of the release of ``--kafka-release``."""
    with _lent(request.config.getoption("kafka_release"), request) as node:
        yield node


@contextlib.contextmanager
def _lent(release: str, request: pytest.FixtureRequest) -> Iterator[LentKafka]:
    from tests.support.lent_kafka import LentKafka  # noqa: PLC0415 - the admin client, which few tests need

    nodes = request.session.stash.setdefault(_LENT, {})
    node = nodes.setdefault(release, LentKafka(release))
    yield node
    node.stop()


def _cluster(
    nodes: int, request: pytest.FixtureRequest, properties: Mapping[str, str] = NO_PROPERTIES
) -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes, properties, release=request.config.getoption("kafka_release")) as cluster:
        clusters = request.session.stash.setdefault(_CLUSTERS, {})
        clusters[nodes] = shared = SharedCluster(cluster)
        yield cluster
        if clusters.pop(nodes, None):  # else it was stopped before
            shared.check()
        if request.session.testsfailed:
            cluster.keep_logs()
