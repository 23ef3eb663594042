"""Placeholders that workers of pytest-xdist collect instead of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFTEST = """
import pytest
from tests.support import placeholders

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


@pytest.mark.process
def test_file_is_imported_and_its_fixtures_end_when_its_tests_are_run(tmp_path: Path) -> None:
    for name, text in {
        "conftest.py": CONFTEST,
        "pytest.ini": "[pytest]\nmarkers = process",
        "a/test_one.py": TESTS,
        "b/test_empty.py": "",
        "c/test_two.py": TESTS,
        "d/test_broken.py": "import no_such_module",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    arguments = ["-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:randomly", "-k", "first or last"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed, 1 error" in done.stdout
    one = ["import of test_one.py", "first", "last", "end of test_one.py"]
    two = ["import of test_two.py", "first", "last", "end of test_two.py"]
    assert (tmp_path / "log").read_text().splitlines() == [*one, *two, "end of session"]
