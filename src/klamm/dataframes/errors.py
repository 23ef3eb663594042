"""Errors that end a query over topics. Their messages are for the author of the query."""

from __future__ import annotations

from typing import Final


class ReadingError(Exception):
    """Requested records cannot be delivered, and skipping them silently would be wrong."""


class DataLossError(ReadingError):
    """Records that were not read yet are gone, and ``failOnDataLoss`` is true."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}{DATA_LOSS_HINT}")


DATA_LOSS_HINT: Final = ". Set failOnDataLoss=false to skip the missing records"


class WritingError(Exception):
    """Records cannot be written, and continuing without them would be wrong."""


class UnansweredError(WritingError):
    """The cluster did not answer in time, so a request may still take effect."""
