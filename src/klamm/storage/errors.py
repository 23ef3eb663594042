"""Errors of a data directory. They are reported to the operator at start, never to a client."""

from __future__ import annotations

from typing import Final

DAMAGED_VALUE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of parsing a stored value that has another form than the one in which it was written."""


class DataDirectoryError(Exception):
    """The data directory cannot be used. The message names the reason and the remedy."""


class DataDirectoryLockedError(DataDirectoryError):
    """Another process uses the data directory."""


class UnknownFormatError(DataDirectoryError):
    """The data directory was written by a newer klamm or by another program."""
