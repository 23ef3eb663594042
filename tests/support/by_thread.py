"""Functions that are replaced for one thread only."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def for_this_thread(replacement: Any, original: Any) -> Any:
    """Return a function that calls ``replacement`` in the thread that made it, and ``original`` in all others."""
    owner = threading.current_thread()

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return (replacement if threading.current_thread() is owner else original)(*args, **named)

    return call


def replace_for_this_thread(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, replacement: Any) -> None:
    """Replace a function until the test ends.

    Threads of PySpark and of Kafka clients outlive the test that started them; a replaced ``time.sleep`` would take
    their calls for those of the test.
    """
    monkeypatch.setattr(owner, name, for_this_thread(replacement, getattr(owner, name)))
