"""A broker that is killed (SIGKILL) repeatedly under load: acknowledged changes survive, and no offset is reused."""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import pytest

from klamm.protocol.records import Record, decode_records, encode_batch
from tests.support.crash_load import (
    LISTED,
    NOT_YET,
    PAIR,
    AltererLedger,
    LoadAlterer,
    LoadCreator,
    LoadProducer,
    LoadReader,
    ProducerLedger,
    TopicLedger,
    Write,
    apply_entry,
    identified,
)
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.probe import Cluster
    from tests.support.workers import Worker

AnyResult = TypeVar("AnyResult")
logger = logging.getLogger(__name__)

_IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
_KILLS: Final = 100 if _IS_SOAK else 3
_KILLS_OF_CONFIG_CHANGES: Final = 300 if _IS_SOAK else 2
_PARTITIONS: Final = 4
_RECORDS: Final = "crash-records"
_CONFIGS: Final = "crash-configs"
_MOMENTS_S: Final = (0.2, 1.2)
"""The broker dies after a time between these, so that it is caught at anything from its first request on."""
_SHORT_MOMENTS_S: Final = (0.02, 0.4)


def test_acknowledged_requests_survive_many_kills(crashing: Cluster) -> None:
    # given
    story = _Story(address=crashing.bootstrap_servers)
    with WireClient(story.address) as client:
        client.create_topic(_RECORDS, partitions=_PARTITIONS)
        client.create_topic(_CONFIGS)
    moments = random.Random()
    for kill in range(_KILLS):
        # when
        workers = story.start_workers()
        if kill == 0:
            wait_until(lambda: story.acknowledged_changes() > 0, timeout_s=60, what="values that are no defaults")
        if kill == _KILLS - 1:  # a slow disk acknowledges little in the short time before each kill
            wait_until(story.has_load, timeout_s=60, what="records, changes of configs and topics")
        time.sleep(moments.uniform(*_MOMENTS_S))
        for worker in workers:
            worker.check()
        crashing.restart(kill=True)
        for worker in workers:
            worker.stop()
        # then
        story.verify(readers=[worker for worker in workers if isinstance(worker, LoadReader)])
    story.verify_all_again()


def test_config_changes_survive_many_kills(crashing: Cluster) -> None:
    """All or nothing per resource, and nothing acknowledged is lost."""
    # given
    story = _Story(address=crashing.bootstrap_servers)
    with WireClient(story.address) as client:
        client.create_topic(_CONFIGS)
    moments = random.Random()
    enough = 5 * _KILLS_OF_CONFIG_CHANGES
    for kill in range(_KILLS_OF_CONFIG_CHANGES):
        # when
        workers = story.start_alterers()
        if kill == 0:
            wait_until(lambda: story.acknowledged_changes() > 0, timeout_s=60, what="values that are no defaults")
        if kill == _KILLS_OF_CONFIG_CHANGES - 1:  # a slow disk acknowledges few in the short time before each kill
            wait_until(lambda: story.acknowledged_changes() > enough, timeout_s=60, what=f"{enough} changes")
        time.sleep(moments.uniform(*_SHORT_MOMENTS_S))
        for worker in workers:
            worker.check()
        crashing.restart(kill=True)
        for worker in workers:
            worker.stop()
        # then
        with WireClient(story.address) as client:
            story.verify_configs(client)
    changes = [write for ledger in story.alterers for write in ledger.writes]
    acknowledged = story.acknowledged_changes()
    logger.info("%d kills, %d of %d changes acknowledged", _KILLS_OF_CONFIG_CHANGES, acknowledged, len(changes))
    assert acknowledged > enough


