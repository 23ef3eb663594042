"""Registrations of clients in the internal topic of the upstream, with the records that klamm's broker writes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.registrations import TOPIC
from klamm.gateway.upstream.internal_topic import InternalTopic, InternalTopicGoneError
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.protocol.errors import StorageError
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"klamm-write-{TOPIC}")
        self._loaded: Sequence[Record] = ()
        self.log = RegistrationLog(self)

    def read_all(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Return key and value of the records that were loaded."""
        return [(record.key, record.value) for record in self._loaded]

    def on_load(self, records: Sequence[Record]) -> None:
        """Replace the image by the topic's records."""
        self._loaded = records
        self.log.replay()
        self._loaded = ()

    def on_records(self, records: Sequence[Record]) -> None:
        """Apply further records of the topic."""
        for record in records:
            self.log.apply(record.key, record.value)

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record.

        Raises:
            StorageError: The upstream did not acknowledge the record.
        """
        record = Record(key=key, value=value, timestamp=self._now_ms())
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._topic.append, [record])
        except (*CLUSTER_ERRORS, InternalTopicGoneError) as error:
            raise StorageError(f"The registration cannot be written: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        self._thread.submit(self._topic.close)
        self._thread.shutdown(wait=False)
