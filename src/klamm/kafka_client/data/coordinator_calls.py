"""Requests to the coordinator of a group or a transactional id, repeated until it returns a final result.

Error codes of the coordinator and the reaction to them:

- NONE: The call is done.
- COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: The coordinator is looked up again and the request repeated.
- Every other code of ``RETRIABLE_CODES``, such as CONCURRENT_TRANSACTIONS (the markers of the previous transaction are
  not written yet) and COORDINATOR_LOAD_IN_PROGRESS: The request is repeated after a short pause.
- Missing ACLs: ``DeniedError``.
- Any other code, such as INVALID_PRODUCER_EPOCH after a newer producer has fenced this one: ``TransactionLostError``.

Repeating stops after some seconds with ``ConnectionLostError``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import RETRIABLE_CODES, ConnectionLostError, DeniedError, TransactionLostError
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.types import CoordinatorType
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster

_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.05
_ELSEWHERE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_DENIED: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class CoordinatorCalls:
    """Calls to one coordinator. Thread-confined; they block.

    Args:
        cluster: The cluster.
        key: Group id or transactional id.
        kind: Kind of the key.
        patience_s: Seconds after which a request is no longer repeated.
    """

    def __init__(self, cluster: Cluster, key: str, kind: CoordinatorType, *, patience_s: float) -> None:
        self._cluster = cluster
        self._key = key
        self._kind = kind
        self._patience_s = patience_s
        self._node: int | None = None

    def until_answered(self, ask: Callable[[Connection], Iterable[int]], what: str) -> None:
        """Repeat a request until the coordinator returns a final result.

        Args:
            ask: Function that sends the request on a connection and returns the error codes of the response.
            what: Name of the request, for messages.

        Raises:
            DeniedError: The principal lacks a required ACL.
            TransactionLostError: The coordinator rejects the request for good.
            ConnectionLostError: The coordinator cannot be reached, or not before the time limit.
        """
        deadline = time.monotonic() + self._patience_s
        backoff = Backoff(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while codes := self._ask_once(ask):
            key = f"group {self._key}" if self._kind is CoordinatorType.GROUP else self._key
            text = f"{what} for {key}: {', '.join(map(error_name, sorted(codes)))}"
            if codes & _DENIED:
                raise DeniedError(text)
            if codes - RETRIABLE_CODES:
                raise TransactionLostError(text)
            if codes & _ELSEWHERE:
                self._node = None
            if time.monotonic() >= deadline:
                is_marking = ErrorCode.CONCURRENT_TRANSACTIONS in codes
                why = " (the markers of the previous transaction are not written yet)" if is_marking else ""
                raise ConnectionLostError(text + why)
            time.sleep(backoff.next_s())

    def _ask_once(self, ask: Callable[[Connection], Iterable[int]]) -> set[int]:
        """Send the request once and return the error codes, without NONE."""
        if self._node is None:
            self._node = self._cluster.coordinator(self._key, self._kind)
        try:
            return set(ask(self._cluster.connection(self._node))) - {int(ErrorCode.NONE)}
        except ConnectionLostError:
            self._node = None
            raise
