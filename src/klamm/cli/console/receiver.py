"""Consumer of ``klamm consume``: it never commits offsets of records that were not printed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from kafka import TopicPartition
from kafka.errors import KafkaError

from klamm.cli.connection import RequestError
from klamm.cli.console.codecs import accept_any_header_name, add_codecs
from klamm.cli.console.formatter import ConsumedRecord
from klamm.cli.console.settings import explain_client_error
from klamm.cli.output import print_error
from klamm.clients import KafkaConsumer
from klamm.configs.names import check_topic_name
from klamm.lazy_dataclass import dataclass
from klamm.patterns import compile_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from klamm.cli.console.interrupts import Interrupts

_POLL_MS: Final = 500
"""Longest poll in milliseconds: a signal takes effect after it."""
_MAX_RECORDS: Final = 500
_EARLIEST: Final = -2
_LATEST: Final = -1
_LEADING_FLAGS: Final = re.compile(r"(?:\(\?[a-zA-Z]+\))*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """The records to read."""

    topic: str | None
    """Name of the topic. None if ``include`` is given."""
    include: str | None
    """Regular expression for the topics. None if ``topic`` is given."""
    partition: int | None
    """The only partition to read, without a group. None for all partitions."""
    offset: int
    """First offset to read of that partition; -2 for the earliest, -1 for the latest."""
    last: int | None = None
    """Number of offsets before the end of each partition at which to begin, without a group. None: not given."""
    from_ms: int | None = None
    """Time of the first record to read of each partition, in milliseconds since the epoch. None: not given."""


class RecordReceiver:
    """Iterator over records. A context manager: its end commits the offsets of a group and leaves the group.

    Args:
        interest: The records to read.
        settings: Settings of kafka-python's consumer.
        flush: Function that brings the printed records to their destination. It is called before each wait for records
            and before offsets are committed.
        interrupts: Signals that end the consumer. They take effect while records are printed and between two polls,
            not during a poll, which moves the positions of the consumer before it returns the records.

    Raises:
        InvalidTopicError: The name of the topic is invalid.
        RequestError: A setting has a wrong value, or the regular expression is invalid.
    """

    def __init__(
        self, interest: Interest, settings: Mapping[str, Any], *, flush: Callable[[], object], interrupts: Interrupts
    ) -> None:
        add_codecs()
        accept_any_header_name()
        self.count = 0
        """Number of records returned so far."""
        self._first: dict[TopicPartition, int] = {}
        """First offset of each partition of the batch that is being printed."""
        self._flush = flush
        self._interrupts = interrupts
        self._is_polling = False
        """Whether the positions of the consumer may be ahead of ``_next``: a poll has begun and its records are not
        known. It has ended in this state after an unexpected error and after a second Ctrl-C."""
        self._next: dict[TopicPartition, int] = {}
        """Offset of the first record of each partition that was fetched but not returned yet."""
        try:
            self._consumer = KafkaConsumer(**settings, enable_dynamic_config=False)
        except (KafkaError, AssertionError, ValueError, TypeError) as error:
            raise RequestError(explain_client_error(error)) from error
        try:
            self._begin(interest)
        except BaseException:
            self._consumer.close(autocommit=False)
            raise

    def _begin(self, interest: Interest) -> None:
        if interest.topic is None:
            self._consumer.subscribe(pattern=_whole(interest.include or ""))
            return
        check_topic_name(interest.topic)  # kafka-python raises a plain ValueError
        if interest.last is not None or interest.from_ms is not None:
            self._seek(interest, interest.topic)
        elif interest.partition is None:
            self._consumer.subscribe([interest.topic])
        else:
            partition = TopicPartition(interest.topic, interest.partition)
            self._consumer.assign([partition])
            if interest.offset == _EARLIEST:
                self._consumer.seek_to_beginning(partition)
            elif interest.offset == _LATEST:
                self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, interest.offset)

    def _seek(self, interest: Interest, topic: str) -> None:
        """Assign the partitions, and begin a number of offsets before the end of each one, or at a time.

        Raises:
            RequestError: The topic or the partition does not exist, or the cluster rejects a request.
        """
        try:
            numbers = self._consumer.partitions_for_topic(topic)
            if not numbers:
                raise RequestError(f"Topic {topic} does not exist")
            if interest.partition is not None and interest.partition not in numbers:
                raise RequestError(f"Topic {topic} has no partition {interest.partition}")
            chosen = numbers if interest.partition is None else {interest.partition}
            partitions = [TopicPartition(topic, number) for number in sorted(chosen)]
            self._consumer.assign(partitions)
            begins = self._consumer.end_offsets(partitions)
            if interest.last is not None:
                starts = self._consumer.beginning_offsets(partitions)
                begins = {each: max(starts[each], end - interest.last) for each, end in begins.items()}
            else:  # a partition without a record of this time or later begins at its end
                times = self._consumer.offsets_for_times(dict.fromkeys(partitions, interest.from_ms))
                begins |= {each: at.offset for each, at in times.items() if at is not None and at.offset >= 0}
        except KafkaError as error:
            raise RequestError(explain_client_error(error)) from error
        for partition, offset in begins.items():
            self._consumer.seek(partition, offset)

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Move back to the first record that was not printed, and close the consumer, which commits the offsets.

        After an interrupted poll or flush, no offsets are committed.
        """
        begin = self._next
        try:
            with self._interrupts.effective():
                self._flush()
        except OSError:  # it is unknown how much of the batch reached the output: none of it is committed
            begin = self._first
        except BaseException:
            self._consumer.close(autocommit=False)
            raise
        for partition, offset in begin.items():
            if partition in self._consumer.assignment():
                self._consumer.seek(partition, offset)
        self._consumer.close(autocommit=not self._is_polling)

    def records(self, *, at_most: int | None, timeout_ms: int | None) -> Iterator[ConsumedRecord]:
        """Iterate over records as they arrive.

        Args:
            at_most: Number of records after which the iteration ends. None or a negative number means no limit.
            timeout_ms: Time without a record after which the iteration ends. None or a negative number means no limit.

        Raises:
            RequestError: The cluster rejects a request.
        """
        limit = None if at_most is None or at_most < 0 else at_most
        while limit is None or self.count < limit:
            with self._interrupts.effective():
                self._flush()
            batches = self._poll(None if limit is None else limit - self.count, timeout_ms)
            if not batches:
                print_error(f"klamm consume: no message within {timeout_ms} ms")
                return
            with self._interrupts.effective():
                for partition, records in batches.items():
                    for record in records:
                        self.count += 1
                        yield _consumed(record)
                        self._next[partition] = record.offset + 1  # the record counts as printed only now

    def _poll(self, wanted: int | None, timeout_ms: int | None) -> dict[TopicPartition, list[Any]]:
        """Return the next records by partition; none only if the time is over."""
        until = None if timeout_ms is None or timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        while True:
            wait_ms = _POLL_MS if until is None else max(0, min(_POLL_MS, round((until - time.monotonic()) * 1000)))
            self._first, self._next, self._is_polling = {}, {}, True
            try:
                records: dict[TopicPartition, list[Any]] = self._consumer.poll(
                    timeout_ms=wait_ms, max_records=min(wanted or _MAX_RECORDS, _MAX_RECORDS)
                )
            except KafkaError as error:
                self._is_polling = False  # a poll that has records returns them, and the next one raises the error
                raise RequestError(explain_client_error(error)) from error
            self._first = {partition: batch[0].offset for partition, batch in records.items()}
            self._next, self._is_polling = dict(self._first), False
            self._interrupts.check()
            if records or (until is not None and time.monotonic() >= until):
                return records


def _whole(expression: str) -> str:
    """Return a regular expression that matches a name only as a whole.

    Raises:
        RequestError: The expression, the value of ``--include``, is invalid.
    """
    match = _LEADING_FLAGS.match(expression)
    flags = match[0] if match else ""  # Python allows them only at the start
    whole = f"{flags}^(?:{expression[len(flags) :]})$"
    try:
        compile_pattern(expression)
        compile_pattern(whole)
    except re.error as error:
        raise RequestError(f"--include {expression}: {error}") from error
    return whole


def _consumed(record: Any) -> ConsumedRecord:
    return ConsumedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        headers=record.headers,
        key=record.key,
        value=record.value,
    )
