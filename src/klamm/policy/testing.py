"""Help for those who test their policies: no broker is needed.

from klamm.policy.testing import a_topic, assert_allowed, assert_refused, make_policy

def test_small_topics_are_refused() -> None:
    policy = make_policy(AtLeastThree)
    assert_allowed(policy, a_topic("orders", num_partitions=3))
    assert_refused(policy, a_topic("orders", num_partitions=1), match="at least 3")
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from klamm.policy.details import (
    AlterConfigDetails,
    CreatePartitionsDetails,
    DeleteTopicDetails,
    Details,
    TopicDetails,
)
from klamm.policy.kinds import ALTER_CONFIG, CREATE_PARTITIONS, CREATE_TOPIC, DELETE_TOPIC, PolicyKind
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PRINCIPAL: Final = "User:tester"
CLIENT_ID: Final = "test"
LISTENER: Final = "PLAINTEXT"

KIND_OF_DETAILS: Final[Mapping[type, PolicyKind]] = {
    TopicDetails: CREATE_TOPIC,
    AlterConfigDetails: ALTER_CONFIG,
    CreatePartitionsDetails: CREATE_PARTITIONS,
    DeleteTopicDetails: DELETE_TOPIC,
}
"""What is asked with which details."""


def make_policy(policy_class: type[Any], **configs: str) -> Any:
    """Make and configure a policy as a broker does.

    Args:
        policy_class: The class.
        configs: The broker's properties, with ``_`` for ``.``; pass others by ``**{"a_b.c": "1"}``.
    """
    policy = policy_class()
    configure = getattr(policy, "configure", None)
    if configure is not None:
        configure({name if "." in name else name.replace("_", "."): value for name, value in configs.items()})
    return policy


def a_topic(
    topic: str = "orders",
    *,
    num_partitions: int = 1,
    replication_factor: int = 1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    principal: str = PRINCIPAL,
    client_id: str | None = CLIENT_ID,
    validate_only: bool = False,
    defaults: Mapping[str, str] | None = None,
) -> TopicDetails:
    """Build a topic that is about to be created; with ``assignments`` the numbers are None, as in a request.

    ``defaults`` are the broker's values of configs that the topic does not set.
    """
    is_manual = assignments is not None
    return TopicDetails(
        topic,
        None if is_manual else num_partitions,
        None if is_manual else replication_factor,
        assignments,
        configs or {},
        principal=principal,
        client_id=client_id,
        listener=LISTENER,
        validate_only=validate_only,
        defaults=defaults or {},
    )


def a_config_change(
    resource_name: str = "orders",
    *,
    sets: Mapping[str, str] | None = None,
    removes: Sequence[str] = (),
    before: Mapping[str, str] | None = None,
    resource_type: str = "TOPIC",
    principal: str = PRINCIPAL,
    client_id: str | None = CLIENT_ID,
    defaults: Mapping[str, str] | None = None,
) -> AlterConfigDetails:
    """Build a change of configs; what is set then follows from what was set before."""
    sets = sets or {}
    result = {name: value for name, value in {**(before or {}), **sets}.items() if name not in removes}
    altered = {**sets, **dict.fromkeys(removes)}
    return AlterConfigDetails(
        resource_type,
        resource_name,
        altered,
        result,
        principal,
        client_id,
        LISTENER,
        removed=frozenset(before or ()).difference(result),
        defaults=defaults or {},
    )


def more_partitions(
    topic: str = "orders",
    *,
    now: int = 1,
    then: int = 2,
    new_assignments: Sequence[Sequence[int]] | None = None,
    principal: str = PRINCIPAL,
    client_id: str | None = CLIENT_ID,
) -> CreatePartitionsDetails:
    """Build a topic that is about to grow."""
    return CreatePartitionsDetails(
        topic=topic,
        num_partitions=now,
        new_num_partitions=then,
        new_assignments=new_assignments,
        principal=principal,
        client_id=client_id,
        listener=LISTENER,
    )


def a_deletion(
    topic: str = "orders", *, num_partitions: int = 1, principal: str = PRINCIPAL, client_id: str | None = CLIENT_ID
) -> DeleteTopicDetails:
    """Build a topic that is about to be deleted."""
    return DeleteTopicDetails(
        topic=topic, num_partitions=num_partitions, principal=principal, client_id=client_id, listener=LISTENER
    )


def ask(policy: object, details: Details) -> KafkaApiError | None:
    """Return the policy's refusal, None when it allows; whatever else it raises is raised.

    The method asked is the broker's choice: ``validate_create_topic`` and its like when there is one, or ``validate``.
    """
    method = getattr(policy, KIND_OF_DETAILS[type(details)].method, None) or policy.validate  # type: ignore[attr-defined]
    try:
        method(details)
    except KafkaApiError as refusal:
        return refusal
    return None


def assert_allowed(policy: object, details: Details) -> None:
    """Fail unless the policy allows."""
    refusal = ask(policy, details)
    if refusal is not None:
        raise AssertionError(f"refused with {refusal.error_code.name}: {refusal.error_message}\n{details}")


def assert_refused(policy: object, details: Details, *, match: str = "", code: str | None = None) -> KafkaApiError:
    """Fail unless the policy refuses; returns the refusal.

    Args:
        policy: The policy.
        details: What it is asked.
        match: A regular expression that the message contains.
        code: ``POLICY_VIOLATION`` or ``INVALID_REQUEST``; None for any.
    """
    refusal = ask(policy, details)
    if refusal is None:
        raise AssertionError(f"allowed\n{details}")
    message = refusal.error_message or ""
    if re.search(match, message) is None:
        raise AssertionError(f"the message {message!r} does not match {match!r}")
    if code is not None and refusal.error_code.name != code:
        raise AssertionError(f"refused with {refusal.error_code.name}, not {code}")
    return refusal
