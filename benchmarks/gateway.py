"""Cost of relaying: ``klamm gateway`` beside HAProxy in TCP mode and no relay at all.

Synthetic Produce frames over four connections, with responses or without. HAProxy is measured if ``haproxy`` is on the
path. CPU time is that of the relay's process alone. Then TLS, many idle connections, and a cluster behind the gateway.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import klamm
from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes
from benchmarks.relay_load import idle_connections, latencies, throughput, tls_throughput
from benchmarks.sides import apache_kafka
from benchmarks.throughput import consume, produce
from tests.support.processes import free_port
from tests.support.security import Certificates
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SIZES: Final = {"16 KiB": 16 * 1024, "128 KiB": 128 * 1024, "1 MiB": 1024 * 1024}
_CONNECTIONS: Final = 4
_DIRECTIONS: Final = {"with responses": 1, "one direction": 0}
"""Acks of the Produce requests: with 0 there are no responses."""
_PACES: Final = {"requests of 1.2 KB": (1200, 500), "50 MB/s in requests of 64 KB": (65_536, 763)}
"""Size of the requests in bytes, and their number per second."""
_TLS_BYTES: Final = 128 * 1024
_CONNECTION_COUNTS: Final = {5_000: 1, 10_000: 2}
"""Number of processes by number of connections."""
_IDLE_S: Final = 3.0
_RECORD_BYTES: Final = 1024
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
  bind 127.0.0.1:{port} {tls}
  default_backend b
backend b
  server s 127.0.0.1:{target}
"""


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure the relay with synthetic load, then with a cluster and Kafka's own tools."""
    with _sink() as target:
        with _gateway(target) as gateway, _haproxy(target) as haproxy:
            sides = {"klamm gateway": gateway} | ({} if haproxy is None else {"HAProxy": haproxy})
            yield from _cpu(plan, sides)
            yield from _latency(plan, {"no relay": target} | {side: port for side, (port, _) in sides.items()})
        yield from _tls(plan, target)
        yield from _idle(plan, target)
    yield from _cluster(plan)


def _cpu(plan: Plan, sides: Mapping[str, tuple[int, int]]) -> Iterator[Measurement]:
    """Measure CPU and throughput for each frame size, with responses and in one direction."""
    seconds = 1.5 if plan.quick else 10.0
    for direction, acks in _DIRECTIONS.items():
        for label, size in _SIZES.items():
            yield from alternate(
                {
                    side: lambda port=port, pid=pid, size=size, acks=acks: _relayed(port, pid, size, seconds, acks)  # type: ignore[misc]
                    for side, (port, pid) in sides.items()
                },
                benchmark=f"relay {label}, {direction}",
                plan=plan,
                rounds=plan.rounds(5, 3),
            )


def _latency(plan: Plan, ports: Mapping[str, int]) -> Iterator[Measurement]:
    """Measure one request at a time: small ones, and 50 MB/s in requests of 64 records of 1 KB."""
    for label, (size, per_second) in _PACES.items():
        requests = per_second * (2 if plan.quick else 10)
        yield from alternate(
            {
                side: lambda port=port, size=size, requests=requests, per_second=per_second: latencies(  # type: ignore[misc]
                    port, size=size, requests=requests, per_second=per_second
                )
                for side, port in ports.items()
            },
            benchmark=f"relay latency, {label}",
            plan=plan,
            rounds=plan.rounds(5, 3),
        )


def _tls(plan: Plan, target: int) -> Iterator[Measurement]:
    """Measure TLS to clients, with a certificate of RSA 2048."""
    seconds = 2.0 if plan.quick else 10.0
    with tempfile.TemporaryDirectory() as directory:
        certificates = Certificates.create(Path(directory))
        store = certificates.issue("gateway", "/CN=gateway")
        config = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}

        def measured(port: int, pid: int) -> Mapping[str, float]:
            before = cpu_seconds([pid])
            megabytes, took = tls_throughput(port, size=_TLS_BYTES, seconds=seconds, authority=certificates.authority)
            return {"MB/s": megabytes / took, "CPU s/GB": (cpu_seconds([pid]) - before) / megabytes * 1000}

        with (
            _gateway(target, listen="SSL://127.0.0.1:0", config=config) as gateway,
            _haproxy(target, tls=f"ssl crt {store}") as haproxy,
        ):
            sides = {"klamm gateway": gateway} | ({} if haproxy is None else {"HAProxy": haproxy})
            yield from alternate(
                {side: lambda at=at: measured(*at) for side, at in sides.items()},  # type: ignore[misc]
                benchmark="relay 128 KiB with TLS, one direction",
                plan=plan,
                rounds=plan.rounds(5, 3),
            )


