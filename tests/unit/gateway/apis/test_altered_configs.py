"""AlterConfigs and IncrementalAlterConfigs through the gateway's policies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.admin import ConfigEntry
from klamm.admin.types import ConfigSynonym
from klamm.gateway.apis import api_033_alter_configs, api_044_incremental_alter_configs
from klamm.gateway.apis.altered_configs import AlteredConfigs
from klamm.gateway.policies import decisions as verdicts
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.kafka_client.errors import ConnectionLostError
from klamm.policy import Override
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigOperation, ConfigSource, ResourceType
from tests.support.gateway_context import FakeAdmin, FakeContext, FakePolicies, incremental

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from klamm.protocol.schema import Message

NAMES = tuple("abcdef")
LEGACY, INCREMENTAL = api_033_alter_configs.MESSAGES, api_044_incremental_alter_configs.MESSAGES
SOME = st.sets(st.sampled_from(NAMES))
INVALID = ErrorCode.INVALID_CONFIG


def alters(rejected: Collection[str]) -> Callable[[Message], Message]:
    """Return an upstream that answers in reverse order, with an error for repeated and for some other resources."""

    def answer(request: Message) -> Message:
        assert isinstance(request, (AlterConfigsRequest, IncrementalAlterConfigsRequest))
        api = LEGACY if isinstance(request, AlterConfigsRequest) else INCREMENTAL
        resources: list[Any] = list(request.resources)
        names = [resource.resource_name for resource in resources]
        entries = [
            api.entry(
                error_code=INVALID if names.count(each.resource_name) > 1 or each.resource_name in rejected else 0,
                error_message=None,
                resource_type=each.resource_type,
                resource_name=each.resource_name,
            )
            for each in reversed(resources)
        ]
        response = api.response(responses=entries)
        assert isinstance(response, (AlterConfigsResponse, IncrementalAlterConfigsResponse))
        return response

    return answer


def replacement(name: str, **configs: str) -> AlterConfigsRequest.AlterConfigsResource:
    return AlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name=name,
        configs=[
            AlterConfigsRequest.AlterableConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def ask(request: Any, policies: FakePolicies, context: FakeContext) -> Any:
    api = LEGACY if isinstance(request, AlterConfigsRequest) else INCREMENTAL
    return asyncio.run(AlteredConfigs(policies.as_policies(), ResourceTurns(), api).handle(request, context))


def with_own(**configs: str) -> FakeAdmin:
    own = {key.replace("_", "."): value for key, value in configs.items()}
    return FakeAdmin({name: [[1, 2]] for name in NAMES}, {(ResourceType.TOPIC, name): own for name in NAMES})


@settings(deadline=None)
@given(
    names=st.lists(st.sampled_from(NAMES), max_size=8),
    denied=SOME,
    rejected=SOME,
    validate_only=st.booleans(),
    is_legacy=st.booleans(),
)
def test_every_resource_has_its_entry_in_order(
    names: list[str], denied: set[str], rejected: set[str], validate_only: bool, is_legacy: bool
) -> None:
    # given
    context, policies = FakeContext(alters(rejected), with_own()), FakePolicies(denied)
    request: Any = (
        AlterConfigsRequest(resources=[replacement(name, flush_ms="5") for name in names], validate_only=validate_only)
        if is_legacy
        else IncrementalAlterConfigsRequest(
            resources=[incremental(name, ("flush.ms", ConfigOperation.SET, "5")) for name in names],
            validate_only=validate_only,
        )
    )
    # when
    response = ask(request, policies, context)
    # then
    assert [entry.resource_name for entry in response.responses] == names
    once = [name for name in names if names.count(name) == 1]
    valid = [name for name in once if name not in rejected]
    outcomes: dict[str, tuple[int, str | None]] = dict.fromkeys(names, (ErrorCode.NONE, None))
    outcomes |= {name: (ErrorCode.POLICY_VIOLATION, f"{name}: denied by policy") for name in denied}
    outcomes |= {name: (INVALID, None) for name in names if name not in valid}
    if is_legacy:
        repeated = ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
        outcomes |= {name: repeated for name in names if name not in once}
        assert all(each.resource_name in once for sent in context.forwarded for each in sent.resources)
    assert [(entry.error_code, entry.error_message) for entry in response.responses] == [
        outcomes[name] for name in names
    ]
    real = [each.resource_name for sent in context.forwarded if not sent.validate_only for each in sent.resources]
    assert real == ([] if validate_only else [name for name in valid if name not in denied])
    assert [details.resource_name for details in policies.asked] == valid


def test_policy_sees_result_of_operations() -> None:
    policies = FakePolicies()
    request = IncrementalAlterConfigsRequest(
        resources=[
            incremental(
                "a",
                ("retention.ms", ConfigOperation.DELETE, None),
                ("cleanup.policy", ConfigOperation.APPEND, "compact"),
                ("flush.ms", ConfigOperation.SET, "5"),
            )
        ]
    )
    ask(request, policies, FakeContext(alters(()), with_own(retention_ms="1", flush_ms="5", remote_storage_enable="1")))
    (details,) = policies.asked
    assert (details.resource_type, details.resource_name) == ("TOPIC", "a")
    assert details.configs == {"retention.ms": None, "cleanup.policy": "delete,compact"}
    assert details.result == {"flush.ms": "5", "remote.storage.enable": "1", "cleanup.policy": "delete,compact"}
    assert details.removed == {"retention.ms"}
    assert details.replication_factor == 2
    assert details.defaults == {"retention.ms": "604800000", "cleanup.policy": "delete", "flush.ms": str(2**63 - 1)}
    assert (details.principal, details.client_id, details.listener) == ("User:anna", "tool", "GATEWAY")


def test_policy_sees_configs_removed_by_replacement() -> None:
    policies = FakePolicies()
    request = AlterConfigsRequest(resources=[replacement("a", flush_ms="7")], validate_only=True)
    ask(request, policies, FakeContext(alters(()), with_own(retention_ms="1", flush_ms="5")))
    (details,) = policies.asked
    assert details.configs == {"flush.ms": "7"}
    assert details.result == {"flush.ms": "7"}
    assert details.removed == {"retention.ms"}
    assert details.validate_only


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("is_legacy", [False, True])
def test_overridden_change_is_checked_again_and_the_entry_says_so(is_legacy: bool, validate_only: bool) -> None:
    # given
    override = Override(reason="a: set right", configs={"flush.ms": "2", "retention.ms": None})
    policies, context = FakePolicies(overrides={"a": override}), FakeContext(alters(()), with_own(retention_ms="9"))
    request: Any = (
        AlterConfigsRequest(resources=[replacement("a", flush_ms="5")], validate_only=validate_only)
        if is_legacy
        else IncrementalAlterConfigsRequest(
            resources=[incremental("a", ("flush.ms", ConfigOperation.SET, "5"))], validate_only=validate_only
        )
    )
    # when
    response = ask(request, policies, context)
    # then
    assert [(each.error_code, each.error_message) for each in response.responses] == [(0, override.note)]
    assert policies.asked[1].result == {"flush.ms": "2"}
    assert [sent.validate_only for sent in context.forwarded] == [True, True] + [False] * (not validate_only)
    changed = context.forwarded[-1].resources[0].configs
    expected = [("flush.ms", "2")] if is_legacy else [("flush.ms", "2"), ("retention.ms", None)]
    assert [(config.name, config.value) for config in changed] == expected


def test_policy_that_overrides_itself_denies_the_change() -> None:
    policies = FakePolicies(overrides={"a": Override(reason="again", configs={"flush.ms": "2"})}, repeats=True)
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", ("flush.ms", ConfigOperation.SET, "5"))])
    context = FakeContext(alters(()), with_own())
    response = ask(request, policies, context)
    assert [each.error_code for each in response.responses] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert all(sent.validate_only for sent in context.forwarded)


async def test_concurrent_changes_of_a_default_and_of_a_topic_do_not_break_a_rule_together() -> None:
    # given
    admin = with_own(retention_ms="30")
    admin.described = {(ResourceType.BROKER, ""): {}}
    forwarded = list[str]()

    class Policies(FakePolicies):
        """A policy that denies a change if another one was made: records would be deleted."""

        async def check(self, kind: object, details: Any, overridden: Override | None = None) -> Override | None:
            seen = [*forwarded]
            for _ in range(10):  # the prediction takes a while
                await asyncio.sleep(0)
            self.denied = {details.resource_name} if seen else set()
            return await super().check(kind, details, overridden)

    def answer(request: Message) -> Message:
        assert isinstance(request, IncrementalAlterConfigsRequest)
        if not request.validate_only:
            forwarded.extend(each.resource_name for each in request.resources)
        return alters(())(request)

    server = AlteredConfigs(Policies().as_policies(), ResourceTurns(), INCREMENTAL)
    changes = (
        incremental("", ("log.retention.ms", ConfigOperation.SET, "5"), resource_type=ResourceType.BROKER),
        incremental("a", ("retention.ms", ConfigOperation.DELETE, None)),
    )
    # when
    responses = await asyncio.gather(
        *(
            server.handle(IncrementalAlterConfigsRequest(resources=[change]), FakeContext(answer, admin))
            for change in changes
        )
    )
    # then
    assert [each.responses[0].error_code for each in responses] == [0, ErrorCode.POLICY_VIOLATION]
    assert forwarded == [""]


def test_broker_is_decided_on_with_the_other_resources_applied() -> None:
    """Topics inherit from brokers, so each change could be allowed alone."""
    default = incremental("", ("log.retention.ms", ConfigOperation.SET, "5"), resource_type=ResourceType.BROKER)
    admin, policies = with_own(), FakePolicies({"b"})
    admin.described = {(ResourceType.BROKER, ""): {}}
    context = FakeContext(alters(()), admin)
    topics = [incremental(name, ("flush.ms", ConfigOperation.SET, "5")) for name in ("a", "b", "c", "a", "d")]
    response = ask(IncrementalAlterConfigsRequest(resources=[*topics[:2], default, *topics[2:]]), policies, context)
    assert [(each.resource_name, each.error_code) for each in response.responses] == [
        ("a", INVALID),
        ("b", ErrorCode.POLICY_VIOLATION),
        ("", 0),
        ("c", 0),
        ("a", INVALID),
        ("d", 0),
    ]
    real = [[each.resource_name for each in sent.resources] for sent in context.forwarded if not sent.validate_only]
    assert real == [[""], ["c", "d"]]


@pytest.mark.parametrize(
    ("resource_type", "key", "is_klamm", "stored"),
    [
        (ResourceType.BROKER, "log.cleanup.policy", False, "delete,compact"),
        (ResourceType.TOPIC, "cleanup.policy", False, "delete,compact"),
        (ResourceType.TOPIC, "cleanup.policy", True, "other,compact"),
    ],
)
def test_append_to_unset_list_starts_from_default_of_upstream(
    resource_type: ResourceType, key: str, is_klamm: bool, stored: str
) -> None:
    admin, policies = with_own(), FakePolicies()
    synonyms = (
        ConfigSynonym("log.cleanup.policy", "other", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    )
    entry = ConfigEntry("cleanup.policy", "other", source=ConfigSource.STATIC_BROKER_CONFIG, synonyms=synonyms)
    admin.described = {(ResourceType.BROKER, ""): {}, (ResourceType.TOPIC, "a"): {"cleanup.policy": entry}}
    admin.finalized_features = {"client.configs": 1} if is_klamm else {}
    name = "a" if resource_type is ResourceType.TOPIC else ""
    change = incremental(name, (key, ConfigOperation.APPEND, "compact"), resource_type=resource_type)
    ask(IncrementalAlterConfigsRequest(resources=[change]), policies, FakeContext(alters(()), admin))
    assert policies.asked[0].result == {key: stored}


@pytest.mark.parametrize(
    ("stored", "operation", "value", "is_klamm", "result"),
    [
        ("compact,delete", ConfigOperation.SUBTRACT, " delete", False, "compact,delete"),
        ("compact,delete", ConfigOperation.SUBTRACT, " delete", True, "compact"),
        ("compact, delete", ConfigOperation.SUBTRACT, "delete", False, "compact, delete"),
        ("compact, delete", ConfigOperation.SUBTRACT, "compact, delete", False, ""),
        ("compact", ConfigOperation.APPEND, " compact", False, "compact, compact"),
    ],
)
def test_blanks_in_lists_count_as_in_the_upstream(
    stored: str, operation: ConfigOperation, value: str, is_klamm: bool, result: str
) -> None:
    """A policy that saw another result than Kafka's could be bypassed with a blank."""
    admin, policies = with_own(cleanup_policy=stored), FakePolicies()
    admin.finalized_features = {"client.configs": 1} if is_klamm else {}
    change = incremental("a", ("cleanup.policy", operation, value), ("retention.ms", ConfigOperation.SET, "1"))
    ask(IncrementalAlterConfigsRequest(resources=[change]), policies, FakeContext(alters(()), admin))
    assert policies.asked[0].result == {"cleanup.policy": result, "retention.ms": "1"}


