"""All requests that a client can send about an internal topic, with the broker's answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.records import Record, encode_batch
from tests.support.processes import wait_until
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
CLUSTER_METADATA: Final = "__cluster_metadata"
CONFIGS: Final = ("cleanup.policy", "compression.type", "segment.bytes", "min.insync.replicas", "retention.ms")
GROUP, TRANSACTION = 0, 1
_BUSY: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Error codes of a coordinator that has not completed the previous request."""

Answer = tuple[str, Any]


class InternalTopicsAsker:
    """Client of one broker."""

    def __init__(self, client: WireClient, admin: WireClient) -> None:
        self.client = client
        self.admin = admin
        """Client with the client id that Kafka's own tools once used."""

    def listed(self) -> list[tuple[str | None, bool, int]]:
        """Return name, internal flag and partitions of all topics in a Metadata response."""
        answer = self.client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse, 12)
        return sorted((topic.name, topic.is_internal, len(topic.partitions)) for topic in answer.topics)

    def metadata(self, name: str, *, creates: bool) -> tuple[str, bool, int]:
        """Return error code, internal flag and partitions in the Metadata response for one topic."""
        wanted = MetadataRequest.MetadataRequestTopic(name=name)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=creates)
        (topic,) = self.client.ask(request, MetadataResponse, 12).topics
        return ErrorCode(topic.error_code).name, topic.is_internal, len(topic.partitions)

    def wait_for_leaders(self, name: str) -> None:
        """Wait until all partitions have a leader that serves them. Kafka elects them one after the other."""
        wanted = MetadataRequest.MetadataRequestTopic(name=name)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)

        def is_served() -> bool:
            (topic,) = self.client.ask(request, MetadataResponse, 12).topics
            led = [partition.error_code == ErrorCode.NONE for partition in topic.partitions]
            return bool(led) and all(led) and self.end_offset(name) == ErrorCode.NONE.name

        wait_until(is_served, timeout_s=60, what=f"the leaders of {name}", interval_s=0.1)

    def create(self, name: str) -> Answer:
        """Return the outcome of a CreateTopics request with ``validate_only``."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)
        (result,) = self.client.ask(request, CreateTopicsResponse, 7).topics
        return ErrorCode(result.error_code).name, result.error_message

    def delete(self, name: str) -> Answer:
        """Return the outcome of a DeleteTopics request."""
        wanted = DeleteTopicsRequest.DeleteTopicState(name=name)
        (result,) = self.client.ask(
            DeleteTopicsRequest(topics=[wanted], timeout_ms=10_000), DeleteTopicsResponse, 6
        ).responses
        return ErrorCode(result.error_code).name, result.error_message

    def produce(self, name: str, *, as_admin: bool = False) -> str:
        """Return the code of a Produce of one record."""
        client = self.admin if as_admin else self.client
        batch = encode_batch([Record(key=b"k", value=b"v", timestamp=1)])
        return _code(lambda: client.produce(name, 0, batch))

    def fetch(self, name: str) -> str:
        """Return the code of a Fetch from the start."""
        return _code(lambda: self.client.fetch(name, 0, 0))

    def end_offset(self, name: str) -> str:
        """Return the code of a ListOffsets for the end."""
        return _code(lambda: self.client.end_offset(name, 0))

    def delete_records(self, name: str) -> str:
        """Return the code of a DeleteRecords."""
        partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[partition])
        answer = self.client.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000), DeleteRecordsResponse, 2)
        return ErrorCode(answer.topics[0].partitions[0].error_code).name

    def grow(self, name: str, count: int) -> Answer:
        """Return the outcome of a CreatePartitions request with ``validate_only``."""
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=True)
        (result,) = self.client.ask(request, CreatePartitionsResponse, 3).results
        return ErrorCode(result.error_code).name, result.error_message

    def alter(self, name: str) -> str:
        """Return the error code of a config change, which is reverted afterwards."""
        return _code(lambda: self.client.alter_topic(name, [("flush.ms", 0, "1000")])) + _code(
            lambda: self.client.alter_topic(name, [("flush.ms", 1, None)])
        )

    def configs(self, name: str) -> dict[str, str | None]:
        """Return the values of some configs of a topic."""
        own_configs = self.client.topic_configs(name)
        return {key: own_configs[key] for key in CONFIGS}

    def use(self, key_type: int) -> str:
        """Send FindCoordinator until a coordinator is available, as every client does; return the last error code."""
        for _ in range(200):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["some"])
            (coordinator,) = self.client.ask(request, FindCoordinatorResponse, 4).coordinators
            if coordinator.error_code == ErrorCode.NONE:
                break
            time.sleep(0.1)
        return ErrorCode(coordinator.error_code).name

    def producer_id(self) -> tuple[int, int]:
        """Return a producer id of a transactional id."""
        for _ in range(600):
            request = InitProducerIdRequest(transactional_id="some", transaction_timeout_ms=60_000)
            answer = self.client.ask(request, InitProducerIdResponse, 4)
            if answer.error_code == ErrorCode.NONE:
                break
            time.sleep(0.1)
        return answer.producer_id, answer.producer_epoch

    def add_to_transaction(self, name: str) -> str:
        """Return the code of an AddPartitionsToTxn."""
        producer_id, epoch = self.producer_id()
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=[0])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="some",
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
        )
        codes: list[ErrorCode] = []

        def is_decided() -> bool:
            answer = self.client.ask(request, AddPartitionsToTxnResponse, 3)
            (result,) = answer.results_by_topic_v3_and_below[0].results_by_partition
            codes.append(ErrorCode(result.partition_error_code))
            return codes[-1] not in _BUSY

        wait_until(is_decided, timeout_s=60, what=f"an answer for {name}", interval_s=0.1)
        return codes[-1].name


def ask_all(address: str) -> Iterator[tuple[str, Any]]:
    """Yield requests and answers, in an order that works on a broker that has just started."""
    with WireClient(address) as client, WireClient(address, client_id="__admin_client") as admin:
        asker = InternalTopicsAsker(client, admin)
        yield "topics of a fresh broker", asker.listed()
        for name in (OFFSETS, TRANSACTIONS, CLUSTER_METADATA):
            yield f"create {name} before it exists", asker.create(name)
            yield f"metadata of {name} before it exists", asker.metadata(name, creates=False)
            yield f"produce to {name} before it exists", asker.produce(name)
            yield f"delete {name} before it exists", asker.delete(name)
            yield f"fetch from {name} before it exists", asker.fetch(name)
        yield "metadata of the cluster's own that may create it", asker.metadata(CLUSTER_METADATA, creates=True)
        yield "use of a group", asker.use(GROUP)
        yield "topics after a group was used", asker.listed()
        yield "use of a transaction", asker.use(TRANSACTION)
        yield "topics after a transaction was used", asker.listed()
        for name in (OFFSETS, TRANSACTIONS):
            asker.wait_for_leaders(name)
        for name in (OFFSETS, TRANSACTIONS):
            yield f"create {name}", asker.create(name)
            yield f"metadata of {name}", asker.metadata(name, creates=True)
            yield f"produce to {name}", asker.produce(name)
            yield f"fetch from {name}", asker.fetch(name)
            yield f"end of {name}", asker.end_offset(name)
            yield f"delete records of {name}", asker.delete_records(name)
            yield f"grow {name}", asker.grow(name, 100)
            yield f"configs of {name}", asker.configs(name)
            yield f"alter {name}", asker.alter(name)
            yield f"add {name} to a transaction", asker.add_to_transaction(name)
        for name in (OFFSETS, TRANSACTIONS):
            yield f"delete {name}", asker.delete(name)
        yield "topics after the deletion", asker.listed()


def _code(step: Callable[[], object]) -> str:
    try:
        step()
    except RejectedError as error:
        return ErrorCode(error.error_code).name
    except OSError:
        return "closed"
    return ErrorCode.NONE.name
