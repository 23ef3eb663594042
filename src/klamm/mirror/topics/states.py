"""Requested states of a flow in the process that mirrors it (``klamm mirror pause|resume|stop|restart``)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from klamm.mirror.records.requested_states import RequestedStates

if TYPE_CHECKING:
    from collections.abc import Callable

_TURN_S: Final = 0.2


class StateStore(Protocol):
    """Store of the requested states on the target. Calls block."""

    def load(self) -> RequestedStates:
        """Return the stored states.

        Raises:
            ConnectionLostError: They cannot be read now.
        """
        ...

    def save(self, states: RequestedStates) -> None:
        """Store the states.

        Raises:
            ConnectionLostError: They were not acknowledged. Repeating the call is safe.
        """
        ...


class FlowStates:
    """Requested states of one flow. Changed by requests, read by the control loop. Thread-safe.

    A change is stored before it has an effect, so that another process, or the next one, never continues what an
    operator has stopped. A change that was not acknowledged may have been stored. The stored states are then read back
    before anything is decided by them.
    """

    def __init__(self, store: StateStore | None = None) -> None:
        """Start with all states RUNNING, until ``load``.

        Args:
            store: Store on the target. None: states are kept in memory only.
        """
        self.store = store
        self._lock = threading.Lock()
        self.current = RequestedStates()
        self.is_known = True
        """Whether ``current`` is what is stored. False until a change is acknowledged or the states are read back."""
        self.command_lock = threading.Lock()
        """Held by a command from its checks to its end, so that no other command changes what it has checked."""
        self.restarts = 0
        """Number of restarts that were requested in this process."""

    def load(self) -> None:
        """Read the stored states.

        Raises:
            ConnectionLostError: They cannot be read now.
        """
        if self.store is not None:
            with self._lock:
                self.current, self.is_known = self.store.load(), True

    def read_back(self) -> None:
        """Read the stored states if the last change was not acknowledged.

        Raises:
            ConnectionLostError: They cannot be read now.
        """
        if not self.is_known:
            self.load()

    def change(self, update: Callable[[RequestedStates], RequestedStates]) -> RequestedStates:
        """Store changed states and return them.

        The stored states are read first: this process may just have taken over the flow.

        Args:
            update: Pure function from the stored to the new states.

        Raises:
            ConnectionLostError: They cannot be read, or were not acknowledged. Then ``is_known`` is False.
        """
        with self._lock:
            before = self.current if self.store is None else self.store.load()
            states = update(before)
            if self.store is not None and states != before:
                self.is_known = False
                self.store.save(states)
            self.current, self.is_known = states, True
            return states

    def restart(self) -> None:
        """Let a FAILED flow try again."""
        with self._lock:
            self.restarts += 1

    def wait_restart(self, before: int, ended: threading.Event) -> bool:
        """Wait until there are other ``restarts`` than ``before``. Return False if the mirror ends first."""
        while self.restarts == before:
            if ended.wait(_TURN_S):
                return False
        return True
