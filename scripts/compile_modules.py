"""Build hook that compiles the record modules with mypyc (ADR 13).

It runs where ``HATCH_BUILD_HOOKS_ENABLE=1`` is set. mypyc translates the modules to C, and setuptools compiles that in
a temporary directory. The extensions go into the wheel beside their sources; nothing is written into the source tree.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution

MYPY_FLAGS: Final = ("--config-file=", "--ignore-missing-imports")
"""Without the settings in pyproject.toml, because a build lacks the packages that these need."""


class CompiledModules(BuildHookInterface[Any]):
    """Hook of the wheel target. Its ``include`` option lists the modules as paths from the root of the project."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules and add the extensions to the wheel, which then fits one system and Python version."""
        del version
        self._scratch = tempfile.TemporaryDirectory(prefix="klamm-mypyc-")
        built = Path(self._scratch.name, "built")
        # Relative paths: tracebacks of compiled functions hold them, and a build must not depend on its directory.
        with contextlib.chdir(self.root):
            extensions = mypycify(
                [*MYPY_FLAGS, f"--cache-dir={self._scratch.name}/cache", *self.config["include"]],
                target_dir=f"{self._scratch.name}/c",
                debug_level="0",  # debug information would hold the temporary directory
            )
            command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
            command.build_lib, command.build_temp = str(built), f"{self._scratch.name}/objects"
            command.ensure_finalized()
            command.run()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {str(file): str(file.relative_to(built)) for file in sorted(built.rglob("*.so"))}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory after the extensions were packed."""
        del version, build_data, artifact_path
        self._scratch.cleanup()
