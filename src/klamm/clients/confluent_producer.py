"""confluent-kafka's producer with an ``acks`` that can be changed. Each change replaces librdkafka's producer."""

from __future__ import annotations

import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import confluent_kafka

from klamm import __version__
from klamm.client_configs.definitions import ACKS
from klamm.clients.confluent_settings import (
    backoff_s,
    client_id,
    connection_settings,
    interval_s,
    is_true,
    split_properties,
    takes_dynamic_configs,
)
from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs, Values, normalise_producer, notify
from klamm.clients.own_connection import OwnConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

logger = logging.getLogger(__name__)

SOFTWARE: Final = "klamm-confluent-kafka"
SOFTWARE_PROPERTIES: Final = {"client.software.name": SOFTWARE, "client.software.version": __version__}
"""Properties that make the broker count librdkafka's connections to the registration."""
_ACKS_ALIAS: Final = "request.required.acks"
_WAIT_STEP_S: Final = 0.5
"""Maximum time in seconds of one flush or poll of librdkafka, after which another thread's replacement is noticed."""


class Inbox:
    """Mailbox for the latest values, from the requesting thread to the thread that uses the client.

    Args:
        on_change: The application's callback, called after each change in the requesting thread.
    """

    def __init__(self, on_change: Callable[[ConfigUpdate], None] | None) -> None:
        self.values: Values | None = None
        self._on_change = on_change

    def put(self, update: ConfigUpdate) -> None:
        """Store an update. It overwrites one that was not taken."""
        self.values = update.effective
        notify(self._on_change, update)

    def take(self) -> Values | None:
        """Return the update stored since the last call, or None."""
        values, self.values = self.values, None
        return values


class Client(Protocol):
    """A client with an inbox."""

    _inbox: Inbox


def connect(client: Client, properties: Mapping[str, Any], configs: DynamicConfigs) -> OwnConnection | None:
    """Start to request the dynamic configs of a client. Return None if its login cannot be used twice."""

    def put(live: Client, update: ConfigUpdate) -> None:
        live._inbox.put(update)

    try:
        connection = OwnConnection(
            client=client,
            settings=connection_settings(properties),
            software_name=SOFTWARE,
            configs=configs,
            apply=put,
        )
    except (ValueError, OSError) as error:
        logger.warning("Dynamic configs are off for client %s: %s", client_id(properties), error)
        return None
    connection.start()
    return connection


