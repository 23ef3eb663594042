"""Helpers for unit tests of policies, which need no broker.

::

    from klamm.policy.testing import a_topic, assert_allowed, assert_denied, make_policy

    def test_small_topics_are_rejected() -> None:
        policy = make_policy(AtLeastThree)
        assert_allowed(policy, a_topic("orders", num_partitions=3))
        assert_denied(policy, a_topic("orders", num_partitions=1), match="at least 3")
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from klamm.policy.answers import Override, Throttle, answer_fault, answer_of
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

    from klamm.impact.findings import Impact

PRINCIPAL: Final = "User:tester"
CLIENT_ID: Final = "test"
LISTENER: Final = "PLAINTEXT"

KIND_OF_DETAILS: Final[Mapping[type, PolicyKind]] = {
    TopicDetails: CREATE_TOPIC,
    AlterConfigDetails: ALTER_CONFIG,
    CreatePartitionsDetails: CREATE_PARTITIONS,
    DeleteTopicDetails: DELETE_TOPIC,
}
"""Policy kind for each class of request details."""


def make_policy(policy_class: type[Any], **configs: str) -> Any:
    """Create and configure a policy as a broker does.

    Args:
        policy_class: The policy's class.
        configs: Properties of the broker, with ``_`` instead of ``.``. Pass other names as ``**{"a_b.c": "1"}``.
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
    """Return the details of a topic about to be created. With ``assignments`` the numbers are None, as in a request.

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
    impact: Impact | None = None,
) -> AlterConfigDetails:
    """Return the details of a config change. The resulting configs are computed from the previous ones.

    ``impact`` is what the policy reads as ``details.impact``. Without it, a policy that reads it fails the test.
    """
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
        before=before or {},
        prediction=impact,
    )


def more_partitions(
    topic: str = "orders",
    *,
    now: int = 1,
    then: int = 2,
    new_assignments: Sequence[Sequence[int]] | None = None,
    principal: str = PRINCIPAL,
    client_id: str | None = CLIENT_ID,
    impact: Impact | None = None,
) -> CreatePartitionsDetails:
    """Return the details of a topic about to get more partitions. ``impact`` is as in ``a_config_change``."""
    return CreatePartitionsDetails(
        topic=topic,
        num_partitions=now,
        new_num_partitions=then,
        new_assignments=new_assignments,
        principal=principal,
        client_id=client_id,
        listener=LISTENER,
        prediction=impact,
    )


def a_deletion(
    topic: str = "orders",
    *,
    num_partitions: int = 1,
    principal: str = PRINCIPAL,
    client_id: str | None = CLIENT_ID,
    impact: Impact | None = None,
) -> DeleteTopicDetails:
    """Return the details of a topic about to be deleted. ``impact`` is as in ``a_config_change``."""
    return DeleteTopicDetails(
        topic=topic,
        num_partitions=num_partitions,
        principal=principal,
        client_id=client_id,
        listener=LISTENER,
        prediction=impact,
    )


def ask(policy: object, details: Details) -> KafkaApiError | Override | None:
    """Return the policy's denial or override, or None if it allows the request. Other exceptions propagate.

    Like the broker, this calls a specific method such as ``validate_create_topic`` if there is one, else ``validate``.

    Raises:
        TypeError: The policy returns False, an awaitable or a generator, which fails the request.
    """
    kind = KIND_OF_DETAILS[type(details)]
    method = getattr(policy, kind.method, None) or policy.validate  # type: ignore[attr-defined]
    try:
        answer = answer_of(method(details))
    except KafkaApiError as denial:
        return denial
    if answer is not None and not isinstance(answer, (Override, Throttle)):
        raise TypeError(f"{kind.label} policy: {answer_fault(answer, kind.answers, kind.overridable)}")
    return answer if isinstance(answer, Override) else None


def assert_allowed(policy: object, details: Details) -> None:
    """Raise AssertionError unless the policy allows the request."""
    answer = ask(policy, details)
    if isinstance(answer, Override):
        raise AssertionError(f"overridden: {answer.reason}\n{details}")  # noqa: TRY004 -- an answer, no wrong type
    if answer is not None:
        raise AssertionError(f"denied with {answer.error_code.name}: {answer.error_message}\n{details}")


def assert_overridden(policy: object, details: Details, *, match: str = "") -> Override:
    """Raise AssertionError unless the policy overrides the request; return the override.

    Args:
        policy: The policy.
        details: Details of the request.
        match: Regular expression that must be found in the reason.
    """
    answer = ask(policy, details)
    if not isinstance(answer, Override):
        outcome = "allowed" if answer is None else f"denied: {answer.error_message}"
        raise AssertionError(f"{outcome}\n{details}")  # noqa: TRY004 -- an answer, no wrong type
    if re.search(match, answer.reason) is None:
        raise AssertionError(f"the reason {answer.reason!r} does not match {match!r}")
    return answer


def assert_denied(policy: object, details: Details, *, match: str = "", code: str | None = None) -> KafkaApiError:
    """Raise AssertionError unless the policy denies the request; return the denial.

    Args:
        policy: The policy.
        details: Details of the request.
        match: Regular expression that must be found in the message.
        code: ``POLICY_VIOLATION`` or ``INVALID_REQUEST``. None accepts any code.
    """
    denial = ask(policy, details)
    if not isinstance(denial, KafkaApiError):
        outcome = "allowed" if denial is None else f"overridden: {denial.reason}"
        raise AssertionError(f"{outcome}\n{details}")  # noqa: TRY004 -- an answer, no wrong type
    message = denial.error_message or ""
    if re.search(match, message) is None:
        raise AssertionError(f"the message {message!r} does not match {match!r}")
    if code is not None and denial.error_code.name != code:
        raise AssertionError(f"denied with {denial.error_code.name}, not {code}")
    return denial
