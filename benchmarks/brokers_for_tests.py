"""What a broker costs a program that tests with it: klamm, EmbeddedKafka of Spring and kfake of franz-go.

Each side is a small program in the language of its tests. It starts the broker when a byte arrives on standard input,
prints its address, and ends with the next byte. What the language itself needs to start is not counted.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes, wait_for
from tests.support.java import class_path_of, java_executable
from tests.support.probe import broker_count_of
from tests.support.processes import stop_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_BENCHMARK: Final = "brokers for tests"
_FOLDER: Final = Path(__file__).parent
_EMBEDDED: Final = _FOLDER / "java" / "embedded"
_KFAKE: Final = _FOLDER / "go" / "kfake"
_KLAMM: Final = """
import sys

import klamm

sys.stdin.buffer.read(1)
with klamm.Broker() as broker:
    print(broker.bootstrap_servers, flush=True)
    sys.stdin.buffer.read(1)
"""
_REST_S: Final = 5.0
_TIMEOUT_S: Final = 60.0


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure each broker in a new program per round, with a Java runtime of its default heap."""
    with tempfile.TemporaryDirectory(prefix="klamm-peers-") as folder:
        programs = {
            "klamm": functools.partial(_measure, [sys.executable, "-c", _KLAMM]),
            "EmbeddedKafka": functools.partial(_measure, _embedded_kafka(Path(folder))),
            "kfake": functools.partial(_measure, _kfake(Path(folder))),
        }
        yield from alternate(programs, benchmark=_BENCHMARK, plan=plan, rounds=plan.rounds(7, quick=2))


def _measure(command: Sequence[str]) -> Mapping[str, float]:
    """Start a program and then its broker.

    Returns:
        Seconds from the call that starts the broker to the first Metadata response, CPU seconds until then, and MiB
        that the program and its children hold at rest, with the program and without what it held before the call.
    """
    program = subprocess.Popen(
        command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    pids = (program.pid,)
    try:
        time.sleep(_REST_S)
        before_mib, before_cpu_s = pss_mebibytes(pids), cpu_seconds(pids)
        began = time.monotonic()
        address = _address(program)
        wait_for(
            lambda: broker_count_of(*address) > 0,
            timeout_s=_TIMEOUT_S,
            what=f"an answer of {command[0]}",
            interval_s=0.002,
        )
        answered, spent = time.monotonic(), cpu_seconds(pids)
        time.sleep(_REST_S)
        at_rest_mib = pss_mebibytes(pids)
        program.communicate(b"\n", timeout=_TIMEOUT_S)
    finally:
        stop_process(program)
    return {
        "start s": answered - began,
        "start CPU s": spent - before_cpu_s,
        "PSS MiB": at_rest_mib,
        "PSS MiB added": at_rest_mib - before_mib,
    }


def _address(program: subprocess.Popen[bytes]) -> tuple[str, int]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(b"\n")
    for line in program.stdout:
        host, _, port = line.decode().strip().rpartition(":")
        if host in {"127.0.0.1", "localhost"} and port.isdecimal():  # EmbeddedKafka prints more
            return host, int(port)
    raise RuntimeError(f"{program.args!r} ended without an address")


def _embedded_kafka(folder: Path) -> Sequence[str]:
    jars = class_path_of(_EMBEDDED / "pom.xml")
    java, source = java_executable(), _EMBEDDED / "Embedded.java"
    subprocess.run([java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars, "-d", folder, source], check=True)
    return java, "-cp", f"{jars}:{folder}", "Embedded"


def _kfake(folder: Path) -> Sequence[str]:
    program = folder / "kfake"
    subprocess.run(
        ["go", "build", "-o", program, "."], cwd=_KFAKE, env={**os.environ, "GOTOOLCHAIN": "auto"}, check=True
    )
    return (str(program),)
