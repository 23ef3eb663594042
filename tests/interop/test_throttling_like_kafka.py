"""Quotas on partitions (KIP-599) and on time (KIP-124): klamm and Apache Kafka 4.4 answer alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.interop.test_client_quotas import Entity, alter
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.probe import Cluster

CREATION_RATE: Final = 0.001
"""A partition in a thousand seconds, 0.011 at once: the first one passes, and then somebody owes for a long time."""
AT_ONCE: Final = 0
THROTTLING_QUOTA_EXCEEDED: Final = 89
_LONGEST_PAUSE_MS: Final = 1000
CLIENTS: Final = (
    "strict",
    "patient",
    "many",
    "trial",
    "grows",
    "grows-old",
    "deletes",
    "deletes-old",
    "needs",
    "probe",
)


@pytest.fixture(scope="module")
def klamm_broker_process() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> str:
    cluster: Cluster = request.getfixturevalue({"klamm": "klamm_broker_process", "kafka": "real_kafka"}[request.param])
    return cluster.bootstrap_servers


@pytest.fixture(scope="module")
def limited(address: str) -> Iterator[str]:
    """A cluster with strict mutation quotas for some client ids."""

    def set_rate(client: WireClient, rate: float | None) -> None:
        quotas = {"controller_mutation_rate": rate}
        assert {
            code for code, _ in alter(client, *[((("client-id", f"{RUN}-{name}"),), quotas) for name in CLIENTS])
        } == {0}

    with WireClient(address) as client:
        set_rate(client, CREATION_RATE)
        for name in (f"{RUN}.grows", f"{RUN}.grows-old", *(f"{RUN}.delete-{number}" for number in range(5))):
            client.create_topic(name)
        wait_until(
            lambda: create(address, "probe", [f"{RUN}.probe"], 7, validate_only=True)[1] != [(0, None)],
            timeout_s=30,
            what="the quotas to be in force",
        )
        yield address
        set_rate(client, None)
        # Some may be deleted already, which the node that lists them has not heard of.
        left = [name for name in client.topic_ids() if name.startswith(f"{RUN}.")]
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in left]
        client.ask(DeleteTopicsRequest(topics=states, timeout_ms=10_000), DeleteTopicsResponse, 6)


def ask(address: str, client_id: str, request: Any, answer: Any, version: int) -> Any:
    """Send a request on its own connection: the broker does not read from a throttled one."""
    with WireClient(address, client_id=f"{RUN}-{client_id}") as client:
        return client.ask(request, answer, version)


def waits(answer: Any) -> int:
    """In thousands of seconds; some of them pass while the test runs."""
    return int(round(answer.throttle_time_ms, -6)) // 1_000_000


def codes(results: Sequence[Any]) -> list[tuple[int, str | None]]:
    return [(result.error_code, result.error_message) for result in results]


def create(
    address: str, client_id: str, names: list[str], version: int, *, partitions: int = 1, validate_only: bool = False
) -> tuple[int, list[tuple[int, str | None]]]:
    topics = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names
    ]
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    answer = ask(address, client_id, request, CreateTopicsResponse, version)
    return waits(answer), codes(answer.topics)


def grow(
    address: str, client_id: str, name: str, version: int, *, count: int, validate_only: bool = False
) -> tuple[int, list[tuple[int, str | None]]]:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only, timeout_ms=10_000)
    answer = ask(address, client_id, request, CreatePartitionsResponse, version)
    return waits(answer), codes(answer.results)


def delete(address: str, client_id: str, name: str, version: int) -> tuple[int, list[tuple[int, str | None]]]:
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], topic_names=[name], timeout_ms=10_000
    )
    answer = ask(address, client_id, request, DeleteTopicsResponse, version)
    return waits(answer), codes(answer.responses)


RUN: Final = unique("limited")
DONE: Final = (0, None)
REJECTED: Final = (THROTTLING_QUOTA_EXCEEDED, None)


def test_versions_with_throttling_error_are_rejected_above_the_quota(limited: str) -> None:
    assert create(limited, "strict", [f"{RUN}.s1"], 7) == (AT_ONCE, [DONE])
    assert create(limited, "strict", [f"{RUN}.s2"], 7) == (1, [REJECTED])
    assert create(limited, "strict", [f"{RUN}.s2"], 6) == (1, [REJECTED])
    assert create(limited, "many", [f"{RUN}.m1", f"{RUN}.m2", f"{RUN}.m3"], 7, partitions=2) == (
        2,
        [DONE, REJECTED, REJECTED],
    )
    with WireClient(limited) as client:

        def created() -> set[str]:
            return {name for name in client.topic_ids() if name.startswith((f"{RUN}.s", f"{RUN}.m"))}

        # The broker may know its topics later than the controller, which answered.
        wait_until(lambda: f"{RUN}.m1" in created(), timeout_s=30, what="the broker to know the topics")
        assert created() == {f"{RUN}.s1", f"{RUN}.m1"}


def test_versions_without_throttling_error_are_served_and_delayed(limited: str) -> None:
    assert create(limited, "patient", [f"{RUN}.o1"], 5) == (1, [DONE])
    assert create(limited, "patient", [f"{RUN}.o2"], 5) == (2, [DONE])
    assert create(limited, "patient", [f"{RUN}.o3"], 6) == (2, [REJECTED])


def test_validate_only_counts_toward_quota_but_invalid_requests_do_not(limited: str) -> None:
    assert create(limited, "trial", [f"{RUN}.t"], 7, validate_only=True) == (AT_ONCE, [DONE])
    assert create(limited, "trial", [f"{RUN}.t"], 7, validate_only=True) == (1, [REJECTED])
    assert create(limited, "trial", [f"{RUN}.grows"], 7) == (AT_ONCE, [(36, f"Topic '{RUN}.grows' already exists.")])


def test_added_partitions_are_charged_to_the_quota(limited: str) -> None:
    assert grow(limited, "grows", f"{RUN}.grows", 3, count=3, validate_only=True) == (AT_ONCE, [DONE])
    assert grow(limited, "grows", f"{RUN}.grows", 3, count=3) == (2, [REJECTED])
    assert grow(limited, "grows", f"{RUN}.grows", 3, count=1) == (AT_ONCE, [(37, "Topic already has 1 partition(s).")])
    assert grow(limited, "grows-old", f"{RUN}.grows-old", 2, count=3) == (2, [DONE])
    assert grow(limited, "grows-old", f"{RUN}.grows-old", 2, count=5) == (4, [DONE])
    assert grow(limited, "grows-old", f"{RUN}.grows-old", 3, count=7) == (4, [REJECTED])


def test_deleted_partitions_are_charged_to_the_quota(limited: str) -> None:
    assert delete(limited, "deletes", f"{RUN}.delete-0", 6) == (AT_ONCE, [DONE])
    assert delete(limited, "deletes", f"{RUN}.delete-1", 6) == (1, [REJECTED])
    assert delete(limited, "deletes", f"{RUN}.delete-1", 5) == (1, [REJECTED])
    assert delete(limited, "deletes", f"{RUN}.nothing", 6)[0] == AT_ONCE
    assert delete(limited, "deletes-old", f"{RUN}.delete-2", 4) == (1, [DONE])
    assert delete(limited, "deletes-old", f"{RUN}.delete-3", 4) == (2, [DONE])
    assert delete(limited, "deletes-old", f"{RUN}.delete-4", 5) == (2, [REJECTED])


def test_auto_creation_is_rejected_above_the_quota(limited: str) -> None:
    def needs(name: str) -> tuple[int, int]:
        topic = MetadataRequest.MetadataRequestTopic(name=name)
        request = MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
        answer = ask(limited, "needs", request, MetadataResponse, 9)
        return waits(answer), answer.topics[0].error_code

    wait_until(lambda: needs(f"{RUN}.n1") == (AT_ONCE, 0), timeout_s=30, what="the first topic")
    assert {needs(f"{RUN}.n2") for _ in range(3)} == {(AT_ONCE, 3)}
    with WireClient(limited) as client:
        assert f"{RUN}.n2" not in client.topic_ids()


def test_client_above_request_percentage_is_muted_for_a_second(address: str) -> None:
    entity: Entity = (("client-id", f"{RUN}-slow"),)
    with WireClient(address) as administrator, WireClient(address, client_id=f"{RUN}-slow") as client:
        assert alter(administrator, (entity, {"request_percentage": 0.0001})) == [(0, None)]

        def reported_throttle_ms() -> int:
            throttled_ms: int = client.ask(MetadataRequest(topics=None), MetadataResponse, 9).throttle_time_ms
            return throttled_ms

        wait_until(lambda: reported_throttle_ms() == _LONGEST_PAUSE_MS, timeout_s=30, what="the quota to be in force")
        # A pause begins when the broker answers, which the client may notice late: only whole pauses are measured.
        began = time.monotonic()
        assert [reported_throttle_ms(), reported_throttle_ms()] == [_LONGEST_PAUSE_MS] * 2
        assert time.monotonic() - began > 0.9
        assert client.ask(CreateTopicsRequest(), CreateTopicsResponse, 7).throttle_time_ms == _LONGEST_PAUSE_MS
        assert alter(administrator, (entity, {"request_percentage": None})) == [(0, None)]
        client.ask(DescribeConfigsRequest(resources=[]), DescribeConfigsResponse, 4)
        assert time.monotonic() - began > 2.7
        with WireClient(address) as other:
            assert other.ask(MetadataRequest(topics=None), MetadataResponse, 9).throttle_time_ms == 0
