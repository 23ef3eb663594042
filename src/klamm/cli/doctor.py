"""``klamm doctor``: what this machine has, and what klamm would lack on it."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm import __version__
from klamm.cli.arguments import ToolParser
from klamm.cli.output import print_result
from klamm.extras import EXTRAS, MissingExtraError, require_extra
from klamm.java import JavaNotFoundError, require_java
from klamm.lazy_dataclass import dataclass
from klamm.protocol.records import is_compiled
from klamm.server.listeners import Address
from klamm.server.sockets import bind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OK: Final = "ok"
_OPTIONAL: Final = "optional"
_BAD: Final = "bad"
_LISTEN: Final = "127.0.0.1:9092"
_MIN_DESCRIPTORS: Final = 4096
_MAX_FSYNC_MS: Final = 50.0
_FSYNCS: Final = 5
_MIN_FREE_BYTES: Final = 1 << 30
_EPOCH_OF_KAFKA_4: Final = 1_742_256_000
"""18 March 2025, in seconds since the epoch: a clock before it is wrong."""
_PACKAGES: Final = {"jwt": "pyjwt", "confluent_kafka": "confluent-kafka"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Result of one check."""

    subject: str
    status: str
    """``ok``, ``optional`` (missing, and only some features need it) or ``bad``."""
    detail: str


def parser() -> ToolParser:
    """Return the argument parser of ``klamm doctor``."""
    tool = ToolParser(
        prog="klamm doctor",
        description="Show what this machine has, and what klamm would lack on it.",
        epilog="Exit codes: 0 done, 1 a broker would not work well here, 2 wrong flags.",
    )
    tool.add_value("--data-dir", type=Path, metavar="DIR", help="directory to check (default: that of temporary files)")
    tool.add_value("--listen", metavar="HOST:PORT", help=f"address to check (default: {_LISTEN})")
    tool.add_argument("-o", "--output", choices=("human", "json", "yaml"), default="human", help="form of the result")
    return tool


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    checks = [
        _klamm(),
        *_extras(),
        _java(),
        *_class_archive(),
        _port(options.listen or _LISTEN),
        _descriptors(),
        _clock(),
        *_directory(options.data_dir or Path(tempfile.gettempdir())),
    ]
    width = max(len(check.subject) for check in checks)
    print_result(
        options.output,
        [asdict(check) for check in checks],
        lambda: [f"{check.status:8}  {check.subject:{width}}  {check.detail}" for check in checks],
    )
    return int(any(check.status == _BAD for check in checks))


def _klamm() -> Check:
    kind = "compiled" if is_compiled() else "not compiled: about half the speed of reading and writing records"
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    return Check(subject="klamm", status=_OK, detail=f"{__version__}, {kind}; {python}")


def _extras() -> Iterator[Check]:
    for extra, modules in EXTRAS.items():
        try:
            require_extra(extra, feature=f"klamm[{extra}]")
        except MissingExtraError as error:
            yield Check(subject=extra, status=_OPTIONAL, detail=str(error))
        else:
            detail = ", ".join(f"{module} {_version(_PACKAGES.get(module, module))}" for module in modules)
            yield Check(subject=extra, status=_OK, detail=detail)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(unknown version)"


def _java() -> Check:
    try:
        return Check(subject="java", status=_OK, detail=str(require_java()))
    except JavaNotFoundError as error:
        return Check(subject="java", status=_OPTIONAL, detail=str(error))


def _class_archive() -> Iterator[Check]:
    """Check the archive with which Spark starts quickly, if Spark can start here."""
    subject = "class archive"
    try:
        require_extra("spark", feature=subject)
        require_java()
    except (MissingExtraError, JavaNotFoundError):
        return
    from klamm.mirror.spark.class_archive import find_archive  # noqa: PLC0415 - it imports pyspark

    archive = find_archive()
    if archive is None:
        yield Check(subject=subject, status=_OPTIONAL, detail="none: turned off, or not possible; Spark starts slowly")
    elif archive.is_usable:
        yield Check(subject=subject, status=_OK, detail=str(archive.path))
    elif archive.has_failed:
        yield Check(subject=subject, status=_OPTIONAL, detail=f"{archive.path} was not written: {archive.failure}")
    else:
        detail = f"{archive.path} is written after the first start of Spark, which then starts in half the time"
        yield Check(subject=subject, status=_OPTIONAL, detail=detail)


def _port(listen: str) -> Check:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        return Check(subject="port", status=_BAD, detail=f"--listen {listen}: expected HOST:PORT")
    try:
        bind(Address(host=host.strip("[]"), port=int(port))).close()
    except (OSError, OverflowError, socket.gaierror) as error:
        return Check(subject="port", status=_BAD, detail=f"a broker cannot listen on {listen}: {error}")
    return Check(subject="port", status=_OK, detail=f"a broker can listen on {listen}")


def _descriptors() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "unlimited" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    if hard != resource.RLIM_INFINITY and hard < _MIN_DESCRIPTORS:
        detail = f"at most {text}, shared by connections and log files; raise it with ulimit -n or LimitNOFILE"
        return Check(subject="descriptors", status=_BAD, detail=detail)
    return Check(subject="descriptors", status=_OK, detail=f"at most {text} for connections and log files")


def _clock() -> Check:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if time.time() < _EPOCH_OF_KAFKA_4:
        detail = f"{now} is wrong: retention and record timestamps depend on the clock"
        return Check(subject="clock", status=_BAD, detail=detail)
    return Check(subject="clock", status=_OK, detail=now)


def _directory(directory: Path) -> Iterator[Check]:
    """Check space and the time of an fsync, with a file that is removed again."""
    try:
        usage = os.statvfs(directory)
        durations = sorted(_fsync_ms(directory))
    except OSError as error:
        yield Check(
            subject="data dir", status=_BAD, detail=f"{directory}: {error.strerror}; choose one with --data-dir"
        )
        return
    free = usage.f_bavail * usage.f_frsize
    space = f"{directory}: {free / (1 << 30):,.1f} GiB free, {usage.f_favail:,} files"
    status = _OK if free >= _MIN_FREE_BYTES and usage.f_favail else _BAD
    yield Check(subject="data dir", status=status, detail=space)
    median = durations[len(durations) // 2]
    slow = median > _MAX_FSYNC_MS
    advice = ": each config change waits for one" if slow else ""
    detail = f"{median:.1f} ms, median of {_FSYNCS}{advice}"
    yield Check(subject="fsync", status=_BAD if slow else _OK, detail=detail)


def _fsync_ms(directory: Path) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_FSYNCS):
            file.write(b"\0" * 4096)
            file.flush()
            start = time.perf_counter()
            os.fsync(file.fileno())
            yield 1000 * (time.perf_counter() - start)
