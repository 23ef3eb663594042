"""Results with one future per key: the failure of one key never hides the success of another (KIP-339, KIP-117)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from klamm.admin.types import (
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    ListedOffset,
    OffsetAndMetadata,
    TopicDescription,
)
from klamm.kafka_client.pool.calls import Outcome
from klamm.policy.answers import PolicyOverride
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from concurrent.futures import Future
    from typing import Any

Key = TypeVar("Key")
Value = TypeVar("Value")
GroupsByBroker: TypeAlias = "Mapping[int, tuple[GroupListing, ...] | Exception]"
"""Groups of each broker by its node id, or the broker's error."""


class PerKeyResult(Generic[Key, Value]):
    """Futures by key, however many requests the call needs.

    Raises:
        TypeError: ``keys`` is a single string, which would otherwise be read as one key per character.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        if isinstance(keys, str):
            raise TypeError(f"{keys!r}: expected a list, as in [{keys!r}]")
        self._futures: dict[Key, Outcome[Value]] = {}
        for key in keys:
            future: Outcome[Value] = Outcome()
            future.set_running_or_notify_cancel()
            self._futures[key] = future

    def values(self) -> Mapping[Key, Outcome[Value]]:
        """Return the future of each key, in the order of the call."""
        return MappingProxyType(self._futures)

    def all(self) -> Outcome[dict[Key, Value]]:
        """Return a future of all values. It fails with the first error, in the order of the keys."""
        everything: Outcome[dict[Key, Value]] = Outcome()
        everything.set_running_or_notify_cancel()
        waiting = set(self._futures)
        lock = threading.Lock()  # futures may be settled while this method still adds callbacks

        def one_done(key: Key) -> None:
            with lock:
                waiting.discard(key)
                if waiting or everything.done():
                    return
                _settle_all(everything, self._futures)

        if not self._futures:
            everything.set_result({})
        for key, future in self._futures.items():
            future.add_done_callback(lambda _, key=key: one_done(key))  # type: ignore[misc]  # a default is no argument
        return everything

    def result(self, timeout: float | None = None) -> dict[Key, Value]:
        """Wait for all keys and return their values.

        Args:
            timeout: Limit in seconds. None waits for the timeout of the call itself.

        Raises:
            TimeoutError: Some keys were not settled in time.
            Exception: The first error, in the order of the keys.
        """
        return self.all().result(timeout)

    def __await__(self) -> Generator[Any, None, dict[Key, Value]]:
        """Wait for all keys in a coroutine. Raises the first error, in the order of the keys."""
        return self.all().__await__()

    def settle(self, key: Key, outcome: Value | Exception) -> None:
        """Settle a key with its value or error unless it is already settled."""
        if isinstance(outcome, Exception):
            self.fail(key, outcome)
        else:
            self.succeed(key, outcome)

    def succeed(self, key: Key, value: Value) -> None:
        """Settle a key with its value unless it is already settled."""
        future = self._futures.get(key)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, key: Key, error: BaseException) -> None:
        """Settle a key with an error unless it is already settled."""
        future = self._futures.get(key)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_open(self, error: BaseException, keys: Iterable[Key] | None = None) -> None:
        """Settle every open key, or the open ones in ``keys``, with the same error."""
        for key in list(self._futures if keys is None else keys):
            self.fail(key, error)


def _settle_all(everything: Outcome[dict[Key, Value]], futures: Mapping[Key, Outcome[Value]]) -> None:
    values: dict[Key, Value] = {}
    for key, future in futures.items():
        error = future.exception()
        if error is not None:
            everything.set_exception(error)
            return
        values[key] = future.result()
    everything.set_result(values)


class AlterConfigsResult(PerKeyResult[ConfigResource, PolicyOverride | None]):
    """Outcome of altering configs, per resource: what a policy of klamm stored instead, or None."""


class DescribeConfigsResult(PerKeyResult[ConfigResource, Mapping[str, ConfigEntry]]):
    """Configs by name, per resource."""


class CreateTopicsResult(PerKeyResult[str, CreatedTopic]):
    """The created topic per topic name."""


class DeleteTopicsResult(PerKeyResult[str, None]):
    """Outcome per topic name."""


class CreatePartitionsResult(PerKeyResult[str, None]):
    """Outcome per topic name."""


class DescribeTopicsResult(PerKeyResult[str, TopicDescription]):
    """Description per topic name."""


class ListOffsetsResult(PerKeyResult[TopicPartition, ListedOffset]):
    """Offset per partition."""


class DescribeGroupsResult(PerKeyResult[str, GroupDescription]):
    """Description per group id."""


class ListGroupOffsetsResult(PerKeyResult[str, Mapping[TopicPartition, OffsetAndMetadata]]):
    """Committed offsets per group id."""


class ListGroupsResult(Outcome[tuple[GroupListing, ...]]):
    """Groups of all coordinators, by id. Fails with the first error if a broker does not respond or rejects the call.

    ``valid()`` and ``errors()`` return what the other brokers have responded, as in Java's Admin.
    """

    def __init__(self, by_broker: Outcome[GroupsByBroker]) -> None:
        super().__init__()
        self._valid: Outcome[tuple[GroupListing, ...]] = Outcome()
        self._errors: Outcome[Mapping[int, Exception]] = Outcome()
        for future in (self, self._valid, self._errors):
            future.set_running_or_notify_cancel()
        by_broker.add_done_callback(self._settle)

    def valid(self) -> Outcome[tuple[GroupListing, ...]]:
        """Return a future of the groups of the brokers that have responded. It fails only if no broker is known."""
        return self._valid

    def errors(self) -> Outcome[Mapping[int, Exception]]:
        """Return a future of the errors by broker id. It fails only if no broker is known."""
        return self._errors

    def _settle(self, done: Future[GroupsByBroker]) -> None:
        if (failure := done.exception()) is not None:
            for future in (self._valid, self._errors, self):
                future.set_exception(failure)
            return
        errors = {node_id: answer for node_id, answer in done.result().items() if isinstance(answer, Exception)}
        answers = (answer for answer in done.result().values() if not isinstance(answer, Exception))
        groups = {group.group_id: group for answer in answers for group in answer}
        valid = tuple(groups[group_id] for group_id in sorted(groups))
        self._valid.set_result(valid)
        self._errors.set_result(errors)
        if errors:
            self.set_exception(next(iter(errors.values())))
        else:
            self.set_result(valid)
