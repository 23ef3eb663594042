"""Records of the change history, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import ClientConfigChange
from klamm.gateway.client_configs.config_log import history_records
from klamm.gateway.history import log
from klamm.gateway.history.log import (
    CLIENT_CONFIGS_TOPIC,
    TOPIC,
    change_entries,
    change_record,
    read_change_history,
    read_history_start,
)
from klamm.gateway.history.recorded_api import Change
from klamm.history.change import Author, RecordedChange
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

ANNA = Author(principal="User:anna", client_id="tool")
SETTINGS = ConnectionSettings.of(("127.0.0.1:1",), {}, "test")


def record(change: Change, *, at_ms: int = 5, author: Author = ANNA) -> Record:
    return change_record(change, author, "10.0.0.7", at_ms=at_ms)


def entry(record: Record) -> RecordedChange:
    (entry_read,) = change_entries([record])
    return entry_read


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_entry_is_read_as_it_was_written(is_confirmed: bool) -> None:
    assert entry(record(Change("TOPIC:a", "flush.ms", None, "5", is_confirmed))) == RecordedChange(
        at_ms=5,
        resource="TOPIC:a",
        name="flush.ms",
        old=None,
        new="5",
        principal="User:anna",
        client_id="tool",
        host="10.0.0.7",
        is_confirmed=is_confirmed,
    )


def test_huge_values_and_names_of_clients_are_not_kept() -> None:
    hostile = Author(principal="User:" + "p" * 100_000, client_id="\0" * 30_000)
    large = record(Change("TOPIC:a", "flush.ms", "\0" * 8_191, "x" * 32_768), author=hostile)
    assert len(large.value or b"") < 100_000
    recorded = entry(large)
    assert (recorded.old, recorded.new) == ("\0" * 8_191, "[too long]")
    assert len(recorded.principal) < 1_010
    assert recorded.client_id is not None
    assert len(recorded.client_id) < 1_010


def test_record_that_cannot_be_read_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    assert list(change_entries([Record(key=b"TOPIC:a", value=b"[]", offset=7)])) == []
    assert f"Record 7 of {TOPIC} was skipped" in caplog.text


class FakeTopics:
    """Topics of a cluster by name, in the place of ``InternalTopic``."""

    start = 0

    def __init__(self, **records: list[Record]) -> None:
        self._records = records

    def __call__(self, _: ConnectionSettings, name: str) -> FakeTopics:
        one = FakeTopics(all=self._records[name])
        one.start = self.start
        return one

    def first_offset(self) -> int:
        return self.start

    def read_all(self) -> Iterator[list[Record]]:
        yield self._records["all"]

    def close(self) -> None:
        pass


def test_all_histories_of_gateways_are_read_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: records that were written late, and one that was written twice, because the first response was lost
    user = ClientConfigEntity.of_user("billing")
    client_config = ClientConfigChange(entity=user, name="acks", old=None, new="all")
    first, two = (record(Change("TOPIC:a", "flush.ms", None, str(at_ms)), at_ms=at_ms) for at_ms in (3, 9))
    other = record(Change("TOPIC:b", "flush.ms", None, "7"), at_ms=7)
    topics = FakeTopics(
        **{
            TOPIC: [two, first, first, other],
            CLIENT_CONFIGS_TOPIC: history_records([(client_config, ANNA)], at_ms=5),
        }
    )
    monkeypatch.setattr(log, "InternalTopic", topics)

    def read(*names: str, resource: str | None = None, limit: int = 100) -> list[tuple[int, str]]:
        entries = read_change_history(SETTINGS, names, resource=resource, limit=limit)
        return [(each.at_ms, each.resource) for each in entries]

    # then
    newest_first = [(9, "TOPIC:a"), (7, "TOPIC:b"), (5, "user 'billing'"), (3, "TOPIC:a")]
    assert read(TOPIC, CLIENT_CONFIGS_TOPIC) == newest_first
    assert read(TOPIC, CLIENT_CONFIGS_TOPIC, limit=2) == newest_first[:2]
    assert read(TOPIC, resource="TOPIC:b") == [(7, "TOPIC:b")]
    assert read(CLIENT_CONFIGS_TOPIC) == [(5, "user 'billing'")]


@pytest.mark.parametrize(("start", "start_ms"), [(0, None), (12, 3)])
def test_history_starts_at_its_oldest_entry_if_older_ones_were_deleted(
    monkeypatch: pytest.MonkeyPatch, start: int, start_ms: int | None
) -> None:
    records = [record(Change("TOPIC:a", "flush.ms", None, "5"), at_ms=at_ms) for at_ms in (3, 9)]
    topics = FakeTopics(**{TOPIC: records})
    topics.start = start
    monkeypatch.setattr(log, "InternalTopic", topics)
    assert read_history_start(SETTINGS, TOPIC) == start_ms
