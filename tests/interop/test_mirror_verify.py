"""``klamm mirror verify`` during mirroring: records in flight are no difference."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import uuid4

import pytest
from confluent_kafka import Producer

import klamm
from klamm.cli.mirror.verify import main
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.mirror.records.source_offsets import SourcePartition, key_bytes, value_bytes
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status import verify
from klamm.properties import parse_properties
from klamm.protocol.records import Record
from tests.support.long_tests import long_only
from tests.support.mirror import Seen, create_topic, delete_records, produce, properties
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings


class Mirrored:
    """A topic with one partition and its remote topic, on one broker."""

    def __init__(self, address: str, topic: str = "", more: str = "") -> None:
        self.address, self.topic = address, topic or f"verified-{uuid4().hex[:6]}"
        self.remote_topic, self.positions = f"A.{self.topic}", f"{self.topic}-positions"
        for name in (self.topic, self.remote_topic):
            create_topic(address, name, 1, {"retention.ms": "-1"})
        create_topic(address, self.positions, 1, {"cleanup.policy": "compact"})
        more += f"offset.storage.topic = {self.positions}\n"
        (self.flow,) = parse_settings(parse_properties(properties(address, address, more, topics=self.topic))).flows

    def write(self, topic: str, *numbers: int) -> None:
        produce(self.address, topic, [(0, Seen(None, b"%d" % number, (), RECENT_MS)) for number in numbers])

    def write_both(self, *numbers: int) -> None:
        for topic in (self.topic, self.remote_topic):
            self.write(topic, *numbers)

    def begin_transaction(self, *values: bytes) -> Producer:
        """Write values to the remote topic in a transaction, and leave it open."""
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": self.topic})
        producer.init_transactions(10)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.remote_topic, value, partition=0, timestamp=RECENT_MS)
        assert producer.flush(10) == 0
        return producer

    def stand_at(self, offset: int) -> None:
        """Say that the record at an offset was mirrored last."""
        key = key_bytes(SourcePartition("A", self.topic, 0))
        produce(self.address, self.positions, [(0, Seen(key, value_bytes(offset), (), RECENT_MS))])

    def verify(self) -> tuple[int, str]:
        """Return the number of equal records, and the differences."""
        (verdict,) = verify.verify_flow(self.flow, wanted=lambda topic: topic == self.topic)
        assert verdict.findings is not None
        return verdict.findings.same, verdict.problem


@pytest.fixture
def mirrored() -> Iterator[Mirrored]:
    with klamm.Broker() as broker:
        yield Mirrored(broker.bootstrap_servers)


def test_records_mirrored_during_verify_are_not_missing(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    mirrored.write_both(0, 1)
    mirrored.stand_at(1)

    def positions_of_a_moment_later(flow: FlowSettings) -> dict[tuple[str, int], int]:
        mirrored.write_both(2)
        mirrored.stand_at(2)
        return mirrored_offsets(flow)

    monkeypatch.setattr(verify, "mirrored_offsets", positions_of_a_moment_later)
    # then
    assert mirrored.verify() == (3, "")


def test_verify_compares_non_utf_8_header_keys(mirrored: Mirrored) -> None:
    settings = ConnectionSettings(bootstrap_servers=(mirrored.address,), client_id="test")
    with contextlib.closing(ControlConnection(settings)) as connection:
        for topic, last_byte in ((mirrored.topic, b"\xfe"), (mirrored.remote_topic, b"\xff")):
            keys = [key.decode("utf-8", "surrogateescape") for key in (b"\xff", last_byte)]
            connection.write(topic, [Record(key=None, value=b"", headers=((key, b""),)) for key in keys])
    mirrored.stand_at(1)
    same, problem = mirrored.verify()
    assert same == 1
    assert problem.startswith("missing on the target: 1, the first is offset 1")


@pytest.mark.parametrize("is_target", [True, *long_only(False)])
def test_long_beginning_that_has_expired_on_one_side_is_no_difference(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, is_target: bool
) -> None:
    monkeypatch.setattr(verify, "MAX_LOOK_AHEAD", 2)
    mirrored.write_both(*range(10))
    mirrored.stand_at(9)
    # when
    delete_records(mirrored.address, mirrored.remote_topic if is_target else mirrored.topic, 0, before=7)
    # then
    assert mirrored.verify() == (3, "")


def test_difference_behind_an_expired_beginning_is_named_by_its_offset(mirrored: Mirrored) -> None:
    mirrored.write(mirrored.topic, 0, 1, 2, 3, 4, 5)
    mirrored.write(mirrored.remote_topic, 0, 1, 2, 3, 5)
    mirrored.stand_at(5)
    delete_records(mirrored.address, mirrored.remote_topic, 0, before=2)
    missing = mirrored.verify()
    # when: the beginning of the source expires, too, and the target has another record
    delete_records(mirrored.address, mirrored.topic, 0, before=3)
    mirrored.write(mirrored.remote_topic, 6)
    # then
    assert missing == (3, "missing on the target: 1, the first is offset 4")
    surplus = f"on the target only: 1, the first is offset 5 of {mirrored.remote_topic}"
    assert mirrored.verify() == (2, f"missing on the target: 1, the first is offset 4; {surplus}")


@pytest.mark.long
def test_equal_offsets_that_are_missing_at_the_beginning_have_not_expired() -> None:
    with klamm.Broker() as broker:
        mirrored = Mirrored(broker.bootstrap_servers, more="A->B.klamm.offsets = preserve\n")
        mirrored.write_both(0, 1, 2)
        mirrored.write(mirrored.topic, 3, 4, 5)
        mirrored.begin_transaction(b"3", b"4").abort_transaction()  # offsets 3 to 5
        mirrored.write_both(6, 7)
        mirrored.stand_at(7)
        for topic, before in ((mirrored.topic, 2), (mirrored.remote_topic, 3)):
            delete_records(mirrored.address, topic, 0, before=before)
        assert mirrored.verify() == (2, "missing on the target: 3, the first is offset 3")


@pytest.mark.long
def test_verify_reports_sides_without_common_record_despite_retention(mirrored: Mirrored) -> None:
    """A side with records has the newest ones, so the sides would have those in common."""
    mirrored.write(mirrored.topic, *range(4))
    mirrored.write(mirrored.remote_topic, *range(10, 14))
    mirrored.stand_at(3)
    for topic in (mirrored.topic, mirrored.remote_topic):
        delete_records(mirrored.address, topic, 0, before=1)
    surplus = f"on the target only: 3, the first is offset 1 of {mirrored.remote_topic}"
    assert mirrored.verify() == (0, f"missing on the target: 3, the first is offset 1; {surplus}")


@pytest.mark.long
def test_verify_of_no_topic_fails(mirrored: Mirrored, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirrored.write_both(0)
    mirrored.stand_at(0)
    path = tmp_path / "mm2.properties"
    more = f"offset.storage.topic = {mirrored.positions}\n"
    path.write_text(properties(mirrored.address, mirrored.address, more, topics=mirrored.topic))
    assert main([str(path)]) == 0
    assert main([str(path), "--topics", "typo"]) == 1
    assert "nothing was compared: no topic that matches --topics" in capsys.readouterr().err


def test_verify_waits_for_ending_transaction(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their position can be read before they can: each partition gets a marker of its own."""
    # given
    mirrored.write(mirrored.topic, 0, 1)
    producer = mirrored.begin_transaction(b"0", b"1")
    mirrored.stand_at(1)
    waits: list[float] = []

    def end(seconds: float) -> None:
        if not waits:
            producer.commit_transaction(10)
        waits.append(seconds)

    # when
    monkeypatch.setattr(verify, "time", Mock(wraps=time, sleep=end))
    # then
    assert mirrored.verify() == (2, "")
    assert waits


@pytest.mark.long
def test_verify_does_not_wait_forever_for_open_transaction(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    mirrored.write_both(0, 1)
    mirrored.stand_at(1)
    producer = mirrored.begin_transaction(b"somebody's")
    monkeypatch.setattr(verify, "_PATIENCE_S", 0.1)
    # then
    assert mirrored.verify() == (2, "")
    producer.abort_transaction(10)


@pytest.mark.long
def test_verify_ignores_surplus_heartbeats() -> None:
    # given
    with klamm.Broker() as broker:
        mirrored = Mirrored(broker.bootstrap_servers, "heartbeats")
        mirrored.write(mirrored.topic, 0, 1)
        mirrored.write(mirrored.remote_topic, 0, 1, 1)
        mirrored.stand_at(1)
        repeated = mirrored.verify()
        # when
        mirrored.write(mirrored.topic, 2)
        mirrored.stand_at(2)
        missing = mirrored.verify()
    # then
    assert repeated == (2, "")
    assert missing == (2, "missing on the target: 1, the first is offset 2"), "a heartbeat that is lost is one"
