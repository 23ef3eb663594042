"""Cases of a test that takes many of them in a loop."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Name the case in the report of a failure.

    pytest needs some 5 ms of processor time for each parametrized case, pytest-xdist's messages included. A loop suits
    hundreds of cases that take less than that.
    """
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, values))}")
        raise
