"""The history of configs: bounded, readable by other processes, and reversible."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.admin import AdminClient, AlterConfigOp, ConfigEntry, ConfigResource, NewTopic, OpType, ResourceType
from klamm.history.change import HIDDEN, UNKNOWN, RecordedChange, Reversal, plan_revert
from klamm.storage.errors import DataDirectoryError
from klamm.storage.metadata.history import read_config_history, read_history_start, read_sound_history
from klamm.storage.metadata.statements import HISTORY_STEP
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore
from tests.support.metadata import load_history

if TYPE_CHECKING:
    from pathlib import Path


def line(
    at_ms: int, name: str, old: str | None = None, new: str | None = None, resource: str = "TOPIC:t"
) -> RecordedChange:
    return RecordedChange(
        at_ms=at_ms, resource=resource, name=name, old=old, new=new, principal="User:anna", client_id="tool"
    )


@pytest.mark.process
def test_history_is_readable_while_the_broker_runs(tmp_path: Path) -> None:
    topic = ConfigResource(ResourceType.TOPIC, "orders")
    with klamm.Broker(data_dir=tmp_path) as broker, AdminClient(broker.bootstrap_servers, client_id="tool") as admin:
        admin.create_topics([NewTopic(name="orders", configs={"flush.ms": "5"})]).all().result()
        admin.incremental_alter_configs(
            {topic: [AlterConfigOp(ConfigEntry("flush.ms", "6"), OpType.SET)]}
        ).all().result()
        entries = read_config_history(tmp_path, resource="TOPIC:orders")
    assert [(entry.name, entry.old, entry.new) for entry in entries] == [
        ("flush.ms", "5", "6"),
        ("flush.ms", None, "5"),
    ]
    assert {(entry.principal, entry.client_id) for entry in entries} == {("User:ANONYMOUS", "tool")}
    assert read_config_history(tmp_path, resource="TOPIC:other") == ()
    assert len(read_config_history(tmp_path, limit=1)) == 1


async def test_history_of_stopped_broker_is_read_from_read_only_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> str:
        assert [entry.new for entry in read_config_history(tmp_path)] == ["5"]
        (name,) = uris
        uris.clear()
        return name.partition("?")[2]

    uris: list[str] = []
    connect = sqlite3.connect

    def seen(database: str, **options: Any) -> Any:
        if options.get("uri"):
            uris.append(database)
        return connect(database, **options)

    # given: a read-only mount
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(sqlite3, "connect", seen)
    # when
    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    await store.submit([line(1, "flush.ms", new="5")])
    assert opened() == "mode=ro", "the write-ahead log holds changes that the database does not"
    await store.close()
    # then
    assert opened() == "mode=ro&immutable=1"


@pytest.mark.parametrize("damage", ["at_ms = 'x'", "at_ms = -1", "at_ms = 1 << 62", "name = x'ff'", "old = x'ff'"])
async def test_damaged_history_entry_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    await store.submit([line(1, "damaged", "1", "2"), line(2, "sound")])
    await store.close()
    with closing(sqlite3.connect(tmp_path / METADATA_FILE_NAME)) as database:
        database.execute(f"UPDATE history SET {damage} WHERE name = 'damaged'")  # noqa: S608 -- of this test
        database.commit()
    assert read_config_history(tmp_path) == (line(2, "sound"),)
    assert "1 history item skipped" in caplog.text
    assert read_sound_history(tmp_path) == ((line(2, "sound"),), 1)


def test_directory_without_metadata_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is not the data directory"):
        read_config_history(tmp_path)
    (tmp_path / "metadata.sqlite").write_bytes(b"no database at all, only text" * 100)
    with pytest.raises(DataDirectoryError, match="Cannot read"):
        read_config_history(tmp_path)


async def test_history_size_is_limited_and_pruned_gradually(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = MetadataStore.open(path)
    await store.submit([line(at, "flush.ms") for at in range(5000)])
    await store.close()
    assert read_history_start(tmp_path) is None
    store = MetadataStore.open(path, max_history=10)
    await store.submit([line(5000, "flush.ms")])
    assert len(load_history(store, limit=10_000)) == 5001 - HISTORY_STEP
    for at in range(5001, 5010):
        await store.submit([line(at, "flush.ms")])
    assert [entry.at_ms for entry in load_history(store, limit=10_000)] == list(range(5009, 4999, -1))
    await store.close()
    assert read_history_start(tmp_path) == 5000


async def test_long_client_id_and_principal_are_shortened(tmp_path: Path) -> None:
    # given
    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    authors = [("User:" + "p" * 995, "c" * 255), ("User:" + "p" * 32_000, "c" * 32_767), ("User:anna", None)]
    # when
    await store.submit(
        [replace(line(1, "flush.ms"), principal=principal, client_id=client_id) for principal, client_id in authors]
    )
    # then
    none, shortened, whole = load_history(store)
    await store.close()
    assert (whole.principal, whole.client_id) == authors[0]
    assert (shortened.principal, shortened.client_id) == (f"{authors[0][0]}...", f"{authors[0][1]}...")
    assert (none.principal, none.client_id) == authors[2]


def test_revert_undoes_only_later_changes() -> None:
    history = [
        line(50, "b", "2", None),
        line(40, "c", "x", "y", resource="TOPIC:other"),
        line(40, "a", "2", "3"),
        line(30, "a", "1", "2"),
        line(30, "d", "1", "2"),
        line(35, "d", "2", "1"),
        line(20, "b", None, "2"),
        line(10, "a", None, "1"),
    ]
    history.sort(key=lambda entry: -entry.at_ms)
    assert plan_revert(history, resource="TOPIC:t", to_ms=25) == (
        Reversal(name="a", value="1", replaces="3"),
        Reversal(name="b", value="2", replaces=None),
    )
    assert plan_revert(history, resource="TOPIC:t", to_ms=0) == (Reversal(name="a", value=None, replaces="3"),)
    assert plan_revert(history, resource="TOPIC:t", to_ms=50) == ()
    assert plan_revert(history, resource="TOPIC:t", to_ms=0, live={"a": "7"}) == (
        Reversal(name="a", value=None, replaces="7"),
        Reversal(name="d", value="1", replaces=None),
    )


def test_secret_cannot_be_restored() -> None:
    (reversal,) = plan_revert([line(5, "ssl.key.password", HIDDEN, HIDDEN)], resource="TOPIC:t", to_ms=0)
    assert not reversal.is_known


def test_values_unknown_to_a_gateway_cannot_be_restored() -> None:
    history = [line(5, "flush.ms", UNKNOWN, "5"), line(4, "partitions", "1", "3")]
    (reversal,) = plan_revert(history, resource="TOPIC:t", to_ms=0)
    assert (reversal.name, reversal.is_known) == ("flush.ms", False)
