"""Authorizer on a metadata store in memory, and ACL handlers that are called through the codec."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from klamm.broker.context import RequestContext
from klamm.broker.security.authorizer import AclAuthorizer, AllowAll
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.create_acls import CreateAclsRequest
from klamm.security.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.server.session import Session
from klamm.storage.metadata.changes import DropAcl, PutAcl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.security.authorizer import Authorizer
    from klamm.protocol.schema import Message
    from klamm.server.route import Route
    from klamm.storage.metadata.changes import Change

ADMIN = "User:admin"
T = TypeVar("T", bound="Message")


class MemoryAclStore:
    """Part of the metadata store that the authorizer uses, in memory."""

    def __init__(self) -> None:
        self.rows: set[PutAcl] = set()
        self.commits: list[int] = []

    def load_acls(self) -> list[PutAcl]:
        return sorted(self.rows, key=repr)

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        self.commits.append(len(changes))
        for change in changes:
            if isinstance(change, PutAcl):
                self.rows.add(change)
            elif isinstance(change, DropAcl):
                self.rows.discard(change.acl)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class AclBroker:
    """Part of a broker that the ACL handlers use."""

    def __init__(self, *, authorizer: bool = True) -> None:
        self.store = MemoryAclStore()
        self.authorizer: Authorizer = AllowAll()
        if authorizer:
            self.authorizer = AclAuthorizer(
                cast("Any", self.store), super_users=frozenset({ADMIN}), allows_without_acl=False
            )

    def ask(self, route: Route, request: Message, response: type[T], version: int, *, principal: str = ADMIN) -> T:
        """Send a request to a handler and return its response, both through the codec."""
        session = Session(connection_id=1, node_id=1, client_host="127.0.0.1", principal=principal)
        services = cast("Any", SimpleNamespace(authorizer=self.authorizer))
        context = RequestContext(services=services, session=session, api_version=version, client_id=None)
        read = decode(type(request), version, encode(request, version))
        answer = cast("Message", asyncio.run(cast("Any", route.handle(read, context))))
        return decode(response, version, encode(answer, version))


def creation(name: str, principal: str = "User:alice", **more: int) -> CreateAclsRequest.AclCreation:
    """Return an ACL that allows READ on a topic; ``more`` changes parts of it."""
    values: dict[str, Any] = {
        "resource_type": AclResourceType.TOPIC,
        "resource_pattern_type": PatternType.LITERAL,
        "operation": AclOperation.READ,
        "permission_type": AclPermission.ALLOW,
    }
    return CreateAclsRequest.AclCreation(resource_name=name, principal=principal, host="*", **{**values, **more})
