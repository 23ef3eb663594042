"""The registration topic and its image."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client_config_runtime import registration_log
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.registrations import encode_key, registration
from klamm.protocol.errors import StorageError
from tests.support.damaged_records import EXAMPLES, damaged
from tests.support.registrations import MemoryRecords
from tests.support.relay_rig import until

APP1 = ClientConfigEntity.of_client("alice", "app1")


def register(log: RegistrationLog, information: str, *supported: str, entity: ClientConfigEntity = APP1) -> None:
    asyncio.run(log.register(registration(entity, information, supported)))


def test_new_registration_is_appended_and_visible() -> None:
    """K649-40: The broker writes the registration to an internal topic.

    K649-42: Record value = the supported keys appended to the ClientInformation (software name and version).
    """
    records = MemoryRecords()
    log = RegistrationLog(records)
    register(log, "a/1", "acks")
    assert log.image == {APP1: {"a/1": ("acks",)}}
    assert records.records == [
        (
            b'{"client-id":"app1","user":"alice"}',
            b'{"client_information":"a/1","supported_configs":["acks"],"version":0}',
        )
    ]


def test_unchanged_registration_appends_nothing() -> None:
    """K649-44: The topic must not be plain-compacted: same key for many versions, compaction would lose all but the
    last.
    """
    records = MemoryRecords()
    log = RegistrationLog(records)
    for _ in range(3):
        register(log, "a/1", "acks", "x")
        register(log, "a/1", "x", "acks")
    assert len(records.records) == 1


def test_software_versions_are_registered_side_by_side() -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.

    K649-44: The topic must not be plain-compacted: same key for many versions, compaction would lose all but the last.
    """
    log = RegistrationLog(MemoryRecords())
    register(log, "a/1", "acks")
    register(log, "a/2")
    assert log.image[APP1] == {"a/1": ("acks",), "a/2": ()}


def test_producer_and_consumer_of_one_client_id_share_a_registration() -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.
    """
    records = MemoryRecords()
    log = RegistrationLog(records)
    for _ in range(3):
        register(log, "a/1", "acks")
        register(log, "a/1", "session.timeout.ms")
    assert log.image[APP1] == {"a/1": ("acks", "session.timeout.ms")}
    assert len(records.records) == 2


def test_replay_restores_registrations() -> None:
    """K649-45: Registrations survive broker restart and are visible from every broker."""
    records = MemoryRecords()
    first = RegistrationLog(records)
    register(first, "a/1", "acks")
    register(first, "a/2", "acks", "x")
    second = RegistrationLog(records)
    second.replay()
    assert second.image == first.image
    register(second, "a/1", "acks")
    assert len(records.records) == 2


def test_tombstone_removes_registrations_of_entity() -> None:
    """O649-L."""
    records = MemoryRecords()
    register(RegistrationLog(records), "a/1", "acks")
    records.records.append((encode_key(APP1), None))
    log = RegistrationLog(records)
    log.replay()
    assert log.image == {}
    register(log, "a/1", "acks")
    assert log.image == {APP1: {"a/1": ("acks",)}}


def test_unreadable_record_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    records = MemoryRecords()
    records.records.append((b"junk", b"junk"))
    register(RegistrationLog(records), "a/1", "acks")
    log = RegistrationLog(records)
    for _ in range(2):
        log.replay()
        assert log.image == {APP1: {"a/1": ("acks",)}}
        assert list(log.skipped.reasons) == ["__client_config_registrations: not JSON: b'junk'"]
    assert caplog.text.count("was skipped") == 1


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_damaged_registrations_are_skipped(data: st.DataObject) -> None:
    records = MemoryRecords()
    register(RegistrationLog(records), "a/1", "acks")
    ((key, value),) = records.records
    records.records += [(data.draw(damaged(key)), value), (key, data.draw(damaged(value)))]
    log = RegistrationLog(records)
    log.replay()
    assert "acks" in log.image[APP1]["a/1"]
    json.dumps([[str(entity), versions] for entity, versions in log.image.items()], ensure_ascii=False).encode()


def test_failed_append_leaves_image_unchanged() -> None:
    records = MemoryRecords()
    log = RegistrationLog(records)
    register(log, "a/1", "acks")
    for supported in (["acks", "x"], []):
        records.fail_next_append = True
        with pytest.raises(StorageError):
            register(log, "a/1", *supported)
        assert log.image == {APP1: {"a/1": ("acks",)}}
    records.fail_next_append = True
    with pytest.raises(StorageError):
        register(log, "b/1", "acks", entity=ClientConfigEntity.of_client("bob", "app2"))
    assert log.image == {APP1: {"a/1": ("acks",)}}
    register(log, "a/1", "acks", "x")
    assert log.image == {APP1: {"a/1": ("acks", "x")}}


async def test_concurrent_registrations_append_sequentially() -> None:
    class SlowRecords(MemoryRecords):
        busy = 0

        async def append(self, key: bytes, value: bytes) -> None:
            self.busy += 1
            assert self.busy == 1
            await asyncio.sleep(0.001)
            self.busy -= 1
            await super().append(key, value)

    records = SlowRecords()
    log = RegistrationLog(records)
    await asyncio.gather(
        *(log.register(registration(APP1, f"a/{number}", ["acks"])) for number in range(5)),
    )
    assert len(records.records) == 5


class HeldRecords(MemoryRecords):
    """Records whose appends wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.released = asyncio.Event()

    async def append(self, key: bytes, value: bytes) -> None:
        self.appends += 1
        await self.released.wait()
        await super().append(key, value)


