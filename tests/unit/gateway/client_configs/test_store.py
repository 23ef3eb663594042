"""Stores of client configs of several gateways over one log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client_config_runtime.messages import describe_client_configs
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_config_runtime.skipped_records import SkippedRecords
from klamm.client_configs.definitions import BrokerLimits
from klamm.client_configs.description import MatchType
from klamm.client_configs.enforcement import enforced_values, held_acks
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.plan import AlterEntry, AlterOp, ClientConfigChange, EntryPlan
from klamm.client_configs.resolution import resolve
from klamm.gateway.client_configs import store, topic_image
from klamm.gateway.client_configs.config_log import apply_records, config_records, history_entries, history_records
from klamm.gateway.client_configs.store import ClientConfigStore
from klamm.gateway.client_configs.topic_image import FollowedTopic
from klamm.gateway.upstream.internal_topic import InternalTopicGoneError
from klamm.history.change import Author
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest
from klamm.protocol.records import Record
from klamm.server import time_slice
from klamm.server.session import Session
from klamm.server.time_slice import TimeSlice
from tests.support.damaged_records import EXAMPLES, damaged
from tests.support.fenced_log import FencedLog, FencedWriter
from tests.support.registrations import MemoryRecords
from tests.support.relay_rig import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

AUTHOR = Author(principal="User:ops", client_id="tool")


def entry(user: str, **configs: str | None) -> AlterEntry:
    ops = (
        AlterOp(key=name.replace("_", "."), value=value or "", remove=value is None) for name, value in configs.items()
    )
    return AlterEntry(components=(("user", user),), ops=tuple(ops))


class Gateway:
    """One gateway's store, with a writer that can fail."""

    def __init__(self, log: FencedLog) -> None:
        self.writer = FencedWriter(log)
        self.created = 0
        """Number of times that missing topics were created."""
        self.topic = FollowedTopic(log.reader())
        self.registration_topic = FollowedTopic(FencedLog().reader())
        self.store = ClientConfigStore(
            self.topic,
            self.writer.as_topic(),
            registration_topic=self.registration_topic,
            registrations=RegistrationLog(MemoryRecords()),
            limits=BrokerLimits,
            now_ms=lambda: 5,
        )

    async def _create(self) -> None:
        self.created += 1

    async def start(self) -> None:
        self.topic.start(self.store, self._create)
        self.store.start(self._create)
        assert await self.topic.loaded(10)

    async def alter(self, *entries: AlterEntry, validate_only: bool = False) -> Sequence[EntryPlan]:
        return await self.store.alter(entries, validate_only=validate_only, author=AUTHOR, slices=TimeSlice())

    async def close(self) -> None:
        await self.store.close()
        await self.topic.close()


@contextlib.asynccontextmanager
async def gateways(log: FencedLog, count: int) -> AsyncIterator[list[Gateway]]:
    started = [Gateway(log) for _ in range(count)]
    for gateway in started:
        await gateway.start()
    yield started
    for gateway in started:
        await gateway.close()


def configs_in(log: FencedLog) -> dict[str, dict[str, str]]:
    """Return what a gateway that starts now reads, by user."""
    configs: dict[ClientConfigEntity, dict[str, str]] = {}
    apply_records(configs, log.records, SkippedRecords("topic"))
    return {entity.user or "": own for entity, own in configs.items()}


async def test_change_is_visible_when_it_is_answered() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="all"), entry("b", acks="1", heartbeat_interval_ms="9"))
        assert gateway.store.configs[ClientConfigEntity.of_user("a")] == {"acks": "all"}
        await gateway.alter(entry("a", acks=None), entry("b", acks=None))
        assert configs_in(log) == {"b": {"heartbeat.interval.ms": "9"}}


async def test_invalid_entry_does_not_affect_valid_entries() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        bad, good = await gateway.alter(entry("a", acks="2"), entry("b", acks="all"))
        assert bad.error is not None
        assert good.error is None
        assert configs_in(log) == {"b": {"acks": "all"}}
        await gateway.alter(entry("c", acks="all"), validate_only=True)
        assert configs_in(log) == {"b": {"acks": "all"}}


