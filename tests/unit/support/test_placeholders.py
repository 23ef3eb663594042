"""Placeholders that workers of pytest-xdist collect instead of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import placeholders

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
import pytest
from tests.support import placeholders
from tests.support.distribution import FileScheduling

class Scheduling(FileScheduling):
    def _split_scope(self, nodeid):
        return nodeid.partition("::")[0]

def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)

def note(words):
    with open("log", "a") as log:
        log.write(words + "\\n")

def pytest_configure(config):
    config.pluginmanager.register(placeholders)

@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    kept = placeholders.in_items(items)
    yield
    items[:] = placeholders.in_pairs(kept or items)

@pytest.fixture(scope="session", autouse=True)
def session():
    yield
    note("end of session")

@pytest.fixture(scope="module", autouse=True)
def module(request):
    yield
    note(f"end of {request.node.name}")
"""
TESTS = """
from conftest import note
note(f"import of {__file__.rpartition('/')[2]}")

def test_first():
    note("first")

def test_last():
    note("last")
    assert "two" not in __file__
"""


CRASHING = """
import os
from conftest import note

def test_first():
    note("before the crash")

def test_first_that_crashes():
    os._exit(1)

def test_first_behind():
    note("not run")

def test_last():
    note("behind the crash")
"""


def files(directory: Path, **files: str) -> None:
    """Write test files, each into a directory of its own, so that they run in the order of these."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = process")
    for number, (name, text) in enumerate(files.items()):
        (directory / str(number)).mkdir()
        (directory / str(number) / f"test_{name}.py").write_text(text)


def start(directory: Path, names: str) -> subprocess.Popen[str]:
    """Start pytest with one worker, for the tests with such names."""
    arguments = ["-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:randomly", "-k", names]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{directory}"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
@pytest.mark.process
def test_file_is_imported_and_its_fixtures_end_when_its_tests_are_run(tmp_path: Path) -> None:
    files(tmp_path, one=TESTS, empty="", two=TESTS, crashing=CRASHING)
    output, _ = start(tmp_path, "first or last").communicate()
    assert "2 failed, 5 passed" in output
    assert re.search(r"(?m)^FAILED 3/test_crashing.py::test_first_that_crashes - worker 'gw0' crashed", output)
    one = ["import of test_one.py", "first", "last", "end of test_one.py"]
    two = ["import of test_two.py", "first", "last", "end of test_two.py"]
    crash = ["before the crash", "behind the crash", "end of test_crashing.py"]
    assert (tmp_path / "log").read_text().splitlines() == [*one, *two, *crash, "end of session"]


@pytest.mark.long
@pytest.mark.process
def test_run_without_tests_and_broken_file_have_their_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "whole").mkdir()
    files(tmp_path / "broken", broken="import no_such_module")
    files(tmp_path / "whole", whole=TESTS)
    broken, nothing = start(tmp_path / "broken", "first or last"), start(tmp_path / "whole", "nothing")
    assert "1 error" in broken.communicate()[0]
    nothing.communicate()
    assert (broken.returncode, nothing.returncode) == (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


@pytest.mark.parametrize(("options", "has_placeholders"), [((), True), (("sharing",), False), (("lf",), False)])
def test_options_that_select_tests_need_the_tests(options: tuple[str, ...], *, has_placeholders: bool) -> None:
    config = SimpleNamespace(args=["tests"], getvalue=lambda _: "loadfile", getoption=lambda name, _: name in options)
    node = SimpleNamespace(config=config, workerinput={})
    placeholders.pytest_configure_node(node)
    assert node.workerinput == {"has_placeholders": has_placeholders}
