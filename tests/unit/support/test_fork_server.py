from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

import klamm
from tests.support import fork_server
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

POLICY = """
import os
from pathlib import Path

Path("environment").write_text(os.environ["OF_THE_TEST"])


class Policy:
    def validate(self, request: object) -> None:
        pass
"""


@pytest.fixture(autouse=True)
def _forks() -> Iterator[None]:
    fork_server.allow(is_allowed=True)
    yield
    fork_server.allow(is_allowed=False)


def is_forked(process: psutil.Process) -> bool:
    return any(word.endswith("fork_child.py") for word in process.cmdline())


def test_a_forked_broker_is_a_child_of_its_own_that_ends_in_order_or_is_killed() -> None:
    with KlammBroker() as broker:
        process = psutil.Process(broker.pid)
        assert (is_forked(process), process.ppid()) == (True, os.getpid())
        broker.restart(kill=True)
        assert process.pid != broker.pid
        assert broker.stop() == 0


def test_an_embedded_broker_has_its_session_directory_environment_and_module_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_TEST", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_the_test.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    before = psutil.Process().children()
    with klamm.Broker(config={"create.topic.policy.class.name": "of_the_test:Policy"}):
        (process,) = set(psutil.Process().children()) - set(before)
        assert is_forked(process)
        assert os.getsid(process.pid) == process.pid
        assert (process.cwd(), os.getpgid(process.pid)) == (str(tmp_path), process.pid)
    assert (tmp_path / "environment").read_text() == "1"
    assert not process.is_running()


def test_a_server_with_a_locale_of_its_own_is_started_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    with KlammBroker() as broker:
        assert not is_forked(psutil.Process(broker.pid))


def test_a_server_with_a_customization_of_python_is_started_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").touch()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with KlammBroker() as broker:
        assert not is_forked(psutil.Process(broker.pid))


def test_a_server_that_cannot_start_writes_to_its_pipes_and_ends() -> None:
    command = [*map(str, KlammBroker().command()), "--no-such-option"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--no-such-option" in done.stderr


def test_a_server_with_a_program_at_its_start_is_started_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with KlammBroker() as broker:
        assert not is_forked(psutil.Process(broker.pid))
