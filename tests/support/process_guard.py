"""Guard that keeps unit tests without processes: only a test marked ``process`` may start one.

``make test-fast`` runs the tests below ``tests/unit`` that are not marked. The guard is active in every run, so the
mark cannot be forgotten.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""Audit events that Python raises before it starts a process."""

_forbidden_in: str | None = None
"""Node id of the running test, when it may not start a process. One test runs at a time in a process of pytest."""


class UnmarkedProcessError(AssertionError):
    """A unit test without the mark ``process`` started a process."""


def install() -> None:
    """Install the audit hook. Python has no way to remove it, so call this once per process."""
    sys.addaudithook(_check)


def _check(event: str, args: tuple[Any, ...]) -> None:
    if _forbidden_in is not None and event in _STARTS:
        raise UnmarkedProcessError(
            f"{_forbidden_in} starts a process ({args[0] if args else event}): mark it with pytest.mark.process"
        )


def guarded(item: pytest.Item) -> Iterator[None]:
    """Forbid processes while a unit test without the mark runs, its fixtures included."""
    global _forbidden_in  # noqa: PLW0603 - an audit hook takes no state of its own
    is_unit = item.path.is_relative_to(item.config.rootpath / "tests" / "unit")
    _forbidden_in = item.nodeid if is_unit and item.get_closest_marker("process") is None else None
    try:
        yield
    finally:
        _forbidden_in = None
