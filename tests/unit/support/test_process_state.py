"""Process state set by one test does not reach the next one."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.process_state import restored

if TYPE_CHECKING:
    import pytest
from pyspark.logger import PySparkLogger


def test_environment_paths_signals_and_logging_are_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # given
    monkeypatch.setenv("KLAMM_TEST_CHANGED", "before")
    monkeypatch.setenv("KLAMM_TEST_REMOVED", "before")
    monkeypatch.delenv("KLAMM_TEST_ADDED", raising=False)
    logger, root = logging.getLogger("klamm.test.state"), logging.getLogger()
    handlers, filters = list(root.handlers), list(root.filters)
    directory, path, handler = Path.cwd(), list(sys.path), signal.getsignal(signal.SIGUSR2)
    state = restored()
    next(state)
    # when
    os.environ.update({"KLAMM_TEST_CHANGED": "after", "KLAMM_TEST_ADDED": "after"})
    del os.environ["KLAMM_TEST_REMOVED"]
    logger.setLevel(logging.CRITICAL)
    logging.getLogger("klamm.test.state.new").setLevel(logging.DEBUG)
    root.addHandler(logging.NullHandler())
    root.addFilter(lambda _: True)
    os.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    next(state, None)
    # then
    assert os.environ["KLAMM_TEST_CHANGED"] == os.environ["KLAMM_TEST_REMOVED"] == "before"
    assert "KLAMM_TEST_ADDED" not in os.environ
    assert logger.level == logging.getLogger("klamm.test.state.new").level == logging.NOTSET
    assert (root.handlers, root.filters) == (handlers, filters)
    assert (Path.cwd(), sys.path, signal.getsignal(signal.SIGUSR2)) == (directory, path, handler)


def test_format_of_recorded_logs_outlasts_an_error_of_spark(caplog: pytest.LogCaptureFixture) -> None:
    PySparkLogger("errors").addHandler(caplog.handler)
    logging.getLogger("tests.state").error("text")
    assert caplog.text.startswith("ERROR ")
