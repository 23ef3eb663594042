"""Cost of relaying: ``klamm gateway`` beside HAProxy in TCP mode and no relay at all.

Synthetic Produce frames in one direction over four connections. HAProxy is measured if ``haproxy`` is on the path. CPU
time is that of the relay's process alone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import klamm
from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds
from benchmarks.relay_load import latencies, throughput
from tests.support.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SIZES: Final = {"16 KiB": 16 * 1024, "128 KiB": 128 * 1024, "1 MiB": 1024 * 1024}
_CONNECTIONS: Final = 4
_PER_SECOND: Final = 500
_START_S: Final = 0.5
_HAPROXY: Final = """\
global
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server s 127.0.0.1:{target}
"""


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure each frame size, then the latency of small requests."""
    with _sink() as target, _gateway(target) as gateway, _haproxy(target) as haproxy:
        sides = {"klamm gateway": gateway} | ({} if haproxy is None else {"HAProxy": haproxy})
        seconds = 3.0 if plan.quick else 10.0
        for label, size in _SIZES.items():
            yield from alternate(
                {
                    side: lambda port=port, pid=pid, size=size: _relayed(port, pid, size, seconds)  # type: ignore[misc]
                    for side, (port, pid) in sides.items()
                },
                benchmark=f"relay {label}",
                plan=plan,
                rounds=plan.rounds(5),
            )
        requests = 1000 if plan.quick else 5000
        ports = {"no relay": target} | {side: port for side, (port, _) in sides.items()}
        yield from alternate(
            {
                side: lambda port=port: latencies(port, size=1200, requests=requests, per_second=_PER_SECOND)  # type: ignore[misc]
                for side, port in ports.items()
            },
            benchmark="relay latency of 1.2 KB",
            plan=plan,
            rounds=plan.rounds(5),
        )


def _relayed(port: int, pid: int, size: int, seconds: float, acks: int = 1) -> Mapping[str, float]:
    before = cpu_seconds([pid])
    megabytes, took = throughput(port, size=size, connections=_CONNECTIONS, seconds=seconds, acks=acks)
    return {"MB/s": megabytes / took, "CPU s/GB": (cpu_seconds([pid]) - before) / megabytes * 1000}


@contextlib.contextmanager
def _sink() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.relay_load"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _gateway(target: int) -> Iterator[tuple[int, int]]:
    """The sink answers no Metadata, so the gateway reads from its file where node 0 is."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "topology.json").write_text(
            json.dumps({"cluster_id": None, "nodes": {"0": ["127.0.0.1", target]}})
        )
        with klamm.Gateway(
            f"127.0.0.1:{target}", data_dir=directory, config={"topology.refresh.interval.ms": 3_600_000}
        ) as gateway:
            yield int(gateway.bootstrap_servers.rpartition(":")[2]), gateway.pid or 0


@contextlib.contextmanager
def _haproxy(target: int) -> Iterator[tuple[int, int] | None]:
    command = shutil.which("haproxy")
    if command is None:
        yield None
        return
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(_HAPROXY.format(port=port, target=target))
        config.flush()
        process = subprocess.Popen([command, "-q", "-db", "-f", config.name])
        time.sleep(_START_S)
        try:
            yield port, process.pid
        finally:
            process.kill()
            process.wait()
