"""Client quotas as the broker keeps them: decided in slices, applied at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.broker.quotas import QuotaService
from klamm.configs.quotas import QuotaChange
from klamm.history.change import Author, RecordedChange
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import PutQuota
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore
from tests.support.metadata import load_history

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ANNA = Author(principal="User:anna", client_id="tool")
USERS = [f"u{number}" for number in range(300)]
RATE = "producer_byte_rate"


async def set_all(service: QuotaService, value: float | None) -> list[object]:
    alterations = [([("user", user)], [QuotaChange(name=RATE, value=value)]) for user in USERS]
    return list(await service.alter(alterations, author=ANNA, validate_only=False))


def in_memory(service: QuotaService) -> dict[str, float]:
    return {str(entity[0][1]): values[RATE] for entity, values in service.describe([], strict=False)}


async def test_concurrent_quota_requests_leave_memory_disk_and_history_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gives way to the other again and again."""
    monkeypatch.setattr(f"{TimeSlice.__module__}.SLICE_S", 0)

    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    service = QuotaService(store, now_ms=lambda: 7)
    assert set(await set_all(service, 1.0)) == {None}
    await asyncio.gather(set_all(service, 2.0), set_all(service, None), set_all(service, 3.0))
    lines = load_history(store, resource="QUOTA:user=u0")[::-1]
    assert {line.new for line in lines} == {"1", "2", None, "3"}
    assert [line.old for line in lines] == [None, *(line.new for line in lines[:-1])]
    last = lines[-1].new
    assert in_memory(service) == ({} if last is None else dict.fromkeys(USERS, float(last)))
    assert {str(row.entity[0][1]): row.value for row in store.load_quotas()} == in_memory(service)
    assert (lines[0].at_ms, lines[0].principal, lines[0].client_id) == (7, "User:anna", "tool")
    await store.close()


async def test_repeated_change_is_confirmed_only_when_the_first_one_is_durable(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    service = QuotaService(store, now_ms=lambda: 7)
    change = [([("user", "anna")], [QuotaChange(name=RATE, value=1.0)])]
    first = asyncio.create_task(service.alter(change, author=ANNA, validate_only=False))
    await asyncio.sleep(0)
    assert in_memory(service) == {"anna": 1.0}
    assert await service.alter(change, author=ANNA, validate_only=False) == [None]
    assert [row.value for row in store.load_quotas()] == [1.0]
    await first
    await store.close()


async def test_unchanged_and_validated_quotas_are_not_recorded(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / METADATA_FILE_NAME)
    service = QuotaService(store, now_ms=lambda: 7)
    change = [([("user", "anna")], [QuotaChange(name=RATE, value=1.0)])]
    assert await service.alter(change, author=ANNA, validate_only=True) == [None]
    assert load_history(store) == []
    for _ in range(2):
        assert await service.alter(change, author=ANNA, validate_only=False) == [None]
    assert len(load_history(store)) == 1
    assert [type(row) for row in (*store.load_quotas(), *load_history(store))] == [PutQuota, RecordedChange]
    await store.close()
