"""Client configs in memory and on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.broker.client_configs import ClientConfigService
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import AlterEntry, AlterOp, EntryPlan
from klamm.history.change import Author, RecordedChange
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import PutClientConfig
from klamm.storage.metadata.store import MetadataStore
from tests.support.registrations import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from klamm.storage.metadata.changes import Change

ALICE = ClientConfigEntity.of_user("alice")
DEFAULT_CLIENT = ClientConfigEntity.of_client("alice", None)
ADMIN = Author(principal="User:admin", client_id="cli")
NOON_MS = 1_700_000_000_000


def service_on(store: MetadataStore) -> ClientConfigService:
    return ClientConfigService(
        store=store, registrations=RegistrationLog(MemoryRecords()), limits=BrokerLimits, now_ms=lambda: NOON_MS
    )


def entry(key: str, value: str | None, *, client_id: str | None = "", user: str | None = "alice") -> AlterEntry:
    components: tuple[tuple[str, str | None], ...] = (("user", user),)
    if client_id != "":
        components += (("client-id", client_id),)
    return AlterEntry(components=components, ops=(AlterOp(key=key, value=value or "", remove=value is None),))


async def alter(service: ClientConfigService, *entries: AlterEntry, validate_only: bool = False) -> Sequence[EntryPlan]:
    return await service.alter(entries, validate_only=validate_only, author=ADMIN, slices=TimeSlice())


async def test_configs_survive_a_restart(tmp_path: Path) -> None:
    """K649-52: EntityName null addresses the default entity.

    K649-63: Configs survive restart; any broker may be asked.
    """
    path = tmp_path / "metadata.sqlite"

    store = MetadataStore.open(path)
    service = service_on(store)
    await alter(
        service,
        entry("acks", "all"),
        entry("acks", "0", client_id=None),
        entry("acks", "1", client_id="app1"),
        entry("acks", "1", user=None),
        entry("acks", "-1", client_id=None, user=None),
    )
    await alter(service, entry("acks", None, client_id="app1"))
    await store.close()
    again = MetadataStore.open(path)
    assert service_on(again).configs == {
        ALICE: {"acks": "all"},
        DEFAULT_CLIENT: {"acks": "0"},
        ClientConfigEntity.of_user(None): {"acks": "1"},
        ClientConfigEntity.of_client(None, None): {"acks": "-1"},
    }
    await again.close()


async def test_validate_only_changes_nothing(tmp_path: Path) -> None:
    """K649-61: ValidateOnly=true validates, applies nothing."""

    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    service = service_on(store)
    good, bad = await alter(service, entry("acks", "all"), entry("acks", "9", user="bob"), validate_only=True)
    assert good.error is None
    assert bad.error is not None
    assert service.configs == {}
    assert store.load_client_configs() == []
    await store.close()


async def test_concurrent_changes_of_one_entity_all_apply(tmp_path: Path) -> None:
    """K649-63: Configs survive restart; any broker may be asked."""

    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    service = service_on(store)
    await asyncio.gather(
        alter(service, entry("acks", "all")),
        alter(service, entry("session.timeout.ms", "9000")),
        alter(service, entry("heartbeat.interval.ms", "3000")),
    )
    expected = {ALICE: {"acks": "all", "session.timeout.ms": "9000", "heartbeat.interval.ms": "3000"}}
    assert service.configs == expected
    service.load()
    assert service.configs == expected
    await store.close()


async def test_history_records_principal_of_each_changed_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[Change] = []

    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    submit = store.submit

    def recording(changes: Sequence[Change]) -> asyncio.Future[None]:
        submitted.extend(changes)
        return submit(changes)

    monkeypatch.setattr(store, "submit", recording)
    service = service_on(store)
    await alter(service, entry("acks", "all"))
    await alter(service, entry("acks", "all"))
    await alter(service, entry("acks", None))
    await store.close()
    history = [change for change in submitted if isinstance(change, RecordedChange)]
    assert [(change.old, change.new) for change in history] == [(None, "all"), ("all", None)]
    assert history[0] == RecordedChange(
        at_ms=NOON_MS,
        resource="user 'alice'",
        name="acks",
        old=None,
        new="all",
        principal="User:admin",
        client_id="cli",
    )


async def test_invalid_stored_value_is_skipped(tmp_path: Path) -> None:
    store = MetadataStore.open(tmp_path / "metadata.sqlite")
    rows = [
        PutClientConfig(user="alice", client_id=None, has_client_id=False, name=name, value=value)
        for name, value in (("acks", "x"), ("heartbeat.interval.ms", "500"))
    ]
    await store.submit(rows)
    service = service_on(store)
    assert service.configs == {ALICE: {"heartbeat.interval.ms": "500"}}
    (reason,) = service.skipped
    assert reason.startswith("Metadata: user 'alice': Invalid value x for configuration acks")
    await alter(service, entry("acks", "all"))
    assert service.configs[ALICE] == {"acks": "all", "heartbeat.interval.ms": "500"}
    assert service.skipped == []
    await store.close()
