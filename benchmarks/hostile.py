"""Waiting time of a client of the broker, and of a gateway before it, while hostile clients load the same process.

The hostile clients pipeline, send long requests or halves of requests, or read nothing. The gateway has a policy on
flows, so it decodes and judges long requests.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import klamm
from benchmarks.measure import Measurement, Plan
from tests.support.hostile_clients import LOADS, hostile_clients, waits
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCHMARK: Final = "waiting behind hostile clients"
_RULES: Final = "rules:\n  - name: groups\n    group_naming: '[a-z]+'\n"


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm's broker and gateway. The added time is that of 99 requests of 100 beside the hostile clients."""
    requests = 200 if plan.quick else 1_000
    for number in range(plan.rounds(3)):
        with tempfile.TemporaryDirectory(prefix="klamm-hostile-") as folder, klamm.Broker() as broker:
            rules = Path(folder, "rules.yaml")
            rules.write_text(_RULES, encoding="utf-8")
            config = {"flow.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": str(rules)}
            with klamm.Gateway(broker.bootstrap_servers, config=config) as gateway:
                for side, address in (("broker", broker.bootstrap_servers), ("gateway", gateway.bootstrap_servers)):
                    values = {f"{load}: added ms": _added_ms(address, load, requests) for load in LOADS}
                    yield Measurement(benchmark=BENCHMARK, side=side, round=number + 1, values=values)


def _added_ms(address: str, load: str, requests: int) -> float:
    with WireClient(address, timeout_s=60) as client:
        usual = waits(client, requests)
        with hostile_clients(address, load):
            beside = waits(client, requests)
    return 1000 * (statistics.quantiles(beside, n=100)[-1] - statistics.quantiles(usual, n=100)[-1])
