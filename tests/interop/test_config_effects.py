"""The effect of every topic config on a running broker, observed from outside."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.records import Codec, TimestampType, decode_records
from tests.support.klamm import KlammBroker
from tests.support.logs import batch
from tests.support.processes import wait_until
from tests.support.skips import skip_loudly
from tests.support.wire import SET, RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC, BROKER, LOGGER = 2, 4, 8
HOUR_MS: Final = 3_600_000
TEN_MINUTES_MS: Final = 600_000
AS_LONG_AS_THE_THIRD: Final = str(HOUR_MS - TEN_MINUTES_MS - TEN_MINUTES_MS // 2)
"""Retention that ends after the second record of ``Lab.fill``. The third is younger by minutes."""
TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP = 10, 18, 32


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Lab:
    """A broker, a topic of its own for every test, and a look into the topic's directory."""

    def __init__(self, broker: KlammBroker, client: WireClient, topic: str) -> None:
        self.broker = broker
        self.client = client
        self.topic = topic
        client.create_topic(topic)

    @property
    def directory(self) -> Path:
        return self.broker.data_dir / "logs" / f"{self.topic}-0"

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.directory.glob(pattern))

    def set(self, **configs: str) -> None:
        self.client.alter_topic(self.topic, [(name.replace("_", "."), SET, value) for name, value in configs.items()])

    def set_on(self, *changes: tuple[int, str, str, str | None]) -> None:
        """Set or delete one config of each resource in one request: resource type, name, key, value or None."""
        resources = [
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=key, config_operation=SET if value is not None else 1, value=value
                    )
                ],
            )
            for kind, name, key, value in changes
        ]
        request = IncrementalAlterConfigsRequest(resources=resources)
        results = self.client.ask(request, IncrementalAlterConfigsResponse, 1).responses
        assert {(result.error_code, result.error_message) for result in results} == {(0, None)}

    def produce(
        self, value: str | None, *, key: bytes = b"k", at: int | None = None, codec: Codec = Codec.NONE
    ) -> None:
        moment = now_ms() if at is None else at
        self.client.produce(self.topic, 0, bytes(batch(value, key=key, at=moment, codec=codec)))

    def fill(self, *keys: bytes, apart_ms: int = TEN_MINUTES_MS, ago_ms: int = HOUR_MS) -> None:
        """One segment per key: they are closed by ``segment.ms``."""
        self.set(segment_ms=str(apart_ms - 1))
        start = now_ms() - ago_ms
        for number, key in enumerate(keys):
            self.produce(f"{number}", key=key, at=start + number * apart_ms)

    @property
    def start_offset(self) -> int:
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-2)
        request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=self.topic, partitions=[wanted])])
        return self.client.ask(request, ListOffsetsResponse, 7).topics[0].partitions[0].offset

    def offsets(self) -> list[int]:
        batches = self.client.read_to_end(self.topic, 0, self.start_offset)
        return [record.offset for item in batches for record in decode_records(item)]

    def wait_for(self, **expected: object) -> None:
        for name, value in expected.items():
            wait_until(lambda: self._look(name) == value, timeout_s=30, what=f"{name} {value}, is {self._look(name)}")  # noqa: B023  # called before the next turn

    def wait_for_the_cleaner(self) -> None:
        """Wait until the cleaner has compacted another topic, so that it has looked at this one, too."""
        other = Lab(self.broker, self.client, f"{self.topic}-other")
        other.fill(b"a", b"a", b"b")
        other.set(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        other.wait_for(offsets=[1, 2])

    def _look(self, name: str) -> object:
        value = getattr(self, name)
        return value() if callable(value) else value


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"log.cleaner.backoff.ms": "100"}) as running:
        yield running


@pytest.fixture
def lab(broker: KlammBroker, request: pytest.FixtureRequest) -> Iterator[Lab]:
    with WireClient(broker.bootstrap_servers) as client:
        yield Lab(broker, client, f"t-{abs(hash(request.node.name)):x}"[:40])


def test_retention_ms_deletes_expired_segments(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"c")
    assert lab.start_offset == 0
    lab.set(retention_ms=AS_LONG_AS_THE_THIRD)
    lab.wait_for(start_offset=2)


def test_retention_bytes_deletes_segments_above_the_limit(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"c", b"d")
    size = lab.files("*.log")[0].stat().st_size
    lab.set(retention_bytes=str(2 * size))
    lab.wait_for(start_offset=2)


def test_cluster_default_applies_to_topics_without_override(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"c")
    try:
        lab.set_on((BROKER, "", "log.retention.ms", AS_LONG_AS_THE_THIRD))
        lab.wait_for(start_offset=2)
    finally:
        lab.set_on((BROKER, "", "log.retention.ms", None))


