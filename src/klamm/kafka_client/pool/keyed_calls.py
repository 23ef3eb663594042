"""Requests about several keys, such as topics or groups, repeated until each key has a final outcome.

Kafka's Java client does the same in ``AdminApiDriver``. A response has an error code per key. A retriable code keeps
its key waiting for the next attempt, while the other keys are settled. Every call of the admin client that changes or
reads several things is made here, so that none takes a passing state of a broker for its result.

The brokers of an attempt are asked at the same time. One that does not respond, or fails permanently, affects its own
keys only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from klamm.kafka_client.errors import FATAL_ERRORS, RETRIABLE_CODES, ConnectionLostError, api_error, error_text
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.rights import name_right
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError, UnsupportedVersionError
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from klamm.kafka_client.pool.pool import ConnectionPool

Key = TypeVar("Key")
Value = TypeVar("Value")

ATTEMPT_MS: Final = 15_000
"""Time without a response after which leaders and coordinators are looked up again: another broker may be it by now."""

Ask: TypeAlias = Callable[["int | None", "list[Key]", Deadline], Awaitable["Mapping[Key, Value | KafkaApiError]"]]
"""Function that sends one request for some keys to a node, before a deadline, and returns the outcome of each."""
Find: TypeAlias = Callable[["list[Key]"], Awaitable["Mapping[Key, int | KafkaApiError]"]]
"""Function that looks up the node of each key, or the error with which the cluster answers."""
_FIRST_WITH_SEVERAL_KEYS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCall(Generic[Key, Value]):
    """One kind of request about several keys."""

    what: str
    """Name of the request, for messages."""
    ask: Ask[Key, Value]
    """Sends the request. With ``find`` it sets ``looked_up``, so that a node that failed is looked up again at once."""
    settle: Callable[[Key, Value | Exception], None]
    """Receives the final outcome of each key."""
    find: Find[Key] | None = None
    """Looks up the leaders or coordinators of keys. None: all keys are asked of ``node_id``."""
    node_id: int | None = None
    """Node id for ``ask`` without ``find``: a broker, ``CONTROLLER``, or None for any broker."""
    retriable: frozenset[ErrorCode] = RETRIABLE_CODES
    """Error codes of a response that keep a key waiting."""
    attempt_ms: int = ATTEMPT_MS
    """Limit in milliseconds for the response of a node that ``find`` has looked up. A deletion sets the limit of the
    whole call: sent again while the first request is in progress, it would report what that one deletes as unknown.
    """
    check: Callable[[Key], KafkaApiError | None] = lambda _: None
    """Returns the error of a key that must not be sent."""

    async def run(self, pool: ConnectionPool, deadline: Deadline, keys: Iterable[Key]) -> None:
        """Repeat the request until each key has a final outcome.

        Raises:
            TimeoutError: Some keys have none before the deadline.
            ConnectionLostError: A retry does not help, or the cluster has no broker ``node_id``. With ``find``, only if
                the lookup fails: such an error of one of several brokers is the outcome of its keys.
            KafkaApiError: The request itself cannot be sent, for example because the broker lacks the API. With
                ``find``, as above.
        """

        def settle(key: Key, outcome: Value | Exception) -> None:
            if isinstance(outcome, KafkaApiError):
                name_right(outcome, self.what, key, pool.security)
            self.settle(key, outcome)

        waiting: _Waiting[Key, Value] = _Waiting(keys, settle)
        invalid = {key: error for key in waiting if (error := self.check(key)) is not None}
        waiting.take(invalid, invalid, frozenset())
        retries = 0
        while waiting:
            if retries:
                await pool.back_off(retries - 1, deadline)
            retries += 1
            try:
                await self._attempt(waiting, deadline)
            except KafkaApiError as error:
                name_right(error, self.what, None, pool.security)
                raise
            except TimeoutError as error:
                if waiting.reason is None:
                    raise
                text = f"{self.what}: no result within {deadline.limit_ms} ms: {waiting.reason}"
                raise TimeoutError(text) from error

    async def _attempt(self, waiting: _Waiting[Key, Value], deadline: Deadline) -> None:
        if deadline.passed():
            raise TimeoutError(f"{self.what}: no result within {deadline.limit_ms} ms")
        if self.find is None:
            keys = list(waiting)
            waiting.take(keys, await self.ask(self.node_id, keys, deadline), self.retriable)
            return
        by_node = await _nodes(self.find, waiting)
        calls = (self._ask_node(waiting, deadline, node_id, some) for node_id, some in by_node.items())
        for error in await asyncio.gather(*calls, return_exceptions=True):
            if error is not None:
                raise error

    async def _ask_node(self, waiting: _Waiting[Key, Value], deadline: Deadline, node_id: int, keys: list[Key]) -> None:
        """Send the request to one of the nodes that were looked up. A permanent error settles its keys."""
        attempt = Deadline(min(deadline.left_ms(), self.attempt_ms))
        try:
            outcomes = await self.ask(node_id, keys, attempt)
        except (KafkaApiError, *FATAL_ERRORS) as error:
            waiting.take(keys, dict.fromkeys(keys, error), frozenset())
        except (ConnectionLostError, TimeoutError) as error:
            waiting.reason = error_text(error)
        else:
            waiting.take(keys, outcomes, self.retriable)


class _Waiting(dict[Key, None], Generic[Key, Value]):
    """Keys without a final outcome so far, in the order of the call."""

    def __init__(self, keys: Iterable[Key], settle: Callable[[Key, Value | Exception], None]) -> None:
        super().__init__(dict.fromkeys(keys))
        self._settle = settle
        self.reason: str | None = None
        """Latest reason why a key had to wait."""

    def take(
        self, keys: Iterable[Key], outcomes: Mapping[Key, Value | Exception], retriable: frozenset[ErrorCode]
    ) -> None:
        """Settle the keys that were asked for, except those with a retriable error."""
        for key in keys:
            outcome = outcomes[key] if key in outcomes else _missing()
            if isinstance(outcome, KafkaApiError) and outcome.error_code in retriable:
                self.reason = error_text(outcome)
            else:
                del self[key]
                self._settle(key, outcome)


def _missing() -> KafkaApiError:
    return KafkaApiError("The broker's response has no entry for this resource")


async def _nodes(find: Find[Key], waiting: _Waiting[Key, Value]) -> Mapping[int, list[Key]]:
    """Return the waiting keys by their nodes. Keys that the lookup rejects for good are settled."""
    keys = list(waiting)
    places = await find(keys)
    errors = {key: place for key, place in places.items() if isinstance(place, KafkaApiError)}
    waiting.take([key for key in keys if key in errors or key not in places], errors, RETRIABLE_CODES)
    by_node: dict[int, list[Key]] = defaultdict(list)
    for key in keys:
        place = places.get(key)
        if isinstance(place, int):
            by_node[place].append(key)
    return by_node


def result_of(error_code: int, error_message: str | None, value: Value) -> Value | KafkaApiError:
    """Return the value if the error code is 0, else the error of the code."""
    return value if error_code == ErrorCode.NONE else api_error(error_code, error_message)


async def find_coordinators(
    pool: ConnectionPool, deadline: Deadline, group_ids: Iterable[str]
) -> Mapping[str, int | KafkaApiError]:
    """Return the node id of each group's coordinator, or the error with which the cluster answers.

    Brokers may differ in version while they are upgraded. So the broker that receives the request decides on its form.
    """
    request = FindCoordinatorRequest(coordinator_keys=list(group_ids))
    try:
        response = await pool.send(
            request, FindCoordinatorResponse, deadline=deadline, min_version=_FIRST_WITH_SEVERAL_KEYS
        )
    except UnsupportedVersionError:
        return {group_id: await _find_one(pool, deadline, group_id) for group_id in request.coordinator_keys}
    return {
        coordinator.key: result_of(coordinator.error_code, coordinator.error_message, coordinator.node_id)
        for coordinator in response.coordinators
    }


async def _find_one(pool: ConnectionPool, deadline: Deadline, group_id: str) -> int | KafkaApiError:
    """Look up the coordinator of one group, for brokers older than 3.0, which accept one group per request."""
    response = await pool.send(
        FindCoordinatorRequest(key=group_id),
        FindCoordinatorResponse,
        deadline=deadline,
        max_version=_FIRST_WITH_SEVERAL_KEYS - 1,
    )
    return result_of(response.error_code, response.error_message, response.node_id)
