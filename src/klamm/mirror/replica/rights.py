"""Rights of clients at klamm's listeners, decided as the target's brokers decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.replica.inter_broker import STANDARD_AUTHORIZER
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from klamm.security.authorization import AclRules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.mirror.copy.equal_offsets import ReplicaSettings
    from klamm.security.acls import Acl


class ReplicaRights:
    """Rights by the ACLs of the target and by klamm's copy of the brokers' configs.

    An authorizer other than Kafka's own has rules that are not in the metadata. Then only super users have rights.

    Args:
        settings: Super users, and whether everybody may do what no ACL concerns.
        authorizer: Class of the brokers' authorizer. Empty: everything is allowed. None: it is not known, so Kafka's.
        acls: ACLs of the target.
    """

    def __init__(self, settings: ReplicaSettings, authorizer: str | None, acls: Iterable[Acl]) -> None:
        self.authorizer = authorizer
        has_acls = authorizer in (None, STANDARD_AUTHORIZER)
        self._rules = AclRules(
            acls if has_acls else (),
            super_users=settings.super_users,
            allows_without_acl=has_acls and settings.allows_without_acl,
        )

    def allow(self, principal: str, host: str, operation: AclOperation, kind: AclResourceType, name: str) -> bool:
        """Return whether an action is allowed. Arguments are those of ``AclRules.allow``."""
        return self.authorizer == "" or self._rules.allow(principal, host, operation, kind, name)

    def allow_broker(self, principal: str, host: str) -> bool:
        """Return whether a client may act as a broker."""
        return self.allow(principal, host, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