async def test_concurrent_gateways_lose_no_change() -> None:
    """K649-97: Each request sets its own value beside those of others, and one ends a roll-out that was set before."""

    log = FencedLog()
    async with gateways(log, 3) as started:
        first, two, three = started
        await first.alter(entry("shared", acks="1", rollout_acks="100:all"))
        await asyncio.gather(
            *(started[number % 3].alter(entry(f"user-{number}", acks="all")) for number in range(300)),
            two.alter(entry("shared", heartbeat_interval_ms="100")),
            three.alter(entry("shared", session_timeout_ms="9000")),
            first.alter(entry("shared", acks=None)),
        )
        expected = {f"user-{number}": {"acks": "all"} for number in range(300)}
        expected["shared"] = {"heartbeat.interval.ms": "100", "session.timeout.ms": "9000"}
        assert configs_in(log) == expected
        assert sum(each.writer.commits for each in started) < 150, "requests that wait are written together"


@pytest.mark.parametrize("failure", ["lost before", "lost after"])
async def test_change_with_lost_response_is_written_once(failure: str) -> None:
    log = FencedLog()
    async with gateways(log, 2) as (first, two):
        await first.alter(entry("a", acks="1"))
        first.writer.failures = [failure]
        await first.alter(entry("a", acks="all"))
        assert configs_in(log) == {"a": {"acks": "all"}}
        assert len(log.records) == 2
        await two.alter(entry("a", heartbeat_interval_ms="7"))
        assert configs_in(log) == {"a": {"acks": "all", "heartbeat.interval.ms": "7"}}


async def test_late_write_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        gateway.writer.failures = ["lost before"] * 100
        first = asyncio.create_task(gateway.alter(entry("a", acks="1")))
        await until(lambda: len(gateway.writer.failures) < 99)  # the failure of the first attempt is known
        first.cancel()
        monkeypatch.setattr(store, "_ALTER_TIMEOUT_S", 0)
        with pytest.raises(KafkaApiError, match=r"cannot be written at present: no response"):
            await gateway.alter(entry("a", acks="all"))


async def test_too_large_change_fails_at_once_and_changes_beside_it_are_made() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        gateway.writer.too_large = "large"
        users = ("a", "large-1", "b", "large-2", "c")
        # when: they are decided together
        outcomes = await asyncio.gather(
            *(gateway.alter(entry(user, acks="all")) for user in users), return_exceptions=True
        )
        await asyncio.gather(gateway.alter(entry("d", acks="all")), gateway.alter(entry("e", acks="all")))
        # then
        failed = {user: str(each) for user, each in zip(users, outcomes, strict=True) if isinstance(each, Exception)}
        reason = "The change is not made: __klamm_client_configs: records were rejected: MESSAGE_TOO_LARGE"
        assert failed == dict.fromkeys(("large-1", "large-2"), reason)
        assert {each.error_code.name for each in outcomes if isinstance(each, KafkaApiError)} == {"MESSAGE_TOO_LARGE"}
        assert configs_in(log) == {user: {"acks": "all"} for user in ("a", "b", "c", "d", "e")}
        assert log.epoch == 1, "the rejected transaction was aborted, so its writer need not take over"
        assert gateway.writer.commits == 4, "later changes are written together again"


async def test_change_without_a_right_of_the_gateway_fails_at_once() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        gateway.writer.failures = ["denied"]
        with pytest.raises(KafkaApiError, match=r"cannot be written: TOPIC_AUTHORIZATION_FAILED") as error:
            await gateway.alter(entry("a", acks="1"))
        assert error.value.error_code.name == "UNKNOWN_SERVER_ERROR"
        await gateway.alter(entry("b", acks="1"))
        assert configs_in(log) == {"b": {"acks": "1"}}


