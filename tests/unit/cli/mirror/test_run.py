"""``klamm mirror``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm import java
from klamm.cli.mirror import cutover
from klamm.cli.mirror import run as mirror
from klamm.mirror import run as mirror_main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = A, B\n")
    return path


@pytest.fixture
def mirror_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Record the arguments of the mirror instead of running it."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def run(*words: Any, **options: Any) -> int:
        calls.append((words, options))
        return 1

    monkeypatch.setattr(mirror_main, "run", run)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(mirror, "require_java", lambda: "/a/java")
    return calls


def test_run_passes_file_and_clusters_and_returns_exit_code(
    properties: Path, mirror_calls: list[tuple[Any, dict[str, Any]]]
) -> None:
    # when
    code = mirror.main([str(properties), "--clusters", "B", "C"])
    # then
    assert code == 1
    assert mirror_calls[0][0] == (properties, ["B", "C"])


def test_flags_override_file(properties: Path, mirror_calls: list[tuple[Any, dict[str, Any]]]) -> None:
    # when
    mirror.main([str(properties), "--master", "spark://h:7077", "--checkpoint", "/here", "--metrics", "h:1"])
    # then
    assert mirror_calls[0][1]["overrides"] == {
        "spark.master": "spark://h:7077",
        "klamm.checkpoint.dir": "/here",
        "klamm.metrics.listen": "h:1",
    }


def test_missing_file_is_reported_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main([str(tmp_path / "none.properties")]) == 2
    assert "none.properties: cannot be read: No such file or directory\n" in capsys.readouterr().err


def test_directory_in_place_of_the_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"klamm mirror: {tmp_path}: cannot be read: Is a directory\n"


@pytest.mark.parametrize("wait", ["nan", "1e999", "-1", "soon"])
def test_cutover_rejects_a_wait_that_never_ends(wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cutover.main(["billing", "--wait", wait])
    assert f"--wait: '{wait}': expected a number of seconds above 0 and up to 31,536,000" in capsys.readouterr().err


def test_inaccessible_file_is_reported_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main(["x" * 300]) == 2
    assert capsys.readouterr().err == f"klamm mirror: {'x' * 300}: cannot be read: File name too long\n"


def test_missing_java_names_install_command(
    properties: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    def no_java() -> None:
        raise java.JavaNotFoundError("Spark needs Java 17 or 21")

    monkeypatch.setattr(mirror, "require_java", no_java)
    # when
    code = mirror.main([str(properties)])
    # then
    assert code == 1
    assert "Spark needs Java 17 or 21" in capsys.readouterr().err


def test_invalid_value_is_rejected_with_key(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    properties.write_text("clusters = A\nA.bootstrap.servers = a:1\nuse.defaults.from = sauce\nA->A.enabled = true\n")
    # when
    code = mirror.main([str(properties), "--plan"])
    # then
    assert code == 2
    assert str(properties) in capsys.readouterr().err
