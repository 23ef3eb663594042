"""Kafka's command line tools, many runs in one Java process, because starting Java takes most of the time of a run."""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from klamm.class_archive import lock
from tests.support.class_archives import CACHE
from tests.support.java import QUICK_TO_START, class_path, java_command, java_executable, quick_to_start

if TYPE_CHECKING:
    from types import TracebackType

_PROGRAMS: Final = sorted((Path(__file__).parents[1] / "java").glob("*.java"))
"""The runner, and our own programs, which it runs as it runs tools of Kafka."""
_RUNNER: Final = "Tools"
_PATIENCE_S: Final = 300
_QUIET: Final = ("-Xlog:disable", "-Dklamm.log.level=ERROR")


class Outcome(NamedTuple):
    """Outcome of a command: exit code and output."""

    exit_code: int
    stdout: str
    stderr: str


class KafkasTools:
    """Runner of tools by the names of their classes, one after the other. A context manager.

    Args:
        jvm_options: Further options of its Java process.
    """

    def __init__(self, *jvm_options: str) -> None:
        self._jvm_options = jvm_options

    def __enter__(self) -> Self:
        options = (*quick_to_start(), *_QUIET, *self._jvm_options)
        command = java_command(_RUNNER, heap="256m", jvm_options=options, jars=f"{class_path()}:{compile_programs()}")
        self._java = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._java.communicate(timeout=_PATIENCE_S)  # it ends when its input ends
        finally:
            self._java.kill()
            self._java.wait()

    def run(self, main_class: str, *args: str, stdin: bytes = b"") -> Outcome:
        """Run a tool to its end.

        Raises:
            TimeoutError: The tool did not end. No other tool can run in this process afterwards.
        """
        assert self._java.stdin is not None
        assert self._java.stdout is not None
        deadline = threading.Timer(_PATIENCE_S, self._java.kill)
        deadline.start()
        self._java.stdin.write("\t".join((base64.b64encode(stdin).decode(), main_class, *args)) + "\n")
        self._java.stdin.flush()
        answer = self._java.stdout.readline()
        deadline.cancel()
        if not answer:
            raise TimeoutError(f"{main_class} {' '.join(args)} has not ended within {_PATIENCE_S} s")
        code, out, err = answer.split()
        stdout, stderr = (base64.b64decode(part[1:]).decode() for part in (out, err))
        return Outcome(int(code), stdout, stderr)


def compile_programs() -> Path:
    """Return the directory of the compiled programs. The first call in a checkout compiles them."""
    text = b"".join(program.read_bytes() for program in _PROGRAMS)
    compiled = CACHE / "java" / f"tools-{hashlib.sha256(text).hexdigest()[:16]}"
    with lock(compiled.with_suffix(".lock")):
        if not compiled.is_dir():
            with tempfile.TemporaryDirectory(dir=compiled.parent) as scratch:
                fresh = Path(scratch) / "classes"
                compiler = (java_executable(), *QUICK_TO_START, "-m", "jdk.compiler/com.sun.tools.javac.Main")
                subprocess.run([*compiler, "-d", fresh, "-cp", class_path(), *_PROGRAMS], check=True)
                fresh.rename(compiled)
    return compiled


@functools.cache
def shared_tools() -> KafkasTools:
    """Return the runner that all tests of this process share. It ends with this process."""
    tools = KafkasTools().__enter__()
    atexit.register(tools.__exit__, None, None, None)
    return tools


def run_tool(main_class: str, *args: str, stdin: str = "") -> str:
    """Run a tool to its end in the shared Java process and return its stdout.

    A tool that writes something only at the end of its process needs ``java_tool`` instead.

    Raises:
        subprocess.CalledProcessError: It failed; the error carries both outputs.
        TimeoutError: The tool did not end.
    """
    try:
        outcome = shared_tools().run(main_class, *args, stdin=stdin.encode())
    except TimeoutError:
        shared_tools.cache_clear()
        raise
    if outcome.exit_code:
        error = subprocess.CalledProcessError(outcome.exit_code, (main_class, *args), outcome.stdout, outcome.stderr)
        error.add_note(f"stdout: {outcome.stdout[-2000:]}\nstderr: {outcome.stderr[-2000:]}")
        raise error
    return outcome.stdout
