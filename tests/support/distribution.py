"""Distribution of the tests to the workers of pytest-xdist.

A worker runs whole files (``--dist loadfile``), so the fixtures of a module are made once. Files that share three nodes
of real Kafka are run by one worker, one after the other, and the nodes are stopped after the last of them: idle nodes
cost CPU time. So are files that borrow a node. Files that share one node are run by one worker, too, and so are those
that share a browser or the JVM of Spark. The files that take longest come first, so that no worker is left alone with
one of them at the end. Among these, files that need the processors alternate with files that wait. The fast ones that
end the run are distributed by directories: a worker imports what the files of one have in common, others do not.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

_ROOT: Final = Path(__file__).resolve().parents[2]
SHARED: Final = "real_kafka_3"
"""Fixture of three nodes."""
BROWSER: Final = "browser: Browser"
"""Argument of a test that looks at pages. One worker runs the files with such tests, so one Chromium is started."""
KAFKA: Final = "real_kafka"
"""Fixture of one node. One worker runs the files with such tests, so one node is started."""
LENT: Final = "lent_kafka"
"""Fixture of a node that files use one after the other. One worker runs these files."""
SPARK: Final = "spark: SparkSession"
"""Argument of a test with a Spark session. One worker runs the files with such tests, so one JVM is started."""
BESIDE_SPARK: Final = frozenset(
    {
        "tests/spark/test_mirror_replica.py",
        "tests/interop/test_mirror_equal_offsets.py",
        "tests/interop/test_mirror_replica.py",
        "tests/interop/test_mirror_small_messages.py",
    }
)
"""Other files that this worker runs. It starts a node of Kafka, too, and the worker of ``KAFKA`` takes longest."""
FIRST: Final = (
    SHARED,
    KAFKA,
    SPARK,
    "tests/spark/test_mirror_end_to_end.py",
    LENT,
    "tests/interop/test_kraft_member.py",
    "tests/interop/test_mirror_replica_kafka.py",
    "tests/crash/test_unread_responses.py",
    "tests/interop/test_security.py",
    "tests/interop/test_gateway_workers.py",
    "tests/interop/test_impact_outages.py",
    "tests/interop/test_throttling.py",
    "tests/interop/test_client_families.py",
)
"""Groups of files that take long, as ``_group`` names them, in the order in which workers begin them."""
_USES_KAFKA: Final = re.compile(r"(?m)\breal_kafka\b|^(?:def test_\w+|@pytest\.fixture.*\ndef \w+)\(address: str")
"""Use of the node by its name, or through the fixture ``address`` of ``tests/interop``."""
_DIRECTORIES: Final = ("spark", "crash", "interop")
"""Directories of the other files that take long."""
SLOWEST_OF_FAST: Final = (
    BROWSER,
    "tests/unit/protocol/test_codec.py",
    "tests/unit/embedded/test_broker.py",
    "tests/unit/broker/test_long_requests.py",
    "tests/unit/broker/test_requests_of_many_parts.py",
    "tests/unit/broker/test_large_batches.py",
    "tests/unit/test_pytest_plugin.py",
    "tests/unit/test_documents.py",
    "tests/unit/test_examples.py",
    "tests/unit/storage/log/test_cleaner.py",
    "tests/unit/storage/log/test_damaged_files.py",
    "tests/unit/embedded/test_controls.py",
    "tests/unit/cli/test_main.py",
)
"""Files that begin the rest, so that at the end no worker is left alone with one that takes many seconds."""


def rank(item: pytest.Item) -> int:
    """Return the rank of a test's file. Lower ranks run first."""
    return _rank(item.path)


def last_of_group(group: str, items: Sequence[pytest.Item]) -> Path | None:
    """Return the file of the last of the sorted tests that may use a cluster of real Kafka: ``SHARED`` or ``LENT``."""
    using = (item.path for item in reversed(items) if _rank(item.path) == FIRST.index(group))
    return next(using, None)


def is_fast(item: pytest.Item) -> bool:
    """Return whether a test belongs to those that run last and need no real Kafka."""
    return _rank(item.path) >= len(FIRST) + len(_DIRECTORIES)


def shares_kafka(item: pytest.Item) -> bool:
    """Return whether a test may use a shared cluster of real Kafka, which its fixtures may request by name."""
    return "address" in getattr(item, "fixturenames", ()) or "real_kafka" in _text(item.path)


