"""The order in which differences are sent, and what is left out after a failure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.admin import TopicPartition, UserScramCredentialDeletion
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.pool.calls import Outcome
from klamm.policy.answers import REPLICATION_FACTOR, PolicyOverride
from klamm.protocol.errors import PolicyViolationError, UnknownTopicOrPartitionError
from klamm.resources.diff import Ownership, after_override, plan_resources
from klamm.resources.execute import carry_out
from klamm.resources.model import CurrentValue, Declared, Existing, Kind, ResourceKey, Secret

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import (
        AdminClient,
        AlterConfigOp,
        AlterConfigsOptions,
        ConfigResource,
        UserScramCredentialUpsertion,
    )

FOR_ALL = CurrentValue(value="-1", origin="all brokers", is_own=True)
INHERITED = CurrentValue(value="-1", origin="all brokers", is_own=False)
DEFAULT, BROKER, TOPIC = (
    ResourceKey(Kind.BROKER, "default"),
    ResourceKey(Kind.BROKER, "1"),
    ResourceKey(Kind.TOPIC, "audit"),
)
EXISTING = {
    DEFAULT: Existing(values={"log.retention.ms": FOR_ALL}),
    BROKER: Existing(values={"log.retention.ms": INHERITED}),
    TOPIC: Existing(values={"retention.ms": INHERITED}),
}
DECLARED = (
    Declared(kind=Kind.BROKER, name="default", values={"log.retention.ms": "3600000"}),
    Declared(kind=Kind.TOPIC, name="audit", values={"retention.ms": "-1"}),
)


class RecordingAdmin:
    """Cluster that rejects the changes of some resources and keeps the configs of all requests."""

    def __init__(self, rejects: Collection[str] = ()) -> None:
        self._rejects = rejects
        self.requests: list[dict[str, dict[str, str | None]]] = []

    def incremental_alter_configs(
        self, alterations: Mapping[ConfigResource, Sequence[AlterConfigOp]], _: AlterConfigsOptions
    ) -> PerKeyResult[ConfigResource, None]:
        self.requests.append(
            {
                resource.name: {op.config_entry.name: op.config_entry.value for op in ops}
                for resource, ops in alterations.items()
            }
        )
        results: PerKeyResult[ConfigResource, None] = PerKeyResult(alterations)
        for resource, outcome in results.values().items():
            if resource.name in self._rejects:
                outcome.set_exception(PolicyViolationError("no"))
            else:
                outcome.set_result(None)
        return results

    def describe_topics(self, names: Collection[str], *, is_current: bool) -> PerKeyResult[str, None]:
        assert is_current
        assert not names
        return PerKeyResult(names)

    @property
    def changed(self) -> list[str]:
        """Names of the resources of all requests, in their order; an empty one is the default of all brokers."""
        return [name for request in self.requests for name in request]


@pytest.mark.parametrize(
    ("declared", "ownership"),
    [
        (DECLARED, Ownership()),
        (DECLARED[1:], Ownership(prune={Kind.BROKER: None})),
    ],
    ids=["changed", "pruned"],
)
def test_inherited_value_is_set_before_the_broker_config_changes(
    declared: Sequence[Declared], ownership: Ownership
) -> None:
    admin = RecordingAdmin()
    carry_out(cast("AdminClient", admin), plan_resources(declared, EXISTING, ownership), EXISTING, validate_only=False)
    assert admin.requests[0] == {"audit": {"retention.ms": "-1"}}
    assert "" in admin.changed[1:]


@pytest.mark.parametrize("declared_value", ["-1", "86400000"])
def test_declared_value_is_set_once_and_before_the_broker_config_changes(declared_value: str) -> None:
    """Whether it is the inherited one or another."""
    admin = RecordingAdmin()
    audit = replace(DECLARED[1], values={"retention.ms": declared_value})
    carry_out(cast("AdminClient", admin), plan_resources((DECLARED[0], audit), EXISTING), EXISTING, validate_only=False)
    assert admin.requests == [{"audit": {"retention.ms": declared_value}}, {"": {"log.retention.ms": "3600000"}}]


def test_value_that_a_policy_sets_is_set_before_the_broker_config_changes() -> None:
    """Also if it is the one that the topic inherits until then."""
    admin = RecordingAdmin()
    audit = replace(DECLARED[1], values={"retention.ms": "1000"})
    default, topic = plan_resources((DECLARED[0], audit), EXISTING)
    corrected = after_override(topic, PolicyOverride(reason="keep", values={"retention.ms": "-1"}), EXISTING[TOPIC])
    carry_out(cast("AdminClient", admin), (default, corrected), EXISTING, validate_only=False)
    assert admin.requests == [{"audit": {"retention.ms": "-1"}}, {"": {"log.retention.ms": "3600000"}}]


def test_broker_config_stays_if_a_topic_cannot_be_described() -> None:
    admin = RecordingAdmin()
    unknown = {**EXISTING, TOPIC: Existing(values={}, problem="no right")}
    outcomes = carry_out(cast("AdminClient", admin), plan_resources(DECLARED, unknown), unknown, validate_only=False)
    assert (admin.changed, outcomes.skipped) == ([], frozenset({DEFAULT}))


def test_resource_that_was_changed_before_a_rejected_broker_config_is_not_skipped() -> None:
    admin = RecordingAdmin(rejects={""})
    outcomes = carry_out(
        cast("AdminClient", admin), plan_resources(DECLARED, EXISTING), EXISTING, validate_only=False, keep_going=False
    )
    assert (admin.changed, set(outcomes.errors), outcomes.skipped) == (["audit", ""], {DEFAULT}, frozenset())


class ThreeBrokers(RecordingAdmin):
    """Cluster of three brokers. An undeclared topic has its replicas on broker 2, another cannot be described."""

    def describe_cluster(self) -> Outcome[object]:
        return _completed(SimpleNamespace(nodes=[SimpleNamespace(id=broker, rack=None) for broker in (1, 2, 3)]))

    def list_topics(self, *, include_internal: bool) -> Outcome[Mapping[str, object]]:
        assert include_internal
        return _completed(dict.fromkeys(("audit", "undeclared", "deleted")))

    def describe_topics(self, names: Collection[str], *, is_current: bool = False) -> PerKeyResult[str, Any]:
        result: PerKeyResult[str, Any] = PerKeyResult(names)
        for name, outcome in result.values().items():
            if name == "deleted":
                outcome.set_exception(UnknownTopicOrPartitionError("deleted"))
            else:
                replicas = (1,) if name == "audit" else (2,)
                outcome.set_result(SimpleNamespace(partitions=[SimpleNamespace(replicas=replicas)]))
        return result

    def alter_partition_reassignments(
        self, moves: Mapping[TopicPartition, Sequence[int]]
    ) -> PerKeyResult[TopicPartition, None]:
        self.moves = dict(moves)
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(moves)
        for outcome in result.values().values():
            outcome.set_result(None)
        return result


def _completed(value: Any) -> Outcome[Any]:
    outcome: Outcome[Any] = Outcome()
    outcome.set_result(value)
    return outcome


def test_new_replica_goes_to_the_broker_with_the_fewest_replicas_of_all_topics() -> None:
    # given
    admin = ThreeBrokers()
    factor = CurrentValue(value="1", origin="topic", is_own=True)
    existing = {TOPIC: Existing(values={REPLICATION_FACTOR: factor}, replicas=((1,),))}
    declared = Declared(kind=Kind.TOPIC, name="audit", values={REPLICATION_FACTOR: "2"})
    # when
    carry_out(cast("AdminClient", admin), plan_resources((declared,), existing), existing, validate_only=False)
    # then
    assert admin.moves == {TopicPartition("audit", 0): (1, 3)}


@pytest.mark.parametrize("keep_going", [False, True])
@pytest.mark.parametrize("is_known_before", [False, True])
@pytest.mark.parametrize("declared_value", ["-1", "86400000"])
def test_broker_config_stays_if_the_value_inherited_from_it_cannot_be_set(
    declared_value: str, keep_going: bool, is_known_before: bool
) -> None:
    """Otherwise a topic whose file keeps its records for ever would lose them."""
    # given
    admin = RecordingAdmin(rejects={"audit"})
    audit = replace(DECLARED[1], values={"retention.ms": declared_value})
    other = Declared(kind=Kind.BROKER, name="1", values={"log.cleaner.threads": "2"})
    # when
    outcomes = carry_out(
        cast("AdminClient", admin),
        plan_resources((DECLARED[0], audit, other), EXISTING),
        EXISTING,
        validate_only=False,
        keep_going=keep_going,
        failed_before=[TOPIC] if is_known_before else [],
    )
    # then
    assert admin.changed == (["1"] if is_known_before else ["audit", "1"])
    assert (set(outcomes.errors), outcomes.skipped) == (
        set() if is_known_before else {TOPIC},
        frozenset({DEFAULT}),
    )


class CredentialAdmin:
    """Cluster that rejects some users and keeps the credentials of all requests, as text."""

    def __init__(self, rejects: Collection[str] = ()) -> None:
        self._rejects = rejects
        self.requests: list[list[str]] = []

    def alter_user_scram_credentials(
        self, alterations: Collection[UserScramCredentialUpsertion | UserScramCredentialDeletion]
    ) -> PerKeyResult[str, None]:
        self.requests.append(
            [
                f"- {each.user} {each.mechanism.mechanism_name}"
                if isinstance(each, UserScramCredentialDeletion)
                else f"+ {each.user} {each.credential_info.mechanism.mechanism_name}"
                for each in alterations
            ]
        )
        results: PerKeyResult[str, None] = PerKeyResult(each.user for each in alterations)
        for user, outcome in results.values().items():
            if user in self._rejects:
                outcome.set_exception(PolicyViolationError("no"))
            else:
                outcome.set_result(None)
        return results


def credentials_sent(admin: CredentialAdmin, *declared: Declared) -> Mapping[ResourceKey, BaseException]:
    """Send credentials to a cluster in which bob has SCRAM-SHA-256, and carol both mechanisms."""
    there = CurrentValue(value="4096", origin="cluster", is_own=True)
    bob, carol = ResourceKey(Kind.SCRAM, "bob"), ResourceKey(Kind.SCRAM, "carol")
    existing = {
        bob: Existing(values={"SCRAM-SHA-256": there}),
        carol: Existing(values={"SCRAM-SHA-256": there, "SCRAM-SHA-512": there}),
    }
    diffs = plan_resources(declared, existing)
    return carry_out(cast("AdminClient", admin), diffs, existing, validate_only=False).errors


def user(name: str, *mechanisms: str, is_absent: bool = False, owns_all: bool = False) -> Declared:
    return Declared(
        kind=Kind.SCRAM,
        name=name,
        values=dict.fromkeys(mechanisms, "8192"),
        secrets=dict.fromkeys(mechanisms, Secret(variable="SCRAM_TEST_PASSWORD")),
        is_absent=is_absent,
        owns_all=owns_all,
    )


@pytest.mark.parametrize(
    ("rejects", "second"), [((), ["+ dan SCRAM-SHA-512", "- bob SCRAM-SHA-256"]), (("bob",), ["+ dan SCRAM-SHA-512"])]
)
def test_credentials_of_a_user_are_sent_in_one_request_each_and_new_ones_first(
    rejects: Collection[str], second: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setenv("SCRAM_TEST_PASSWORD", "secret")
    admin = CredentialAdmin(rejects)
    new, replaced = user("dan", "SCRAM-SHA-256", "SCRAM-SHA-512"), user("bob", "SCRAM-SHA-512", owns_all=True)
    # when
    errors = credentials_sent(admin, new, replaced)
    # then
    assert [set(request) for request in admin.requests] == [{"+ dan SCRAM-SHA-256", "+ bob SCRAM-SHA-512"}, set(second)]
    assert {key.name for key in errors} == set(rejects)


def test_both_credentials_of_an_absent_user_are_deleted() -> None:
    admin = CredentialAdmin()
    assert credentials_sent(admin, user("carol", is_absent=True)) == {}
    assert admin.requests == [["- carol SCRAM-SHA-256"], ["- carol SCRAM-SHA-512"]]
