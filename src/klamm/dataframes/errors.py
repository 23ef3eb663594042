"""What ends a query over topics; the text is for the person who wrote it."""

from __future__ import annotations


class ReadingError(Exception):
    """Records that were asked for can not be delivered, and leaving them out silently would be wrong."""


class WritingError(Exception):
    """Records can not be written, and going on without them would be wrong."""
