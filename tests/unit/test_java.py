"""Search for the Java that Spark runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm import java

if TYPE_CHECKING:
    from pathlib import Path


def a_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Anyone"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def no_other_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_PLACES", ())


def test_supported_java_home_is_used(tmp_path: Path) -> None:
    home = a_java(tmp_path / "jdk", "21.0.4")
    assert java.find_java_home({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_java_on_path_is_found_through_symlinks(tmp_path: Path) -> None:
    # given
    home = a_java(tmp_path / "jdk", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    # when
    located = java.find_java_home({"PATH": str(tmp_path / "bin")})
    # then
    assert located == home


def test_unsupported_java_version_is_skipped(tmp_path: Path) -> None:
    # given
    old = a_java(tmp_path / "old", "11.0.2")
    new = a_java(tmp_path / "new", "17.0.1")
    # when
    located = java.find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    # then
    assert located == new


@pytest.mark.process
def test_java_without_release_file_is_executed_for_its_version(tmp_path: Path) -> None:
    # given
    home = a_java(tmp_path / "jdk", "")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\" 2023-10-17' >&2\n")
    # when
    located = java.find_java_home({"JAVA_HOME": str(home), "PATH": ""})
    # then
    assert located == home


def test_missing_java_error_has_install_command(tmp_path: Path) -> None:
    with pytest.raises(java.JavaNotFoundError, match=r"Java 17 or 21.*apt-get install openjdk-17-jre-headless"):
        java.require_java({"PATH": str(tmp_path)})
