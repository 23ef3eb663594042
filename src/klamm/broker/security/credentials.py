"""SCRAM credentials of users (KIP-554), kept in memory and in the metadata store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from klamm.history.change import SCRAM_RESOURCE, RecordedChange, shown_credential
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_from_salted_password,
)
from klamm.server.attempt import NONE, ApiError
from klamm.storage.metadata.changes import DropScramCredential, PutScramCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.history.change import Author
    from klamm.server.time_slice import TimeSlice
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

_TWICE: Final = ApiError(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialDeletion:
    """Request to remove a user's credential."""

    user: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialUpsertion:
    """Request to create or replace a user's credential."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential


class ScramCredentials:
    """Owner of all SCRAM credentials. Used on the event loop only, so it needs no lock.

    Args:
        store: Metadata store that keeps the credentials.
        now_ms: Clock, in milliseconds since the epoch.
    """

    def __init__(self, store: MetadataStore, *, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._credentials: dict[tuple[str, ScramMechanism], ScramCredential] = {}
        self._altering = asyncio.Lock()
        self.load()

    def load(self) -> None:
        """Load the credentials from the metadata store: at start, and after a failed commit."""
        self._credentials = {
            (row.user, ScramMechanism.from_wire(row.mechanism)): ScramCredential(
                salt=row.salt, stored_key=row.stored_key, server_key=row.server_key, iterations=row.iterations
            )
            for row in self._store.load_scram_credentials()
        }

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return a user's credential; None when the user has none for this mechanism."""
        return self._credentials.get((user, mechanism))

    @property
    def users(self) -> tuple[str, ...]:
        """Names of all users with a credential, sorted."""
        return tuple(sorted({user for user, _ in self._credentials}))

    def describe(self, user: str) -> tuple[tuple[ScramMechanism, int], ...]:
        """Return mechanism and iterations of each credential of a user. Secrets are not included."""
        return tuple(
            (mechanism, self._credentials[user, mechanism].iterations)
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            if (user, mechanism) in self._credentials
        )

    async def alter(
        self,
        deletions: Sequence[CredentialDeletion],
        upsertions: Sequence[CredentialUpsertion],
        *,
        author: Author,
        time_slice: TimeSlice,
    ) -> dict[str, ApiError]:
        """Apply the valid changes in one commit and return the outcome of each named user.

        The change history records who set or deleted the credential of which mechanism, without secrets. One call
        decides at a time, because it may pause between the decision on the first user and the change of the last.

        Raises:
            StorageError: The metadata cannot be written. Nothing was applied.
        """
        async with self._altering:
            outcomes = await self._decide(deletions, upsertions, time_slice)
            changes: list[Change] = []
            deleted: list[tuple[str, ScramMechanism]] = []
            set_to: dict[tuple[str, ScramMechanism], ScramCredential] = {}
            async for deletion in time_slice.over(deletions):
                if outcomes[deletion.user] == NONE:
                    changes.append(DropScramCredential(user=deletion.user, mechanism=deletion.mechanism))
                    changes.append(self._line(deletion, None, author))
                    deleted.append((deletion.user, deletion.mechanism))
            async for upsertion in time_slice.over(upsertions):
                if outcomes[upsertion.user] == NONE:
                    changes.append(_row(upsertion))
                    changes.append(self._line(upsertion, upsertion.credential, author))
                    set_to[upsertion.user, upsertion.mechanism] = upsertion.credential
            for key in deleted:
                self._credentials.pop(key, None)
            self._credentials.update(set_to)
            # Without changes, wait for the commits in progress: the deletion of a missing credential may be among them.
            await self._store.submit(changes)
        return outcomes

    def _line(
        self, change: CredentialDeletion | CredentialUpsertion, credential: ScramCredential | None, author: Author
    ) -> RecordedChange:
        return RecordedChange(
            at_ms=self._now_ms(),
            resource=f"{SCRAM_RESOURCE}:{change.user}",
            name=change.mechanism.mechanism_name,
            old=_shown(self._credentials.get((change.user, change.mechanism))),
            new=_shown(credential),
            principal=author.principal,
            client_id=author.client_id,
        )

    async def _decide(
        self,
        deletions: Sequence[CredentialDeletion],
        upsertions: Sequence[CredentialUpsertion],
        time_slice: TimeSlice,
    ) -> dict[str, ApiError]:
        outcomes: dict[str, ApiError] = {}
        async for deletion in time_slice.over(deletions):
            outcome = outcomes.get(deletion.user)
            if outcome is None:
                outcomes[deletion.user] = self._check_deletion(deletion)
            elif outcome == NONE:
                outcomes[deletion.user] = _TWICE
        async for upsertion in time_slice.over(upsertions):
            outcome = outcomes.get(upsertion.user)
            if outcome is None:
                outcomes[upsertion.user] = _check_upsertion(upsertion)
            elif outcome == NONE:
                outcomes[upsertion.user] = _TWICE
        return outcomes

    def _check_deletion(self, deletion: CredentialDeletion) -> ApiError:
        error = _check_name(deletion.user, deletion.mechanism)
        if error == NONE and (deletion.user, deletion.mechanism) not in self._credentials:
            return ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        return error


def upsertion_from_salted_password(
    user: str, mechanism: ScramMechanism, *, salted_password: bytes, salt: bytes, iterations: int
) -> CredentialUpsertion:
    """Return the upsertion for a salted password; for an unknown mechanism with empty keys, which is rejected later."""
    credential = ScramCredential(salt=salt, stored_key=b"", server_key=b"", iterations=iterations)
    if mechanism is not ScramMechanism.UNKNOWN:
        credential = credential_from_salted_password(
            mechanism, salted_password=salted_password, salt=salt, iterations=iterations
        )
    return CredentialUpsertion(user=user, mechanism=mechanism, credential=credential)


def _check_name(user: str, mechanism: ScramMechanism) -> ApiError:
    if not user:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism is ScramMechanism.UNKNOWN:
        return ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return NONE


def _check_upsertion(upsertion: CredentialUpsertion) -> ApiError:
    error = _check_name(upsertion.user, upsertion.mechanism)
    if error != NONE:
        return error
    if upsertion.credential.iterations < MIN_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.credential.iterations > MAX_ITERATIONS:
        return ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return NONE


def _shown(credential: ScramCredential | None) -> str | None:
    return None if credential is None else shown_credential(credential.iterations)


def _row(upsertion: CredentialUpsertion) -> PutScramCredential:
    credential = upsertion.credential
    return PutScramCredential(
        user=upsertion.user,
        mechanism=upsertion.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )
