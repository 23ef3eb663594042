"""Logging of repeated denials, and how long they are remembered."""

from __future__ import annotations

import weakref

from klamm.history.change import Author
from klamm.policy_runtime.denials import (
    LOG_WINDOW_S,
    MAX_LOGGED,
    MAX_REMEMBERED,
    MEMORY_S,
    DeniedCreations,
    LogLimit,
)
from klamm.protocol.errors import ErrorCode

ANNA = Author(principal="User:anna", client_id="tool", listener="PLAINTEXT")
BERTA = Author(principal="User:berta", client_id="tool", listener="PLAINTEXT")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_repeated_denial_is_logged_once_per_window_with_suppressed_count() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    assert [limit.admit("a"), limit.admit("a"), limit.admit("b"), limit.admit("a")] == [0, None, 1, None]
    clock.now = LOG_WINDOW_S
    assert [limit.admit("a"), limit.admit("a")] == [1, None]


def test_distinct_names_do_not_flood_the_log() -> None:
    clock = Clock()
    limit = LogLimit(clock)
    assert sum(limit.admit(number) is not None for number in range(100_000)) == MAX_LOGGED
    clock.now = LOG_WINDOW_S
    assert limit.admit("next") == 100_000 - MAX_LOGGED


def test_denied_creation_is_remembered_per_topic_and_principal_until_expiry() -> None:
    clock = Clock()
    denied = DeniedCreations(clock)
    denied.remember("t", ANNA, ErrorCode.POLICY_VIOLATION)
    assert denied.recall("t", ANNA) is ErrorCode.POLICY_VIOLATION
    assert denied.recall("t", BERTA) is None
    assert denied.recall("u", ANNA) is None
    clock.now = MEMORY_S
    assert denied.recall("t", ANNA) is None


def test_denied_creation_does_not_keep_the_names_of_its_client() -> None:
    """Clients choose them, of up to 32 KiB."""

    class Client:
        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Client)

    denied, client = DeniedCreations(Clock()), Client()
    denied.remember("t", client, ErrorCode.POLICY_VIOLATION)
    kept = weakref.ref(client)
    del client
    assert kept() is None
    assert denied.recall("t", Client()) is ErrorCode.POLICY_VIOLATION


def test_denied_creations_are_bounded_and_clearable() -> None:
    denied = DeniedCreations(Clock())
    for number in range(2 * MAX_REMEMBERED + 1):
        denied.remember(f"t{number}", ANNA, ErrorCode.POLICY_VIOLATION)
    assert sum(denied.recall(f"t{n}", ANNA) is not None for n in range(2 * MAX_REMEMBERED + 1)) <= MAX_REMEMBERED
    denied.clear()
    assert denied.recall(f"t{2 * MAX_REMEMBERED}", ANNA) is None
