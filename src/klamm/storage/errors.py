"""Errors of a data directory: found at start, told to whoever starts the broker, never sent to a client."""

from __future__ import annotations


class DataDirectoryError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDirectoryLockedError(DataDirectoryError):
    """Another process works in the data directory."""


class UnknownFormatError(DataDirectoryError):
    """The data directory was written by a newer klamm, or by something else."""
