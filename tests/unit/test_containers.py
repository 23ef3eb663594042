"""The container images and their examples: their files, and the examples run with a process as container.

The build steps run in tests/interop/test_image_steps.py; ``make images`` builds the images.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from klamm.broker.settings import parse_arguments
from klamm.cli.completion import words_of
from tests.support.image_steps import ROOT, instructions, last
from tests.support.page_behind_proxy import page_behind_proxy
from tests.support.processes import free_port, start_process, stop_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

IMAGES = ("Containerfile", "Containerfile.mirror")
KLAMM = [sys.executable, "-m", "klamm.cli"]


def health_command(name: str) -> list[str]:
    return list(json.loads(last(name, "HEALTHCHECK").partition("CMD ")[2]))


def is_ignored(path: str) -> bool:
    """Return whether .dockerignore leaves a path out. The last rule that matches it or a parent decides."""
    names = [path, *(parent.as_posix() for parent in Path(path).parents)]
    ignored = False
    for rule in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if rule and not rule.startswith("#") and any(fnmatch.fnmatch(name, rule.lstrip("!")) for name in names):
            ignored = not rule.startswith("!")
    return ignored


@pytest.mark.parametrize("name", IMAGES)
def test_copied_files_exist_and_are_not_ignored(name: str) -> None:
    copied = [shlex.split(rest)[:-1] for word, rest in instructions(name) if word == "COPY" and "--from" not in rest]
    sources = [source for words in copied for source in words]
    assert len(sources) > 1
    assert [source for source in sources if not (ROOT / source).exists() or is_ignored(source)] == []
    assert is_ignored("tests/conftest.py")
    assert is_ignored(".git")


@pytest.mark.parametrize("name", IMAGES)
def test_image_runs_as_non_root_and_checks_health_on_its_metrics_port(name: str) -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last(name, "USER"))
    (address,) = re.findall(r'"--metrics", "0\.0\.0\.0:(\d+)"', last(name, "CMD"))
    assert f":{address}/" in health_command(name)[-1]
    assert address in last(name, "EXPOSE").split()


def health_programs() -> list[list[str]]:
    """Return the health checks of the images and of the gateway's compose file."""
    gateway = yaml.safe_load((ROOT / "examples" / "gateway" / "compose.yaml").read_text(encoding="utf-8"))
    _, *command = gateway["services"]["gateway"]["healthcheck"]["test"]
    return [*map(health_command, IMAGES), command]


@pytest.mark.parametrize("command", health_programs(), ids=["broker", "mirror", "gateway"])
def test_health_check_bypasses_the_proxy_of_the_environment(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, flag, code = command
    assert (program, flag) == ("python", "-c")
    with page_behind_proxy(monkeypatch) as (address, targets):
        exec(code.replace("127.0.0.1:9404", address), {})  # noqa: S102 - the command of the image
    assert targets == re.findall(r":9404(/\w+)", code)


def test_broker_image_stores_data_in_its_volume_and_stops_on_sigterm() -> None:
    command, *arguments = json.loads(last("Containerfile", "CMD"))
    settings = parse_arguments(arguments)
    assert (command, str(settings.data_dir)) == ("broker", last("Containerfile", "VOLUME"))
    assert last("Containerfile", "STOPSIGNAL") == "SIGTERM"
    assert json.loads(last("Containerfile", "ENTRYPOINT")) == ["klamm"]


def test_command_of_mirror_image_exists() -> None:
    command, *arguments = json.loads(last("Containerfile.mirror", "CMD"))
    assert {word for word in arguments if word.startswith("--")} <= set(words_of(command))


def test_compose_example_is_valid() -> None:
    # given
    path = ROOT / "examples" / "compose.yaml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))
    broker, topics = example["services"]["klamm"], example["services"]["topics"]
    # then
    command, *arguments = broker["command"]
    settings = parse_arguments(arguments)
    assert command == "broker"
    assert [listener.name for listener in settings.listeners] == ["INSIDE", "OUTSIDE"]
    assert [str(address) for listener in settings.listeners for address in listener.advertise or ()] == [
        f"{broker['hostname']}:9092",
        "localhost:29092",
    ]
    assert broker["volumes"] == [f"{name}:{settings.data_dir}" for name in example["volumes"]]
    command, *arguments = topics["command"]
    assert {word for word in arguments if word.startswith("--")} <= set(words_of(command))
    for service in (broker, topics):
        assert (path.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
    assert set(topics["depends_on"]) <= set(example["services"])


class ProcessDocker:
    """A Docker client for testcontainers that runs the image's program as a process."""

    def __init__(self) -> None:
        self.client = SimpleNamespace(close=lambda: None)

    def create(self, image: str, *, command: str, ports: dict[str, int], **_: Any) -> ProcessContainer:
        assert image == "klamm"
        return ProcessContainer(shlex.split(command), ports)

    def start(self, container: ProcessContainer) -> None:
        container.start()


class ProcessContainer:
    """A process in the place of a container."""

    status = "running"
    short_id = "process"
    folder: Path

    def __init__(self, command: Sequence[str], ports: dict[str, int]) -> None:
        new = {container.partition("/")[0]: str(port) for container, port in ports.items()}
        new |= {"9404": str(free_port()), "/data": str(self.folder / "data")}
        # a port of the container at the end of an address; the host's port may contain the same digits
        self._command = [re.sub(r"(?<=:)(9092|9404)$|^/data$", lambda match: new[match[0]], word) for word in command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = start_process([*KLAMM, *self._command], log=self.folder / "log")

    def reload(self) -> None:
        """Do nothing: the status does not change."""

    def logs(self, *, stderr: bool = True, stdout: bool = True) -> bytes:
        return (self.folder / "log").read_bytes() if stdout or stderr else b""

    def remove(self, *, force: bool, v: bool) -> None:
        assert force
        assert v
        if self._process is not None:
            stop_process(self._process)


@pytest.mark.process
def test_testcontainers_example_runs_with_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    monkeypatch.setattr(ProcessContainer, "folder", tmp_path, raising=False)
    monkeypatch.setattr("testcontainers.core.container.DockerClient", ProcessDocker)
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import container_in_tests  # type: ignore[import-not-found]  # noqa: PLC0415 - a program of examples/

    # when
    container_in_tests.main()
    # then
    assert capsys.readouterr().out == "hello\n"