def shares_something(item: pytest.Item) -> bool:
    """Return whether a test uses a cluster of real Kafka, Spark's JVM or a browser with tests of other files."""
    return shares_kafka(item) or not {"spark", "browser"}.isdisjoint(getattr(item, "fixturenames", ()))


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Whole files for each worker, and the files that share three nodes of real Kafka for one worker.

    A worker gets its next file when it has one item left: this one waits for the name of its successor.
    """

    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        self._names: set[str] = set()
        self._completed = 0
        self._started: dict[str, tuple[str, tuple[str, int | None, str]]] = {}
        """Node id and location of the test that was started last, by the path of its file. One worker runs a file."""
        self._directories: dict[WorkerController, str] = {}
        """Directories of the fast files that workers got last."""
        config.pluginmanager.register(self)

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Remember a test that a worker starts."""
        self._started[nodeid.partition("::")[0]] = nodeid, location

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """Name the test in the report of a crash, instead of the placeholder."""
        if started := self._started.get(crashitem.partition("::")[0]):
            report.nodeid, report.location = started
            report.longrepr = (
                f"{report.longrepr}, in {report.nodeid}: the tests that {crashitem!r} has left are not run"
            )

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker and queue what it has left. The item that it was running when it crashed is not repeated."""
        units = self.assigned_work.pop(node)
        self._directories.pop(node, None)
        pending: list[str] = [
            nodeid for unit in units.values() for nodeid, is_completed in unit.items() if not is_completed
        ]
        if not pending:
            return None
        for scope, unit in units.items():
            if left := {nodeid: False for nodeid in unit if nodeid in pending[1:]}:
                self.workqueue[scope] = left
        for other in self.nodes:
            self._reschedule(other)
        return pending[0]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Estimate the progress for the terminal."""
        self._names.add(report.nodeid)
        self._estimate()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a worker has run an item."""
        self._completed += 1
        super().mark_test_complete(node, item_index, duration)
        self._estimate()

    def _estimate(self) -> None:
        """Estimate the number of all tests, which workers that collect placeholders do not know."""
        items = len(self.collection or ())
        pending = items - self._completed
        session = self.config.pluginmanager.get_plugin("session")
        session.testscollected = max(len(self._names) + pending, len(self._names) * items // max(self._completed, 1))

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        if not self.workqueue:
            node.shutdown()
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= 1:
            self._assign_work_unit(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next_scope(node), last=False)
        super()._assign_work_unit(node)

    def _next_scope(self, node: WorkerController) -> str:
        """Return the next files for a worker: the first in the queue, or fast ones of a directory that it has imported.

        When its directory has no more, it gets the one with the fewest workers and the most files.
        """
        first: str = next(iter(self.workqueue))
        if not _is_fast_file(first):
            return first
        left = Counter(map(_directory, self.workqueue))
        workers = Counter(self._directories.values())
        if self._directories.get(node) not in left:
            self._directories[node] = min(left, key=lambda directory: (workers[directory], -left[directory]))
        scopes: Iterator[str] = iter(self.workqueue)
        return next(scope for scope in scopes if _directory(scope) == self._directories[node])

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0])


def _is_fast_file(scope: str) -> bool:
    return scope.startswith("tests/unit/") and scope not in SLOWEST_OF_FAST


def _directory(scope: str) -> str:
    """Return the directory below ``tests/unit``: its files import much the same modules."""
    return scope.removeprefix("tests/unit/").partition("/")[0] if scope.count("/") > 2 else "tests/unit"


@functools.cache
def _rank(path: Path) -> int:
    file = path.relative_to(_ROOT)
    group = _group(file.as_posix())
    if group in FIRST:
        return FIRST.index(group)
    if file.parts[1] in _DIRECTORIES:
        return len(FIRST) + _DIRECTORIES.index(file.parts[1])
    return len(FIRST) + len(_DIRECTORIES) + (group not in SLOWEST_OF_FAST)


@functools.cache
def _group(file: str) -> str:
    if file in BESIDE_SPARK:
        return SPARK
    text = _text(_ROOT / file)
    shared = next((shared for shared in (SHARED, SPARK, BROWSER, LENT) if shared in text), None)
    return shared or (KAFKA if file.startswith("tests/interop/") and _USES_KAFKA.search(text) else file)


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