@pytest.mark.parametrize(
    "tear",
    [
        pytest.param(lambda batch: batch[: len(batch) // 2], id="half a batch"),
        pytest.param(lambda batch: batch[:5], id="half a header", marks=pytest.mark.long),
        pytest.param(
            lambda batch: batch[:-1] + bytes([batch[-1] ^ 1]), id="a batch with one wrong bit", marks=pytest.mark.long
        ),
        pytest.param(lambda batch: bytes(len(batch)), id="zeros", marks=pytest.mark.long),
    ],
)
def test_torn_log_tail_is_truncated_and_logged(tear: Callable[[bytes], bytes]) -> None:
    with KlammBroker() as broker:
        # given: acknowledged batches, and behind them what a crash in the middle of a write leaves
        with WireClient(broker.bootstrap_servers) as client:
            client.create_topic("torn")
            acknowledged = [client.produce("torn", 0, _batch(b"kept %d" % number)) for number in range(20)]
        broker.kill()
        torn = tear(bytes(_batch(b"never acknowledged", offset=20)))
        (segment_path,) = broker.data_dir.glob(f"**/torn-0/{0:020d}.log")
        with segment_path.open("ab") as segment:
            segment.write(torn)
        # when
        broker.start()
        # then
        assert f"torn-0: truncated at offset 20, {len(torn)} bytes are lost" in broker.log_tail()
        with WireClient(broker.bootstrap_servers) as client:
            assert acknowledged == list(range(20))
            assert client.produce("torn", 0, _batch(b"next")) == 20
            values = [
                bytes(record.value or b"")
                for batch in client.read_to_end("torn", 0)
                for record in decode_records(batch)
            ]
        assert values == [*(b"kept %d" % number for number in range(20)), b"next"]


def _batch(value: bytes, *, offset: int = 0) -> bytearray:
    record = Record(key=None, value=value, headers=(), timestamp=1_700_000_000_000, offset=offset)
    return encode_batch([record])


@dataclass(slots=True, kw_only=True)
class _Story:
    """Everything that must hold after any number of crashes."""

    address: str
    producers: tuple[ProducerLedger, ...] = field(
        default_factory=lambda: tuple(ProducerLedger(number=n, keeps_its_id=n % 2 == 0) for n in range(4))
    )
    alterers: tuple[AltererLedger, ...] = field(
        default_factory=lambda: tuple(AltererLedger(number=n) for n in range(4))
    )
    topics: TopicLedger = field(default_factory=TopicLedger)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000))
    places: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(partition, offset) -> record, for every record that was ever found."""
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(_PARTITIONS), 0))

    def start_workers(self) -> list[Worker]:
        """Start four producers, four config alterers, a reader per partition and one who creates topics."""
        return [
            *(LoadProducer(self.address, _RECORDS, _PARTITIONS, ledger) for ledger in self.producers),
            *self.start_alterers(),
            *(LoadReader(self.address, _RECORDS, partition, end) for partition, end in self.ends.items()),
            LoadCreator(self.address, self.topics, self.numbers),
        ]

    def start_alterers(self) -> list[Worker]:
        """Start four who change configs of one topic."""
        return [LoadAlterer(self.address, _CONFIGS, ledger, self.numbers) for ledger in self.alterers]

    def acknowledged_changes(self) -> int:
        """Return the number of changes of configs that were acknowledged."""
        return sum(write.acknowledged for ledger in self.alterers for write in list(ledger.writes))

    def verify(self, readers: list[LoadReader]) -> None:
        """Compare the broker with every ledger."""
        with WireClient(self.address) as client:
            self._verify_records(client, readers)
            self.verify_configs(client)
            self._verify_topics(client)
        ids = [producer_id for ledger in self.producers for producer_id in ledger.producer_ids]
        assert len(ids) == len(set(ids)), "A producer id was given out twice"

    def _verify_records(self, client: WireClient, readers: list[LoadReader]) -> None:
        for partition in self.ends:
            records = _read_records(client, partition, self.ends[partition])
            self.places.update({(partition, offset): identity for offset, identity in records.items()})
            self.ends[partition] = max(records, default=self.ends[partition] - 1) + 1
        for source in (*(ledger.acknowledged for ledger in self.producers), *(reader.seen for reader in readers)):
            wrong = {place: record for place, record in source.items() if self.places.get(place) != record}
            assert not wrong, f"{len(wrong)} acknowledged or seen records are lost or elsewhere: {_some(wrong)}"
        assert len(set(self.places.values())) == len(self.places), "An idempotent producer's record is there twice"

    def verify_all_again(self) -> None:
        """Read every record once more from the start: nothing has changed since it was found."""
        with WireClient(self.address) as client:
            again = {
                (partition, offset): identity
                for partition in self.ends
                for offset, identity in _read_records(client, partition, 0).items()
            }
        assert again == self.places

    def verify_configs(self, client: WireClient) -> None:
        """Compare the three configs that are changed at once with every ledger."""
        now = time.monotonic()
        configs = client.topic_configs(_CONFIGS)
        writes = {write.number: write for ledger in self.alterers for write in ledger.writes}
        values = {configs[name] for name in PAIR}
        assert len(values) == 1, f"Half of a change was applied: {values}"
        _assert_last(int(values.pop() or 0), writes)
        listed = (configs[LISTED] or "").split(",")
        for ledger in self.alterers:
            own = [entry for entry in listed if entry.startswith(f"{ledger.number}:")]
            _assert_entries(own, ledger)
        for write in writes.values():
            write.ended = write.ended if write.ended is not None else now

    def _verify_topics(self, client: WireClient) -> None:
        present = client.topic_ids()
        ledger = self.topics
        for name in ledger.unknown & present.keys():
            ledger.alive[name] = present[name]
        for name in ledger.unknown - present.keys():
            ledger.alive.pop(name, None)
            ledger.deleted.add(name)
        ledger.unknown.clear()
        assert ledger.alive.items() <= present.items(), "A topic is gone or has another id"
        assert not ledger.deleted & present.keys(), "A deleted topic is back"
        for name, topic_id in present.items():
            assert ledger.names_by_id.setdefault(topic_id, name) == name, f"{name} has a used id"

    def has_load(self) -> bool:
        """Return whether enough was acknowledged for the kills to matter."""
        records = sum(len(ledger.acknowledged) for ledger in self.producers)
        return records > 50 * _KILLS and self.acknowledged_changes() > 5 * _KILLS and len(self.topics.alive) > _KILLS


def _read_records(client: WireClient, partition: int, start: int) -> dict[int, tuple[int, int]]:
    batches = _patiently(lambda: tuple(client.read_to_end(_RECORDS, partition, start)))
    records = {offset: identity for offset, identity in identified(batches) if offset >= start}
    assert list(records) == list(range(start, start + len(records))), f"Offsets of partition {partition} have a gap"
    return records


def _assert_last(number: int, writes: Mapping[int, Write]) -> None:
    """The value is explained by some order: no acknowledged change began after its change had ended."""
    last = writes[number]
    if last.ended is None:
        return
    later = [write.number for write in writes.values() if write.acknowledged and write.started > last.ended]
    assert not later, f"The value is that of change {number}, but {len(later)} acknowledged changes began after it"


def _assert_entries(own: list[str], ledger: AltererLedger) -> None:
    """The alterer's entries are those it knows of, give or take the change that was under way."""
    if own != ledger.entries:
        under_way = ledger.writes[-1]
        assert not under_way.acknowledged, f"Entries of alterer {ledger.number}: {own}, expected {ledger.entries}"
        apply_entry(ledger.entries, under_way)
    assert own == ledger.entries, f"Entries of alterer {ledger.number} with the change under way"


def _patiently(read: Callable[[], AnyResult]) -> AnyResult:
    """Give a broker that has just started a minute to lead its partitions."""
    for _ in range(600):
        try:
            return read()
        except RejectedError as error:
            if error.error_code not in NOT_YET:
                raise
            time.sleep(0.1)
    return read()


def _some(wrong: Mapping[tuple[int, int], tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    return dict(itertools.islice(sorted(wrong.items()), 5))
