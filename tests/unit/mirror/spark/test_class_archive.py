"""Spark's class archive: where it is, when it is used, and when a process is started that writes it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from klamm.mirror.spark import class_archive
from klamm.mirror.spark.class_archive import DRIVER_OPTIONS, VARIABLE, find_archive, quick_start, write_in_background

if TYPE_CHECKING:
    from pathlib import Path

MEBI = 1 << 20


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java, a Spark with one jar, and no settings of the user."""
    for name in (
        VARIABLE,
        DRIVER_OPTIONS,
        "HADOOP_CONF_DIR",
        "YARN_CONF_DIR",
        "SPARK_CONF_DIR",
        "SPARK_DIST_CLASSPATH",
    ):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "a.jar").write_text("a")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return home


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the processes that were started."""
    commands: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_: Any) -> None:
            commands.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(class_archive, "available_memory", lambda: 4096 * MEBI)
    return commands


def write_archive() -> Path:
    archive = find_archive()
    assert archive is not None
    archive.write(lambda options: open(options[0].partition("=")[2], "x", encoding="utf-8").close())
    return archive.path


def test_archive_is_in_the_cache_directory(tmp_path: Path) -> None:
    assert write_archive().parent == tmp_path / "cache" / "klamm" / "java"


def test_variable_names_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "image"))
    assert write_archive().parent == tmp_path / "image"


@pytest.mark.parametrize("changed", ["java", "jar"])
def test_other_java_or_jar_needs_another_archive(tmp_path: Path, java: Path, changed: str) -> None:
    before = write_archive()
    (java / "bin" / "java" if changed == "java" else tmp_path / "spark" / "jars" / "a.jar").write_text("longer")
    after = find_archive()
    assert after is not None
    assert after.path != before
    assert not after.is_usable


@pytest.mark.parametrize("name", ["SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_class_path_with_a_directory_in_use_has_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv(name, str(tmp_path / "conf"))
    assert find_archive() is not None
    (tmp_path / "conf" / "core-site.xml").touch()
    assert find_archive() is None


def test_jvm_options_of_the_user_are_kept_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setenv(DRIVER_OPTIONS, "-Xss2m")
    path = write_archive()
    # when
    with quick_start():
        during = os.environ[DRIVER_OPTIONS]
    # then
    assert during.startswith(f'-Xss2m "-XX:SharedArchiveFile={path}"')
    assert os.environ[DRIVER_OPTIONS] == "-Xss2m"


def test_archive_off_is_neither_used_nor_written(monkeypatch: pytest.MonkeyPatch, started: list[list[str]]) -> None:
    write_archive()
    monkeypatch.setenv(VARIABLE, "off")
    with quick_start():
        assert DRIVER_OPTIONS not in os.environ
    write_in_background()
    assert started == []


def test_missing_archive_is_written_in_the_background(started: list[list[str]]) -> None:
    write_in_background()
    assert [command[1:] for command in started] == [["-P", "-m", "klamm.mirror.spark.class_training", "--background"]]
    write_archive()
    write_in_background()
    assert len(started) == 1


def test_archive_is_not_written_with_little_memory(monkeypatch: pytest.MonkeyPatch, started: list[list[str]]) -> None:
    monkeypatch.setattr(class_archive, "available_memory", lambda: 1024 * MEBI)
    write_in_background()
    assert started == []


def test_archive_is_not_written_without_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[list[str]]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_in_background()
    assert started == []
