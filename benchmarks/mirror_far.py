"""Throughput to a target that is 20 ms away: what counts there is how much is on its way at once."""

from __future__ import annotations

import contextlib
import functools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate
from benchmarks.mirror import LOADS, produce_load, watch
from benchmarks.mirror_sides import TUNED, MirrorSide, start_klamm, start_mirrormaker
from benchmarks.sides import apache_kafka
from tests.support.processes import free_port, start_process, stop_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.kafka import KafkaCluster

_ROUND_TRIP_MS: Final = 20
_MEGABYTES: Final = 400
_QUICK_MEGABYTES: Final = 150
_SIDES: Final = {
    "klamm": MirrorSide(start=start_klamm),
    "MirrorMaker 2": MirrorSide(start=start_mirrormaker),
    "MirrorMaker 2, tuned": MirrorSide(start=start_mirrormaker, more=TUNED),
}
_QUICK: Final = "batches of 16 KiB, zstd"


@dataclass(frozen=True, slots=True)
class _FarEnd:
    bootstrap_servers: str


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure batches of 16 KiB and of 128 KiB; a quick run copies small compressed ones alone."""
    megabytes = plan.megabytes or (_QUICK_MEGABYTES if plan.quick else _MEGABYTES)
    for load in LOADS:
        if not plan.takes(load.label, is_quick=load.label == _QUICK):
            continue
        with apache_kafka() as source:
            records = produce_load(source, load, megabytes)
            sides = {name: functools.partial(_mirror, source, side, records) for name, side in _SIDES.items()}
            benchmark = f"mirror over {_ROUND_TRIP_MS} ms, {load.label}"
            yield from alternate(sides, benchmark=benchmark, plan=plan, rounds=plan.rounds(3))


def _mirror(source: KafkaCluster, side: MirrorSide, records: int) -> Mapping[str, float]:
    port = free_port()
    with (
        apache_kafka({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as target,
        _line(port, target.nodes[1].port),
        side.running(source, _FarEnd(f"127.0.0.1:{port}")) as mirror,
    ):
        found = watch(mirror.process, (mirror.pid,), target, records, mirror.started_at)
    return {name: found[name] for name in ("MB/s", "CPU s/GB", "PSS MiB")}


@contextlib.contextmanager
def _line(listen_port: int, target_port: int) -> Iterator[None]:
    one_way_ms = _ROUND_TRIP_MS / 2
    program = [sys.executable, "-m", "benchmarks.delay_line", str(one_way_ms), str(listen_port), str(target_port)]
    line = start_process(program)
    try:
        yield
    finally:
        stop_process(line)
