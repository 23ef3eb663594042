"""Run a command with the virtual environment, and what it needs of Java, Maven and so on, on its PATH.

Usage: ``python scripts/with_tools.py [java] [maven] [chromium] [compiler] [go] [buildah] -- COMMAND...``

What is missing is installed by the system's package manager where that is permitted (as root, or with a sudo that asks
for no password). Where it is not, Java missing ends the run with the command to type; others missing are only told: the
tests against a real Apache Kafka, those that look at pages, or those of the wheel then say themselves that they were
skipped, and fail in CI.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.java import find_java_home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BIN: Final = Path(sys.prefix) / "bin"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Programs that drive as Chromium does."""
MIN_GO: Final = (1, 21)
"""Oldest release of Go that downloads the release which a module requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageManager:
    """How one system installs packages."""

    program: str
    install: tuple[str, ...]
    java: tuple[str, ...]
    """Package names to try in this order."""
    maven: tuple[str, ...] = ("maven",)
    chromium: tuple[str, ...] = ("chromium",)
    compiler: tuple[str, ...] = ("gcc", "python3-devel")
    """All of them, as long as something is missing."""
    go: tuple[str, ...] = ("go",)
    refresh: tuple[str, ...] = ()
    """Command that renews the package lists; empty when installing does that by itself."""
    needs_root: bool = True


MANAGERS: Final = (
    PackageManager(
        program="apt-get",
        install=("apt-get", "install", "-y", "-q", "--no-install-recommends"),
        refresh=("apt-get", "update", "-q"),
        java=("openjdk-17-jre-headless", "openjdk-21-jre-headless"),
        compiler=("build-essential", "python3-dev"),
        go=("golang-go",),
    ),
    PackageManager(
        program="dnf",
        install=("dnf", "install", "-y"),
        java=("java-17-openjdk-headless", "java-21-openjdk-headless"),
        go=("golang",),
    ),
    PackageManager(
        program="yum",
        install=("yum", "install", "-y"),
        java=("java-17-openjdk-headless", "java-21-openjdk-headless"),
        go=("golang",),
    ),
    PackageManager(
        program="apk",
        install=("apk", "add"),
        java=("openjdk17-jre-headless", "openjdk21-jre-headless"),
        compiler=("build-base", "python3-dev"),
    ),
    PackageManager(
        program="pacman",
        install=("pacman", "-S", "--noconfirm", "--needed"),
        refresh=("pacman", "-Sy"),
        java=("jre17-openjdk-headless", "jre21-openjdk-headless"),
        compiler=("gcc",),
    ),
    PackageManager(
        program="zypper",
        install=("zypper", "--non-interactive", "install"),
        java=("java-17-openjdk-headless", "java-21-openjdk-headless"),
    ),
    PackageManager(
        program="brew",
        install=("brew", "install"),
        java=("openjdk@17", "openjdk@21"),
        chromium=(),
        compiler=(),
        needs_root=False,
    ),
)


def say(text: str) -> None:
    """Tell the person at the terminal something."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def has_java() -> bool:
    """Tell whether a Java that Spark runs on is there."""
    return find_java_home() is not None


def has_maven() -> bool:
    """Tell whether Maven is there."""
    return shutil.which("mvn") is not None


def has_chromium() -> bool:
    """Tell whether a Chromium or Chrome is there."""
    return bool(os.environ.get("CHROMIUM")) or any(map(shutil.which, BROWSERS))


def has_compiler() -> bool:
    """Tell whether the C compiler that this Python builds with is there, and this Python's headers."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def has_go() -> bool:
    """Return whether Go is there, in release ``MIN_GO`` or newer."""
    go = shutil.which("go")
    if go is None:
        return False
    version = subprocess.run([go, "version"], check=False, capture_output=True, text=True).stdout
    release = re.search(r"\bgo(\d+)\.(\d+)", version)
    return release is not None and (int(release[1]), int(release[2])) >= MIN_GO


def has_buildah() -> bool:
    """Return whether buildah is there."""
    return shutil.which("buildah") is not None


def _rights(manager: PackageManager) -> tuple[str, ...] | None:
    """Return what to put before the manager's command, or None when installing is not permitted."""
    if not manager.needs_root or os.geteuid() == 0:
        return ()
    sudo = shutil.which("sudo")
    if sudo and subprocess.run([sudo, "-n", "true"], check=False, capture_output=True).returncode == 0:
        return (sudo, "-n")
    return None


