"""The build steps of the container images, executed in a directory; then the image's own command and health check.

``make images`` builds the images with a builder. The steps of the mirror's image download 400 MB: ``make soak``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.image_steps import ImageSteps, last
from tests.support.processes import free_port, start_process, stop_process, wait_until

if TYPE_CHECKING:
    from pathlib import Path

IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))


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
    arguments = [re.sub("9092|9404|^/data$", lambda found: new[found[0]], word) for word in words]
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


def test_image_has_compiled_record_modules(image: ImageSteps) -> None:
    """The wheel in the image is the compiled one."""
    assert list(image.folder.glob("opt/klamm/lib/python3.*/site-packages/klamm/protocol/records/*.so"))


def test_image_creates_user_before_data_directory(image: ImageSteps) -> None:
    """The user of the image exists before its data directory is given to it."""
    user, _ = last("Containerfile", "USER").split(":")
    recorded = image.recorded.read_text(encoding="utf-8").splitlines()
    (added,) = [line for line in recorded if line.startswith("useradd ")]
    (made,) = [line for line in recorded if line.startswith("install ")]
    assert f"--uid {user} " in added
    assert f"--owner {added.split()[-1]} " in made
    assert recorded.index(added) < recorded.index(made)


if IS_SOAK:

    def test_mirror_image_installs_spark_beside_klamm(image: ImageSteps) -> None:
        """After the steps of both files, the mirror and Spark can be imported in the image's environment."""
        image.execute("Containerfile.mirror")
        python = image.folder / "opt" / "klamm" / "bin" / "python"
        done = subprocess.run(
            [python, "-c", "import klamm.mirror, pyspark"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