@pytest.mark.parametrize(
    ("subtracted", "is_klamm", "results"),
    [
        ("delete", False, ["compact", "compact,delete"]),
        (" delete", False, ["compact,delete", "compact"]),
        ("delete", True, ["compact"]),
        ("other", False, ["compact,delete"]),
    ],
)
@pytest.mark.parametrize("resource_type", [ResourceType.TOPIC, ResourceType.BROKER])
def test_policy_sees_each_possible_result_of_subtract(
    resource_type: ResourceType, subtracted: str, is_klamm: bool, results: list[str]
) -> None:
    """Kafka describes ``compact, delete`` as ``compact,delete``, but subtracts ``delete`` only from the latter."""
    # given
    admin, policies = with_own(cleanup_policy="compact,delete"), FakePolicies()
    key = "cleanup.policy" if resource_type is ResourceType.TOPIC else "log.cleanup.policy"
    entry = ConfigEntry(key, "compact,delete", source=ConfigSource.DYNAMIC_BROKER_CONFIG)
    admin.described = {(ResourceType.BROKER, "1"): {key: entry}}
    admin.finalized_features = {"client.configs": 1} if is_klamm else {}
    name = "a" if resource_type is ResourceType.TOPIC else "1"
    change = incremental(name, (key, ConfigOperation.SUBTRACT, subtracted), resource_type=resource_type)
    context = FakeContext(alters(()), admin)
    # when
    ask(IncrementalAlterConfigsRequest(resources=[change]), policies, context)
    # then
    assert [details.result[key] for details in policies.asked] == results
    assert context.forwarded[-1].resources[0].configs == change.configs