def _run(command: Sequence[str]) -> bool:
    """Run a package manager's command, its talk on stderr, and tell whether it succeeded."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, check=False, stdout=sys.stderr, env=environment).returncode == 0


def _install(manager: PackageManager, packages: Sequence[str]) -> bool:
    """Install the first of the packages that the system has; False when not permitted or none could be had."""
    rights = _rights(manager)
    if rights is None:
        return False
    if manager.refresh:
        _run([*rights, *manager.refresh])
    for package in packages:
        say(f"installing {package} by {manager.program}")
        if _run([*rights, *manager.install, package]):
            return True
    return False


def _hint(manager: PackageManager | None, packages: Sequence[str], otherwise: str) -> str:
    """Return the command to type by hand."""
    if manager is None or not packages:
        return otherwise
    before = "sudo " if manager.needs_root else ""
    words = [word for word in manager.install if word not in {"-y", "-q"} and not word.startswith("--")]
    return f"{before}{' '.join(words)} {packages[0]}"


def ensure_java(manager: PackageManager | None) -> None:
    """Have Java 17 or 21, or end with the command that brings it."""
    packages = manager.java if manager else ()
    if has_java() or (manager and _install(manager, packages) and has_java()):
        return
    hint = _hint(manager, packages, "install a JRE 17 or 21 and set JAVA_HOME to it")
    sys.exit(f"setup: Spark needs Java 17 or 21, and none was found. Run: {hint}")


def ensure_maven(manager: PackageManager | None) -> None:
    """Have Maven if possible; say so if not."""
    otherwise = "install Apache Maven and put mvn on the PATH"
    lost = "Maven was not found: the tests against a real Apache Kafka cannot run"
    _ensure_if_possible(has_maven, manager, manager.maven if manager else (), lost=lost, otherwise=otherwise)


def ensure_chromium(manager: PackageManager | None) -> None:
    """Have Chromium if possible; say so if not."""
    otherwise = "install Chromium or Chrome and put it on the PATH, or set CHROMIUM to the program"
    lost = "Chromium was not found: the tests that look at pages cannot run"
    _ensure_if_possible(has_chromium, manager, manager.chromium if manager else (), lost=lost, otherwise=otherwise)


def ensure_compiler(manager: PackageManager | None) -> None:
    """Have a C compiler if possible; say so if not."""
    packages = manager.compiler if manager else ()
    for package in packages:
        if manager and not has_compiler():
            _install(manager, [package])
    if not has_compiler():
        hint = _hint(manager, [" ".join(packages)] if packages else (), "install a C compiler and Python's headers")
        say(f"a C compiler or Python's headers were not found: the wheel cannot be built. To have them: {hint}")


def ensure_go(manager: PackageManager | None) -> None:
    """Install Go if possible; print how to install it if not."""
    release = ".".join(map(str, MIN_GO))
    lost = f"Go {release} or newer was not found: the test suites of Go clients cannot run"
    otherwise = f"install Go {release} or newer and put go on the PATH"
    _ensure_if_possible(has_go, manager, manager.go if manager else (), lost=lost, otherwise=otherwise)


def ensure_buildah(manager: PackageManager | None) -> None:
    """Install buildah if possible; print how to install it if not. Where there is debootstrap, install that as well."""
    if manager and manager.program == "apt-get" and shutil.which("debootstrap") is None:
        _install(manager, ["debootstrap"])
    otherwise = "install buildah and put it on the PATH"
    lost = "buildah was not found: images cannot be built"
    _ensure_if_possible(has_buildah, manager, ["buildah"], lost=lost, otherwise=otherwise)


def _ensure_if_possible(
    has: Callable[[], bool], manager: PackageManager | None, packages: Sequence[str], *, lost: str, otherwise: str
) -> None:
    if not has() and not (manager and packages and _install(manager, packages) and has()):
        say(f"{lost}. To have it: {_hint(manager, packages, otherwise)}")


_ENSURE: Final = {
    "java": ensure_java,
    "maven": ensure_maven,
    "chromium": ensure_chromium,
    "compiler": ensure_compiler,
    "go": ensure_go,
    "buildah": ensure_buildah,
}


def main(arguments: Sequence[str]) -> None:
    """Ensure the named tools, then become the command."""
    split = arguments.index("--")
    tools, command = arguments[:split], arguments[split + 1 :]
    manager = next((manager for manager in MANAGERS if shutil.which(manager.program)), None)
    for tool in tools:
        _ENSURE[tool](manager)
    environment = dict(os.environ)
    paths = [str(BIN), environment.get("PATH", os.defpath)]
    java_home = find_java_home()
    if java_home is not None:
        environment["JAVA_HOME"] = str(java_home)
        paths.insert(1, str(java_home / "bin"))
    environment["PATH"] = os.pathsep.join(paths)
    os.execvpe(command[0], list(command), environment)  # noqa: S606 - the command is what the Makefile wrote


if __name__ == "__main__":
    main(sys.argv[1:])
