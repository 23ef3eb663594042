"""klamm installed from its wheel, with compiled record modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class WheelError(Exception):
    """The wheel could not be built; the message contains the reason."""


def install_wheel(folder: Path) -> Path:
    """Build the wheel in some ten seconds, and return where it is installed, for PYTHONPATH.

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


def _build(kind: str, folder: Path) -> Path:
    _run([sys.executable, _ROOT / "scripts" / "wheel.py", "--only", kind, "--", folder])
    (built,) = folder.iterdir()
    return built


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{command[1]} ended with exit status {done.returncode}: {done.stderr[-2000:]}")
