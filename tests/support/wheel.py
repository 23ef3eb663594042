"""klamm installed from its wheel, with compiled record modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).parents[2]


class WheelError(Exception):
    """The wheel could not be built; the message contains the reason."""


def install_wheel(folder: Path, *, is_optimized: bool = True) -> Path:
    """Build the wheel, and return where it is installed, for PYTHONPATH.

    Args:
        folder: Empty directory for the wheel and the installation.
        is_optimized: Whether the compiler optimizes, as for a published wheel. It takes four times as long.

    Raises:
        WheelError: There is no working C compiler.
    """
    built, installed = folder / "wheel", folder / "installed"
    wheel = _build("compiled", built, is_optimized=is_optimized)
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


def _build(kind: str, folder: Path, *, is_optimized: bool = True) -> Path:
    path = os.environ.get("PATH", os.defpath)
    if not is_optimized:
        compiler = folder.with_name("compiler")
        write_quick_compiler(compiler)
        path = f"{compiler}{os.pathsep}{path}"
    _run([sys.executable, _ROOT / "scripts" / "wheel.py", "--only", kind, "--", folder], {**os.environ, "PATH": path})
    (built,) = folder.iterdir()
    return built


def _run(command: list[str | Path], env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{command[1]} ended with exit status {done.returncode}: {done.stderr[-2000:]}")