def test_subtract_is_denied_if_one_possible_result_breaks_rule() -> None:
    class Policies(FakePolicies):
        async def check(self, kind: object, details: Any, overridden: Override | None = None) -> Override | None:
            self.denied = {"a"} if details.result["cleanup.policy"] != "compact" else set()
            return await super().check(kind, details, overridden)

    context = FakeContext(alters(()), with_own(cleanup_policy="compact,delete"))
    operations = (("cleanup.policy", ConfigOperation.SUBTRACT, "delete"), ("retention.ms", ConfigOperation.SET, "1"))
    response = ask(IncrementalAlterConfigsRequest(resources=[incremental("a", *operations)]), Policies(), context)
    assert [each.error_code for each in response.responses] == [ErrorCode.POLICY_VIOLATION]
    assert all(sent.validate_only for sent in context.forwarded)


def test_loggers_are_forwarded_without_a_policy_call() -> None:
    policies, admin = FakePolicies({"1"}), with_own()
    logger = incremental("1", ("root", ConfigOperation.SET, "INFO"), resource_type=ResourceType.BROKER_LOGGER)
    context = FakeContext(alters(()), admin)
    response = ask(IncrementalAlterConfigsRequest(resources=[logger]), policies, context)
    assert [entry.error_code for entry in response.responses] == [0]
    assert policies.asked == []
    assert [sent.validate_only for sent in context.forwarded] == [True, False]