async def test_change_that_cannot_be_read_back_fails_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        monkeypatch.setattr(store, "_READ_BACK_S", 0.0)
        monkeypatch.setattr(log, "read", lambda position: ([], position))
        first = asyncio.create_task(gateway.alter(entry("a", acks="1")))
        await until(lambda: gateway.writer.commits > 1)  # the failure of the first attempt is known
        first.cancel()
        monkeypatch.setattr(store, "_ALTER_TIMEOUT_S", 0)
        with pytest.raises(KafkaApiError, match=r"at present: the change was not read back within 0 s"):
            await gateway.alter(entry("a", acks="1"))


async def test_gateway_stopped_after_lost_response_leaves_consistent_topic() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="1"))
        gateway.writer.failures = ["lost before"] * 1000
        dying = asyncio.create_task(gateway.alter(entry("a", acks="all")))
        await asyncio.sleep(0)
        async with gateways(log, 1) as (two,):
            await two.alter(entry("b", acks="0"))
            assert configs_in(log) == {"a": {"acks": "1"}, "b": {"acks": "0"}}
        dying.cancel()


def history_in(log: FencedLog) -> list[tuple[str, str, str | None, str | None]]:
    """Return resource, name, old and new value of each recorded change, after a check of the other fields."""
    entries = list(history_entries(log.history))
    assert {(change.principal, change.client_id, change.at_ms) for change in entries} <= {("User:ops", "tool", 5)}
    return [(change.resource, change.name, change.old, change.new) for change in entries]


@pytest.mark.parametrize("failure", ["", "lost before", "lost after", "gone"])
async def test_history_has_each_change_once(failure: str) -> None:
    """K649-99: The old value is the one that the change replaced, also when two requests are written together."""

    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="1"), entry("b", acks="2"))
        gateway.writer.failures = [failure]
        await asyncio.gather(
            gateway.alter(entry("a", acks="all")),
            gateway.alter(entry("a", acks=None)),
            gateway.alter(entry("b", acks=None)),
        )
        await gateway.alter(entry("a", acks=None), validate_only=True)
        assert history_in(log) == [
            ("user 'a'", "acks", None, "1"),
            ("user 'a'", "acks", "1", "all"),
            ("user 'a'", "acks", "all", None),
        ]
        assert gateway.created == 1 + (failure == "gone"), "a topic that was deleted is created again"


async def test_records_of_other_programs_are_skipped_in_the_history(caplog: pytest.LogCaptureFixture) -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="1"))
    log.history += [log.history[0]._replace(value=value) for value in (None, b"", b"[]", b'{"old":1}')]
    log.history.append(log.history[0]._replace(key=b"{}"))
    assert history_in(log) == [("user 'a'", "acks", None, "1")]
    assert len(caplog.records) >= 5


async def test_before_the_topic_is_read_a_change_is_to_be_repeated() -> None:
    gateway = Gateway(FencedLog())
    with pytest.raises(KafkaApiError) as raised:
        await gateway.alter(entry("a", acks="1"))
    assert raised.value.error_code.name == "COORDINATOR_LOAD_IN_PROGRESS"
    await gateway.close()


class AnyImage:
    """Image of a topic whose records do not matter."""

    async def on_load(self, records: Sequence[Record], slices: TimeSlice) -> None:
        pass

    def on_records(self, records: Sequence[Record]) -> None:
        pass


async def _nothing_to_create() -> None:
    pass


async def described(gateway: Gateway, *, resolve_entity: bool) -> tuple[str, list[dict[str, str]] | None]:
    """Return error and values of the response to an application of user ``a``, or to an operator."""
    component = DescribeClientConfigsRequest.ComponentData(
        entity_type="client-id" if resolve_entity else "user",
        match_type=MatchType.EXACT if resolve_entity else MatchType.ANY,
        match="app" if resolve_entity else None,
    )
    request = DescribeClientConfigsRequest(
        components=[component], supported_configs=None, resolve_entity=resolve_entity, strict=False
    )
    response = await describe_client_configs(
        gateway.store,
        request,
        Session(connection_id=1, node_id=0, principal="User:a"),
        client_id="app",
        is_allowed=True,
        slices=TimeSlice(),
    )
    entries = response.entries
    values = None if entries is None else [{each.key: each.value for each in entry.values} for entry in entries]
    return ErrorCode(response.error_code).name, values


