"""A broker that does nothing but tell 2,000 registered clients their configs, each every 30 seconds (KIP-649)."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, percentile, pss_mebibytes
from benchmarks.sides import klamm_broker
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.support.klamm import KlammBroker

BENCHMARK: Final = "2,000 clients ask every 30 s"
_CLIENTS: Final = 2_000
_INTERVAL_S: Final = 30.0
_OWN_CONFIGS_EVERY: Final = 10
_RESOLVES: Final = 5_000
_TIMEOUT_S: Final = 60.0


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm; Apache Kafka has no such request."""
    rounds_of_asking = 1 if plan.quick else 4

    def with_klamm() -> Mapping[str, float]:
        with klamm_broker() as broker:
            return _measure(broker, rounds_of_asking)

    yield from alternate({"klamm": with_klamm}, benchmark=BENCHMARK, plan=plan, rounds=plan.rounds(3))


def _measure(broker: KlammBroker, rounds_of_asking: int) -> Mapping[str, float]:
    with contextlib.ExitStack() as stack:
        at_rest_mib = pss_mebibytes(broker.pids)
        _set_configs(broker)
        clients = [
            stack.enter_context(WireClient(broker.bootstrap_servers, timeout_s=_TIMEOUT_S)) for _ in range(_CLIENTS)
        ]
        began = time.perf_counter()
        for number, client in enumerate(clients):
            _register(client, number)
        registering_s = time.perf_counter() - began
        spent = cpu_seconds(broker.pids)
        for _ in range(rounds_of_asking):
            _ask_in_turn(clients)
        share = (cpu_seconds(broker.pids) - spent) / (rounds_of_asking * _INTERVAL_S)
        request = _request(0)
        times = [clients[0].time_raw(request, 0) for _ in range(_RESOLVES)]
        return {
            "CPU % of a core": 100 * share,
            "PSS MiB at rest": at_rest_mib,
            "PSS MiB": pss_mebibytes(broker.pids),
            "resolve p50 ms": percentile(times, 0.5) * 1e3,
            "resolve p99 ms": percentile(times, 0.99) * 1e3,
            "registrations/s": _CLIENTS / registering_s,
        }


def _set_configs(broker: KlammBroker) -> None:
    """Set something for everybody, and something of their own for a tenth."""
    changes = {ClientConfigEntity.of_user("ANONYMOUS"): [ClientConfigOp("acks", "all")]}
    for number in range(0, _CLIENTS, _OWN_CONFIGS_EVERY):
        changes[ClientConfigEntity.of_client("ANONYMOUS", _client_id(number))] = [
            ClientConfigOp("session.timeout.ms", "20000")
        ]
    with AdminClient(broker.bootstrap_servers, timeout_ms=int(_TIMEOUT_S * 1000)) as admin:
        admin.alter_client_configs(changes).all().result()


def _client_id(number: int) -> str:
    return f"application-{number:04}"


def _request(number: int, supported: Sequence[str] | None = None) -> DescribeClientConfigsRequest:
    name = DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=0, match=_client_id(number))
    return DescribeClientConfigsRequest(
        components=[name], supported_configs=None if supported is None else list(supported), resolve_entity=True
    )


def _register(client: WireClient, number: int) -> None:
    """Say hello and register, as clients do when they start."""
    hello = ApiVersionsRequest(client_software_name="klamm-kafka-python", client_software_version=f"0.{number % 5}")
    client.time_raw(hello, 3)
    answer = client.ask(_request(number, ["acks"]), DescribeClientConfigsResponse, 0)
    if answer.error_code or not answer.entries or not answer.entries[0].values:
        raise RuntimeError(f"Client {number} was not told its configs: {answer}")


def _ask_in_turn(clients: Sequence[WireClient]) -> None:
    """Let each ask once, evenly over the interval."""
    began = time.monotonic()
    for number, client in enumerate(clients):
        time.sleep(max(0.0, began + number * _INTERVAL_S / len(clients) - time.monotonic()))
        client.time_raw(_request(number), 0)
    time.sleep(max(0.0, began + _INTERVAL_S - time.monotonic()))
