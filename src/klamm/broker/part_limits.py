"""Limits on the number of entries of one resource in a request.

A request with many resources is processed in time slices, one resource after the other. A single resource is processed
without a pause, so its entries are limited to what takes some milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CONFIGS: Final = 10_000
"""Maximum number of configs of one resource."""
MOST_QUOTA_PARTS: Final = 1_000
"""Maximum number of components or values of one entity with quotas, or of components of a filter."""
MOST_LEAVING_MEMBERS: Final = 20_000


def too_many(entries: Sequence[object], most: int, what: str) -> InvalidRequestError | None:
    """Return the error for a resource with more than ``most`` entries, else None."""
    if len(entries) <= most:
        return None
    return InvalidRequestError(f"{len(entries)} {what} are more than the {most} that are allowed at once")


def refuse_many(entries: Sequence[object], most: int, what: str) -> None:
    """Check the number of entries of a resource.

    Raises:
        InvalidRequestError: There are more than ``most``.
    """
    error = too_many(entries, most, what)
    if error is not None:
        raise error
