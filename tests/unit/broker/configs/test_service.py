"""The owner of all dynamic configs: ordered decisions, applied at once, answered when durable."""

from __future__ import annotations

import asyncio
import math
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from klamm.broker.configs.service import ConfigsChanged, ConfigService
from klamm.history.change import Author, RecordedChange
from klamm.protocol.errors import ErrorCode, InvalidConfigError, KafkaApiError, PolicyViolationError
from klamm.protocol.types import ResourceType
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.changes import PutConfig
from tests.support.configs import (
    ANNA,
    APPEND,
    DELETE,
    NOON_MS,
    SET,
    MemoryConfigStore,
    MemoryLoggers,
    alteration,
    make_service,
    operation,
    replacement,
    topic,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from klamm.broker.configs.rules import ResourceAlteration
    from klamm.configs.operations import ConfigDecision
    from klamm.policy import Override

TOPIC, BROKER, LOGGER, METRICS, GROUP = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)
FLUSH = operation("flush.ms", SET, "5")


def at_once(
    service: ConfigService, *alterations: ResourceAlteration
) -> Coroutine[Any, Any, list[KafkaApiError | str | None]]:
    """Alter without a pause, however slow the machine is, so that the turns of the event loop can be counted."""
    return service.alter(alterations, node_id=1, author=ANNA, validate_only=False, time_slice=TimeSlice(math.inf))


def alter(
    service: ConfigService,
    *alterations: ResourceAlteration,
    node_id: int = 1,
    author: Author = ANNA,
    validate_only: bool = False,
) -> list[tuple[ErrorCode, str | None]]:
    outcomes = asyncio.run(service.alter(alterations, node_id=node_id, author=author, validate_only=validate_only))
    return [(o.error_code, o.error_message) if isinstance(o, KafkaApiError) else (ErrorCode.NONE, o) for o in outcomes]


def shown(service: ConfigService, kind: int, name: str, key: str, *, node_id: int = 1) -> str | None:
    (config,) = service.describe(kind, name, [key], node_id=node_id)
    return config.value


def test_change_is_applied_stored_and_answered() -> None:
    """K339-06: SET stores the value for the key.

    K339-38: Changes survive a broker restart.
    """
    store = MemoryConfigStore()
    service = make_service(store)
    assert alter(service, topic("t", FLUSH)) == [(ErrorCode.NONE, None)]
    assert service.topic_config("t")["flush.ms"] == 5
    assert store.values(TOPIC, "t") == {"flush.ms": "5"}
    assert make_service(store).topic_config("t")["flush.ms"] == 5


async def test_change_is_answered_once_durable() -> None:
    """K339-38: Changes survive a broker restart."""

    store = MemoryConfigStore()
    service = make_service(store)
    store.hold = True
    change = asyncio.ensure_future(at_once(service, topic("t", FLUSH)))
    again = asyncio.ensure_future(at_once(service, topic("t", FLUSH)))
    reading = asyncio.ensure_future(service.settle())
    for _ in range(5):
        await asyncio.sleep(0)
    assert service.topic_config("t")["flush.ms"] == 5, "applied at once"
    assert not change.done()
    assert not again.done(), "a change that alters nothing waits for the one that made it so"
    assert not reading.done(), "a description waits for what it shows"
    store.release()
    assert await change == [None]
    assert await again == [None]
    assert await reading


async def test_later_changes_wait_for_write_of_closed_connection() -> None:
    store = MemoryConfigStore()
    service = make_service(store)
    store.hold = True
    gone = asyncio.ensure_future(at_once(service, topic("t", FLUSH)))
    await asyncio.sleep(0)
    gone.cancel()
    again = asyncio.ensure_future(at_once(service, topic("t", FLUSH)))
    reading = asyncio.ensure_future(service.settle())
    for _ in range(5):
        await asyncio.sleep(0)
    assert gone.cancelled()
    assert not again.done()
    assert not reading.done()
    store.release()
    assert await again == [None]
    assert await reading
    assert store.values(TOPIC, "t") == {"flush.ms": "5"}
    store.hold = True
    async with asyncio.timeout(30):
        assert await service.settle(), "nothing is in progress any more"


