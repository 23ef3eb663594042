"""Check for leftovers at the end of a test file."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.support import left_open
from tests.support.processes import start_process, stop_process

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.process
def test_running_process_is_a_failure() -> None:
    # given
    check = left_open.nothing_left()
    next(check)
    process = start_process([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    # when, then
    try:
        with pytest.raises(AssertionError, match=r"Processes still run: .*input"):
            next(check)
    finally:
        stop_process(process)


def test_librdkafka_client_is_freed_or_a_failure() -> None:
    # given
    check = left_open.nothing_left()
    next(check)
    held = [Producer({"bootstrap.servers": "127.0.0.1:1"})]
    held.append(held)  # type: ignore[arg-type]  # a reference cycle
    # when, then
    with pytest.raises(AssertionError, match="A client of librdkafka was not freed"):
        next(check)
    check = left_open.nothing_left()
    next(check)
    del held
    assert next(check, None) is None


def test_new_file_in_the_repository_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(left_open, "_ROOT", tmp_path)
    check = left_open.nothing_left()
    next(check)
    (tmp_path / "derby.log").touch()
    # when, then
    with pytest.raises(AssertionError, match=r"Files were left in .*derby\.log"):
        next(check)
