"""Time slices that are used up at once, as on a busy machine: ``pytest -p tests.support.short_slices``.

A long request lets others run when its time slice of 5 ms is used up, which no test reaches on an idle machine unless
it sends a very long request. With this plugin, requests in the tests' own process pause wherever they may.
"""

from __future__ import annotations

from klamm.server import time_slice


def pytest_configure() -> None:
    """Let all time slices be used up that begin from now on."""
    time_slice.SLICE_S = 0.0  # type: ignore[misc]