async def test_failed_write_rolls_the_change_back() -> None:
    store = MemoryConfigStore()
    service = make_service(store)
    events: list[ConfigsChanged] = []
    service.subscribe(events.append)
    store.hold = store.fail_next = True
    change = asyncio.ensure_future(at_once(service, topic("t", FLUSH), topic("missing", FLUSH)))
    reading = asyncio.ensure_future(service.settle())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.release()
    service.load()  # as the store's owner does on a failed commit
    outcomes = await change
    assert [o.error_code for o in outcomes if isinstance(o, KafkaApiError)] == [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert not await reading, "what was read before is void"
    taken_back = ConfigsChanged(resource_type=TOPIC, resource_name="t", names=frozenset({"flush.ms"}))
    assert events == [taken_back, taken_back], "once when it was applied, once when it was taken back"
    assert service.topic_config("t")["flush.ms"] != 5
    store.hold = False
    assert await at_once(service, topic("t", FLUSH)) == [None]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_topic_is_settled_once_the_last_part_of_its_request_is_durable(is_cancelled: bool) -> None:
    store = MemoryConfigStore(topics=["t", "other"])
    service = make_service(store)
    settled: list[bool] = []
    service.subscribe(lambda _: settled.append(service.is_settled("t")))
    service.on_settled(lambda: settled.append(service.is_settled("t")))
    store.hold = True
    default = alteration(BROKER, "", operation("log.flush.interval.ms", SET, "7"))
    change = asyncio.ensure_future(at_once(service, topic("t", FLUSH), default))
    while len(settled) < 2:  # noqa: ASYNC110  # no event tells
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    if is_cancelled:
        change.cancel()
        await asyncio.wait([change])
    assert settled == [False, False]
    assert not service.is_settled("other"), "it may inherit the cluster default"
    store.release()
    await asyncio.wait([change])
    await asyncio.sleep(0)
    assert settled == [False, False, True]
    assert service.is_settled("other")


async def test_other_topics_stay_settled_during_a_change() -> None:
    store = MemoryConfigStore(topics=["t", "other"])
    service = make_service(store)
    store.hold = True
    change = asyncio.ensure_future(at_once(service, topic("t", FLUSH)))
    await asyncio.sleep(0)
    assert (service.is_settled("t"), service.is_settled("other")) == (False, True)
    store.release()
    await change
    assert service.is_settled("t")


def test_changes_of_one_request_are_one_commit() -> None:
    store = MemoryConfigStore(topics=["a", "b"])
    alter(make_service(store), topic("a", FLUSH), topic("b", FLUSH))
    assert len(store.committed) == 1


async def test_large_request_does_not_delay_other_requests() -> None:
    """K339-20: Every requested resource appears once in the response."""

    names = [f"t{n}" for n in range(1000)]
    store = MemoryConfigStore(topics=[*names, "small"])
    service = make_service(store)
    listed = operation("leader.replication.throttled.replicas", APPEND, "1:1")
    repeated = [topic("t0", listed), *(topic(name, listed) for name in names)]
    large = asyncio.ensure_future(service.alter(repeated, node_id=1, author=ANNA, validate_only=False))
    await asyncio.sleep(0)
    assert await at_once(service, topic("small", FLUSH)) == [None]
    assert not large.done(), "the small one did not wait for the large one"
    outcomes = await large
    assert len(outcomes) == 1001
    assert [index for index, error in enumerate(outcomes) if error] == [0, 1], "also when far apart"
    assert not service.topic_config("t0")["leader.replication.throttled.replicas"]
    assert service.topic_config("t999")["leader.replication.throttled.replicas"] == ("1:1",)


def test_resources_are_independent_and_answered_in_order() -> None:
    """K339-19: Resources are independent: one failing does not stop the others in the request.

    K339-20: Every requested resource appears once in the response.

    K339-32: Unknown resource type -> 42 for that resource, others processed.

    K339-33: Unknown topic -> 3; empty topic name -> 42.
    """
    service = make_service(MemoryConfigStore(topics=["a", "b"]))
    assert alter(
        service,
        alteration(99, "x", FLUSH),
        topic("a", FLUSH),
        topic("missing", FLUSH),
        topic("b", operation("flush.ms", SET, "bad")),
        topic("", FLUSH),
        topic("bad name!", FLUSH),
    ) == [
        (ErrorCode.INVALID_REQUEST, "Unknown resource type 99"),
        (ErrorCode.NONE, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'missing' does not exist."),
        (ErrorCode.INVALID_CONFIG, "Invalid value bad for configuration flush.ms: Not a number of type LONG"),
        (ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'bad name!' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
    ]
    assert service.topic_config("a")["flush.ms"] == 5


def test_duplicate_resource_is_rejected_and_others_apply() -> None:
    """K339-31: The same resource twice in a request: 42 for it (both), nothing applied."""
    service = make_service(MemoryConfigStore(topics=["a", "b"]))
    rejected = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    assert alter(service, topic("a", FLUSH), topic("b", FLUSH), topic("a")) == [
        rejected,
        (ErrorCode.NONE, None),
        rejected,
    ]
    assert service.topic_config("a")["flush.ms"] != 5
    assert service.topic_config("b")["flush.ms"] == 5


def test_broker_named_by_two_spellings_is_a_duplicate_resource() -> None:
    """K339-31: The same resource twice in a request: 42 for it (both), nothing applied."""
    flush = operation("log.flush.interval.messages", SET, "5")
    outcomes = alter(make_service(), alteration(BROKER, "1", flush), alteration(BROKER, "01", flush))
    assert [code for code, _ in outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    debug = operation("klamm", SET, "DEBUG")
    outcomes = alter(make_service(), *(alteration(LOGGER, name, debug) for name in ("1", "+1")))
    assert [code for code, _ in outcomes] == [ErrorCode.INVALID_REQUEST] * 2


def test_unknown_operation_fails_its_resource_only() -> None:
    """K339-30: where Kafka's controller resigns, the neighbour is applied."""
    service = make_service(MemoryConfigStore(topics=["a", "b"]))
    assert alter(service, topic("a", operation("flush.ms", 9, "5")), topic("b", FLUSH)) == [
        (ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
        (ErrorCode.NONE, None),
    ]
    assert service.topic_config("b")["flush.ms"] == 5


def test_invalid_request_is_rejected_before_the_resource_is_checked() -> None:
    """K339-07: SET with null value fails the resource with 42 and changes nothing.

    K339-17: The same key twice in one resource fails that resource with 42, whatever the ops.
    """
    null, twice = operation("flush.ms", SET), (FLUSH, operation("flush.ms", DELETE))
    service = make_service()
    assert alter(service, topic("missing", null))[0][1] == "Null value not supported for : flush.ms"
    assert alter(service, alteration(99, "x", *twice))[0][1] == "Error due to duplicate config keys"
    assert alter(service, alteration(BROKER, "abc", null))[0][1] == "Null value not supported for : flush.ms"
    assert alter(service, replacement(99, "x", ("a", None)))[0][1] == "Null value not supported for : a"


def test_missing_topic_is_reported_after_value_validation() -> None:
    """K339-33: Unknown topic -> 3; empty topic name -> 42."""
    assert alter(make_service(), topic("missing", operation("zzz", SET, "1")))[0][0] is ErrorCode.INVALID_CONFIG
    assert alter(make_service(), topic("missing"))[0][0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_validate_only_returns_errors_and_changes_nothing() -> None:
    """K339-21: validate_only=true validates (same errors) but changes nothing."""
    store = MemoryConfigStore()
    service = make_service(store)
    bad = topic("t", operation("flush.ms", SET, "bad"))
    assert alter(service, topic("t", FLUSH), validate_only=True) == [(ErrorCode.NONE, None)]
    assert alter(service, bad, validate_only=True)[0][0] is ErrorCode.INVALID_CONFIG
    assert (
        alter(service, alteration(LOGGER, "1", operation("root", SET, "WARN")), validate_only=True)[0][0]
        is ErrorCode.NONE
    )
    assert store.committed == []
    assert service.topic_config("t")["flush.ms"] != 5
    assert shown(service, LOGGER, "1", "root") == "INFO"


async def test_concurrent_alterations_lose_no_update() -> None:
    """K339-23: No lost update: concurrent alterations of different keys of one resource all survive."""

    store = MemoryConfigStore()
    service = make_service(store)
    store.hold = True
    key = "leader.replication.throttled.replicas"
    writers = [
        at_once(service, topic("t", operation(key, APPEND, f"{n}:1"), operation("flush.ms", SET, str(n))))
        for n in range(50)
    ]
    tasks = [asyncio.ensure_future(writer) for writer in writers]
    await asyncio.sleep(0)
    store.release()
    await asyncio.gather(*tasks)
    assert store.values(TOPIC, "t") == {key: ",".join(f"{n}:1" for n in range(50)), "flush.ms": "49"}


def test_alter_configs_replaces_all_dynamic_configs() -> None:
    """K339-25: Old AlterConfigs keeps replace-all semantics: keys left out are removed."""
    store = MemoryConfigStore()
    service = make_service(store)
    alter(service, topic("t", FLUSH, operation("segment.ms", SET, "7000000")))
    assert alter(service, replacement(TOPIC, "t", ("segment.ms", "7000001"))) == [(ErrorCode.NONE, None)]
    assert store.values(TOPIC, "t") == {"segment.ms": "7000001"}


def test_alter_configs_rejects_broker_loggers() -> None:
    assert alter(make_service(), replacement(LOGGER, "1", ("root", "INFO"))) == [
        (ErrorCode.INVALID_REQUEST, "Unknown resource type 8")
    ]


def test_broker_configs_apply_to_own_id_or_cluster_default() -> None:
    """K339-37: Broker resource: name = own broker id, or "" = cluster default; other id -> 42."""
    service = make_service(node_ids=[1, 2])
    size = "message.max.bytes"
    assert alter(service, alteration(BROKER, "", operation(size, SET, "3000000")))[0][0] is ErrorCode.NONE
    assert alter(service, alteration(BROKER, "+2", operation(size, SET, "2000000")), node_id=2)[0][0] is ErrorCode.NONE
    assert alter(service, alteration(BROKER, "2", operation(size, SET, "5")), node_id=1) == [
        (ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2")
    ]
    assert alter(service, alteration(BROKER, "abc")) == [
        (ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: abc")
    ]
    assert service.broker_value(size, node_id=1) == 3000000
    assert service.broker_value(size, node_id=2) == 2000000
    assert service.topic_config("t")["max.message.bytes"] == 3000000
    assert shown(service, TOPIC, "t", "max.message.bytes", node_id=2) == "2000000"


def test_min_insync_replicas_is_always_a_cluster_config() -> None:
    service = make_service(static={"min.insync.replicas": "2"})
    assert [c.name for c in service.describe(BROKER, "", None, node_id=1)] == ["min.insync.replicas"]
    assert service.topic_config("t")["min.insync.replicas"] == 2


@pytest.mark.parametrize(
    "change",
    [
        alteration(BROKER, "", operation("min.insync.replicas", SET, "2")),
        replacement(BROKER, "", ("min.insync.replicas", "2")),
    ],
    ids=["incremental", "legacy"],
)
def test_min_insync_replicas_set_to_the_static_value_outlasts_it(change: ResourceAlteration) -> None:
    # given
    store = MemoryConfigStore()
    service = make_service(store, static={"min.insync.replicas": "2"})
    # when
    outcomes = alter(service, change)
    # then
    assert outcomes == [(ErrorCode.NONE, None)]
    restarted = make_service(store, static={"min.insync.replicas": "3"})
    assert shown(restarted, BROKER, "", "min.insync.replicas") == "2"


def test_loggers_change_at_once_and_not_in_the_store() -> None:
    store, loggers = MemoryConfigStore(), MemoryLoggers()
    service = make_service(store, loggers=loggers)
    assert alter(service, alteration(LOGGER, "1", operation("klamm.broker", SET, "TRACE")))[0][0] is ErrorCode.NONE
    assert shown(service, LOGGER, "1", "klamm.broker") == "TRACE"
    assert alter(service, alteration(LOGGER, "1", operation("klamm.broker", DELETE)))[0][0] is ErrorCode.NONE
    assert shown(service, LOGGER, "1", "klamm.broker") == "INFO"
    assert store.committed == []


@pytest.mark.parametrize(
    ("name", "kind", "value", "code", "message"),
    [
        ("no.such", SET, "INFO", ErrorCode.INVALID_CONFIG, "Logger no.such does not exist!"),
        ("no.such", DELETE, None, ErrorCode.INVALID_CONFIG, "Logger no.such does not exist!"),
        (
            "root",
            SET,
            "warn",
            ErrorCode.INVALID_CONFIG,
            "Cannot set the log level of root to warn as it is not a supported log level. "
            "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
        ),
        ("root", DELETE, None, ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed"),
        (
            "root",
            APPEND,
            "x",
            ErrorCode.INVALID_REQUEST,
            "APPEND operation is not allowed for the BROKER_LOGGER resource",
        ),
        (
            "root",
            9,
            "x",
            ErrorCode.INVALID_REQUEST,
            "Unknown operation type 9 is not allowed for the BROKER_LOGGER resource",
        ),
    ],
)
def test_invalid_logger_changes_are_rejected_as_in_kafka(
    name: str, kind: int, value: str | None, code: ErrorCode, message: str
) -> None:
    service = make_service()
    good = operation("klamm.broker", SET, "TRACE")
    assert alter(service, alteration(LOGGER, "1", good, operation(name, kind, value))) == [(code, message)]
    assert shown(service, LOGGER, "1", "klamm.broker") == "INFO", "all or nothing"


def test_loggers_of_another_broker_are_rejected() -> None:
    service = make_service()
    level = operation("root", SET, "INFO")
    assert alter(service, alteration(LOGGER, "7", level))[0][1] == "Unexpected node id. Expected 1, but received 7"
    assert alter(service, alteration(LOGGER, "", level))[0][1] == "Node id must be an integer, but it is: "


def test_groups_and_subscriptions_are_configurable_before_they_exist() -> None:
    service = make_service()
    session = "consumer.session.timeout.ms"
    alter(service, alteration(GROUP, "g", operation(session, SET, "50000")))
    alter(service, alteration(METRICS, "s", operation("interval.ms", SET, "5000")))
    assert service.group_config("g")[session] == 50000
    assert service.group_config("other")[session] == 45000
    assert shown(service, METRICS, "s", "interval.ms") == "5000"
    assert service.resource_names(METRICS) == ["s"]
    alter(service, alteration(METRICS, "s", operation("interval.ms", DELETE)))
    assert service.resource_names(METRICS) == []


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "abc", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: abc"),
        (BROKER, "7", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 7"),
        (LOGGER, "7", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 7"),
        (LOGGER, "", ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
        (METRICS, "", ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"),
        (GROUP, "", ErrorCode.INVALID_REQUEST, "Group name must not be empty"),
    ],
)
def test_invalid_describe_is_rejected_with_kafkas_message(
    kind: ResourceType, name: str, code: ErrorCode, message: str
) -> None:
    """K339-33: Unknown topic -> 3; empty topic name -> 42.

    K339-37: Broker resource: name = own broker id, or "" = cluster default; other id -> 42.
    """
    with pytest.raises(KafkaApiError) as rejected:
        make_service().describe(kind, name, None, node_id=1)
    assert (rejected.value.error_code, rejected.value.error_message) == (code, message)


def test_topic_configs_are_created_and_dropped_with_the_topic() -> None:
    service = make_service(MemoryConfigStore(topics=[]))
    configs = service.validate_topic_configs("new", [("flush.ms", "77")])
    rows = service.create_topic("new", configs, author=ANNA)
    assert PutConfig(resource_type=2, resource_name="new", name="flush.ms", value="77") in rows
    assert service.topic_config("new")["flush.ms"] == 77
    assert service.resource_names(TOPIC) == ["new"]
    (change,) = service.drop_topic("new", author=ANNA)
    assert isinstance(change, RecordedChange)
    assert (change.resource, change.name, change.old, change.new) == ("TOPIC:new", "flush.ms", "77", None)
    assert change.principal == ANNA.principal
    assert service.topic_config("new")["flush.ms"] == 2**63 - 1
    assert service.drop_topic("new") == []
    service.create_topic("new", {})
    assert service.topic_config("new")["flush.ms"] == 2**63 - 1


def test_invalid_config_of_new_topic_is_rejected() -> None:
    with pytest.raises(InvalidConfigError, match="Unknown topic config name"):
        make_service().validate_topic_configs("new", [("no.such", "1")])


def test_history_records_every_change_with_its_author() -> None:
    store = MemoryConfigStore()
    service = make_service(store)
    alter(service, topic("t", FLUSH))
    alter(service, topic("t", operation("flush.ms", SET, "6")), author=Author(principal="User:ben", client_id=None))
    alter(service, topic("t", operation("flush.ms", SET, "6")))
    lines = [(h.at_ms, h.resource, h.name, h.old, h.new, h.principal, h.client_id) for h in store.history]
    assert lines == [
        (NOON_MS, "TOPIC:t", "flush.ms", None, "5", "User:anna", "tool"),
        (NOON_MS, "TOPIC:t", "flush.ms", "5", "6", "User:ben", None),
    ]


def test_secrets_are_stored_and_kept_out_of_the_history() -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    store = MemoryConfigStore()
    service = make_service(store)
    under = "listener.name.internal.ssl.key.password"
    alter(service, alteration(BROKER, "1", operation(under, SET, "geheim")))
    alter(service, alteration(BROKER, "1", operation("message.max.bytes", SET, "5")))
    assert store.values(BROKER, "1")[under] == "geheim", "not lost when another key is altered"
    assert [(h.name, h.new) for h in store.history] == [(under, "[hidden]"), ("message.max.bytes", "5")]
    assert shown(service, BROKER, "1", under) is None


def test_listeners_are_notified_of_applied_changes() -> None:
    events: list[ConfigsChanged] = []
    service = make_service()
    service.subscribe(events.append)
    alter(service, topic("t", FLUSH))
    alter(service, topic("t", FLUSH))
    alter(service, alteration(BROKER, "", operation("message.max.bytes", SET, "5")))
    assert events == [
        ConfigsChanged(resource_type=TOPIC, resource_name="t", names=frozenset({"flush.ms"})),
        ConfigsChanged(resource_type=BROKER, resource_name="", names=frozenset({"message.max.bytes"})),
    ]


def test_policy_sees_changes_and_resulting_configs() -> None:
    """K339-41: An AlterConfig policy hook (alter.config.policy.class.name), if built, sees only the altered keys (null
    for deletes), never implicit deletes of legacy AlterConfigs.
    """
    seen: list[tuple[object, ...]] = []

    class Guard:
        resource_types = frozenset(ResourceType)

        def turn(self) -> AbstractAsyncContextManager[None]:
            return nullcontext()

        async def check(
            self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
        ) -> None:
            assert not validate_only
            kind, name = decision.resource_type, decision.resource_name
            seen.append((kind, name, decision.altered, decision.result, author.principal))
            if name == "guarded":
                raise PolicyViolationError("hands off")

    store = MemoryConfigStore(topics=["t", "guarded"])
    service = make_service(store, guards=(Guard(),))
    alter(service, topic("t", FLUSH))
    alter(service, topic("t", operation("flush.ms", DELETE), operation("segment.ms", SET, "7")))
    alter(service, replacement(TOPIC, "t", ("flush.ms", "6")))
    alter(service, topic("t", operation("flush.ms", SET, "6")))
    assert seen == [
        (TOPIC, "t", {"flush.ms": "5"}, {"flush.ms": "5"}, "User:anna"),
        (TOPIC, "t", {"flush.ms": None, "segment.ms": "7"}, {"segment.ms": "7"}, "User:anna"),
        (TOPIC, "t", {"flush.ms": "6"}, {"flush.ms": "6"}, "User:anna"),
        (TOPIC, "t", {}, {"flush.ms": "6"}, "User:anna"),
    ]
    assert alter(service, topic("guarded", FLUSH)) == [(ErrorCode.POLICY_VIOLATION, "hands off")]
    assert store.values(TOPIC, "guarded") == {}


def test_ten_thousand_resources_take_at_most_a_hundred_commits() -> None:
    store = MemoryConfigStore(topics=[f"t{n}" for n in range(10_000)])
    outcomes = alter(make_service(store), *(topic(name, FLUSH) for name in store.topics))
    assert {code for code, _ in outcomes} == {ErrorCode.NONE}
    assert len(store.committed) <= 100, "the disk sees fewer: the store writes what has gathered"


def test_broker_value_is_typed_and_from_the_effective_layer() -> None:
    service = make_service(static={"num.partitions": "3", "log.retention.hours": "2"})
    assert service.broker_value("num.partitions") == 3
    assert service.broker_value("auto.create.topics.enable") is True
    assert service.broker_value("log.retention.ms") is None
    assert service.broker_value("no.such") is None
    assert service.topic_config("t")["retention.ms"] == 7_200_000
