"""scripts/wheel.py: reproducible packages. tests/interop/test_image_steps.py tests what the compiled wheel does."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tarfile
import venv
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scripts import SCRIPTS, load_script

if TYPE_CHECKING:
    from pathlib import Path

ROOT = SCRIPTS.parent
sys.path.insert(0, str(SCRIPTS))  # wheel.py imports its neighbour
try:
    script: Any = load_script("wheel")
finally:
    sys.path.remove(str(SCRIPTS))


def build_with(text: str, folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    (folder / "klamm.whl").write_text(text)
    return [folder / "klamm.whl"]


def test_identical_builds_are_reproducible(tmp_path: Path) -> None:
    built = build_with("same", tmp_path / "first")
    script.check_reproducible(built, lambda folder: build_with("same", folder))


def test_build_containing_its_directory_is_not_reproducible(tmp_path: Path) -> None:
    built = build_with(str(tmp_path), tmp_path / "first")
    with pytest.raises(SystemExit, match=r"klamm\.whl is not reproducible"):
        script.check_reproducible(built, lambda folder: build_with(str(folder), folder))


@pytest.mark.long
@pytest.mark.process
def test_sdist_has_the_commit_timestamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    subprocess.run([sys.executable, SCRIPTS / "wheel.py", "--only", "sdist", "--", tmp_path], check=True)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as archive:
        assert {member.mtime for member in archive.getmembers()} == {1700000000}


@pytest.mark.process
def test_build_time_is_the_commit_time() -> None:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    committed = subprocess.run(command, capture_output=True, text=True, check=False)
    expected = "315619200" if committed.returncode else committed.stdout.strip()
    assert script.commit_time() == expected


@pytest.mark.long
@pytest.mark.process
def test_sbom_lists_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given: an environment with one package, because all those of this one take ten seconds more
    venv.create(tmp_path / "environment", with_pip=False)
    (packages,) = tmp_path.glob("environment/lib/python*/site-packages")
    installed = importlib.metadata.distribution("kafka-python")
    name = f"kafka_python-{installed.version}.dist-info"
    (packages / name).symlink_to(str(installed.locate_file(name)))
    monkeypatch.setattr(script, "install", lambda *_: tmp_path / "environment" / "bin" / "python")
    # when
    script.write_sbom(tmp_path / "klamm.whl", tmp_path / "klamm.cdx.json")
    # then
    written = json.loads((tmp_path / "klamm.cdx.json").read_text())
    versions = {component["name"]: component["version"] for component in written["components"]}
    assert written["bomFormat"] == "CycloneDX"
    assert versions == {"kafka-python": installed.version}