async def test_configs_are_not_described_before_all_that_belongs_to_the_response_is_read() -> None:
    loading = ("COORDINATOR_LOAD_IN_PROGRESS", None)
    log = FencedLog()
    async with gateways(log, 1) as (other,):
        await other.alter(entry("a", acks="all"))
    gateway = Gateway(log)
    try:
        # when: nothing is read yet
        assert await described(gateway, resolve_entity=True) == loading
        assert await described(gateway, resolve_entity=False) == loading
        # when: only the configs are read
        await gateway.start()
        assert await described(gateway, resolve_entity=True) == ("NONE", [{"acks": "all"}])
        assert await described(gateway, resolve_entity=False) == loading
        # when: the registrations are read, too
        gateway.registration_topic.start(AnyImage(), _nothing_to_create)
        assert await gateway.registration_topic.loaded(10)
        assert await described(gateway, resolve_entity=False) == ("NONE", [{"acks": "all"}])
    finally:
        await gateway.registration_topic.close()
        await gateway.close()


async def test_records_of_other_programs_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="1"))
    for key in (None, b"[]", b"{}", b'{"user":1}', b"\xff"):
        log.records.append(log.records[0]._replace(key=key))
    for value in (b"", b"[]", b'{"configs":[]}', b'{"configs":{"acks":1}}'):
        log.records.append(log.records[0]._replace(value=value))
    assert configs_in(log) == {"a": {"acks": "1"}}
    assert len(caplog.records) >= 9


async def test_entities_survive_the_log() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        components = [
            (("user", None),),
            (("user", "a"),),
            (("user", "a"), ("client-id", "c")),
            (("user", "a"), ("client-id", None)),
            (("user", None), ("client-id", "ü")),
        ]
        ops = (AlterOp(key="acks", value="all", remove=False),)
        await gateway.alter(*(AlterEntry(components=each, ops=ops) for each in components))
        configs: dict[ClientConfigEntity, dict[str, str]] = {}
        apply_records(configs, log.records, SkippedRecords("topic"))
        assert configs == gateway.store.configs
        assert len(configs) == len(components)


async def test_change_after_a_reload_keeps_changes_that_the_reload_did_not_see() -> None:
    log = FencedLog()
    async with gateways(log, 1) as (gateway,):
        await gateway.alter(entry("a", acks="1"))
        old = list(log.records)
        await gateway.alter(entry("a", heartbeat_interval_ms="7"))
        # when: the topic was read before the second change, and its records replace the image after it
        await gateway.store.on_load(old, TimeSlice())
        gateway.topic.position, gateway.topic.loads = len(old), gateway.topic.loads + 1
        await gateway.alter(entry("a", session_timeout_ms="9000"))
        # then
        assert configs_in(log) == {"a": {"acks": "1", "heartbeat.interval.ms": "7", "session.timeout.ms": "9000"}}


async def test_many_new_records_are_applied_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    log = FencedLog()
    async with gateways(log, 2) as (first, two):
        # when: both read the same records at the same time
        sizes: set[int] = set()
        two.store.subscribe(lambda: sizes.add(len(two.store.configs)))
        await first.alter(*(entry(f"user-{number}", acks="all") for number in range(1000)))
        await until(lambda: bool(sizes))
        await two.alter(entry("user-0", acks="1"))
        await until(lambda: two.topic.position == len(log.records))
        # then
        assert min(sizes) < 1000
        assert len(two.store.configs) == 1000
        assert two.store.configs[ClientConfigEntity.of_user("user-0")] == {"acks": "1"}
        assert configs_in(log) == {str(entity.user): own for entity, own in two.store.configs.items()}


USER_A = ClientConfigEntity.of_user("a")
GOOD = {"acks": "all", "session.timeout.ms": "9000", "heartbeat.interval.ms": "500", "rollout.acks": "10:1"}


