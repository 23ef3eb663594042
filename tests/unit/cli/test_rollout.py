"""Clusters that ``klamm rollout`` connects to: those of the flags and of the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm import cli
from klamm.cli.connection import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str]]

DEV, PROD, OTHER = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an action, up to the connection, beside files of two clusters; return the exit code and stderr."""

    def connected(servers: str) -> None:
        raise RequestError(f"connects to {servers}")

    monkeypatch.setattr("klamm.cli.rollout.parse_addresses", connected)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KLAMM_BOOTSTRAP_SERVER", OTHER)
    (tmp_path / "klamm").mkdir()
    profiles = (f'[clusters.{name}]\nbootstrap_server = "{server}"' for name, server in (("dev", DEV), ("prod", PROD)))
    (tmp_path / "klamm" / "config.toml").write_text("\n".join(profiles))
    for name, retention in (("dev", "1h"), ("prod", "7d")):
        (tmp_path / "envs" / name).mkdir(parents=True)
        topics = f"topics: {{orders: {{configs: {{retention.ms: {retention}}}}}}}"
        (tmp_path / "envs" / name / "klamm.yaml").write_text(f"cluster: {name}\n{topics}\n")
    (tmp_path / "shared.yaml").write_text("topics: {orders: {configs: {retention.ms: 7d}}}")

    def run_action(*words: str) -> tuple[int, str]:
        try:
            code = cli.main(["rollout", *words])
        except SystemExit as error:
            code = int(error.code or 0)
        return code, capsys.readouterr().err

    return run_action


@pytest.mark.parametrize(
    ("words", "server"),
    [
        (("start", "--file", "envs", "--cluster", "prod"), PROD),
        (("start", "--file", "envs/prod"), PROD),
        (("start", "--file", "envs/prod", "--bootstrap-server", DEV), DEV),
        (("start", "--file", "shared.yaml", "--cluster", "dev"), DEV),
        (("start", "--file", "shared.yaml"), OTHER),
        (("--cluster", "dev", "list"), DEV),
        (("resume", "--cluster", "dev", "0a1b2c3d"), DEV),
        (("list",), OTHER),
    ],
)
def test_cluster_is_that_of_the_flags_or_of_the_file(run: Run, words: tuple[str, ...], server: str) -> None:
    code, err = run(*words)
    assert (code, err) == (1, f"klamm rollout: connects to {server}\n")


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("--file", "envs"), 1, "--file envs declares several clusters (dev, prod): name one directory"),
        (("--file", "envs", "--bootstrap-server", DEV), 1, "envs declares several clusters (dev, prod)"),
        (("--file", "envs/dev", "--cluster", "prod"), 1, "--cluster prod: envs/dev declares dev"),
        (("--file", "envs", "--cluster", "test"), 2, "--cluster test: expected one of dev, prod"),
        (("--file", "envs", "--cluster", "dev", "--bootstrap-server", DEV), 2, "expected one of both"),
    ],
)
def test_values_of_another_cluster_are_not_rolled_out(
    run: Run, words: tuple[str, ...], code: int, complaint: str
) -> None:
    ended, err = run("start", *words)
    assert (ended, complaint in err) == (code, True), err


def test_leaving_values_is_only_for_abort(run: Run) -> None:
    code, err = run("resume", "0a1b2c3d", "--leave-unrestored")
    assert (code, "--leave-unrestored is for abort, not for resume" in err) == (2, True), err
