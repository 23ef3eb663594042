"""Producer of ``klamm produce``: it bounds the memory of unacknowledged records and counts failures."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaProducer
from kafka.errors import InvalidTopicError, KafkaError, KafkaTimeoutError
from kafka.serializer import Serializer

from klamm.cli.connection import RequestError
from klamm.cli.console.codecs import add_codecs
from klamm.cli.console.settings import explain_client_error
from klamm.cli.output import print_document, print_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from klamm.cli.console.line_reader import Line

_NULL: Final = bytes(bytearray(b"null"))
"""Object in place of a null value, because kafka-python rejects records with neither key nor value."""
_OVERHEAD_BYTES: Final = 200
"""Approximate memory of a record in addition to its key and value."""
_MARGIN_S: Final = 5.0
"""Time in seconds after ``delivery.timeout.ms`` in which kafka-python should let a record fail.

It does not while it waits for a producer id, which it also replaces after an idempotent batch has expired.
"""


class _NullableValues(Serializer):  # type: ignore[misc]  # kafka-python has no types
    def serialize(self, topic: str, headers: object, data: object) -> object:
        return None if data is _NULL else data


class RecordSender:
    """Sends records to one topic. A context manager: its end waits until all records are acknowledged or have failed.

    Args:
        topic: Name of the topic.
        settings: Settings of kafka-python's producer.
        max_bytes: Approximate limit for the memory of unacknowledged records, in bytes.
        output: ``human`` for no output; ``json`` or ``yaml`` for one document per acknowledged record.
        waits: Whether ``send`` waits for the acknowledgement.

    Raises:
        RequestError: A setting has a wrong value.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any], *, max_bytes: int, output: str, waits: bool) -> None:
        add_codecs()
        self._topic = topic
        self._output = output
        self._waits = waits
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()
        self._is_interrupted = False
        """Whether Ctrl-C interrupted ``send``, which it does only after another signal (see ``Interrupts``)."""
        self.failed = 0
        """Number of records that could not be sent."""
        try:
            self._producer = KafkaProducer(**settings, value_serializer=_NullableValues())
        except (KafkaError, AssertionError, ValueError, TypeError) as error:
            raise RequestError(explain_client_error(error)) from error
        self._limit_s: float = self._producer.config["delivery_timeout_ms"] / 1000 + _MARGIN_S

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is buffered, even after an error or a signal, as Kafka's tool does. A second Ctrl-C drops it."""
        try:
            if not self._is_interrupted:
                self._flush()
        finally:
            self._close()

    def send(self, line: Line) -> None:
        """Send one record. Wait while the memory limit is reached.

        Raises:
            RequestError: The value of a header is null, which kafka-python cannot send, or the memory limit is reached
                and the cluster does not respond.
        """
        try:
            self._send(line)
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise

    def _send(self, line: Line) -> None:
        size = len(line.key or b"") + len(line.value or b"") + _OVERHEAD_BYTES
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._used_bytes == 0 or self._used_bytes + size <= self._max_bytes, self._limit_s
            ):
                raise RequestError(f"No record was acknowledged within {self._limit_s:g} s")
            self._used_bytes += size
        if (null := next((name for name, content in line.headers if content is None), None)) is not None:
            raise RequestError(f"Header {null!r}: this command cannot send a header without a value")
        value = _NULL if line.value is None else line.value
        try:
            sent = self._producer.send(self._topic, value=value, key=line.key, headers=line.headers)
        except (KafkaError, ValueError, TypeError) as error:
            # kafka-python knows no partition of an internal topic.
            is_internal = self._topic in self._producer._metadata.internal_topics
            internal = InvalidTopicError("The topic is internal: only brokers write to it")
            self._failed(line, size, internal if is_internal else error)
            return
        sent.add_callback(functools.partial(self._acknowledged, size))
        sent.add_errback(functools.partial(self._failed, line, size))
        if self._waits:
            self._flush()

    def _flush(self) -> None:
        """Wait until all records are acknowledged or have failed, or until they should have."""
        try:
            self._producer.flush(timeout=self._limit_s)
        except KafkaTimeoutError:
            print_error(f"Some records could not be sent: they were not acknowledged within {self._limit_s:g} s")
            self.failed += 1

    def _close(self) -> None:
        """Close the producer. Records that are not acknowledged are dropped."""
        try:
            self._producer.close(timeout=0)
        except KafkaTimeoutError:  # there are such records
            self._producer._closed = True  # otherwise its destructor waits for them again, and prints a traceback

    def _acknowledged(self, size: int, position: Any) -> None:
        """Release the memory of a record. Called by the producer's thread."""
        try:
            if self._output != "human":
                print_document(
                    self._output,
                    {
                        "topic": position.topic,
                        "partition": position.partition,
                        "offset": position.offset,
                        "timestamp": position.timestamp,
                    },
                )
                sys.stdout.flush()
        except OSError:  # kafka-python would drop it: the output is closed, or its disk is full
            self.failed += 1
        finally:
            self._release(size)

    def _failed(self, line: Line, size: int, error: BaseException) -> None:
        """Report a record that was not sent. Called by any thread."""
        key = "null" if line.key is None else f"{len(line.key)} bytes"
        value = "null" if line.value is None else f"{len(line.value)} bytes"
        self.failed += 1
        try:
            print_error(
                f"Error when sending message to topic {self._topic} with key: {key}, value: {value} with error: {error}"
            )
        finally:
            self._release(size)

    def _release(self, size: int) -> None:
        with self._changed:
            self._used_bytes -= size
            self._changed.notify_all()
