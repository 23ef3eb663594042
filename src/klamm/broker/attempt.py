"""The border where errors become answers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klamm.protocol.api import ApiKey

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class ApiError(NamedTuple):
    """What a peer is told of one resource."""

    error_code: ErrorCode
    error_message: str | None


NONE = ApiError(ErrorCode.NONE, None)


async def attempt(step: Callable[[], Awaitable[Result]], *, api: ApiKey) -> tuple[Result | None, ApiError]:
    """Run one step of a handler; one bad resource never fails its neighbours.

    Returns:
        The result with ``NONE``, or None with what the peer is told: code and message of a ``KafkaApiError``,
        UNKNOWN_SERVER_ERROR without a message for anything else (the trace goes to the log).
    """
    try:
        return await step(), NONE
    except KafkaApiError as error:
        return None, ApiError(error.error_code, error.error_message)
    except Exception:
        logger.exception("Handler of %s failed", api.name)
        return None, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
