"""``klamm mirror status``: its flags."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from klamm.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import klamm


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected FILE, or --bootstrap-server"),
        (["FILE", "--bootstrap-server", "b:1"], "expected FILE, or --bootstrap-server"),
        (["FILE", "--source", "A"], "go with --bootstrap-server"),
        (["--bootstrap-server", "b:1", "--source-bootstrap-server", "a:1"], "needs --source"),
    ],
)
def test_incompatible_flags_are_usage_errors(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli(["mirror", "status", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_invalid_file_is_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["mirror", "status", str(tmp_path / "nowhere")]) == 2
    assert "nowhere: cannot be read" in capsys.readouterr().err


def test_unavailable_target_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["mirror", "status", "--bootstrap-server", "127.0.0.1:1", "--source", "A"]) == 1
    assert "A->target: cluster target cannot be reached" in capsys.readouterr().err


def test_timeout_flag_limits_wait_for_silent_target(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        for source in (["--source", "A"], []):
            assert cli(["mirror", "status", "--bootstrap-server", address, "--timeout", "50", *source]) == 1
            assert "within 0.05 s" in capsys.readouterr().err


@pytest.mark.process
def test_target_without_a_trace_of_a_flow_fails(klamm_broker: klamm.Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["mirror", "status", "--bootstrap-server", klamm_broker.bootstrap_servers]) == 1
    assert "has no topic mm2-offsets.<alias>.internal" in capsys.readouterr().err
