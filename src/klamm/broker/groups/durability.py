"""Waits for the metadata changes of a coordinator, of groups or of transactions."""

from __future__ import annotations

import asyncio
import logging

from klamm.broker.groups.errors import NotCoordinatorError
from klamm.protocol.errors import StorageError

logger = logging.getLogger(__name__)


async def until_durable(change: asyncio.Future[None]) -> None:
    """Wait until a change is on disk.

    Several responses may wait for one change. A cancelled request does not cancel it for the others.

    Raises:
        NotCoordinatorError: The change could not be written and was rolled back. Kafka uses the same code for a storage
            error here: clients look for the coordinator and retry.
    """
    try:
        await asyncio.shield(change)
    except StorageError as error:
        raise NotCoordinatorError(error.error_message) from error


def log_failure(change: asyncio.Future[None]) -> None:
    """Log the error of a change that possibly no request waits for, such as one of a timed step."""
    if not change.cancelled() and change.exception() is not None:
        logger.warning("A change of a group or a transaction could not be stored: %s", change.exception())
