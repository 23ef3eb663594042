"""Execution of a Containerfile without a container: each step runs in a directory that takes the place of ``/``.

No root rights are needed. A path of the image such as ``/opt/klamm`` becomes a path below that directory. Commands that
would change the system are replaced by programs that only record their arguments. All stages share the directory.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.wheel import write_quick_compiler

ROOT: Final = Path(__file__).resolve().parents[2]
RECORDED: Final = ("apt-get", "groupadd", "useradd", "install")
"""Commands that need root rights or another system."""
_INSIDE: Final = ("build", "data", "opt", "tmp", "usr/share", "var")
"""Directories of an image in which the Containerfiles write."""
_TIMEOUT_S: Final = 240.0


class StepError(Exception):
    """A step failed. The message holds the step and the end of its output."""


class ImageSteps:
    """The steps of Containerfiles, executed one after the other.

    Args:
        folder: An empty directory that takes the place of ``/``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorded = folder / "recorded"
        """File with one line for each recorded command."""
        commands = folder / "commands"
        commands.mkdir()
        for name in RECORDED:
            program = commands / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >> {shlex.quote(str(self.recorded))}\n', encoding="utf-8")
            program.chmod(0o755)
        base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        for name in ("python", "python3"):
            (commands / name).symlink_to(base)
        write_quick_compiler(commands)
        self._path = f"{commands}:/usr/bin:/bin"
        self._directory = folder
        self._variables: dict[str, str] = {}

    def execute(self, name: str) -> None:
        """Execute the COPY, ENV, RUN and WORKDIR steps of a Containerfile of the repository.

        Raises:
            StepError: A step failed, or is of a kind that is not known here.
        """
        for word, rest in instructions(name):
            match word:
                case "RUN":
                    self._run(rest)
                case "COPY":
                    self._copy(rest)
                case "WORKDIR":
                    self._directory = Path(self.inside(rest))
                    self._directory.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    self._variables |= dict(assignment.split("=", 1) for assignment in shlex.split(self.inside(rest)))
                case "FROM":
                    self._directory, self._variables = self.folder, {}
                case "ARG" | "USER" | "VOLUME" | "EXPOSE" | "STOPSIGNAL" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                    pass  # what these configure is tested by the caller
                case _:
                    raise StepError(f"{name}: unknown instruction {word}")

    def inside(self, text: str) -> str:
        """Return a text in which paths of the image are paths below the directory."""
        return re.sub(rf"(?<![\w./])/(?=(?:{'|'.join(_INSIDE)})\b)", f"{self.folder}/", text)

    def _run(self, command: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
        kept["PIP_NO_COMPILE"] = "1"  # most of what is installed is used once
        path = {"PATH": self._variables.get("PATH", self._path), "HOME": str(self.folder)}
        done = subprocess.run(
            ["/bin/sh", "-ec", self.inside(command)],
            cwd=self._directory,
            env=kept | self._variables | path,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise StepError(f"RUN {command}\nended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")

    def _copy(self, rest: str) -> None:
        *sources, target = shlex.split(rest)
        from_stage = [source for source in sources if source.startswith("--from=")]
        if from_stage:
            if not Path(self.inside(sources[-1])).exists():
                raise StepError(f"COPY {rest}: no earlier stage has made {sources[-1]}")
            return  # all stages share the directory
        into = self._directory / self.inside(target)
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, into, dirs_exist_ok=True, ignore=ignored)
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into)


def instructions(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a Containerfile with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def last(name: str, instruction: str) -> str:
    """Return the argument of the last instruction of a kind: the one that counts."""
    return [rest for word, rest in instructions(name) if word == instruction][-1]