@pytest.mark.parametrize("topic_first", [True, False])
def test_records_that_the_end_of_a_request_keeps_are_not_deleted_in_between(lab: Lab, topic_first: bool) -> None:
    key, other = "log.retention.ms", Lab(lab.broker, lab.client, f"{lab.topic}-other")
    other.fill(b"a", b"b", b"c")
    if topic_first:
        lab.set(retention_ms="-1")
        changes = [(TOPIC, lab.topic, "retention.ms", None), (BROKER, "", key, "-1")]
    else:
        lab.set_on((TOPIC, lab.topic, "retention.ms", None), (BROKER, "", key, "-1"))
        changes = [(BROKER, "", key, None), (TOPIC, lab.topic, "retention.ms", "-1")]
    try:
        lab.fill(b"a", b"b", b"c", ago_ms=30 * 24 * HOUR_MS)  # the default would let them expire
        lab.set_on(*changes)
        other.set(retention_ms=AS_LONG_AS_THE_THIRD)  # so it is checked after the former change
        other.wait_for(start_offset=2)
        assert lab.start_offset == 0
    finally:
        lab.set_on((BROKER, "", key, None))


def test_cleanup_policy_compact_keeps_the_last_record_of_each_key(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"a", b"b", b"c")
    lab.set(cleanup_policy="compact")
    lab.wait_for(offsets=[2, 3, 4])


def test_cleanup_policy_may_be_compact_and_delete(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"a", b"c")
    lab.set(cleanup_policy="compact,delete")
    lab.wait_for(offsets=[1, 2, 3])
    lab.set(retention_ms="1000")
    lab.wait_for(start_offset=4)


def test_min_compaction_lag_ms_delays_compaction(lab: Lab) -> None:
    lab.set(min_compaction_lag_ms=str(2 * HOUR_MS), cleanup_policy="compact")
    lab.fill(b"a", b"a", b"a", b"b")
    lab.wait_for_the_cleaner()
    assert lab.offsets() == [0, 1, 2, 3]
    lab.set(min_compaction_lag_ms="0")
    lab.wait_for(offsets=[2, 3])


def test_min_cleanable_dirty_ratio_delays_compaction_up_to_max_compaction_lag_ms(lab: Lab) -> None:
    lab.set(min_cleanable_dirty_ratio="1", cleanup_policy="compact")
    lab.fill(b"a", b"a", b"a", b"b")
    lab.wait_for_the_cleaner()
    assert lab.offsets() == [0, 1, 2, 3]
    lab.set(max_compaction_lag_ms="1000")
    lab.wait_for(offsets=[2, 3])


def test_delete_retention_ms_limits_tombstone_lifetime(lab: Lab) -> None:
    lab.set(delete_retention_ms="0", min_cleanable_dirty_ratio="0", cleanup_policy="compact", segment_ms="999")
    start = now_ms() - HOUR_MS
    for number, value in enumerate(["x", None, "y"]):
        lab.produce(value, key=b"ky"[: 1 + (value == "y")], at=start + 1000 * number)
    lab.wait_for(offsets=[1, 2])
    lab.produce("z", key=b"kz", at=start + 3000)  # a further pass meets the marked tombstone
    lab.wait_for(offsets=[2, 3])


def test_file_delete_delay_ms_delays_file_deletion(lab: Lab) -> None:
    lab.fill(b"a", b"b", b"c")
    lab.set(file_delete_delay_ms="100000")
    lab.set(retention_ms=AS_LONG_AS_THE_THIRD)
    lab.wait_for(start_offset=2)
    wait_until(lambda: len(lab.files("*.log.deleted")) == 2, timeout_s=30, what="the files of two segments")
    lab.set(file_delete_delay_ms="0", retention_ms="1000")
    lab.wait_for(start_offset=3)
    wait_until(lambda: len(lab.files("*.log.deleted")) == 2, timeout_s=30, what="the third file to go")


def test_segment_bytes_rolls_segments(lab: Lab) -> None:
    lab.set(segment_bytes=str(1 << 20))
    for _ in range(3):
        lab.produce("x" * 600_000)
    assert len(lab.files("*.log")) == 3


@pytest.mark.parametrize("codec", ["producer", "gzip"])
def test_segment_bytes_limits_the_stored_batch(lab: Lab, codec: str) -> None:
    lab.set(segment_bytes=str(1 << 20), max_message_bytes="5000000", compression_type=codec)
    if codec == "gzip":
        lab.produce("x" * 1_200_000)
    else:
        with pytest.raises(RejectedError, match="exceeds the maximum configured segment size of 1048576") as rejected:
            lab.produce("x" * 1_200_000)
        assert rejected.value.error_code == RECORD_LIST_TOO_LARGE
    assert len(lab.offsets()) == (codec == "gzip")


def test_index_interval_bytes_sets_index_density(lab: Lab) -> None:
    lab.set(index_interval_bytes="1")
    for number in range(20):
        lab.produce(f"{number}", at=now_ms() - HOUR_MS)
    lab.set(segment_ms="1000")
    lab.produce("last")
    assert lab.files("*.index")[0].stat().st_size >= 8 * 10