def stored(entity: ClientConfigEntity, configs: dict[str, str]) -> Record:
    (record,) = config_records({entity: configs}, [(entity, AUTHOR)], change_id="c", at_ms=5)
    return record


def image_of(*records: Record) -> tuple[dict[ClientConfigEntity, dict[str, str]], SkippedRecords]:
    configs: dict[ClientConfigEntity, dict[str, str]] = {}
    skipped = SkippedRecords("topic")
    apply_records(configs, records, skipped)
    return configs, skipped


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", "x"),
        ("heartbeat.interval.ms", "1.5"),
        ("session.timeout.ms", "9" * 11),
        ("rollout.acks", "all"),
        ("enforcement", "perhaps"),
        ("unknown", "1"),
    ],
)
def test_unusable_value_is_skipped_until_it_is_replaced(
    caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    default = ClientConfigEntity.of_user(None)
    bad = stored(default, GOOD | {name: value})
    # when
    configs, skipped = image_of(bad, stored(USER_A, GOOD), bad)
    # then
    assert configs == {default: {key: text for key, text in GOOD.items() if key != name}, USER_A: GOOD}
    (reason,) = skipped.reasons
    assert reason.startswith("topic: the default user: Invalid ")
    assert name in reason
    assert caplog.text.count("was skipped") == 1
    apply_records(configs, [stored(default, GOOD)], skipped)
    assert list(skipped.reasons) == []


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_clients_are_served_beside_damaged_records(data: st.DataObject) -> None:
    key, value, _, *_ = stored(USER_A, GOOD | {"enforcement": "on"})
    assert key is not None
    assert value is not None
    bad = Record(key=data.draw(damaged(key) | st.just(key)), value=data.draw(damaged(value)))
    other = ClientConfigEntity.of_user("other")
    # when
    configs, skipped = image_of(bad, stored(other, GOOD))
    # then
    assert configs[other] == GOOD
    for user in ("a", "other", "b"):
        application = ClientConfigEntity.of_client(user, "app")
        assert resolve(configs, application) is not None
        enforced = enforced_values(configs, application, is_on=True, limits=BrokerLimits())
        assert held_acks(0, enforced) in {-1, 0, 1}
    json.dumps([str(entity) for entity in configs] + list(skipped.reasons), ensure_ascii=False).encode()


@settings(max_examples=EXAMPLES)
@given(st.data(), st.integers(-(2**63), 2**63 - 1))
def test_damaged_history_is_skipped(data: st.DataObject, timestamp: int) -> None:
    change = ClientConfigChange(entity=USER_A, name="acks", old=None, new="all")
    (good,) = history_records([(change, AUTHOR)], at_ms=5)
    assert good.key is not None
    assert good.value is not None
    bad = [
        good._replace(timestamp=timestamp),
        good._replace(key=data.draw(damaged(good.key))),
        good._replace(value=data.draw(damaged(good.value))),
    ]
    entries = list(history_entries([*bad, good]))
    assert entries[-1].new == "all"
    for entry in entries:
        assert datetime.fromtimestamp(entry.at_ms / 1000, UTC).year < 10_000
        str(entry).encode()


@pytest.mark.parametrize(("failures", "warnings"), [(1, 0), (2, 1)])
async def test_new_topic_that_a_broker_does_not_know_at_once_gives_no_warning(
    failures: int, warnings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(topic_image, "_RETRY_S", 0.0)
    log = FencedLog()
    read, left = log.read, iter(range(failures))

    def read_later(position: int) -> tuple[list[Record], int]:
        if next(left, None) is not None:
            raise InternalTopicGoneError("memory does not exist")
        return read(position)

    monkeypatch.setattr(log, "read", read_later)
    gateway = Gateway(log)
    # when
    await gateway.start()
    await gateway.close()
    # then
    assert [record.message for record in caplog.records if "cannot be read" in record.message] == [
        "Internal topic memory cannot be read, trying again: memory does not exist"
    ] * warnings
