"""Texts of errors that brokers report by code only, as Kafka's clients spell them."""

from __future__ import annotations

from typing import Final

from klamm.cli.connection import explain
from klamm.protocol.errors import ErrorCode, KafkaApiError

_TEXTS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "Deleting offsets of a topic is forbidden while the consumer group is actively subscribed to it."
    ),
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
}
_UNKNOWN_GROUP: Final = "The group id does not exist."


def reason(error: BaseException) -> str:
    """Return the text of an error of a group or offset request."""
    if isinstance(error, KafkaApiError) and error.error_code in _TEXTS:
        return _TEXTS[error.error_code]
    return explain(error)


def reason_of_deletion(error: BaseException) -> str:
    """Return the text of an error from deleting a group or a committed offset."""
    if isinstance(error, KafkaApiError) and error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return _UNKNOWN_GROUP
    return reason(error)