def test_resource_of_a_type_that_no_policy_sees_is_denied() -> None:
    context = FakeContext(alters(()), with_own())
    unknown = incremental("a", ("flush.ms", ConfigOperation.SET, "5"), resource_type=77)
    response = ask(IncrementalAlterConfigsRequest(resources=[unknown]), FakePolicies(), context)
    assert [entry.error_code for entry in response.responses] == [ErrorCode.INVALID_REQUEST]
    assert all(sent.validate_only for sent in context.forwarded)


@pytest.mark.parametrize("is_judged", [False, True])
def test_unknown_operation_fails_its_resource_only(is_judged: bool) -> None:
    """K339-30: Unknown op byte (e.g. 9) fails that resource with 42, neighbours are applied."""

    class Policies(FakePolicies):
        def guards_kind(self, kind: object) -> bool:
            return is_judged

    context = FakeContext(alters(()), with_own())
    operation: Any = 9
    unknown = incremental("b", ("flush.ms", operation, "5"))
    other = incremental("a", ("flush.ms", ConfigOperation.SET, "5"))
    response = ask(IncrementalAlterConfigsRequest(resources=[unknown, other]), Policies(), context)
    assert [entry.error_code for entry in response.responses] == [ErrorCode.INVALID_REQUEST, 0]
    assert response.responses[0].error_message == "Unknown operations type 9"
    assert [each.resource_name for sent in context.forwarded for each in sent.resources] == ["a"] * (1 + is_judged)


