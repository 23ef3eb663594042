"""``klamm mirror``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm import java
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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What the mirror was asked for, instead of a mirror."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def run(*words: Any, **options: Any) -> int:
        calls.append((words, options))
        return 1

    monkeypatch.setattr(mirror_main, "run", run)
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(mirror, "require_java", lambda: "/a/java")
    return calls


def test_the_file_and_the_clusters_reach_the_mirror_and_its_exit_code_comes_back(
    properties: Path, asked: list[tuple[Any, dict[str, Any]]]
) -> None:
    # when
    code = mirror.main([str(properties), "--clusters", "B", "C"])
    # then
    assert code == 1
    assert asked[0][0] == (properties, ["B", "C"])


def test_what_the_command_line_says_wins_over_the_file(
    properties: Path, asked: list[tuple[Any, dict[str, Any]]]
) -> None:
    # when
    mirror.main([str(properties), "--master", "spark://h:7077", "--checkpoint", "/here", "--metrics", "h:1"])
    # then
    assert asked[0][1]["overrides"] == {
        "spark.master": "spark://h:7077",
        "klamm.checkpoint.dir": "/here",
        "klamm.metrics.listen": "h:1",
    }


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main([str(tmp_path / "none.properties")]) == 2
    assert "none.properties: no such file" in capsys.readouterr().err


def test_a_file_that_cannot_be_looked_up_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert mirror.main(["x" * 300]) == 2
    assert capsys.readouterr().err == f"klamm mirror: {'x' * 300}: cannot be read: File name too long\n"


def test_without_java_the_command_to_install_it_is_reported(
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


def test_a_wrong_value_in_the_file_is_refused_naming_key_and_value(
    properties: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    properties.write_text("clusters = A\nA.bootstrap.servers = a:1\nuse.defaults.from = sauce\nA->A.enabled = true\n")
    # when
    code = mirror.main([str(properties), "--plan"])
    # then
    assert code == 2
    assert str(properties) in capsys.readouterr().err
