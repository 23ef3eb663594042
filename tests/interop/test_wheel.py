"""The wheel has compiled modules (ADR 13), which behave like their source."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.skips import skip_loudly
from tests.support.wheel import WheelError, install_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return install_wheel(tmp_path_factory.mktemp("compiled"), is_optimized=False)
    except WheelError as error:
        skip_loudly(str(error))


def run(installed: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def test_configured_modules_are_compiled(installed: Path) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["include"]
    modules = [name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in named]
    program = f"import importlib\nfor name in {modules}: print(importlib.import_module(name).__file__)"
    found = run(installed, [sys.executable, "-c", program]).stdout.split()
    assert len(found) == len(modules) > 0
    assert all(file.startswith(str(installed)) and file.endswith(".so") for file in found)


def test_version_reports_compiled_build(installed: Path) -> None:
    assert run(installed, [sys.executable, "-m", "klamm.cli", "--version"]).stdout.endswith(" (compiled)\n")


def test_wheel_also_contains_source_of_compiled_modules(installed: Path) -> None:
    """``--py-files`` ships a zip, from which Python cannot load compiled modules."""
    assert (installed / "klamm" / "kafka_client" / "data" / "joining.py").is_file()


def test_compiled_modules_pass_the_tests_of_their_source(installed: Path) -> None:
    done = run(
        installed, [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *BY_RECORD]
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
