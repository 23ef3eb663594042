"""A fresh environment with klamm's wheel and its required dependencies, without any extra.

The dependencies are copied from the environment of the tests, so neither pip nor a package index is needed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from email import message_from_string
from importlib.metadata import Distribution, distribution
from typing import TYPE_CHECKING

from tests.support.wheel import build_pure_wheel

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path


class BaseInstall:
    """An environment below a folder.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", with_pip=False)
        self.python = folder / "env" / "bin" / "python"
        (self.site_packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        wheel = build_pure_wheel(folder / "wheel")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run([*pip, "--target", self.site_packages, wheel], check=True, capture_output=True)
        self.distributions: set[str] = set()
        (self._dist_info,) = self.site_packages.glob("klamm-*.dist-info")
        for requirement in self._requirements(self._dist_info):
            self._copy(distribution(requirement))

    def metadata(self) -> Message:
        """Return the core metadata of klamm."""
        return message_from_string((self._dist_info / "METADATA").read_text(encoding="utf-8"))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that lead to nothing of the tests' environment."""
        return {"PATH": "/usr/bin:/bin"}

    @property
    def command(self) -> tuple[str, ...]:
        """The ``klamm`` command of this environment."""
        return (str(self.python), "-m", "klamm.cli")

    def compile(self) -> None:
        """Compile all modules to bytecode, as pip does by default."""
        subprocess.run([self.python, "-m", "compileall", "-q", self.site_packages], check=True, capture_output=True)

    def run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run Python with arguments, in an environment that knows nothing of the tests' packages."""
        return subprocess.run(
            [self.python, *arguments],
            env={**self.environment, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def size_bytes(self) -> int:
        """Return the size of all installed files."""
        return sum(path.stat().st_size for path in self.site_packages.rglob("*") if path.is_file())

    @staticmethod
    def _requirements(dist_info: Path) -> list[str]:
        """Return the names of what a distribution requires without extras."""
        requires = Distribution.at(dist_info).requires or []
        return [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requires if "extra ==" not in text]

    def _copy(self, package: Distribution) -> None:
        name = package.metadata["Name"]
        if name in self.distributions:
            return
        self.distributions.add(name)
        for file in package.files or ():
            target = (self.site_packages / file).resolve()
            if "__pycache__" not in file.parts and target.is_relative_to(self.site_packages.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
        for requirement in package.requires or ():
            if ";" not in requirement:
                self._copy(distribution(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]))
