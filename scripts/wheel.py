"""Build what is published of klamm: a pure wheel, a wheel with compiled record modules (ADR 13) and the sdist.

Usage: ``python scripts/wheel.py [--only KIND ...] [--check] [--try] [--sbom FILE] [FOLDER]``
The folder is ``dist/`` by default.
``--check`` builds each file twice, in different directories, compares the bytes, and lets twine check the metadata.
``--try`` installs each file, with what it requires from the package index, into a fresh environment and runs
``try_install.py`` there. ``--sbom`` lists what such an environment of the first file holds, as CycloneDX.

The time of all packed files is SOURCE_DATE_EPOCH, which defaults to the time of the commit.
The compiled wheel is for this system and this version of Python. On Linux, auditwheel examines it and gives it the tag
of the oldest glibc that it runs with (manylinux).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

from with_tools import has_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
INGREDIENTS: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")
BUILD_HOOKS: Final = ("compile_modules.py", "project_metadata.py")
_MODULE: Final = (sys.executable, "-m")


def main(arguments: Sequence[str]) -> None:
    """Build from a copy: a compiled module left beside the sources would be taken instead of them, changed or not."""
    options = _options(arguments)
    if "compiled" in options.only and not has_compiler():
        sys.exit("wheel: needs a C compiler and Python's headers (Debian: apt-get install build-essential python3-dev)")
    os.environ.setdefault("SOURCE_DATE_EPOCH", commit_time())
    built = _build(options.only, options.folder)
    if options.check:
        check_reproducible(built, lambda folder: _build(options.only, folder))
        _run([*_MODULE, "twine", "check", "--strict", *built])
    if options.sbom:
        write_sbom(built[0], options.sbom)
    for path in built:
        print(f"wheel: {path}" + (f" {_tried(path)}" if options.tries else ""), flush=True)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wheel.py", description=__doc__)
    kinds = list(_BUILDERS)
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="what to build; all by default")
    parser.add_argument("--check", action="store_true", help="compare with a second build, and check the metadata")
    parser.add_argument("--try", action="store_true", dest="tries", help="install and use each file")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="write a list of the first file and its dependencies")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    return parser.parse_args(arguments)


def _build(kinds: Sequence[str], into: Path) -> list[Path]:
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="klamm-wheel-") as folder:
        copy = Path(folder, "copy")
        copy_sources(copy)
        return [_BUILDERS[kind](copy, into.resolve()) for kind in kinds]


def commit_time() -> str:
    """Return the time of the commit in seconds since 1970, or 1980-01-02, which zip can hold, without a repository."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "315619200"


def check_reproducible(built: Sequence[Path], build: Callable[[Path], Sequence[Path]]) -> None:
    """Build the files a second time and exit if the bytes of any differ."""
    with tempfile.TemporaryDirectory(prefix="klamm-again-") as folder:
        for first, second in zip(built, build(Path(folder)), strict=True):
            if (first.name, first.read_bytes()) != (second.name, second.read_bytes()):
                sys.exit(f"wheel: {first.name} is not reproducible: a second build has other bytes")


def copy_sources(copy: Path) -> None:
    """Copy what a build reads into a new folder."""
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "scripts").mkdir()
    for hook in BUILD_HOOKS:
        shutil.copy(ROOT / "scripts" / hook, copy / "scripts")
    for name in INGREDIENTS:
        shutil.copy(ROOT / name, copy)


def _pure(copy: Path, into: Path) -> Path:
    return _hatchling(copy, into, "wheel")


def _sdist(copy: Path, into: Path) -> Path:
    return _hatchling(copy, into, "sdist")


def _compiled(copy: Path, into: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix="klamm-compiled-") as scratch:
        wheel = _hatchling(copy, Path(scratch), "wheel", {"HATCH_BUILD_HOOKS_ENABLE": "1"})
        if sys.platform == "linux":
            # No patcher: the modules link to nothing but the C library, so there is nothing to copy into the wheel.
            audited = Path(scratch, "audited")
            _run([*_MODULE, "auditwheel", "repair", "--patcher", "none", "--wheel-dir", audited, wheel])
            (wheel,) = audited.iterdir()
        return Path(shutil.copy(wheel, into))


_BUILDERS: Final[Mapping[str, Callable[[Path, Path], Path]]] = {"compiled": _compiled, "pure": _pure, "sdist": _sdist}


def _hatchling(copy: Path, into: Path, target: str, environment: Mapping[str, str] | None = None) -> Path:
    """Build a target and return the path of the file."""
    with tempfile.TemporaryDirectory(prefix="klamm-built-") as scratch:
        command = [*_MODULE, "hatchling", "build", "--target", target, "--directory", scratch]
        _run(command, cwd=copy, env={**os.environ, **(environment or {})})
        (built,) = Path(scratch).iterdir()
        return Path(shutil.copy(built, into))


def _tried(path: Path) -> str:
    """Install a file into a fresh environment, use it there, and return the version that it reports."""
    with tempfile.TemporaryDirectory(prefix="klamm-try-") as folder:
        python = install(path, Path(folder))
        bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        found = json.loads(_run([python, ROOT / "scripts" / "try_install.py"], env=bare))
    expected = {"value": "1", "listed": ["orders"], "has_type_marker": True, "has_licence": True}
    wrong = {name: found[name] for name, value in expected.items() if found[name] != value}
    is_compiled = not path.name.endswith(("-none-any.whl", ".tar.gz"))
    if wrong or found["version"].endswith("(compiled)") != is_compiled or bool(found["extensions"]) != is_compiled:
        sys.exit(f"wheel: {path.name} was installed and does not work: {found}")
    return f"works: {found['version']} on Python {found['python']}"


def install(path: Path, folder: Path) -> Path:
    """Install a file and its dependencies into a new environment and return the path of its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    _run([*_MODULE, "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet", path])
    for record in folder.rglob("direct_url.json"):  # where the file was: a directory that exists only now
        record.unlink()
    return python


def write_sbom(package: Path, file: Path) -> None:
    """Write what an environment with the package holds, as CycloneDX JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="klamm-sbom-") as folder:
        python = install(package, Path(folder))
        command = [
            "cyclonedx_py",
            "environment",
            "--output-reproducible",
            "--output-file",
            str(file.resolve()),
            str(python),
        ]
        _run([*_MODULE, *command])


def _run(command: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output; exit with its output if it failed."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"wheel: {' '.join(map(str, command[1:4]))} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
