"""Client configs of one gateway: start and stop of their topics, and the records of registrations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.registrations import TOPIC, TOPIC_CONFIGS
from klamm.gateway.client_configs import config_log
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, HISTORY_TOPIC_CONFIGS
from klamm.gateway.client_configs.store import ClientConfigStore
from klamm.gateway.client_configs.topic_image import FollowedTopic
from klamm.gateway.definitions import CLIENT_CONFIGS
from klamm.gateway.upstream.internal_topic import (
    InternalTopic,
    InternalTopicGoneError,
    TransactionalTopic,
    create_internal_topics,
    final_code,
)
from klamm.gateway.upstream.topic_worker import TopicWorker
from klamm.kafka_client.errors import CLUSTER_ERRORS, api_error
from klamm.properties import SettingsError
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.records import Record
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.admin import AdminClient
    from klamm.client_configs.definitions import BrokerLimits
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.server.time_slice import TimeSlice


logger = logging.getLogger(__name__)

_ASK_MS: Final = 2_000
_CHANGED_TOPICS: Final = {config_log.TOPIC: config_log.TOPIC_CONFIGS, HISTORY_TOPIC: HISTORY_TOPIC_CONFIGS}
"""Topics that a change is written to, with their configs."""
_LOAD_S: Final = 10.0
"""Time that a start waits for the topics. After it the gateway listens, and ``/ready`` reports that it is not ready."""


class UpstreamClientConfigs:
    """Configs and registrations in topics of the upstream. Used on the event loop only.

    Args:
        settings: Settings of connections to the upstream.
        limits: Function that returns the limits for values.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(
        self, settings: ConnectionSettings, *, limits: Callable[[], BrokerLimits], now_ms: Callable[[], int]
    ) -> None:
        self._registrations = UpstreamRegistrations(settings, now_ms)
        self._config_topic = FollowedTopic(InternalTopic(settings, config_log.TOPIC))
        self._registration_topic = FollowedTopic(InternalTopic(settings, TOPIC))
        self.store = ClientConfigStore(
            self._config_topic,
            TransactionalTopic(settings, config_log.TOPIC),
            registration_topic=self._registration_topic,
            registrations=self._registrations.log,
            limits=limits,
            now_ms=now_ms,
        )

    async def start(self, admin: AdminClient) -> None:
        """Load the topics, and create them if they do not exist.

        The gateway starts without them if the upstream does not respond, and loads them later.

        Raises:
            SettingsError: The upstream is a klamm broker, which serves client configs itself.
        """
        with contextlib.suppress(*CLUSTER_ERRORS):
            if CLIENT_CONFIGS_FEATURE in (await admin.describe_cluster(timeout_ms=_ASK_MS)).features:
                raise SettingsError(
                    f"{CLIENT_CONFIGS.key}=true: the upstream serves client configs itself, so remove this setting"
                )
        self._config_topic.start(self.store, partial(_create_config_topics, admin))
        self._registration_topic.start(
            self._registrations, partial(create_internal_topics, admin, {TOPIC: TOPIC_CONFIGS})
        )
        self.store.start(partial(create_internal_topics, admin, _CHANGED_TOPICS))
        topics = (self._config_topic, self._registration_topic)
        if not all(await asyncio.gather(*(topic.loaded(_LOAD_S) for topic in topics))):
            logger.warning("Client configs are not loaded yet; until then nothing is enforced")

    def why_not_ready(self) -> str | None:
        """Return the reason why configs cannot be served; None when they can."""
        loading = [each for each in (self._config_topic, self._registration_topic) if not each.is_loaded]
        if not loading:
            return None
        failures = "; ".join(each.failure for each in loading if each.failure)
        return f"the client configs cannot be loaded: {failures}" if failures else "the client configs are being loaded"

    async def close(self) -> None:
        """Close all connections."""
        await self.store.close()
        await self._config_topic.close()
        await self._registration_topic.close()
        await self._registrations.close()


async def _create_config_topics(admin: AdminClient) -> None:
    """Create the topics of configs and of their history. Without a history, configs are served but not changed."""
    await create_internal_topics(admin, {config_log.TOPIC: config_log.TOPIC_CONFIGS})
    try:
        await create_internal_topics(admin, _CHANGED_TOPICS)
    except KafkaApiError as error:
        logger.warning("Client configs cannot be changed without their history: %s", error)


class UpstreamRegistrations:
    """Records of the registration topic, for a ``RegistrationLog``. Used on the event loop only.

    Gateways may write the same registration twice. That changes nothing, because a registration is a fact.

    Args:
        settings: Settings of connections to the upstream.
        now_ms: Wall clock, in milliseconds since the epoch.
    """

    def __init__(self, settings: ConnectionSettings, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._topic = InternalTopic(settings, TOPIC)
        self._worker = TopicWorker(f"write-{TOPIC}", self._topic.close)
        self._loaded: Sequence[Record] = ()
        self.log = RegistrationLog(self)

    def read_all(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Return key and value of the records that were loaded."""
        return ((record.key, record.value) for record in self._loaded)

    async def on_load(self, records: Sequence[Record], slices: TimeSlice) -> None:
        """Replace the image by the topic's records."""
        self._loaded = records
        await self.log.load(slices)
        self._loaded = ()

    def on_records(self, records: Sequence[Record]) -> None:
        """Apply further records of the topic."""
        for record in records:
            self.log.apply(record.key, record.value)

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record.

        Raises:
            StorageError: The upstream did not acknowledge the record. A later attempt may succeed.
            KafkaApiError: The upstream rejects the record, each time.
        """
        record = Record(key=key, value=value, timestamp=self._now_ms())
        try:
            await self._worker.call(self._topic.append, [record])
        except (*CLUSTER_ERRORS, InternalTopicGoneError) as error:
            raise api_error(
                final_code(error) or ErrorCode.KAFKA_STORAGE_ERROR, f"The registration cannot be written: {error}"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._worker.close()
