"""SCRAM credentials of users (KIP-554), available from Kafka 2.7 on.

::

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=8192)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", info, "a password")]).all().result()
    admin.describe_user_scram_credentials(["alice"]).values()["alice"].result()  # (info,)
    admin.list_user_scram_credentials().result()  # {"alice": (info,)}
    deletion = UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion]).all().result()

The password never leaves this process. Only its salted hash is sent.
"""

from __future__ import annotations

import functools
import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin._calls import AdminCalls, check_scram, controller_change
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.errors import raise_for_code
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from klamm.security.scram import ScramMechanism, salt_password

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.kafka_client.pool.calls import Deadline, Outcome
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

_SALT_BYTES: Final = 24
_Results: TypeAlias = "list[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult]"


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """Public properties of a SCRAM credential."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A password to set. It replaces the user's credential for this mechanism."""

    user: str
    credential_info: ScramCredentialInfo
    password: str = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)
    """Salt of the hash. None means a new random salt."""


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """A credential to delete."""

    user: str
    mechanism: ScramMechanism


ScramAlteration: TypeAlias = UserScramCredentialUpsertion | UserScramCredentialDeletion


class CredentialCalls(AdminCalls):
    """Admin calls for SCRAM credentials."""

    def describe_user_scram_credentials(
        self, users: Collection[str], *, timeout_ms: int | None = None
    ) -> PerKeyResult[str, tuple[ScramCredentialInfo, ...]]:
        """Return mechanisms and iterations per user. A user without credentials fails with RESOURCE_NOT_FOUND."""
        result: PerKeyResult[str, tuple[ScramCredentialInfo, ...]] = PerKeyResult(users)
        self._start(result, functools.partial(_describe, result=result), timeout_ms=timeout_ms)
        return result

    def list_user_scram_credentials(
        self, *, timeout_ms: int | None = None
    ) -> Outcome[Mapping[str, tuple[ScramCredentialInfo, ...]]]:
        """Return mechanisms and iterations of all users that have credentials."""
        return self._pool.submit(lambda deadline: _list(self._pool, deadline), timeout_ms=timeout_ms)

    def alter_user_scram_credentials(
        self, alterations: Collection[ScramAlteration], *, timeout_ms: int | None = None
    ) -> PerKeyResult[str, None]:
        """Set and delete credentials. A user that appears twice in one call fails with DUPLICATE_RESOURCE.

        A user with an empty name or password, or with other than 4,096 to 16,384 iterations, fails with
        UNACCEPTABLE_CREDENTIAL, and nothing of this user is sent.
        """
        result: PerKeyResult[str, None] = PerKeyResult(alteration.user for alteration in alterations)
        work = functools.partial(_alter, alterations=tuple(alterations), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result


async def _describe(
    pool: ConnectionPool, deadline: Deadline, *, result: PerKeyResult[str, tuple[ScramCredentialInfo, ...]]
) -> None:

    async def ask(
        node_id: int | None, keys: list[str], attempt: Deadline
    ) -> Mapping[str, tuple[ScramCredentialInfo, ...] | KafkaApiError]:
        results = await _ask(pool, attempt, keys)
        return {each.user: result_of(each.error_code, each.error_message, _infos(each)) for each in results}

    await KeyedCall(what="DescribeUserScramCredentials", ask=ask, settle=result.settle).run(
        pool, deadline, result.values()
    )


async def _list(pool: ConnectionPool, deadline: Deadline) -> Mapping[str, tuple[ScramCredentialInfo, ...]]:
    users = await _ask(pool, deadline, None)
    for user in users:
        raise_for_code(user.error_code, user.error_message)
    return {result.user: _infos(result) for result in sorted(users, key=lambda result: result.user)}


async def _ask(pool: ConnectionPool, deadline: Deadline, users: Collection[str] | None) -> _Results:
    names = None if users is None else [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
    response = await pool.send(
        DescribeUserScramCredentialsRequest(users=names), DescribeUserScramCredentialsResponse, deadline=deadline
    )
    pool.check(response)
    return response.results


def _infos(
    result: DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult,
) -> tuple[ScramCredentialInfo, ...]:
    return tuple(
        ScramCredentialInfo(ScramMechanism.from_wire(info.mechanism), info.iterations)
        for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
    )


async def _alter(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    alterations: tuple[ScramAlteration, ...],
    result: PerKeyResult[str, None],
) -> None:
    Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion  # noqa: N806  # a class

    async def ask(node_id: int | None, keys: list[str], attempt: Deadline) -> Mapping[str, KafkaApiError | None]:
        users = set(keys)
        wanted = [each for each in alterations if each.user in users]
        request = AlterUserScramCredentialsRequest(
            deletions=[
                Deletion(name=each.user, mechanism=each.mechanism)
                for each in wanted
                if isinstance(each, UserScramCredentialDeletion)
            ],
            upsertions=[_upsertion(each) for each in wanted if isinstance(each, UserScramCredentialUpsertion)],
        )
        response = await pool.send(request, AlterUserScramCredentialsResponse, deadline=attempt, node_id=node_id)
        return {each.user: result_of(each.error_code, each.error_message, None) for each in response.results}

    def check(user: str) -> KafkaApiError | None:
        own = [each for each in alterations if each.user == user]
        return check_scram(user, [_checked_parts(each) for each in own])

    call = controller_change("AlterUserScramCredentials", ask, result.settle, check=check)
    await call.run(pool, deadline, result.values())


def _checked_parts(alteration: ScramAlteration) -> tuple[ScramMechanism, str | None, int]:
    if isinstance(alteration, UserScramCredentialDeletion):
        return alteration.mechanism, None, 0
    return alteration.credential_info.mechanism, alteration.password, alteration.credential_info.iterations


def _upsertion(upsertion: UserScramCredentialUpsertion) -> AlterUserScramCredentialsRequest.ScramCredentialUpsertion:
    salt = secrets.token_bytes(_SALT_BYTES) if upsertion.salt is None else upsertion.salt
    mechanism, iterations = upsertion.credential_info.mechanism, upsertion.credential_info.iterations
    return AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=upsertion.user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salt_password(mechanism, upsertion.password, salt=salt, iterations=iterations),
    )
