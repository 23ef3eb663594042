"""Log of an internal topic in memory, for stores of client configs: fenced writers, and failures at chosen places."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, TOPIC
from klamm.gateway.upstream.internal_topic import InternalTopicGoneError
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import ConnectionLostError, DeniedError, TransactionLostError
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.gateway.upstream.internal_topic import InternalTopic, TransactionalTopic
    from klamm.protocol.records import Record


class FencedLog:
    """Records in order, and the epoch of the only writer that may append. Thread-safe."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.history: list[Record] = []
        """Records of the topic with the history."""
        self.epoch = 0
        self.changed = threading.Condition()

    def reader(self) -> InternalTopic:
        """Return a reader."""
        return cast("InternalTopic", _Reader(self))

    def read(self, position: int) -> tuple[list[Record], int]:
        """Return the records from a position on, and the end."""
        return self.records[position:], len(self.records)


class _Reader:
    name = "memory"

    def __init__(self, log: FencedLog) -> None:
        self._log = log

    def load(self) -> tuple[list[Record], int]:
        return self._log.read(0)

    def poll(self, position: int) -> tuple[list[Record], int]:
        with self._log.changed:
            self._log.changed.wait_for(lambda: len(self._log.records) > position, timeout=0.05)
            return self._log.read(position)

    def close(self) -> None:
        pass


class FencedWriter:
    """Writer whose next commits can be made to fail: before the records are appended, or after it."""

    def __init__(self, log: FencedLog) -> None:
        self._log = log
        self._epoch = -1
        self.failures: list[str] = []
        """``lost before``, ``lost after``, ``gone``, ``denied`` or empty for each next commit; empty when there are no
        more.
        """
        self.commits = 0
        self.too_large = ""
        """User with too large records. Empty: none."""

    def as_topic(self) -> TransactionalTopic:
        """Return this object as the class that stores expect."""
        return cast("TransactionalTopic", self)

    def take_over(self, position: int) -> tuple[list[Record], int]:
        with self._log.changed:
            self._log.epoch += 1
            self._epoch = self._log.epoch
            return self._log.read(position)

    def commit(self, records: Mapping[str, Sequence[Record]]) -> None:
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "lost before":
            raise ConnectionLostError("no response")
        if failure == "gone":
            raise InternalTopicGoneError("no such topic")
        if failure == "denied":
            raise DeniedError("TOPIC_AUTHORIZATION_FAILED")
        with self._log.changed:
            if self._epoch != self._log.epoch:
                raise TransactionLostError("fenced")
            if self.too_large and any(self.too_large.encode() in (record.key or b"") for record in records[TOPIC]):
                raise RecordsRejectedError(TOPIC, [ErrorCode.MESSAGE_TOO_LARGE])
            self.commits += 1
            self._log.records += [
                record._replace(offset=len(self._log.records) + number) for number, record in enumerate(records[TOPIC])
            ]
            self._log.history += records.get(HISTORY_TOPIC, ())
            self._log.changed.notify_all()
        if failure == "lost after":
            raise ConnectionLostError("no response")

    def close(self) -> None:
        pass
