"""The real MirrorMaker 2, and Kafka's client library for mirrored clusters, from Maven."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from py4j.java_gateway import (  # type: ignore[import-untyped]
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from klamm.properties import parse_properties
from tests.support.java import QUICK_TO_START, class_path, java_executable, start_java
from tests.support.processes import stop_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from types import TracebackType

_MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"


class MirrorMaker:
    """Apache Kafka's MirrorMaker 2 in dedicated mode, for as long as the context lasts."""

    def __init__(self, properties: str, directory: Path) -> None:
        self._file = directory / "mm2.properties"
        self._file.write_text(properties + _quick_to_start(properties))
        self.log = directory / "mirrormaker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = start_java(_MIRROR_MAKER, str(self._file), log=self.log, heap="512m")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        stop_process(self._process, grace_s=40)
        if error is not None:
            error.add_note(self.log.read_text(errors="replace")[-4000:])

    def check_alive(self) -> None:
        """Raise an error if the process has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"MirrorMaker ended:\n{self.log.read_text(errors='replace')[-4000:]}")


def _quick_to_start(properties: str) -> str:
    """Return properties that let Kafka Connect find its plugins without scanning every jar."""
    clusters = parse_properties(properties)["clusters"].split(",")
    return "".join(f"{alias.strip()}.plugin.discovery = service_load\n" for alias in clusters)


@contextlib.contextmanager
def java_virtual_machine() -> Iterator[Any]:
    """Run a JVM with Kafka's jars; yield the root of its classes."""
    (jar,) = _py4j_jar()
    port, process = launch_gateway(
        jarpath=str(jar),
        classpath=class_path(),
        java_path=java_executable(),
        die_on_exit=True,
        javaopts=["-Xmx256m", *QUICK_TO_START],
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        stop_process(process)  # its main thread waits for the end of its input


def _py4j_jar() -> list[Path]:
    import pyspark  # noqa: PLC0415 - only where a JVM is wanted

    return sorted((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))[:1]
