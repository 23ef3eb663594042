"""klamm installed from its wheel, with compiled record modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class WheelError(Exception):
    """The wheel could not be built; the message contains the reason."""


def install_wheel(folder: Path) -> Path:
    """Build the wheel, and return where it is installed, for PYTHONPATH.

    Args:
        folder: Empty directory for the wheel and the installation.

    Raises:
        WheelError: There is no working C compiler.
    """
    built, installed = folder / "wheel", folder / "installed"
    wheel = _build("compiled", built)
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed, wheel])
    return installed


def build_pure_wheel(folder: Path) -> Path:
    """Build the wheel without compiled modules and return its path.

    Raises:
        WheelError: The build failed.
    """
    return _build("pure", folder)


def write_quick_compiler(folder: Path) -> None:
    """Write a C compiler that does not optimize, for the PATH of a build: it takes a quarter of the time."""
    name = _compiler()
    program = shutil.which(name)
    if program is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f'#!/bin/sh\nexec {program} "$@" -O0\n', encoding="utf-8")
        (folder / name).chmod(0o755)


def _compiler() -> str:
    """Return the file name of the C compiler of this Python."""
    return Path(str(sysconfig.get_config_var("CC") or "cc").split()[0]).name


def _build(kind: str, folder: Path) -> Path:
    _run([sys.executable, _ROOT / "scripts" / "wheel.py", "--only", kind, "--", folder])
    (built,) = folder.iterdir()
    return built


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{command[1]} ended with exit status {done.returncode}: {done.stderr[-2000:]}")
