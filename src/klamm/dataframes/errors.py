"""Errors that end a query over topics. Their messages are for the author of the query."""

from __future__ import annotations


class ReadingError(Exception):
    """Requested records cannot be delivered, and skipping them silently would be wrong."""


class WritingError(Exception):
    """Records cannot be written, and continuing without them would be wrong."""
