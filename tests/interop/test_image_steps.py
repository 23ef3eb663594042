"""The build steps of the container images, executed in a directory; then the image's own command and health check.

The wheel that they build and install has compiled modules (ADR 13), which behave like their source.

``make images`` builds the images with a builder. The steps of the mirror's image download 400 MB: ``make soak``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.support.image_steps import ROOT, ImageSteps, last
from tests.support.processes import free_port, start_process, stop_process, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
BY_RECORD = (
    "tests/unit/protocol/records",
    *(f"tests/unit/kafka_client/data/test_{name}.py" for name in ("batches", "joining")),
    *(f"tests/unit/dataframes/test_{name}.py" for name in ("batches", "columns", "reader", "rows")),
    *(f"tests/unit/mirror/copy/test_{name}.py" for name in ("partition", "transactions")),
    *(f"tests/unit/storage/log/test_{name}.py" for name in ("cleaner", "damaged_files", "partition", "transactions")),
)
"""Tests of what the compiled modules do. Together they call them from every line that does, with every type of argument
that any unit test passes: a compiled function checks the types of its arguments.
"""
PROFILE = () if IS_SOAK else ("--hypothesis-profile", "few")
"""The random examples have been judged with the source already."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageSteps:
    steps = ImageSteps(tmp_path_factory.mktemp("image"))
    steps.execute("Containerfile")
    return steps


def test_image_broker_becomes_healthy_and_stops_on_sigterm(image: ImageSteps, tmp_path: Path) -> None:
    """The command and the health check of the image work with what its build steps have installed."""
    # given
    new = {"9092": str(free_port()), "9404": str(free_port()), "/data": str(tmp_path / "data")}
    (entrypoint,) = json.loads(last("Containerfile", "ENTRYPOINT"))
    words = json.loads(last("Containerfile", "CMD"))
    installed = image.folder / "opt" / "klamm" / "bin"
    arguments = [re.sub("9092|9404|^/data$", lambda match: new[match[0]], word) for word in words]
    health = json.loads(last("Containerfile", "HEALTHCHECK").partition("CMD ")[2])
    check = [str(installed / health[0]), *(word.replace("9404", new["9404"]) for word in health[1:])]

    def is_healthy() -> bool:
        return subprocess.run(check, check=False, capture_output=True).returncode == 0

    assert not is_healthy()
    # when
    broker = start_process([str(installed / entrypoint), *arguments], log=tmp_path / "log")
    try:
        wait_until(is_healthy, timeout_s=30, what="a healthy broker")
        broker.send_signal(signal.SIGTERM)
        # then
        assert broker.wait(30) == 0
    finally:
        stop_process(broker)


def test_image_creates_user_before_data_directory(image: ImageSteps) -> None:
    """The user of the image exists before its data directory is given to it."""
    user, _ = last("Containerfile", "USER").split(":")
    recorded = image.recorded.read_text(encoding="utf-8").splitlines()
    (added,) = [line for line in recorded if line.startswith("useradd ")]
    (made,) = [line for line in recorded if line.startswith("install ")]
    assert f"--uid {user} " in added
    assert f"--owner {added.split()[-1]} " in made
    assert recorded.index(added) < recorded.index(made)


@pytest.fixture(scope="module")
def installed(image: ImageSteps, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """klamm of the image alone, for PYTHONPATH: the packages that it requires are those of this environment."""
    (packages,) = image.folder.glob("opt/klamm/lib/python3.*/site-packages")
    folder = tmp_path_factory.mktemp("compiled")
    for path in (*packages.glob("klamm*"), *packages.glob("*__mypyc.*")):
        (folder / path.name).symlink_to(path)
    return folder


def run(installed: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_configured_modules_are_compiled(installed: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["include"]
    modules = [name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in named]
    program = f"import importlib\nfor name in {modules}: print(importlib.import_module(name).__file__)"
    files = run(installed, [sys.executable, "-c", program]).stdout.split()
    assert len(files) == len(modules) > 0
    assert all(file.startswith(str(installed)) and file.endswith(".so") for file in files)


def test_version_reports_compiled_build(installed: Path) -> None:
    assert run(installed, [sys.executable, "-m", "klamm.cli", "--version"]).stdout.endswith(" (compiled)\n")


def test_wheel_also_contains_source_of_compiled_modules(installed: Path) -> None:
    """``--py-files`` ships a zip, from which Python cannot load compiled modules."""
    assert (installed / "klamm" / "kafka_client" / "data" / "joining.py").is_file()


def test_compiled_modules_pass_the_tests_of_their_source(installed: Path) -> None:
    done = run(
        installed,
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *PROFILE, *BY_RECORD],
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


if IS_SOAK:

    @pytest.fixture(scope="module")
    def mirror_image(image: ImageSteps) -> ImageSteps:
        image.execute("Containerfile.mirror")
        return image

    def test_mirror_image_installs_spark_beside_klamm(mirror_image: ImageSteps) -> None:
        """After the steps of both files, the mirror and Spark can be imported in the image's environment."""
        python = mirror_image.folder / "opt" / "klamm" / "bin" / "python"
        done = subprocess.run(
            [python, "-c", "import klamm.mirror, pyspark"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def test_user_of_mirror_image_can_read_the_class_archive(mirror_image: ImageSteps) -> None:
        """The steps run as root, the mirror as the image's user. It uses only an archive that it can read."""
        (archive,) = mirror_image.folder.glob("opt/klamm/java/*.jsa")
        assert archive.stat().st_mode & stat.S_IROTH
        assert archive.parent.stat().st_mode & 0o007 == stat.S_IROTH | stat.S_IXOTH