@pytest.mark.parametrize("is_enforced", [False, True])
@pytest.mark.parametrize("is_legacy", [False, True])
def test_resource_with_unreadable_configs_is_altered_in_audit_mode_only(is_legacy: bool, is_enforced: bool) -> None:
    context, policies = FakeContext(alters(()), FakeAdmin({}, {})), FakePolicies(enforced=is_enforced)
    request: Any = (
        AlterConfigsRequest(resources=[replacement("a", flush_ms="5")])
        if is_legacy
        else IncrementalAlterConfigsRequest(resources=[incremental("a", ("flush.ms", ConfigOperation.SET, "5"))])
    )
    response = ask(request, policies, context)
    ((subject, reason),) = policies.undecided
    assert subject == "TOPIC 'a'"
    assert "The gateway cannot read the configs" in reason
    error = (ErrorCode.UNKNOWN_SERVER_ERROR, reason) if is_enforced else (ErrorCode.NONE, None)
    assert [(entry.error_code, entry.error_message) for entry in response.responses] == [error]
    assert all(sent.validate_only for sent in context.forwarded) == is_enforced


@pytest.mark.parametrize(
    ("name", "value", "is_klamm", "is_rejected"),
    [
        ("create.topic.policy.mode", "audit", False, True),
        ("flow.policy.class.name", "a:B", False, True),
        ("policy.timeout.ms", "5", False, True),
        ("create.topic.policy.mode", "audit", True, False),
        ("create.topic.policy.mode", None, False, False),
        ("policy.rules.file", "", False, False),  # Kafka's tools send DELETE with an empty value
        ("log.retention.ms", "5", False, False),
    ],
)
@pytest.mark.parametrize("is_judged", [False, True])
def test_setting_of_the_gateways_policies_is_rejected_before_kafka_stores_it(
    is_judged: bool, name: str, value: str | None, is_klamm: bool, is_rejected: bool
) -> None:
    class Policies(FakePolicies):
        def guards_kind(self, kind: object) -> bool:
            return is_judged

    admin = with_own()
    admin.configs = {**admin.configs, (ResourceType.BROKER, ""): {}}
    admin.finalized_features = {"client.configs": 1} if is_klamm else {}
    operation = ConfigOperation.SET if value else ConfigOperation.DELETE
    broker = incremental("", (name, operation, value), resource_type=ResourceType.BROKER)
    other = incremental("a", ("flush.ms", ConfigOperation.SET, "5"))
    context = FakeContext(alters(()), admin)
    response = ask(IncrementalAlterConfigsRequest(resources=[broker, other]), Policies(), context)
    assert [entry.error_code for entry in response.responses] == [INVALID if is_rejected else 0, 0]
    sent = [each.resource_name for each in context.forwarded[-1].resources]
    assert sent == ["a"] if is_rejected else ["", "a"]
    if is_rejected:
        assert f"{name} is a setting of the gateway" in response.responses[0].error_message


