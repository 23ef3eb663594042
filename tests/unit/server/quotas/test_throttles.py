"""Selection of the quota of a client, and its effect on the connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.configs.quotas import QuotaLimit, find_address_limit, find_limit
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.create_partitions import CreatePartitionsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.produce import ProduceResponse
from klamm.server.quotas.throttles import Admission, Throttles
from klamm.server.session import Session

if TYPE_CHECKING:
    from klamm.configs.quotas import QuotaEntity

RATE = "producer_byte_rate"


class Quotas:
    """Quotas as they are set."""

    def __init__(self, quotas: dict[QuotaEntity, dict[str, float]]) -> None:
        self.quotas = quotas

    @property
    def is_empty(self) -> bool:
        return not self.quotas

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        return find_limit(self.quotas, name, user, client_id)

    def limit_of_address(self, address: str) -> float | None:
        return find_address_limit(self.quotas, address)


class ThrottledClients:
    """Throttles at a time that stands still until it is moved."""

    def __init__(self, quotas: dict[QuotaEntity, dict[str, float]] | None = None, **configs: int) -> None:
        self.now_s = 100.0
        named = {name.replace("__", ".").replace("_", "."): value for name, value in configs.items()}
        self.throttles = Throttles(
            Quotas(quotas or {}),
            named.get,
            now_s=lambda: self.now_s,
        )

    def produce(self, user: str, client_id: str | None, size: int) -> tuple[float, int]:
        session = Session(connection_id=1, node_id=1, principal=f"User:{user}")
        response = ProduceResponse()
        wait_s = self.throttles.after(ApiKey.PRODUCE, session, client_id, request_bytes=size, response=response)
        return wait_s, response.throttle_time_ms

    def consumer(self, user: str, client_id: str) -> Consumer:
        return Consumer(self, Session(connection_id=1, node_id=1, principal=f"User:{user}"), client_id)

    def describe_cluster(self, seconds: float, user: str = "anna") -> tuple[float, int]:
        session = Session(connection_id=1, node_id=1, principal=f"User:{user}")
        stopwatch = self.throttles.stopwatch(ApiKey.DESCRIBE_CLUSTER, session, None)
        if stopwatch is not None:
            stopwatch.seconds += seconds
        response = DescribeClusterResponse()
        wait_s = self.throttles.after(
            ApiKey.DESCRIBE_CLUSTER, session, None, request_bytes=1, response=response, stopwatch=stopwatch
        )
        if stopwatch is not None:
            self.throttles.after_writing(stopwatch)
        return wait_s, response.throttle_time_ms

    def connect(self, address: str = "10.0.0.1") -> Admission:
        return self.throttles.admit(Session(connection_id=1, node_id=1, client_host=address))


class Consumer:
    """Client that waits for its throttle time before it fetches again."""

    def __init__(self, clients: ThrottledClients, session: Session, client_id: str) -> None:
        self._clients = clients
        self._client = session, client_id
        self._next_s = 0.0
        self.fetched = 0

    def fetch(self, available: int, *, batch_bytes: int = 1) -> None:
        """Fetch whole batches of the available records, at least one if there are so many."""
        if self._clients.now_s < self._next_s:
            return
        throttles = self._clients.throttles
        size = min(available, max(batch_bytes, throttles.max_fetch_bytes(*self._client))) // batch_bytes * batch_bytes
        wait_s = throttles.charge_fetch(*self._client, size)
        self._next_s = self._clients.now_s + wait_s
        self.fetched += size if wait_s == 0 else 0


@pytest.mark.parametrize("most_specific", range(8))
def test_most_specific_quota_applies(most_specific: int) -> None:
    entities: list[tuple[QuotaEntity, tuple[str | None, str | None]]] = [
        ((("user", "anna"), ("client-id", "app")), ("anna", "app")),
        ((("user", "anna"), ("client-id", None)), ("anna", "app")),
        ((("user", "anna"),), ("anna", None)),
        ((("user", None), ("client-id", "app")), ("anna", "app")),
        ((("user", None), ("client-id", None)), ("anna", "app")),
        ((("user", None),), ("anna", None)),
        ((("client-id", "app"),), (None, "app")),
        ((("client-id", None),), (None, "app")),
    ]
    quotas = {entity: {RATE: float(index)} for index, (entity, _) in enumerate(entities) if index >= most_specific}
    limit = find_limit(quotas, RATE, "anna", "app")
    assert limit == QuotaLimit(float(most_specific), entities[most_specific][1])
    assert find_limit(quotas, "consumer_byte_rate", "anna", "app") is None


def test_clients_of_one_user_share_its_quota() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {RATE: 100.0}})
    assert throttled.produce("anna", "one", 1_000) == (0.0, 0)
    assert throttled.produce("bert", "one", 10_000) == (0.0, 0)
    wait_s, told_ms = throttled.produce("anna", None, 300)
    assert wait_s == pytest.approx(3.0)
    assert told_ms == 3000


@pytest.mark.parametrize("live_rate", [20.0, 80.0])
def test_consumers_of_one_quota_share_it(live_rate: float) -> None:
    """One follows a producer, another one catches up and requests as much as it can."""
    throttled = ThrottledClients({(("user", "anna"),): {"consumer_byte_rate": 100.0}})
    live, late = throttled.consumer("anna", "live"), throttled.consumer("anna", "late")
    seconds = 600
    while (passed_s := throttled.now_s - 100.0) < seconds:
        live.fetch(int(live_rate * passed_s) - live.fetched)
        late.fetch(10_000)
        throttled.now_s += 0.1
    assert live.fetched >= min(0.9 * live_rate, 40) * seconds
    assert late.fetched >= min(0.9 * (100 - live_rate), 40) * seconds
    assert 95 * seconds <= live.fetched + late.fetched <= 105 * seconds


def test_large_batches_are_fetched_beside_small_ones() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {"consumer_byte_rate": 100.0}})
    small, large = throttled.consumer("anna", "small"), throttled.consumer("anna", "large")
    seconds = 600
    while throttled.now_s - 100.0 < seconds:
        small.fetch(10_000)
        large.fetch(10_000, batch_bytes=150)
        throttled.now_s += 0.1
    assert min(small.fetched, large.fetched) >= 30 * seconds


@pytest.mark.parametrize("batch_bytes", [1, 20, 100, 150])
def test_consumer_fetches_at_the_rate_of_its_quota(batch_bytes: int) -> None:
    throttled = ThrottledClients({(("user", "anna"),): {"consumer_byte_rate": 100.0}})
    consumer = throttled.consumer("anna", "app")
    seconds = 600
    while throttled.now_s - 100.0 < seconds:
        consumer.fetch(10_000, batch_bytes=batch_bytes)
        throttled.now_s += 0.05
    assert 95 * seconds <= consumer.fetched <= 105 * seconds


def test_requests_without_quotas_are_not_counted() -> None:
    assert ThrottledClients().produce("anna", "one", 10**9) == (0.0, 0)


def test_other_requests_are_not_charged() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {RATE: 1.0}})
    session = Session(connection_id=1, node_id=1, principal="User:anna")
    assert throttled.throttles.after(ApiKey.METADATA, session, None, request_bytes=10**6, response=None) == 0.0


def test_request_percentage_throttle_is_capped_at_one_second() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {"request_percentage": 10.0}})
    assert throttled.describe_cluster(0.9) == (0.0, 0)
    wait_s, told_ms = throttled.describe_cluster(0.11)
    assert wait_s == pytest.approx(0.1)
    assert told_ms in (99, 100)
    assert throttled.describe_cluster(5.0) == (1.0, 1000)
    assert throttled.describe_cluster(5.0, user="bert") == (0.0, 0)
    throttled.now_s += 60
    assert throttled.describe_cluster(0.1) == (0.0, 0)


def test_response_encoding_is_charged_to_the_next_request() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {"request_percentage": 10.0}})
    session = Session(connection_id=1, node_id=1, principal="User:anna")
    stopwatch = throttled.throttles.stopwatch(ApiKey.METADATA, session, None)
    assert stopwatch is not None
    stopwatch.seconds = 1.05
    throttled.throttles.after_writing(stopwatch)
    assert throttled.describe_cluster(0.0)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("api_key", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS])
def test_logins_and_inter_broker_requests_are_not_throttled(api_key: ApiKey) -> None:
    throttled = ThrottledClients({(("user", None),): {"request_percentage": 1.0}})
    session = Session(connection_id=1, node_id=1, principal="User:anna")
    assert throttled.throttles.stopwatch(api_key, session, None) is None
    assert throttled.throttles.stopwatch(ApiKey.API_VERSIONS, session, None) is not None
    session.login = cast("Any", SimpleNamespace(is_open=False))
    assert throttled.throttles.stopwatch(ApiKey.API_VERSIONS, session, None) is None


def test_throttle_time_of_a_handler_delays_the_connection() -> None:
    throttled = ThrottledClients({(("user", "anna"),): {RATE: 1.0}})
    session = Session(connection_id=1, node_id=1, principal="User:anna")
    response = CreatePartitionsResponse(throttle_time_ms=2500)
    wait_s = throttled.throttles.after(ApiKey.CREATE_PARTITIONS, session, None, request_bytes=1, response=response)
    assert (wait_s, response.throttle_time_ms) == (2.5, 2500)


@pytest.mark.parametrize("rate", [1.0, 5e-324])
def test_pause_and_throttle_time_have_the_maximum_of_the_field(rate: float) -> None:
    # given
    throttled = ThrottledClients({(("user", "anna"),): {RATE: rate}})
    # when
    wait_s, throttle_time_ms = throttled.produce("anna", None, 10**8)
    # then
    assert wait_s == pytest.approx(2**31 / 1000)
    assert throttle_time_ms == 2**31 - 1


def test_address_above_its_connection_rate_is_rejected_alone() -> None:
    throttled = ThrottledClients({(("ip", "10.0.0.1"),): {"connection_creation_rate": 2.0}})
    assert [throttled.connect() for _ in range(20)] == [Admission(0.0, is_rejected=False)] * 20
    rejected = throttled.connect()
    assert rejected.is_rejected
    assert 0 < rejected.delay_s <= 1.0
    assert not throttled.connect("10.0.0.2").is_rejected
    throttled.now_s += 11
    assert not throttled.connect().is_rejected


def test_connections_above_the_creation_rate_are_delayed() -> None:
    throttled = ThrottledClients(max_connection_creation_rate=10)
    delays = [throttled.connect(f"10.0.1.{number}").delay_s for number in range(120)]
    assert delays[:100] == [0.0] * 100
    assert delays[100:] == pytest.approx([(number + 1) / 10 for number in range(20)])


def test_connection_rate_of_zero_and_of_a_listener_delay_connections() -> None:
    assert ThrottledClients(max_connection_creation_rate=0).connect().delay_s == 1.0
    throttled = ThrottledClients(listener_name_plaintext_max_connection_creation_rate=1)
    delays = [throttled.connect().delay_s for _ in range(12)]
    assert delays[:10] == [0.0] * 10
    assert delays[10:] == pytest.approx([1.0, 2.0])


def test_inactive_clients_are_forgotten() -> None:
    throttled = ThrottledClients({(("client-id", None),): {RATE: 100.0}})
    for number in range(3_000):
        throttled.produce("anna", f"client-{number}", 1)
        throttled.now_s += 1
    assert len(throttled.throttles.windows) <= 1_000