async def test_identical_registrations_share_the_outcome_of_one_append() -> None:
    records = HeldRecords()
    log = RegistrationLog(records)
    for fails in (True, False):
        records.appends, records.fail_next_append = 0, fails
        records.released.clear()
        clients = [asyncio.create_task(log.register(registration(APP1, "a/1", ["acks"]))) for _ in range(3)]
        await until(lambda: records.appends == 1)
        assert not any(client.done() for client in clients), "a record that is not written yet may be lost"
        records.released.set()
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageError if fails else type(None)] * 3
        assert records.appends == 1
        assert log.image == ({} if fails else {APP1: {"a/1": ("acks",)}})


async def test_canceled_append_is_made_by_the_next_client() -> None:
    records = HeldRecords()
    log = RegistrationLog(records)
    first, two, three = (asyncio.create_task(log.register(registration(APP1, "a/1", ["acks"]))) for _ in range(3))
    await until(lambda: records.appends == 1)
    # when
    first.cancel()
    await until(lambda: records.appends == 2)
    records.released.set()
    await asyncio.gather(two, three)
    # then
    assert len(records.records) == 1
    assert log.image == {APP1: {"a/1": ("acks",)}}


def test_registrations_per_entity_and_version_are_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    monkeypatch.setattr(registration_log, "MAX_VERSIONS_PER_ENTITY", 3)
    monkeypatch.setattr(registration_log, "MAX_LISTS_PER_VERSION", 2)
    records = MemoryRecords()
    log = RegistrationLog(records, max_entities=2)
    caplog.set_level(logging.WARNING)
    for number in range(5):
        register(log, f"a/{number}", "acks")
        register(log, "a/0", f"key{number}")
        register(log, "a/0", "acks", entity=ClientConfigEntity.of_client("alice", f"app{number + 1}"))
    assert len(log.image) == 2
    assert len(log.image[APP1]) == 3
    assert log.image[APP1]["a/0"] == ("acks", "key0")
    assert len(records.records) == 5
    assert caplog.text.count("No room to register") == 1


def test_registrations_are_limited_in_bytes() -> None:
    """K649-48: The registration topic is not mirrored and not writable by clients."""
    records = MemoryRecords()
    log = RegistrationLog(records, max_bytes=1_000)
    for number in range(5):
        register(log, "a/1", "acks", entity=ClientConfigEntity.of_client("alice", str(number) * 400))
    assert [len(entity.client_id or "") for entity in log.image] == [400, 400]
    assert len(records.records) == 2
    # a tombstone makes room, and so does what could not be written
    records.records.append((records.records[0][0], None))
    log.replay()
    third = ClientConfigEntity.of_client("alice", "3" * 400)
    records.fail_next_append = True
    with pytest.raises(StorageError):
        register(log, "a/1", "acks", entity=third)
    register(log, "a/1", "acks", entity=third)
    assert third in log.image


def test_deleted_topic_clears_registrations() -> None:
    records = MemoryRecords()
    log = RegistrationLog(records)
    register(log, "a/1", "acks")
    assert log.image == {APP1: {"a/1": ("acks",)}}
    # when
    records.records.clear()
    log.replay()
    # then
    assert log.image == {}
    register(log, "a/1", "acks")
    assert log.image == {APP1: {"a/1": ("acks",)}}
    assert len(records.records) == 1


def test_recreated_topic_is_replayed_without_earlier_registrations() -> None:
    records = MemoryRecords()
    log = RegistrationLog(records)
    register(log, "a/1", "acks")
    del records.records[:]
    register(log, "a/2", "acks")
    log.replay()
    assert log.image == {APP1: {"a/2": ("acks",)}}


def test_topic_deleted_during_failed_append_leaves_image_empty() -> None:
    class Vanishing(MemoryRecords):
        async def append(self, key: bytes, value: bytes) -> None:
            log.replay()
            raise StorageError("No space left on device")

    log = RegistrationLog(Vanishing())
    with pytest.raises(StorageError):
        register(log, "a/1", "acks")
    assert log.image == {}


async def test_registration_waiting_during_topic_deletion_is_appended_to_the_next_topic() -> None:
    class Vanishing(MemoryRecords):
        async def append(self, key: bytes, value: bytes) -> None:
            if not goes.is_set():  # the first one: its topic is made and deleted
                await asyncio.sleep(0)
                goes.set()
                log.replay()
                raise StorageError("The topic has no log")
            await super().append(key, value)

    goes = asyncio.Event()
    records = Vanishing()
    log = RegistrationLog(records)
    both = (log.register(registration(APP1, f"a/{number}", ["acks"])) for number in (1, 2))
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError, type(None)]
    assert log.image == {APP1: {"a/2": ("acks",)}}
    assert len(records.records) == 1
