"""Run the test suites of client libraries against ``klamm broker``, and keep their results in docs/client-suites.md.

Usage: ``python -m scripts.client_suites [SUITE...]``. A suite is fetched by the package manager of its language, in the
version that is pinned here, into ``.cache/client-suites``. Its row of the table is written anew. A result that is worse
than the one in the table fails the run. Needed on the path: ``go``, which ``scripts/with_tools.py go`` installs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.processes import free_port, stop_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "client-suites.md"
CACHE: Final = ROOT / ".cache" / "client-suites"
_HEAD: Final = "| suite | version | passed | failed | skipped | what differs and why |"
_LIMIT_S: Final = 1_800.0
"""Time limit of one suite."""
_START_S: Final = 30.0
_GO_RESULT: Final = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+)", re.MULTILINE)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Tests of a suite by outcome."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]

    @classmethod
    def of(cls, outcomes: Mapping[str, str]) -> Result:
        """Return the result of tests whose outcomes begin with P, F or S."""
        passed, failed, skipped = (
            frozenset(name for name, outcome in outcomes.items() if outcome.startswith(letter)) for letter in "PFS"
        )
        return cls(passed=passed, failed=failed, skipped=skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Test suite of one client library."""

    name: str
    version: str
    run: Callable[[Path], Result]
    """Runs the suite. The argument is a directory of its own."""
    remark: str
    """What differs from a run against Apache Kafka, and why. It names every test that fails."""


