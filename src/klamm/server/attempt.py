"""Translation of exceptions into error codes of a response."""

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
    """Error code and message for one resource in a response."""

    error_code: ErrorCode
    error_message: str | None


NONE = ApiError(ErrorCode.NONE, None)


async def attempt(step: Callable[[], Awaitable[Result]], *, api: ApiKey) -> tuple[Result | None, ApiError]:
    """Run the step of a handler for one resource, so that an error does not affect the other resources.

    Returns:
        The result and ``NONE``; or None and an error: code and message of a ``KafkaApiError``, or UNKNOWN_SERVER_ERROR
        without a message for any other exception, which is logged with its traceback.
    """
    try:
        return await step(), NONE
    except KafkaApiError as error:
        return None, ApiError(error.error_code, error.error_message)
    except Exception:
        logger.exception("Handler of %s failed", api.name)
        return None, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, None)
