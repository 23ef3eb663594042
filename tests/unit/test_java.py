"""Finding the Java that Spark runs on."""

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


def test_java_home_is_taken_when_its_version_is_supported(tmp_path: Path) -> None:
    home = a_java(tmp_path / "jdk", "21.0.4")
    assert java.find_java_home({"JAVA_HOME": str(home), "PATH": ""}) == home


def test_a_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    # given
    home = a_java(tmp_path / "jdk", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    # when
    found = java.find_java_home({"PATH": str(tmp_path / "bin")})
    # then
    assert found == home


def test_a_java_of_another_version_is_passed_over(tmp_path: Path) -> None:
    # given
    old = a_java(tmp_path / "old", "11.0.2")
    new = a_java(tmp_path / "new", "17.0.1")
    # when
    found = java.find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    # then
    assert found == new


@pytest.mark.process
def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    # given
    home = a_java(tmp_path / "jdk", "")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\" 2023-10-17' >&2\n")
    # when
    found = java.find_java_home({"JAVA_HOME": str(home), "PATH": ""})
    # then
    assert found == home


def test_without_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(java.JavaNotFoundError, match=r"Java 17 or 21.*apt-get install openjdk-17-jre-headless"):
        java.require_java({"PATH": str(tmp_path)})
