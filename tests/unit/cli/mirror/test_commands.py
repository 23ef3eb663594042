"""Commands to the status listener of a running mirror that ends or is not there."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from klamm.cli import EXIT_FAILED, main
from klamm.cli.mirror import reset
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNKNOWN = "it is unknown whether the command was carried out"


@pytest.fixture
def dying_mirror() -> Iterator[str]:
    """Address of a mirror that is killed after it has received a command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def die() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(65536).startswith(b"POST /commands")

        thread = threading.Thread(target=die)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("words", [["pause"], ["reset", "--to-earliest", "--yes"]])
def test_outcome_is_unknown_if_the_mirror_ends_during_the_command(
    words: list[str], dying_mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    action, *more = words
    assert main(["mirror", action, "A->B", *more, "--metrics", dying_mirror]) == 1
    assert UNKNOWN in capsys.readouterr().err


@pytest.mark.parametrize("place", [["--to-datetime", "1969-12-31T23:59:59.999Z"], ["--by-duration", "P99999D"]])
def test_time_before_1970_selects_the_first_record(place: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative timestamps have other meanings in ListOffsets; -1 is the latest offset."""
    sent: list[Mapping[str, Any]] = []

    def send(_: object, command: Mapping[str, Any]) -> Mapping[str, Any]:
        sent.append(command)
        return {"flow": "A->B", "partitions": [], "executed": False, "absent": ["gone"]}

    monkeypatch.setattr(reset, "send", send)
    assert main(["mirror", "reset", "A->B", "--metrics", "a:1", *place]) == 0
    assert [(command["to"], command["value"]) for command in sent] == [("timestamp", 0)]


def test_command_to_no_mirror_has_no_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mirror", "pause", "A->B", "--metrics", f"127.0.0.1:{free_port()}"]) == 1
    printed = capsys.readouterr().err
    assert "does not answer: Connection refused" in printed
    assert UNKNOWN not in printed


@pytest.mark.parametrize("words", [["pause", "A->B"], ["reset", "A->B", "--to-latest"], ["promote", "mm2.properties"]])
def test_timeout_flag_limits_wait_for_silent_mirror(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mm2.properties").write_text(
        "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\nA->B.enabled = true\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert main(["mirror", *words, "--metrics", address, "--timeout", "50"]) == 1
    assert f"{address} does not answer: timed out; {UNKNOWN}" in capsys.readouterr().err


def test_properties_without_a_listener_name_the_missing_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "mm2.properties").write_text("clusters = A, B\n")
    assert main(["mirror", "pause", "A->B", "--properties", str(file)]) == EXIT_FAILED
    assert capsys.readouterr().err == (
        f"klamm mirror pause: {file} does not set klamm.metrics.listen: use --metrics HOST:PORT of the running mirror\n"
    )