@pytest.mark.parametrize("is_legacy", [False, True])
def test_policy_sees_configs_of_brokers(is_legacy: bool) -> None:
    policies, admin = FakePolicies({"1"}), with_own()
    entry = ConfigEntry("log.retention.ms", "7", source=ConfigSource.DYNAMIC_BROKER_CONFIG)
    admin.described = {(ResourceType.BROKER, "1"): {"log.retention.ms": entry}}
    changed = ("log.cleaner.threads", "2")
    request: Any = (
        AlterConfigsRequest(
            resources=[
                AlterConfigsRequest.AlterConfigsResource(
                    resource_type=ResourceType.BROKER,
                    resource_name="1",
                    configs=[AlterConfigsRequest.AlterableConfig(name=changed[0], value=changed[1])],
                )
            ]
        )
        if is_legacy
        else IncrementalAlterConfigsRequest(
            resources=[
                incremental("1", (changed[0], ConfigOperation.SET, changed[1]), resource_type=ResourceType.BROKER)
            ]
        )
    )
    response = ask(request, policies, FakeContext(alters(()), admin))
    assert [entry.error_code for entry in response.responses] == [ErrorCode.POLICY_VIOLATION]
    (details,) = policies.asked
    assert (details.resource_type, details.configs) == ("BROKER", dict([changed]))
    assert details.result == (dict([changed]) if is_legacy else {"log.retention.ms": "7", **dict([changed])})
    assert details.removed == (frozenset({"log.retention.ms"}) if is_legacy else frozenset())


def test_policy_sees_inherited_value_of_a_broker_in_the_unit_of_the_config() -> None:
    """A rule that limits ``log.retention.ms`` to a day could be bypassed with 168 hours."""
    # given
    policies, admin = FakePolicies(), with_own()
    synonyms = (
        ConfigSynonym("log.retention.ms", "1000", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ConfigSynonym("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    )
    entry = ConfigEntry("log.retention.ms", "1000", source=synonyms[0].source, synonyms=synonyms)
    admin.described = {(ResourceType.BROKER, "1"): {"log.retention.ms": entry}}
    change = incremental("1", ("log.retention.ms", ConfigOperation.DELETE, None), resource_type=ResourceType.BROKER)
    # when
    ask(IncrementalAlterConfigsRequest(resources=[change]), policies, FakeContext(alters(()), admin))
    # then
    assert policies.asked[0].defaults == {"log.retention.ms": "604800000"}


def test_policy_sees_one_name_of_a_broker_in_any_spelling_of_its_id() -> None:
    policies, admin = FakePolicies(), with_own()
    admin.described = {(ResourceType.BROKER, "+01"): {}}
    change = incremental("+01", ("log.retention.ms", ConfigOperation.SET, "7"), resource_type=ResourceType.BROKER)
    ask(IncrementalAlterConfigsRequest(resources=[change]), policies, FakeContext(alters(()), admin))
    assert [details.resource_name for details in policies.asked] == ["1"]


def test_change_that_no_policy_can_read_is_denied() -> None:
    twice = [("flush.ms", ConfigOperation.SET, value) for value in ("5", "6")]
    context, policies = FakeContext(alters(()), with_own()), FakePolicies()
    response = ask(IncrementalAlterConfigsRequest(resources=[incremental("a", *twice)]), policies, context)
    assert [entry.error_code for entry in response.responses] == [ErrorCode.INVALID_REQUEST]
    assert policies.asked == []


def test_change_without_a_response_delays_no_other_change(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(FakeContext):
        async def forward(self, request: Any) -> Any:
            if not request.validate_only:
                await asyncio.Event().wait()
            return await super().forward(request)

    monkeypatch.setattr(verdicts, "MAX_TURN_S", 0.01)
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", ("flush.ms", ConfigOperation.SET, "5"))])
    with pytest.raises(ConnectionLostError):
        ask(request, FakePolicies(), Silent(alters(()), with_own()))
