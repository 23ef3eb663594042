"""ACL sync: creates ACLs on remote topics from the ACLs of their source topics (``sync.topic.acls.enabled``)."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import AclFilter, KafkaApiError
from klamm.kafka_client.errors import error_text
from klamm.mirror.cluster_admin import outcome, rejections
from klamm.mirror.topics.config_sync import log_refusal
from klamm.protocol.errors import SecurityDisabledError, UnsupportedVersionError
from klamm.security.acls import AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.admin import AdminClient
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.security.acls import Acl

logger = logging.getLogger(__name__)

_TOPIC_ACLS: Final = AclFilter(
    resource_type=AclResourceType.TOPIC,
    resource_name=None,
    pattern_type=PatternType.ANY,
    principal=None,
    host=None,
    operation=AclOperation.ANY,
    permission=AclPermission.ANY,
)


def remote_acls(acls: Iterable[Acl], topics: Iterable[str], remote_topic: Callable[[str], str]) -> tuple[Acl, ...]:
    """Return the ACLs that the target should have for mirrored topics, as MirrorMaker 2 does.

    ======================================  ==========================================
    ACL of a source topic                   ACL of its remote topic
    ======================================  ==========================================
    ALLOW WRITE                             none: only the mirror writes remote topics
    ALLOW ALL                               ALLOW READ
    any other ALLOW, every DENY             the same
    pattern other than LITERAL              none
    ======================================  ==========================================
    """
    mirrored = frozenset(topics)
    out = []
    for acl in acls:
        if acl.resource_type is not AclResourceType.TOPIC or acl.pattern_type is not PatternType.LITERAL:
            continue
        allows = acl.permission is AclPermission.ALLOW
        if acl.resource_name not in mirrored or (allows and acl.operation is AclOperation.WRITE):
            continue
        reads_only = allows and acl.operation is AclOperation.ALL
        operation = AclOperation.READ if reads_only else acl.operation
        out.append(replace(acl, resource_name=remote_topic(acl.resource_name), operation=operation))
    return tuple(dict.fromkeys(out))


def in_words(acl: Acl) -> str:
    """Return permission, operation, principal and host of an ACL as text for messages."""
    return f"{acl.permission.name} {acl.operation.name} for {acl.principal} from {acl.host}"


class AclSync:
    """ACL sync of one flow. It creates ACLs and never deletes any. Confined to the flow's thread."""

    def __init__(self, settings: FlowSettings, source: AdminClient, target: AdminClient) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self._is_logged = False

    def run(self, topics: Sequence[str]) -> None:
        """Create the missing ACLs on remote topics that exist.

        Args:
            topics: Names of the source topics that are mirrored.

        Raises:
            ConnectionError, TimeoutError: A cluster is unavailable. The rest of this round is skipped.
        """
        settings = self._settings
        for acl, refused in self._create(self.missing(topics)).items():
            what = in_words(acl)
            if refused is None:
                logger.info("%s: topic %s: created ACL %s", settings.name, acl.resource_name, what)
            else:
                alias = settings.target.alias
                log_refusal(refused, f"create ACL {what} on topic {acl.resource_name} of cluster {alias}")

    def missing(self, topics: Sequence[str]) -> list[Acl]:
        """Return the ACLs that the remote topics of these source topics lack.

        Raises:
            ConnectionError, TimeoutError: A cluster is unavailable.
        """
        acls = _topic_acls(self._source)
        if isinstance(acls, KafkaApiError):
            self._not_described(acls)
            return []
        wanted = remote_acls(acls, topics, self._settings.remote_topic)
        existing = self._existing() if wanted else frozenset()
        return [acl for acl in wanted if acl not in existing]

    def _existing(self) -> frozenset[Acl]:
        """Return the ACLs of the target. Without the right to describe them, return none: all ACLs are then sent."""
        acls = _topic_acls(self._target)
        return frozenset() if isinstance(acls, KafkaApiError) else frozenset(acls)

    def _create(self, acls: Sequence[Acl]) -> dict[Acl, KafkaApiError | None]:
        if not acls:
            return {}
        try:
            return rejections(self._target.create_acls(acls))
        except UnsupportedVersionError as error:
            self._log_once(f"cluster {self._settings.target.alias} does not support ACLs: {error_text(error)}")
            return {}

    def _not_described(self, error: KafkaApiError) -> None:
        alias = self._settings.source.alias
        if isinstance(error, (SecurityDisabledError, UnsupportedVersionError)):
            self._log_once(f"cluster {alias} does not support ACLs")
        else:
            log_refusal(error, f"describe the ACLs of topics on cluster {alias}")

    def _log_once(self, reason: str) -> None:
        """Log once why no ACLs are synced."""
        if not self._is_logged:
            self._is_logged = True
            logger.info(
                "%s: no ACLs are synced: %s. Set sync.topic.acls.enabled=false to stop trying",
                self._settings.name,
                reason,
            )


def _topic_acls(admin: AdminClient) -> tuple[Acl, ...] | KafkaApiError:
    """Return the ACLs of topics, or why the cluster does not return them: no right, no authorizer or no such API."""
    try:
        return outcome(admin.describe_acls(_TOPIC_ACLS))
    except UnsupportedVersionError as error:
        return error
