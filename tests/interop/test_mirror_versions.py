"""The data path speaks every version of Fetch and Produce from Kafka 2.3's on: a real broker offers no newer one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from klamm.admin import AdminClient, NewTopic
from klamm.mirror.copy.partition import PartitionId
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.copiers import copy_all, copy_settings
from tests.support.frame_proxy import FrameProxy
from tests.support.mirror import Seen, produce, read, wait_for_partitions

if TYPE_CHECKING:
    from klamm.protocol.frames import RequestHeader
    from tests.support.kafka import KafkaCluster

FETCH_VERSIONS: Final = range(4, 18)
"""Kafka 2.3 has 11, 4.1 has 18, of which the last adds nothing for a mirror; brokers of 4.1 know none before 4."""
PRODUCE_VERSIONS: Final = range(3, 14)
"""Kafka 2.3 has 7."""
LAST_IN_TRANSACTION: Final = 11
OF_KAFKA_2_3: Final = {2: 5, 3: 8, 10: 2, 22: 1, 24: 1, 26: 1}
"""The last versions of the other APIs that a copier uses."""
YEAR_2013: Final = 1_356_998_400_000
FOREVER: Final = {"retention.ms": "-1"}


class OlderBroker(FrameProxy):
    """Proxy that offers no newer API versions than the given ones."""

    def __init__(self, address: str, last: dict[int, int]) -> None:
        super().__init__(address, replacements={ApiVersionsResponse.API_KEY: self._offered})
        self._last = last

    def _offered(self, header: RequestHeader, body: memoryview) -> bytes:
        offered = decode(ApiVersionsResponse, header.api_version, body)
        for api in offered.api_keys:
            api.max_version = min(api.max_version, self._last.get(api.api_key, api.max_version))
        return bytes(encode(offered, header.api_version))

    def versions(self, api_key: int) -> set[int]:
        """Return the versions that were used."""
        return {request.header.api_version for request in self.requests(api_key)}


class Written(NamedTuple):
    """What a topic holds, and the name that the others begin with: a second run has topics of its own."""

    topic: str
    records: list[Seen]

    def remote(self, fetch_version: int) -> str:
        return f"{self.topic}-{fetch_version}"

    def alias(self, fetch_version: int) -> str:
        return f"V{self.topic}-{fetch_version}"


@pytest.fixture(scope="module")
def written(real_kafka: KafkaCluster) -> Written:
    address = real_kafka.bootstrap_servers
    records = [Seen(b"k%d" % at, b"v%d" % at, (("n", None),), YEAR_2013 + at) for at in range(300)]
    found = Written(f"versions-{uuid4().hex[:6]}", records + records)
    names = [found.topic, *map(found.remote, FETCH_VERSIONS)]
    compact = {"cleanup.policy": "compact"}
    with AdminClient(address) as admin:
        topics = [NewTopic(name=name, num_partitions=1, replication_factor=1, configs=FOREVER) for name in names]
        positions = [f"mm2-offsets.{found.alias(version)}.internal" for version in FETCH_VERSIONS]
        topics += [NewTopic(name=name, num_partitions=2, replication_factor=1, configs=compact) for name in positions]
        admin.create_topics(topics).all().result(300)
    for name in names:
        wait_for_partitions(address, name, 1)
    produce(address, found.topic, [(0, record) for record in records], {"compression.type": "lz4"})
    aborted = Producer({"bootstrap.servers": address, "transactional.id": found.topic})
    aborted.init_transactions(30)
    aborted.begin_transaction()
    aborted.produce(found.topic, b"aborted", partition=0)
    aborted.flush(30)
    aborted.abort_transaction(30)
    produce(address, found.topic, [(0, record) for record in records])
    return found


@pytest.mark.long
@pytest.mark.parametrize("fetch_version", FETCH_VERSIONS)
def test_every_fetch_and_produce_version_copies_records(
    real_kafka: KafkaCluster, written: Written, fetch_version: int
) -> None:
    """K894-37, K894-39: by turns at least once and exactly once."""
    # given
    produce_version = min(fetch_version - 1, PRODUCE_VERSIONS[-1])
    exactly_once = fetch_version % 2 == 0
    last = {FetchRequest.API_KEY: fetch_version, ProduceRequest.API_KEY: produce_version}
    last |= OF_KAFKA_2_3 if fetch_version <= 11 else {}
    with OlderBroker(real_kafka.bootstrap_servers, last) as older:
        alias, shards = written.alias(fetch_version), int(exactly_once)
        settings = copy_settings(older.bootstrap_servers, older.bootstrap_servers, alias=alias, shards=shards)
        # when
        copy_all(settings, PartitionId(written.topic, 0, written.remote(fetch_version)))
    # then
    assert older.versions(FetchRequest.API_KEY) == {fetch_version}
    used = min(produce_version, LAST_IN_TRANSACTION) if exactly_once else produce_version
    assert used in older.versions(ProduceRequest.API_KEY)
    assert read(real_kafka.bootstrap_servers, written.remote(fetch_version), {0: 600}) == {0: written.records}
