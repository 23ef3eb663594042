"""Errors of requests to a cluster.

============================  =========================================================================================
``ConnectionLostError``       The connection broke or could not be opened. Subclasses: ``DeniedError``,
                              ``SaslAuthenticationFailedError``, ``SslAuthenticationFailedError``,
                              ``UnreadableResponseError``.
``KafkaApiError``             The broker returned an error code.
``UnsupportedVersionError``   A ``KafkaApiError``: the broker lacks an API, or a version of it that klamm supports.
``ProtocolError``             The broker's bytes violate the protocol.
``TimeoutError``              A call had no result within its time limit.
``TransactionLostError``      The open transaction or the producer is lost: fenced, timed out or rejected.
============================  =========================================================================================
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError, UnsupportedVersionError

_MODULES: Final = frozenset({KafkaApiError.__module__, __name__})
"""Modules whose errors stand for an error code, whatever its cause."""


class ConnectionLostError(ConnectionError):
    """The connection broke or could not be opened. Requests in flight may or may not have been executed."""


class UnreadableResponseError(ConnectionLostError, ProtocolError):
    """A response could not be decoded. A retry would fail in the same way."""


class SaslAuthenticationFailedError(KafkaApiError, ConnectionLostError):
    """The broker rejects the login. Retries fail until the client's login or the broker's credentials change."""

    error_code = ErrorCode.SASL_AUTHENTICATION_FAILED


class SslAuthenticationFailedError(ConnectionLostError):
    """The TLS handshake failed because one side rejects the other's certificate (Kafka's SslAuthenticationException).

    A retry succeeds only after a certificate or the trusted certificates are changed.
    """


CLOSED: Final = "The broker closed the connection"
"""Message of a connection that the broker has closed. A listener with another security protocol may be the cause."""
FATAL_ERRORS: Final = (SaslAuthenticationFailedError, SslAuthenticationFailedError, UnreadableResponseError)
"""Errors of a connection that a retry does not mend."""


class DeniedError(ConnectionLostError):
    """The principal lacks a required ACL. Retryable: the call succeeds once the ACL is granted."""


class TransactionLostError(Exception):
    """The open transaction will not be committed.

    Everything after the last committed transaction must be sent again.
    """


CLUSTER_ERRORS: Final = (KafkaApiError, ProtocolError, ConnectionError, TimeoutError)
"""Errors of requests that are caused by the cluster, not by klamm. A later request may succeed."""

RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Error codes that report the present state of a broker or the cluster. A later attempt may succeed.

Kafka's ``RetriableException``, without the codes that are the answer to some calls, such as UNKNOWN_TOPIC_OR_PARTITION
and ELECTION_NOT_NEEDED.
"""
RETRIABLE_CHANGE_CODES: Final = RETRIABLE_CODES - {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION}
"""Retriable codes of requests that must not be executed twice. After the two others the change may have been made."""
RETRIABLE_COMMIT_CODES: Final = RETRIABLE_CODES | {ErrorCode.REBALANCE_IN_PROGRESS}
"""Retriable codes of OffsetCommit."""
RETRIABLE_LEADER_CODES: Final = RETRIABLE_CODES | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}
"""Retriable codes of a leader's response about a partition that Metadata has just named."""
STALE_METADATA_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Codes of Produce that mean stale metadata (Kafka's ``InvalidMetadataException``)."""
RETRIABLE_PRODUCE_CODES: Final = STALE_METADATA_CODES | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
"""Retriable codes of Produce."""
INVALID_RECORDS_CODES: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Codes of Produce that repeat if the same records are sent again."""


def api_error(error_code: int, error_message: str | None = None) -> KafkaApiError:
    """Return the exception for an error code in a response."""
    if error_code not in ErrorCode.__members__.values():
        return KafkaApiError(f"Error code {error_code}: {error_message or 'no message'}")
    return _error_class(ErrorCode(error_code))(error_message)


def error_words(error: BaseException) -> str:
    """Return the text of an error, or its type if it has none, such as a time limit."""
    return str(error) or type(error).__name__


def error_text(error: BaseException) -> str:
    """Return an error as text. The text of an error code begins with Kafka's name of the code."""
    text = error_words(error)
    if not isinstance(error, KafkaApiError) or error.error_code.name in text:
        return text
    return f"{error.error_code.name}: {text}"


def is_denial(error: BaseException) -> bool:
    """Return whether the principal lacks an ACL."""
    return isinstance(error, KafkaApiError) and error.error_code.name.endswith("AUTHORIZATION_FAILED")


def raise_for_code(error_code: int, error_message: str | None = None) -> None:
    """Raise the exception for ``error_code`` unless it is 0.

    Raises:
        KafkaApiError: The subclass for the code.
    """
    if error_code != ErrorCode.NONE:
        raise api_error(error_code, error_message)


@cache
def _error_class(code: ErrorCode) -> type[KafkaApiError]:
    for error_class in KafkaApiError.__subclasses__():
        # Other modules, and subclasses of other errors, give a code to one of its causes, such as a failed policy.
        if error_class.error_code is code and error_class.__module__ in _MODULES:
            return error_class
    words = "".join(word.capitalize() for word in code.name.split("_"))
    name = words if words.endswith(("Error", "Exception")) else f"{words}Error"
    fields: dict[str, Any] = {"error_code": code, "__doc__": f"The broker returned {code.name}."}
    return type(name, (KafkaApiError,), fields)


def explain(error: BaseException) -> str:
    """Return an error as one line of text."""
    if isinstance(error, UnsupportedVersionError):
        return f"The cluster does not support this request: {error}"
    if isinstance(error, KafkaApiError):
        text = error.error_message or meaning_of(error.error_code)
        return text if error.missing_right is None else f"{text} ({error.missing_right})"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!a} holds bytes that are not text in this locale"
    return str(error) or type(error).__name__


def meaning_of(code: ErrorCode) -> str:
    """Return the description of an error code that came without a message, followed by the code's name."""
    return f"{code.name.replace('_', ' ').capitalize()} ({code.name})"
