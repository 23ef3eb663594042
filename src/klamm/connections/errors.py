"""Connection errors, and the exceptions for error codes in responses."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Iterator


class BrokerUnavailableError(ConnectionError):
    """No broker could be reached, or the connection broke before the response."""


RETRIABLE_CODES = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Error codes that a later attempt may turn into a success."""


def api_error(error_code: int, error_message: str | None = None) -> KafkaApiError:
    """Return the exception for an error code in a response."""
    if error_code not in ErrorCode.__members__.values():
        return KafkaApiError(f"Error code {error_code}: {error_message or 'no message'}")
    return _error_class(ErrorCode(error_code))(error_message)


def raise_for_code(error_code: int, error_message: str | None = None) -> None:
    """Raise the exception for ``error_code`` unless it is 0.

    Raises:
        KafkaApiError: The subclass for the code.
    """
    if error_code != ErrorCode.NONE:
        raise api_error(error_code, error_message)


@cache
def _error_class(code: ErrorCode) -> type[KafkaApiError]:
    for known in _all_subclasses(KafkaApiError):
        if known.error_code is code:
            return known
    words = "".join(word.capitalize() for word in code.name.split("_"))
    name = words if words.endswith(("Error", "Exception")) else f"{words}Error"
    fields: dict[str, Any] = {"error_code": code, "__doc__": f"The broker returned {code.name}."}
    return type(name, (KafkaApiError,), fields)


def _all_subclasses(cls: type[KafkaApiError]) -> Iterator[type[KafkaApiError]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _all_subclasses(subclass)