def _idle(plan: Plan, target: int) -> Iterator[Measurement]:
    """Measure the memory of many connections. Ten thousand need two processes: each needs two file descriptors."""

    def measured(count: int, processes: int) -> Mapping[str, float]:
        with _gateway(target, config={"processes": processes}) as (port, pid):
            empty = pss_mebibytes([pid])
            opened = idle_connections(port, count)
            full, before = pss_mebibytes([pid]), cpu_seconds([pid])
            time.sleep(_IDLE_S)
            idle_cpu = (cpu_seconds([pid]) - before) / _IDLE_S
            for sock in opened:
                sock.close()
        return {"PSS MiB": full, "without connections MiB": empty, "idle CPU %": idle_cpu * 100}

    for count, processes in _CONNECTION_COUNTS.items():
        yield from alternate(
            {f"klamm gateway, {processes} process(es)": lambda c=count, p=processes: measured(c, p)},  # type: ignore[misc]
            benchmark=f"{count} idle connections",
            plan=plan,
            rounds=1,
        )


def _cluster(plan: Plan) -> Iterator[Measurement]:
    """Measure Kafka's perf tools against one node of Apache Kafka, directly and through a gateway."""
    records = (150 if plan.quick else 2000) * 1_000_000 // _RECORD_BYTES
    with apache_kafka() as cluster, klamm.Gateway(cluster.bootstrap_servers) as gateway:
        topics = itertools.count()

        def measured(address: str) -> Mapping[str, float]:
            topic = f"load-{next(topics)}"
            with WireClient(cluster.bootstrap_servers) as client:
                client.create_topic(topic, partitions=_CONNECTIONS)
            return {
                "produce MB/s": produce(address, topic, records, (), record_bytes=_RECORD_BYTES),
                "consume MB/s": consume(address, topic, records, record_bytes=_RECORD_BYTES),
            }

        addresses = {"cluster alone": cluster.bootstrap_servers, "through klamm gateway": gateway.bootstrap_servers}
        yield from alternate(
            {side: lambda address=address: measured(address) for side, address in addresses.items()},  # type: ignore[misc]
            benchmark="produce and consume, records of 1 KB",
            plan=plan,
            rounds=plan.rounds(3, 2),
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
def _gateway(
    target: int, *, listen: str = "127.0.0.1:0", config: Mapping[str, object] | None = None
) -> Iterator[tuple[int, int]]:
    """Start a gateway. The sink answers no Metadata, so the gateway reads from its files where node 0 is."""
    with tempfile.TemporaryDirectory() as directory:
        for folder in (Path(directory), *(Path(directory) / f"worker-{number}" for number in range(2))):
            folder.mkdir(exist_ok=True)
            (folder / "topology.json").write_text(
                json.dumps({"cluster_id": None, "nodes": {"0": ["127.0.0.1", target]}})
            )
        settings = {"topology.refresh.interval.ms": 3_600_000, **(config or {})}
        with klamm.Gateway(f"127.0.0.1:{target}", data_dir=directory, listen=listen, config=settings) as gateway:
            yield int(gateway.bootstrap_servers.rpartition(":")[2]), gateway.pid or 0


@contextlib.contextmanager
def _haproxy(target: int, *, tls: str = "") -> Iterator[tuple[int, int] | None]:
    command = shutil.which("haproxy")
    if command is None:
        yield None
        return
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".cfg") as config:
        config.write(_HAPROXY.format(port=port, target=target, tls=tls))
        config.flush()
        process = subprocess.Popen([command, "-q", "-db", "-f", config.name])
        time.sleep(_START_S)
        try:
            yield port, process.pid
        finally:
            process.kill()
            process.wait()