class Producer:
    """A ``confluent_kafka.Producer`` that follows the dynamic config ``acks`` (KIP-649).

    Constructor and methods are the same. The constructor makes the first request and waits for it at most five seconds.
    A change takes effect in the next ``produce`` or ``produce_batch``: the old producer is flushed to its last record,
    then a new one takes its place. No record is lost and the order is kept. That one call takes as long as the flush.
    Calls in a callback, such as ``on_delivery``, do not replace the producer: librdkafka counts a record as not
    delivered until its callback returns. An idempotent or transactional producer accepts only ``all``, so it is never
    replaced.

    Args:
        config: librdkafka's properties. ``metadata.max.age.ms`` is also the interval of requests (default 5 minutes).
        enable_dynamic_config: Whether to request dynamic configs, like the property ``enable.dynamic.config``.
        on_dynamic_config_change: Called after each change in a separate thread. It must not block.
        more: Further arguments of ``confluent_kafka.Producer`` (``logger``, properties as keywords).

    Raises:
        ValueError: ``enable.dynamic.config`` is not a boolean.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **more: Any,
    ) -> None:
        self._properties, self._more = split_properties(config, more)
        is_wanted = takes_dynamic_configs(self._properties, enable_dynamic_config)
        self._lock = threading.RLock()
        """Keeps other calls waiting while the old producer is flushed. A callback must not wait for it: the flush waits
        for the callback."""
        self._swap_lock = threading.RLock()
        """Held for short steps: to exchange ``_producer`` (with ``_lock``), to produce in a callback and to set
        credentials."""
        self._thread = threading.local()
        self._is_closed = False
        self._inbox = Inbox(on_dynamic_config_change)
        self._connection: OwnConnection | None = None
        if is_wanted:
            self._properties |= SOFTWARE_PROPERTIES
            configs = _dynamic_configs(self._properties)
            self._connection = connect(self, self._properties, configs)
        self._properties = self._with(self._inbox.take()) or self._properties
        self._producer = self._build(self._properties)
        self._successor: Any = None
        """Producer that replaces ``_producer`` as soon as that has no records. None: no replacement is in progress."""

    def produce(self, topic: str, *arguments: Any, **keywords: Any) -> None:
        """Queue a record, as confluent-kafka does.

        Raises:
            BufferError: The local queue is full: poll, then retry.
            KafkaException: Another error of librdkafka.
            RuntimeError: The producer is closed.
            Exception: A delivery callback failed while the producer was replaced. The record is not queued.
        """
        with self._produce_lock():
            self._current().produce(topic, *arguments, **keywords)

    def produce_batch(self, topic: str, *arguments: Any, **keywords: Any) -> int:
        """Queue records, as newer releases of confluent-kafka do. Return their number.

        Raises:
            BufferError, KafkaException, RuntimeError, Exception: As in ``produce``.
            TypeError: The records are not a list of dictionaries.
        """
        with self._produce_lock():
            queued: int = self._current().produce_batch(topic, *arguments, **keywords)
            return queued

    def poll(self, timeout: float = -1) -> int:
        """Serve callbacks, as confluent-kafka does, also after another thread has replaced the producer.

        Args:
            timeout: Seconds at most; negative for no limit.

        Returns:
            Number of events.
        """
        ends_at = _end_of(timeout)
        while True:
            events = self._serve_callbacks(self._producer.poll, min(_WAIT_STEP_S, _left_until(ends_at)))
            if events or time.monotonic() >= ends_at:
                return events

    def flush(self, timeout: float = -1) -> int:
        """Deliver all queued records, as confluent-kafka does.

        Args:
            timeout: Seconds at most; negative for no limit.

        Returns:
            Number of undelivered records.
        """
        return self._serve_callbacks(self._producer.flush, timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials for later connections, also after a replacement.

        Requests for dynamic configs still log in with the first credentials. If the broker no longer accepts these, the
        client keeps its latest values as soon as that connection ends.
        """
        with self._swap_lock:  # a replacement may need them to deliver the old producer's records
            for producer in (self._producer, self._successor):
                if producer is not None:
                    producer.set_sasl_credentials(username, password)
            self._properties |= {"sasl.username": username, "sasl.password": password}

    def close(self, timeout: float = -1) -> int:
        """Deliver queued records, abort an open transaction and stop requesting configs. Idempotent.

        Args:
            timeout: Seconds at most; negative for no limit.

        Returns:
            Number of undelivered records.
        """
        if self._is_closed:
            return 0
        ends_at = _end_of(timeout)
        try:
            self.flush(timeout)  # delivery callbacks may produce meanwhile
            with self._lock, self._swap_lock:
                self._is_closed = True
            # Another thread may have produced, or replaced the producer, until now.
            left = self.flush(-1 if timeout < 0 else _left_until(ends_at))
        finally:  # also after an error of a delivery callback
            if self._connection is not None:
                self._connection.close()
        if not left and hasattr(self._producer, "close"):  # available since confluent-kafka 2.13
            self._producer.close()
        return left

    def _serve_callbacks(self, serve: Callable[[float], int], timeout: float) -> int:
        """Call librdkafka with this thread marked as one in which callbacks are called."""
        was_serving = self._is_serving_callbacks()
        self._thread.is_serving = True
        try:
            return serve(timeout)
        finally:
            self._thread.is_serving = was_serving

    def _is_serving_callbacks(self) -> bool:
        return getattr(self._thread, "is_serving", False)

    def _produce_lock(self) -> threading.RLock:
        """Return the lock that keeps the current producer from being replaced."""
        return self._swap_lock if self._is_serving_callbacks() else self._lock

    def _current(self) -> Any:
        """Return librdkafka's producer, after a replacement that is due. Call it with the ``_produce_lock``.

        In a callback, it is the current producer, even while another thread waits to replace it.
        """
        if self._is_closed:
            raise RuntimeError("Producer has been closed")
        if self._inbox.values is not None and not self._is_serving_callbacks():
            self._hand_over()
        return self._producer

    def _hand_over(self) -> None:
        """Deliver all records of the old producer, then replace it.

        A callback, in any thread, may call ``produce``. Such records go to the old producer and are delivered as well.

        Raises:
            Exception: The first error of a delivery callback, as from ``flush``. The producer is replaced nevertheless.
        """
        values = self._inbox.take()
        if values is None:
            return
        try:
            with self._swap_lock:
                properties = self._with(values)
                if properties is None:
                    return
                self._successor = self._build(properties)
        except confluent_kafka.KafkaException as error:
            logger.warning("acks=%s is rejected by librdkafka, the last value stays: %s", values[ACKS], error)
            return
        failure: Exception | None = None
        try:
            while not self._swap_if_drained(values):
                try:
                    self.flush(_WAIT_STEP_S)
                except Exception as error:  # noqa: BLE001 - of the application's callback; raised below
                    failure = failure or error
        except BaseException:  # such as KeyboardInterrupt: the next call tries again
            self._inbox.values = self._inbox.values or values
            raise
        finally:
            self._successor = None
        if failure is not None:
            raise failure

    def _swap_if_drained(self, values: Values) -> bool:
        """Replace the producer unless it has records. A callback in another thread may queue one at any time."""
        with self._swap_lock:
            if len(self._producer) > 0:
                return False
            self._producer, self._properties = self._successor, self._with(values) or self._properties
            return True

    def _with(self, values: Values | None) -> dict[str, Any] | None:
        """Return the properties with these values. None: nothing changes."""
        if values is None or values[ACKS] == str(self._properties.get(ACKS)):
            return None
        properties = {name: value for name, value in self._properties.items() if name != _ACKS_ALIAS}
        return properties | {ACKS: values[ACKS]}

    def _build(self, properties: Mapping[str, Any]) -> Any:
        return confluent_kafka.Producer(dict(properties), **self._more)

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to confluent-kafka: poll, flush, transactions, metadata."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._producer, name)

    def __len__(self) -> int:
        """Return the number of records that wait for delivery."""
        return len(self._producer)

    def __bool__(self) -> bool:
        """Return True, also without waiting records, as confluent-kafka does."""
        return True

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and stop requesting configs."""
        self.close()


def _end_of(timeout: float) -> float:
    return math.inf if timeout < 0 else time.monotonic() + timeout


def _left_until(ends_at: float) -> float:
    return max(0.0, ends_at - time.monotonic())


def _dynamic_configs(properties: Mapping[str, Any]) -> DynamicConfigs:
    is_idempotent = is_true(properties, "enable.idempotence") or "transactional.id" in properties

    def normalise(values: Values) -> Values:
        return normalise_producer(values, is_idempotent=is_idempotent)

    return DynamicConfigs(
        client_id=client_id(properties),
        static={ACKS: str(properties.get(ACKS, properties.get(_ACKS_ALIAS, "all"))).lower()},
        normalise=normalise,
        interval_s=interval_s(properties),
        retry_backoff_s=backoff_s(properties),
    )
