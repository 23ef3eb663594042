"""Search for a Java that Spark supports. The broker, the admin API and the clients never need one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SUPPORTED_VERSIONS: Final = (17, 21)
"""Major versions that Spark 4 and Kafka's own tools are tested with."""

_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
)


class JavaNotFoundError(RuntimeError):
    """No Java of a supported version is installed."""


def find_java_home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the home of a supported Java, or None if there is none.

    ``JAVA_HOME`` comes first, then ``java`` on the PATH, then the directories that packages install to.
    """
    for home in _candidates(environ):
        if (home / "bin" / "java").exists() and _major_version(home) in SUPPORTED_VERSIONS:
            return home
    return None


def require_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home of a supported Java.

    Raises:
        JavaNotFoundError: There is none. The message says what to install.
    """
    home = find_java_home(environ)
    if home is None:
        versions = " or ".join(map(str, SUPPORTED_VERSIONS))
        raise JavaNotFoundError(
            f"Spark needs Java {versions}, and none was found. Install one (Debian, Ubuntu: sudo apt-get install "
            "openjdk-17-jre-headless; Fedora: sudo dnf install java-21-openjdk-headless; macOS: brew install "
            "openjdk@17) or set JAVA_HOME"
        )
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if configured := environ.get("JAVA_HOME"):
        yield Path(configured)
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(program).resolve().parent.parent
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _major_version(home: Path) -> int | None:
    """Return 17 for 17.0.15, or None if this is not a Java. Reads the ``release`` file before it starts a JVM."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else _ask(home / "bin" / "java")
    match = re.search(r'(?:JAVA_VERSION=|version )"(\d+)', text)
    return int(match.group(1)) if match else None


def _ask(program: Path) -> str:
    try:
        return subprocess.run(  # noqa: S603 - a fixed command
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""
