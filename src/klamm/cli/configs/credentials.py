"""SCRAM credentials of users (KIP-554) in ``klamm configs``; passwords are never shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion
from klamm.cli.connection import RequestError
from klamm.kafka_client.errors import CLUSTER_ERRORS, explain
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.security.scram import MAX_ITERATIONS, MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.admin import AdminClient
    from klamm.cli.configs.changes import Changes

DEFAULT_ITERATIONS: Final = 4096
_CREDENTIAL: Final = re.compile(r"(?:iterations=(-1|[0-9]+),)?password=([^\n\ud800-\udfff]*)")
"""Form of a credential. Surrogates stand for bytes of the command line that are not text, and cannot be hashed."""


def find(admin: AdminClient, user: str | None) -> dict[str, tuple[ScramCredentialInfo, ...]]:
    """Return the mechanisms and iterations of the credentials of one user, or of all users sorted by name."""
    if user is None:
        return dict(admin.list_user_scram_credentials().result())
    try:
        return {user: admin.describe_user_scram_credentials([user]).values()[user].result()}
    except KafkaApiError as error:
        if error.error_code == ErrorCode.RESOURCE_NOT_FOUND:
            return {}
        raise


def alter(admin: AdminClient, user: str, changes: Changes) -> None:
    """Set SCRAM credentials of one user, then delete others. Kafka rejects two of one user in a request.

    Raises:
        RequestError: The changes are invalid, and nothing is sent. Or a later request fails; the message names the
            credentials that earlier ones have changed.
    """
    names = (*changes.added, *dict.fromkeys(changes.deleted))
    for index, (name, alteration) in enumerate(zip(names, read(user, changes), strict=True)):
        try:
            admin.alter_user_scram_credentials([alteration]).all().result()
        except CLUSTER_ERRORS as error:
            if not index:
                raise
            changed = ", ".join(names[:index])
            raise RequestError(f"{name}: {explain(error)}; {changed} is already changed") from error


def read(user: str, changes: Changes) -> Sequence[UserScramCredentialUpsertion | UserScramCredentialDeletion]:
    """Parse ``SCRAM-SHA-256=iterations=8192,password=...``.

    Raises:
        RequestError: The value has another form, an empty password, or too few or too many iterations, or a credential
            is set and deleted. The message does not contain the password.
    """
    if both := changes.added.keys() & set(changes.deleted):
        raise RequestError(f"{', '.join(sorted(both))}: one command cannot set and delete the same credential")
    return [
        *(_upsertion(user, ScramMechanism.from_name(name), text) for name, text in changes.added.items()),
        *(UserScramCredentialDeletion(user, ScramMechanism.from_name(name)) for name in dict.fromkeys(changes.deleted)),
    ]


def _upsertion(user: str, mechanism: ScramMechanism, text: str) -> UserScramCredentialUpsertion:
    name = mechanism.mechanism_name
    match = _CREDENTIAL.fullmatch(text)
    if match is None:
        raise RequestError(
            f"Invalid credential property {name}: expected {name}=[password=...] or"
            f" {name}=[iterations=NUMBER,password=...]"
        )
    iterations = DEFAULT_ITERATIONS if match[1] in {None, "-1"} else int(match[1])
    if iterations < MIN_ITERATIONS:
        raise RequestError(f"Iterations {iterations} is less than the minimum {MIN_ITERATIONS} required for {name}")
    if iterations > MAX_ITERATIONS:
        raise RequestError(f"Iterations {iterations} is more than the maximum {MAX_ITERATIONS} allowed for {name}")
    if not match[2]:
        raise RequestError(f"{name}: the password must not be empty")
    return UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, iterations), match[2])


def line(user: str, infos: Sequence[ScramCredentialInfo]) -> str:
    """Return the credentials of a user in the format of Kafka's tool."""
    described = ", ".join(f"{info.mechanism.mechanism_name}=iterations={info.iterations}" for info in infos)
    return f"SCRAM credential configs for user-principal '{user}' are {described}"
