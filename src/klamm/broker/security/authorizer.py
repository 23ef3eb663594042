"""Authorizers: one that allows everything, and one that decides by ACLs."""

from __future__ import annotations

import logging
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.properties import SettingsError
from klamm.protocol.errors import KafkaApiError, SecurityDisabledError
from klamm.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclResourceType,
    check_filter,
    check_new_acl,
)
from klamm.security.authorization import AclRules
from klamm.security.principals import parse_super_users
from klamm.storage.metadata.changes import DropAcl, PutAcl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.server.session import Session
    from klamm.server.time_slice import TimeSlice
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

audit: Final = logging.getLogger("klamm.authorizer")

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OWN_AUTHORIZER: Final = "klamm.Authorizer"
_MAX_REMEMBERED: Final = 10_000
"""Maximum number of cached decisions. The cache is cleared when it is full and when an ACL changes."""
_MAX_REMEMBERED_NAME: Final = 249
"""Longest resource name of a cached decision: Kafka's limit for topic names. Longer names are rare and would use up
memory.
"""


class AllowAll:
    """Authorizer of a broker without ``authorizer.class.name``: every action is allowed."""

    is_enabled: Final = False

    def is_allowed(
        self, _session: Session, _operation: AclOperation, _resource_type: AclResourceType, _name: str
    ) -> bool:
        """Return True."""
        return True

    def is_allowed_on_any(self, _session: Session, _operation: AclOperation, _resource_type: AclResourceType) -> bool:
        """Return True."""
        return True

    def find(self, _wanted: AclFilter) -> Sequence[Acl]:
        """Raise SecurityDisabledError."""
        raise SecurityDisabledError("No Authorizer is configured on the broker")

    async def create(self, _acls: Sequence[Acl], _slices: TimeSlice) -> Sequence[KafkaApiError | None]:
        """Raise SecurityDisabledError."""
        raise SecurityDisabledError("No Authorizer is configured.")

    async def delete(
        self, _filters: Sequence[AclFilter], _slices: TimeSlice
    ) -> Sequence[Sequence[Acl] | KafkaApiError]:
        """Raise SecurityDisabledError."""
        raise SecurityDisabledError("No Authorizer is configured.")

    def load(self) -> None:
        """Do nothing: there are no ACLs."""


class AclAuthorizer:
    """Authorizer with ACLs, kept in memory and in the metadata store. Used on the event loop only."""

    is_enabled: Final = True

    def __init__(self, store: MetadataStore, *, super_users: frozenset[str], allows_without_acl: bool) -> None:
        self._store = store
        self._super_users = super_users
        self._allows_without_acl = allows_without_acl
        self._decided: dict[tuple[str, str, AclOperation, AclResourceType, str], bool] = {}
        self.load()

    def load(self) -> None:
        """Load the ACLs from the metadata store: at start, and after a failed commit."""
        acls = (stored_acl(row) for row in self._store.load_acls())
        self._rules = AclRules(acls, super_users=self._super_users, allows_without_acl=self._allows_without_acl)
        self._decided.clear()

    def is_allowed(self, session: Session, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Return whether an action is allowed. Denials are logged by ``klamm.authorizer`` at level DEBUG."""
        question = (session.principal, session.client_host, operation, resource_type, name)
        answer = self._decided.get(question)
        if answer is None:
            answer = self._rules.allow(*question)
            if len(name) <= _MAX_REMEMBERED_NAME:
                if len(self._decided) >= _MAX_REMEMBERED:
                    self._decided.clear()
                self._decided[question] = answer
        if not answer and audit.isEnabledFor(logging.DEBUG):
            audit.debug("%s from %s is denied %s on %s %r", question[0], question[1], operation.name,
                        resource_type.name, name)  # fmt: skip
        return answer

    def is_allowed_on_any(self, session: Session, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Return whether the principal may perform an operation on at least one resource of a type."""
        return self._rules.allow_on_any(session.principal, session.client_host, operation, resource_type)

    def find(self, wanted: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that match a filter, sorted."""
        return sorted(self._rules.meant_by(wanted), key=_FIELDS)

    async def create(self, acls: Sequence[Acl], slices: TimeSlice) -> Sequence[KafkaApiError | None]:
        """Add ACLs in one commit. An ACL that exists already is not an error."""
        outcomes = await slices.listed(_rejection(acl) for acl in acls)
        wanted = {acl: _row(acl) async for acl, error in slices.over(zip(acls, outcomes, strict=True)) if error is None}
        # No pause from here on: other requests may have changed the ACLs during the pauses above.
        new = {acl: row for acl, row in wanted.items() if acl not in self._rules}
        for acl in new:
            self._rules.add(acl)
        await self._commit(list(new.values()))
        return outcomes

    async def delete(self, filters: Sequence[AclFilter], slices: TimeSlice) -> Sequence[Sequence[Acl] | KafkaApiError]:
        """Remove ACLs in one commit. An ACL that matches several filters is returned for each of them."""
        outcomes: list[Sequence[Acl] | KafkaApiError] = []
        removed: set[Acl] = set()
        async for wanted in slices.over(filters):
            try:
                check_filter(wanted)
            except KafkaApiError as error:
                outcomes.append(error.with_traceback(None))
                continue
            matching = self.find(wanted)
            outcomes.append(matching)
            removed.update(matching)
        gone = sorted(
            (acl for acl in removed if acl in self._rules), key=_FIELDS
        )  # other requests may have removed some
        for acl in gone:
            self._rules.remove(acl)
        await self._commit([DropAcl(acl=_row(acl)) for acl in gone])
        return outcomes

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Wait until the changes are durable.

        Without changes, wait for the commits in progress: the ACLs that made this request a no-op may be among them.
        """
        if changes:
            self._decided.clear()
        await self._store.submit(changes)


Authorizer: TypeAlias = AllowAll | AclAuthorizer
"""Authorizer of a broker. Changes raise StorageError if the metadata cannot be written; then nothing was applied."""


def open_authorizer(store: MetadataStore, configs: Mapping[str, str]) -> Authorizer:
    """Return the authorizer that ``authorizer.class.name`` names.

    Raises:
        SettingsError: The class is not supported, or ``super.users`` is malformed.
    """
    name = configs.get("authorizer.class.name", "").strip()
    if not name:
        return AllowAll()
    if name not in (STANDARD_AUTHORIZER, OWN_AUTHORIZER):
        raise SettingsError(
            f"authorizer.class.name={name}: expected {STANDARD_AUTHORIZER} or {OWN_AUTHORIZER};"
            " other Java classes are not run"
        )
    return AclAuthorizer(
        store,
        super_users=parse_super_users(configs.get("super.users")),
        allows_without_acl=configs.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true",
    )


_FIELDS: Final = attrgetter(*(field.name for field in fields(Acl)))
"""Sort key of ACLs. Extracting it once per ACL takes a tenth of the time of comparing the dataclasses."""


def _rejection(acl: Acl) -> KafkaApiError | None:
    try:
        check_new_acl(acl)
    except KafkaApiError as error:
        return error.with_traceback(None)
    return None


def _row(acl: Acl) -> PutAcl:
    return PutAcl(
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission=int(acl.permission),
    )


def stored_acl(row: PutAcl) -> Acl:
    """Return the ACL of a stored row.

    Raises:
        ValueError: The row is damaged.
    """
    return Acl.from_wire(
        row.resource_type,
        row.resource_name,
        row.pattern_type,
        principal=row.principal,
        host=row.host,
        operation=row.operation,
        permission=row.permission,
    )
