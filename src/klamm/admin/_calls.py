"""Shared parts of all groups of admin calls: the connection pool, results settled in the background, and checks.

The checks come before a request is sent. They and their messages are those of Kafka's ``KafkaAdminClient``.
"""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.admin.types import AlterConfigOp, ConfigEntry, ConfigValue, OpType
from klamm.configs.values import config_text
from klamm.kafka_client.errors import RETRIABLE_CHANGE_CODES, api_error
from klamm.kafka_client.pool.keyed_calls import ATTEMPT_MS, KeyedCall, find_coordinators
from klamm.kafka_client.pool.pool import CONTROLLER
from klamm.protocol.errors import ErrorCode, InvalidRequestError, InvalidTopicError, KafkaApiError
from klamm.security.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.scram import MAX_ITERATIONS, MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
    from concurrent.futures import Future

    from klamm.admin.results import PerKeyResult
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.keyed_calls import Ask
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.types import TopicPartition
    from klamm.security.acls import Acl, AclFilter
    from klamm.security.scram import ScramMechanism

Key = TypeVar("Key")
Value = TypeVar("Value")
NO_LEADERS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})
"""Default of ``leaders``: the call looks them all up."""


class AdminCalls:
    """Base class that runs coroutines on the connection pool's thread and settles one future per key."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def _start(
        self,
        result: PerKeyResult[Key, Any],
        work: functools.partial[Coroutine[Any, Any, None]],
        *,
        keys: Collection[Key] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Start work that settles ``keys`` of the result.

        If it raises, the keys that are still open fail with its error.
        """

        def finish(done: Future[None]) -> None:
            error = done.exception() or KafkaApiError("The broker's response has no entry for this resource")
            result.fail_open(error, keys)

        self._pool.submit(functools.partial(work, self._pool), timeout_ms=timeout_ms).add_done_callback(finish)


def controller_change(
    what: str,
    ask: Ask[Key, Value],
    settle: Callable[[Key, Value | Exception], None],
    check: Callable[[Key], KafkaApiError | None] = lambda _: None,
) -> KeyedCall[Key, Value]:
    """Return a change that the controller makes. It is not repeated after an error that leaves its outcome open."""
    return KeyedCall(
        what=what, ask=ask, settle=settle, node_id=CONTROLLER, retriable=RETRIABLE_CHANGE_CODES, check=check
    )


async def ask_coordinators(
    what: str,
    pool: ConnectionPool,
    deadline: Deadline,
    ask: Ask[str, Value],
    result: PerKeyResult[str, Value],
    *,
    attempt_ms: int = ATTEMPT_MS,
) -> None:
    """Call the coordinator of each group, and settle the groups."""
    find = functools.partial(find_coordinators, pool, deadline)
    call = KeyedCall(what=what, ask=ask, settle=result.settle, find=find, attempt_ms=attempt_ms)
    await call.run(pool, deadline, result.values())


def check_topic(name: str) -> KafkaApiError | None:
    """Return the error of an empty topic name, which no request can carry."""
    return None if name else InvalidTopicError(f"The given topic name '{name}' cannot be represented in a request.")


def check_partition(partition: TopicPartition) -> KafkaApiError | None:
    """Return the error of a partition with an empty topic name or a negative index."""
    if partition.partition < 0:
        return InvalidTopicError(f"The given partition index {partition.partition} is not valid.")
    return check_topic(partition.topic)


def check_acl(acl: Acl) -> KafkaApiError | None:
    """Return the error of an ACL to create with an open or unknown field."""
    fields = {
        "Resource type": acl.resource_type if acl.resource_type <= AclResourceType.ANY else None,
        "Resource pattern type": acl.pattern_type if acl.pattern_type <= PatternType.MATCH else None,
        "Operation": acl.operation if acl.operation <= AclOperation.ANY else None,
        "Permission type": acl.permission if acl.permission <= AclPermission.ANY else None,
    }
    indefinite = next((f"{field} is {value.name}" for field, value in fields.items() if value is not None), None)
    return None if indefinite is None else InvalidRequestError(f"Invalid ACL creation: {indefinite}")


def check_acl_filter(wanted: AclFilter) -> KafkaApiError | None:
    """Return the error of a filter with an unknown field."""
    if all((wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission)):
        return None
    return InvalidRequestError("The AclBindingFilter must not contain UNKNOWN elements.")


def check_scram(user: str, alterations: Iterable[tuple[ScramMechanism, str | None, int]]) -> KafkaApiError | None:
    """Return the error of a user's SCRAM credentials to set or delete.

    The broker checks the iterations, too, but only after this process has computed all of them.

    Args:
        user: Name of the user.
        alterations: Mechanism, password and iterations of each credential. A deletion has the password None.
    """
    if not user:
        return api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    for mechanism, password, iterations in alterations:
        if password == "":
            return api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Password must not be empty")
        if not mechanism:
            return api_error(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        if password is not None and not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            few_or_many = "few" if iterations < MIN_ITERATIONS else "many"
            return api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {few_or_many} iterations")
    return None


def operations(
    *,
    set: Mapping[str, ConfigValue],  # noqa: A002 - KIP-339's word
    append: Mapping[str, ConfigValue],
    subtract: Mapping[str, ConfigValue],
    delete: Iterable[str],
) -> list[AlterConfigOp]:
    """Return the operations of KIP-339 for the arguments.

    Raises:
        TypeError: ``delete`` is a single string, which would otherwise be read as one key per character, or a value
            cannot be a config.
    """
    if isinstance(delete, str):
        raise TypeError(f"delete={delete!r}: expected a list of keys, as in delete=[{delete!r}]")
    changes = [
        AlterConfigOp(ConfigEntry(name, config_text(name, value)), kind)
        for kind, values in ((OpType.SET, set), (OpType.APPEND, append), (OpType.SUBTRACT, subtract))
        for name, value in values.items()
    ]
    return changes + [AlterConfigOp(ConfigEntry(name, None), OpType.DELETE) for name in delete]