def test_segment_index_bytes_rolls_segment_with_full_index(lab: Lab) -> None:
    lab.set(index_interval_bytes="1", segment_index_bytes="40")
    for number in range(30):
        lab.produce(f"{number}")
    assert len(lab.files("*.log")) >= 4


def test_flush_ms_flushes_the_log(lab: Lab) -> None:
    lab.produce("x")
    lab.set(flush_ms="50")
    checkpoint = lab.broker.data_dir / "logs" / "recovery-point-offset-checkpoint"
    wait_until(
        lambda: checkpoint.exists() and f"{lab.topic} 0 1" in checkpoint.read_text(), timeout_s=30, what="a flush"
    )


def test_max_message_bytes_rejects_larger_batches(lab: Lab) -> None:
    lab.produce("x" * 1000)
    lab.set(max_message_bytes="500")
    with pytest.raises(RejectedError) as rejected:
        lab.produce("x" * 1000)
    assert rejected.value.error_code == TOO_LARGE


def test_cluster_message_max_bytes_applies_to_topics_without_override(lab: Lab) -> None:
    try:
        lab.set_on((BROKER, "", "message.max.bytes", "500"))
        with pytest.raises(RejectedError):
            lab.produce("x" * 1000)
    finally:
        lab.set_on((BROKER, "", "message.max.bytes", None))
    lab.produce("x" * 1000)


def test_message_timestamp_type_log_append_time_stamps_batches(lab: Lab) -> None:
    lab.set(message_timestamp_type="LogAppendTime")
    lab.produce("x", at=1)
    (stored,) = lab.client.read_to_end(lab.topic, 0)
    assert stored.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert abs(stored.max_timestamp - now_ms()) < HOUR_MS


@pytest.mark.parametrize(
    ("config", "moved_ms"),
    [("message_timestamp_before_max_ms", -HOUR_MS), ("message_timestamp_after_max_ms", HOUR_MS // 2)],
)
def test_message_timestamp_limits_reject_records_outside(lab: Lab, config: str, moved_ms: int) -> None:
    lab.produce("x", at=now_ms() + moved_ms)
    lab.set(**{config: "60000"})
    with pytest.raises(RejectedError) as rejected:
        lab.produce("x", at=now_ms() + moved_ms)
    assert rejected.value.error_code == INVALID_TIMESTAMP


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_compression_type_sets_codec_of_stored_batches(lab: Lab, name: str) -> None:
    wanted = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    sent = Codec.GZIP if wanted is Codec.NONE else Codec.NONE
    lab.set(compression_type=name)
    lab.produce("x" * 1000, codec=sent)
    (stored,) = lab.client.read_to_end(lab.topic, 0)
    assert stored.codec == wanted
    assert [record.value for record in decode_records(stored)] == [b"x" * 1000]


@pytest.mark.parametrize(("codec", "less", "more"), [("gzip", "1", "9"), ("lz4", "1", "17"), ("zstd", "-50", "19")])
def test_compression_levels_trade_time_for_size(lab: Lab, codec: str, less: str, more: str) -> None:
    text = " ".join(str(number * number % 9973) for number in range(20_000))
    sizes = []
    for level in (less, more):
        lab.set(**{"compression_type": codec, f"compression_{codec}_level": level})
        lab.produce(text)
        sizes.append(list(lab.client.read_to_end(lab.topic, 0))[-1].size)
    assert sizes[1] < sizes[0]


def test_preallocate_reserves_space_until_the_segment_rolls(lab: Lab) -> None:
    lab.set(preallocate="true", segment_bytes=str(4 << 20))
    lab.produce("x")
    (log,) = lab.files("*.log")
    if log.stat().st_blocks * 512 < 4 << 20:
        skip_loudly("this file system does not set room aside")
    assert log.stat().st_size < 1000
    lab.set(segment_ms="1")
    lab.produce("y", at=now_ms() + 1000)
    assert log.stat().st_blocks * 512 < 1 << 20


def test_min_insync_replicas_is_capped_at_the_replication_factor(lab: Lab) -> None:
    """As Apache Kafka 4.4 does: one replica in sync out of one is enough, whatever the config says."""
    lab.set(min_insync_replicas="3")
    lab.produce("x")
    assert lab.offsets() == [0]


def test_changed_logger_level_applies_at_once(lab: Lab) -> None:
    log = lab.broker.log_path
    lab.set_on((LOGGER, "1", "klamm.storage.log.housekeeping", "ERROR"))
    lab.fill(b"a", b"b", b"c")
    lab.set(retention_ms=AS_LONG_AS_THE_THIRD)
    lab.wait_for(start_offset=2)
    assert f"{lab.topic}-0: removed" not in log.read_text()
    lab.set_on((LOGGER, "1", "klamm.storage.log.housekeeping", "INFO"))
    lab.set(retention_ms="1000")
    lab.wait_for(start_offset=3)
    wait_until(lambda: f"{lab.topic}-0: removed" in log.read_text(), timeout_s=30, what="a line in the log")
