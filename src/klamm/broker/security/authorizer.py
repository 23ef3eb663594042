"""Who may do what, asked by handlers: everybody everything, or what the ACLs say."""

from __future__ import annotations

import logging
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

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
from klamm.storage.changes import DropAcl, PutAcl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.broker.session import Session
    from klamm.broker.time_slice import TimeSlice
    from klamm.storage.changes import Change
    from klamm.storage.metadata import MetadataStore

audit: Final = logging.getLogger("klamm.authorizer")

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OWN_AUTHORIZER: Final = "klamm.Authorizer"
_MAX_REMEMBERED: Final = 10_000
"""Decisions kept until an ACL changes."""
_MAX_REMEMBERED_NAME: Final = 249
"""The longest name of a topic; longer names, of which nobody has many, would fill the memory."""

T = TypeVar("T")


class Authorizer(Protocol):
    """What handlers ask."""

    @property
    def is_enabled(self) -> bool:
        """False when everybody may do everything."""
        ...

    def is_allowed(self, session: Session, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Decide one action of whoever is connected."""
        ...

    def is_allowed_on_any(self, session: Session, operation: AclOperation, resource_type: AclResourceType) -> bool:
        """Tell whether some resource of a type may be acted on."""
        ...

    def find(self, wanted: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that are meant.

        Raises:
            SecurityDisabledError: There are none to be had.
        """
        ...

    async def create(self, acls: Sequence[Acl], slices: TimeSlice) -> Sequence[KafkaApiError | None]:
        """Add ACLs; returns the outcome of each.

        Raises:
            SecurityDisabledError: Nothing asks them.
            StorageError: The disk refuses; nothing was applied.
        """
        ...

    async def delete(self, filters: Sequence[AclFilter], slices: TimeSlice) -> Sequence[Sequence[Acl] | KafkaApiError]:
        """Remove what each filter means; returns what was removed, or why not.

        Raises:
            SecurityDisabledError: There are none.
            StorageError: The disk refuses; nothing was applied.
        """
        ...

    def load(self) -> None:
        """Take the ACLs from the store."""
        ...


class AllowAll:
    """No authorizer: everybody may do everything."""

    is_enabled: Final = False

    def is_allowed(
        self, _session: Session, _operation: AclOperation, _resource_type: AclResourceType, _name: str
    ) -> bool:
        """Allow."""
        return True

    def is_allowed_on_any(self, _session: Session, _operation: AclOperation, _resource_type: AclResourceType) -> bool:
        """Allow."""
        return True

    def find(self, _wanted: AclFilter) -> Sequence[Acl]:
        """Refuse."""
        raise SecurityDisabledError("No Authorizer is configured on the broker")

    async def create(self, _acls: Sequence[Acl], _slices: TimeSlice) -> Sequence[KafkaApiError | None]:
        """Refuse."""
        raise SecurityDisabledError("No Authorizer is configured.")

    async def delete(
        self, _filters: Sequence[AclFilter], _slices: TimeSlice
    ) -> Sequence[Sequence[Acl] | KafkaApiError]:
        """Refuse."""
        raise SecurityDisabledError("No Authorizer is configured.")

    def load(self) -> None:
        """There is nothing to load."""


class AclAuthorizer:
    """ACLs, kept in memory and in the metadata store. Loop-confined, no lock."""

    is_enabled: Final = True

    def __init__(self, store: MetadataStore, *, super_users: frozenset[str], allows_without_acl: bool) -> None:
        self._store = store
        self._super_users = super_users
        self._allows_without_acl = allows_without_acl
        self._decided: dict[tuple[str, str, AclOperation, AclResourceType, str], bool] = {}
        self.load()

    def load(self) -> None:
        """Take the ACLs from the store: at start, and when a commit has failed."""
        acls = (_acl(row) for row in self._store.load_acls())
        self._rules = AclRules(acls, super_users=self._super_users, allows_without_acl=self._allows_without_acl)
        self._decided.clear()

    def is_allowed(self, session: Session, operation: AclOperation, resource_type: AclResourceType, name: str) -> bool:
        """Decide one action; a denial is told in the log."""
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
        """Tell whether some resource of a type may be acted on."""
        return self._rules.allow_on_any(session.principal, session.client_host, operation, resource_type)

    def find(self, wanted: AclFilter) -> Sequence[Acl]:
        """Return the ACLs that are meant, in order."""
        return sorted(self._rules.meant_by(wanted), key=_FIELDS)

    async def create(self, acls: Sequence[Acl], slices: TimeSlice) -> Sequence[KafkaApiError | None]:
        """Add ACLs in one commit; one that is there already is no error."""
        outcomes = await slices.listed(_refusal(acl) for acl in acls)
        wanted = {acl: _row(acl) async for acl, error in slices.over(zip(acls, outcomes, strict=True)) if error is None}
        # At once from here on: others were served meanwhile.
        new = {acl: row for acl, row in wanted.items() if acl not in self._rules}
        for acl in new:
            self._rules.add(acl)
        await self._commit(list(new.values()))
        return outcomes

    async def delete(self, filters: Sequence[AclFilter], slices: TimeSlice) -> Sequence[Sequence[Acl] | KafkaApiError]:
        """Remove ACLs in one commit; one that several filters mean is told for each."""
        outcomes: list[Sequence[Acl] | KafkaApiError] = []
        removed: set[Acl] = set()
        async for wanted in slices.over(filters):
            try:
                check_filter(wanted)
            except KafkaApiError as error:
                outcomes.append(error)
                continue
            found = self.find(wanted)
            outcomes.append(found)
            removed.update(found)
        gone = sorted((acl for acl in removed if acl in self._rules), key=_FIELDS)  # others were served meanwhile
        for acl in gone:
            self._rules.remove(acl)
        await self._commit([DropAcl(acl=_row(acl)) for acl in gone])
        return outcomes

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Wait until changes are durable, or, when there are none, what others have changed before."""
        if changes:
            self._decided.clear()
        await self._store.submit(changes)


def open_authorizer(store: MetadataStore, configs: Mapping[str, str]) -> Authorizer:
    """Return what ``authorizer.class.name`` asks for.

    Raises:
        SettingsError: The class is not known, or ``super.users`` cannot be read.
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
"""What ACLs are in the order of; to take it out once for each is a tenth of comparing them by their own methods."""


def _refusal(acl: Acl) -> KafkaApiError | None:
    try:
        check_new_acl(acl)
    except KafkaApiError as error:
        return error
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


def _acl(row: PutAcl) -> Acl:
    return Acl.from_wire(
        row.resource_type,
        row.resource_name,
        row.pattern_type,
        principal=row.principal,
        host=row.host,
        operation=row.operation,
        permission=row.permission,
    )
