"""Commands whose output takes no more: its reader, such as ``head``, has gone, or its disk is full."""

from __future__ import annotations

import contextlib
import errno
import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli.mirror import cutover, status, verify
from klamm.mirror.groups.cutover import Cutover
from klamm.mirror.status.verify import PartitionVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

VERDICT = PartitionVerdict(
    topic="t",
    remote_topic="A.t",
    partition=0,
    mirrored=1,
    lag=0,
    findings=None,
    problem="",
)
CUTOVER = Cutover(flow="A->B", group="g", rows=(), problems=())
GONE, FULL = BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("error", [GONE, FULL], ids=str)
@pytest.mark.parametrize("verdicts", [[VERDICT], []], ids=["verdict", "result"])
def test_verify_reports_no_cluster_error_with_unwritable_stdout(
    verdicts: list[PartitionVerdict], error: OSError, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "verify_flow", lambda *_, **__: iter(verdicts))
    assert_raised(error, verify.main, [str(file)], monkeypatch)


def test_cutover_reports_no_cluster_error_with_full_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutover, "both_sides", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cutover, "cut_over", lambda *_, **__: CUTOVER)
    assert_raised(FULL, cutover.main, ["g", str(file)], monkeypatch)


def test_status_reports_no_cluster_error_with_full_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "read_status", unavailable)
    assert_raised(FULL, status.main, [str(file), "-o", "json"], monkeypatch)


def test_cutover_without_reader_keeps_its_problems_and_exit_code(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cutover, "both_sides", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(cutover, "cut_over", lambda *_, **__: replace(CUTOVER, problems=("it has members",)))
    without_reader(monkeypatch)
    assert cutover.main(["g", str(file), "--wait", "0"]) == 1
    assert capsys.readouterr().err == "group g: it has members\n"


def test_status_without_reader_keeps_its_exit_code(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "read_status", unavailable)
    without_reader(monkeypatch)
    assert status.main([str(file), "-o", "json"]) == 1


def unavailable(_: Any) -> None:
    raise ConnectionError("no broker")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    servers = "".join(f"{alias}.bootstrap.servers=127.0.0.1:1\n" for alias in "AB")
    path.write_text(f"clusters=A,B\n{servers}A->B.enabled=true\n")
    return path


class Output(io.StringIO):
    """Standard output that fails."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error


def without_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Output(GONE))
    monkeypatch.setattr("klamm.cli.output.write_nothing_more", lambda: monkeypatch.setattr("sys.stdout", io.StringIO()))


def assert_raised(
    error: OSError, main: Callable[[Sequence[str]], int], words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the command leaves the error to ``klamm.cli.main``, which ends all commands alike."""
    monkeypatch.setattr("sys.stdout", Output(error))
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the very error is compared
        main(words)
    assert raised.value is error
