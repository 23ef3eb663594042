"""Cost of a fresh broker for one test, and of fault control on each request, in use and not.

A client produces one small record after the other. The cost of a request is CPU time of the broker, which other
processes disturb little. A fresh broker costs CPU time of both processes and time on the clock: from the call of
``start`` to the end of ``stop``, with one created topic in between.
"""

from __future__ import annotations

import resource
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds
from klamm.embedded.broker import Broker
from klamm.protocol.records import Record, encode_batch
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BENCHMARK: Final = "fault control"
FRESH: Final = "a fresh broker"
_WARM_UP: Final = 500


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm with itself."""
    requests = 2_000 if plan.quick else 4_000
    sides = {
        "klamm.Broker()": lambda: _embedded(requests),
        "control=True": lambda: _embedded(requests, control=True),
        "control=True, a fault for another topic": lambda: _embedded(requests, control=True, fault=True),
    }
    rounds = plan.rounds(7, quick=2)
    yield from alternate(sides, benchmark=BENCHMARK, plan=plan, rounds=rounds)
    fresh = {"klamm.Broker()": _fresh, "control=True": lambda: _fresh(control=True)}
    yield from alternate(fresh, benchmark=FRESH, plan=plan, rounds=rounds)


def _embedded(requests: int, *, fault: bool = False, **options: Any) -> Mapping[str, float]:
    with Broker(**options) as broker:
        if fault:
            broker.inject(error="NOT_LEADER_OR_FOLLOWER", topic="other", times=None)
        return _load(broker.bootstrap_servers, broker.pid or 0, requests)


def _load(address: str, pid: int, requests: int) -> Mapping[str, float]:
    batch = bytes(encode_batch([Record(None, b"x" * 100, (), int(time.time() * 1000))]))
    with WireClient(address) as client:
        client.create_topic("orders", partitions=1)
        for _ in range(_WARM_UP):
            client.produce("orders", 0, batch)
        before = cpu_seconds([pid])
        for _ in range(requests):
            client.produce("orders", 0, batch)
        return {"CPU us per request": (cpu_seconds([pid]) - before) / requests * 1e6}


def _fresh(**options: Any) -> Mapping[str, float]:
    before, began = _own_cpu_seconds(), time.monotonic()
    with Broker(**options) as broker, WireClient(broker.bootstrap_servers) as client:
        client.create_topic("orders", partitions=1)
    return {"start to stop s": time.monotonic() - began, "CPU s": _own_cpu_seconds() - before}


def _own_cpu_seconds() -> float:
    """Return the CPU time of this process and of its ended children."""
    used = [resource.getrusage(one) for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