@contextlib.contextmanager
def process(words: Sequence[str | Path], log: Path) -> Iterator[None]:
    """Run a process in the background; its output goes to a file."""
    with log.open("wb") as output:
        running = subprocess.Popen([*map(str, words)], stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            stop_process(running)


@contextlib.contextmanager
def broker(
    log: Path, *, count: int = 1, advertise: Sequence[str] = (), configs: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Run ``klamm broker`` with some broker ids on free ports; yield its addresses."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="klamm-suite-") as data_dir:
        words: list[str | Path] = [sys.executable, "-m", "klamm.cli", "broker", "--listen", ",".join(addresses)]
        words += ["--brokers", str(count), "--data-dir", data_dir]
        words += [word for config in configs for word in ("--set", config)]
        if advertise:
            words += ["--advertise", ",".join(advertise)]
        with process(words, log):
            _await_port(addresses[-1])
            yield addresses


def _await_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    until = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def run_tests(words: Sequence[str | Path], log: Path, *, cwd: Path, environment: Mapping[str, str]) -> str:
    """Run the tests of a suite to their end, whatever its exit code; return their output."""
    with log.open("wb") as output:
        subprocess.run(
            [*map(str, words)],
            cwd=cwd,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    return _ANSI.sub("", log.read_text(encoding="utf-8", errors="replace"))


def run_go(words: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None) -> bytes:
    """Run Go, which downloads the release that a module requires; return its output.

    Raises:
        CalledProcessError: Go failed.
    """
    environment = {**os.environ, "GOTOOLCHAIN": "auto", **(environment or {})}
    return subprocess.run(
        ["go", *map(str, words)], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
    ).stdout


def go_module(module: str, version: str, folder: Path) -> Path:
    """Return a writable copy of a Go module's source."""
    target = folder / "source"
    if not target.exists():
        downloaded = run_go(["mod", "download", "-json", f"{module}@v{version}"], folder)
        shutil.copytree(json.loads(downloaded)["Dir"], target, copy_function=shutil.copyfile)
        subprocess.run(["chmod", "-R", "u+w", target], check=True)
    return target


def go_test(package: Path, program: Path, *tags: str) -> Path:
    """Build the tests of a Go package; return the program."""
    flags = ["-tags", ",".join(tags)] if tags else []
    run_go(["test", "-c", *flags, "-o", program, "."], package)
    return program


def run_franz_go(folder: Path) -> Result:
    """Run the tests of the package kgo against three broker ids."""
    package = go_module("github.com/twmb/franz-go", FRANZ_GO, folder) / "pkg" / "kgo"
    program = go_test(package, folder / "kgo.test")
    with broker(folder / "broker.log", count=3) as addresses:
        environment = {
            "KGO_SEEDS": ",".join(addresses),
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": "50000",
            "KGO_LOG_LEVEL": "none",
        }
        text = run_tests(
            [program, "-test.v", "-test.timeout", "25m"], folder / "tests.log", cwd=package, environment=environment
        )
    return Result.of({name: outcome for outcome, name in _GO_RESULT.findall(text)})


def run_sarama(folder: Path) -> Result:
    """Run the functional tests against five broker ids behind toxiproxy, which the tests expect on fixed ports."""
    package = go_module("github.com/IBM/sarama", SARAMA, folder)
    program = go_test(package, folder / "sarama.test", "functional")
    toxiproxy = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{TOXIPROXY}"
    run_go(["install", toxiproxy], folder, {"GOBIN": str(folder)})
    ports = range(29_091, 29_096)
    configs = ("auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0", "default.replication.factor=2")
    advertised = [f"localhost:{port}" for port in ports]
    control = free_port()
    with (
        broker(folder / "broker.log", count=len(ports), advertise=advertised, configs=configs) as addresses,
        process([folder / "server", "-host", "127.0.0.1", "-port", str(control)], folder / "toxiproxy.log"),
    ):
        _await_port(f"127.0.0.1:{control}")
        for number, (port, address) in enumerate(zip(ports, addresses, strict=True), 1):
            proxy = {"name": f"kafka{number}", "listen": f"127.0.0.1:{port}", "upstream": address, "enabled": True}
            url = f"http://127.0.0.1:{control}/proxies"
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            direct.open(url, json.dumps(proxy).encode()).close()
        text = run_tests(
            [program, "-test.v", "-test.run", "^TestFunc", "-test.timeout", "25m"],
            folder / "tests.log",
            cwd=package,
            environment={"TOXIPROXY_ADDR": f"http://127.0.0.1:{control}", "KAFKA_VERSION": "4.1.0"},
        )
    return Result.of({name: outcome for outcome, name in _GO_RESULT.findall(text)})


FRANZ_GO: Final = "1.22.3"
SARAMA: Final = "1.61.1"
TOXIPROXY: Final = "2.5.0"

SUITES: Final = (
    Suite(
        name="franz-go, package kgo",
        version=FRANZ_GO,
        run=run_franz_go,
        remark="skipped: tests of share groups, which klamm does not serve, of logins, and of an old broker",
    ),
    Suite(
        name="sarama, functional tests",
        version=SARAMA,
        run=run_sarama,
        remark="the tests that fail call `docker` to stop a broker or to read its log"
        " (TestFuncAdminListConsumerGroupOffsets, TestFuncTxnProduceWithBrokerFailure,"
        " TestFuncIdempotentBufferedSequence), or UpdateFeatures, which klamm does not serve"
        " (TestFuncAdminUpdateFeatures); skipped: a test with a Java client in a container",
    ),
)


def row(suite: Suite, result: Result) -> str:
    """Return the line of the table about a suite."""
    counts = " | ".join(str(len(each)) for each in (result.passed, result.failed, result.skipped))
    return f"| {suite.name} | {suite.version} | {counts} | {suite.remark} |"


def is_worse(earlier: str | None, suite: Suite, result: Result) -> bool:
    """Return whether a result has fewer passed tests than the same version in the table, or more failed ones."""
    if earlier is None:
        return False
    _, _, version, passed, failed, *_ = map(str.strip, earlier.split("|"))
    return version == suite.version and (len(result.passed) < int(passed) or len(result.failed) > int(failed))


def with_row(page: str, suite: Suite, line: str) -> str:
    """Return the page with the line of a suite replaced, or added at the end of the table."""
    lines = page.split("\n")
    beginning = f"| {suite.name} |"
    for number, existing in enumerate(lines):
        if existing.startswith(beginning):
            lines[number] = line
            return "\n".join(lines)
    at = lines.index(_HEAD) + 2
    while lines[at].startswith("|"):
        at += 1
    lines.insert(at, line)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites and write the page. Return 1 if one did worse than before or named no reason, else 0."""
    parser = argparse.ArgumentParser(description="Run the test suites of client libraries against klamm.")
    names = [suite.name.partition(",")[0] for suite in SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(names)} (default: all)")
    wanted = parser.parse_args(arguments).suites or names
    if unknown := set(wanted).difference(names):
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(names)}")
    worse = Counter[str]()
    for short, suite in zip(names, SUITES, strict=True):
        if short not in wanted:
            continue
        folder = CACHE / short
        folder.mkdir(parents=True, exist_ok=True)
        result = suite.run(folder)
        page = PAGE.read_text(encoding="utf-8")
        earlier = next((line for line in page.split("\n") if line.startswith(f"| {suite.name} |")), None)
        line = row(suite, result)
        unnamed = sorted(name for name in result.failed if name not in suite.remark)
        print(line, *(f"failed without a reason in the table: {name}" for name in unnamed), sep="\n")
        if not result.passed or unnamed or is_worse(earlier, suite, result):
            worse[short] += 1
            continue
        PAGE.write_text(with_row(page, suite, line), encoding="utf-8")
    if worse:
        print(f"Worse than {PAGE.name}, which is unchanged: {', '.join(worse)}; see {CACHE}/*/tests.log")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
