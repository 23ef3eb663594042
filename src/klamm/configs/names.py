"""Naming rules for topics (Kafka's ``Topic``) and brokers."""

from __future__ import annotations

import re
from typing import Final

from klamm.configs.values import parse_java_int
from klamm.protocol.errors import InvalidRequestError, InvalidTopicError
from klamm.protocol.types import ResourceType

MAX_TOPIC_NAME_LENGTH = 249
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
CLUSTER_METADATA: Final = "__cluster_metadata"
"""Name of the log of Kafka's controllers. It is not a topic visible to clients."""
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
"""Names of the topics that belong to the broker (Kafka's ``Topic.INTERNAL_TOPICS``)."""

_OF_BROKERS: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_of_topic_characters(text: str) -> bool:
    """Return whether a text is not empty and has only characters that are valid in topic names."""
    return _LEGAL.fullmatch(text) is not None


def check_topic_name(name: str) -> None:
    """Raise if a text is not a valid topic name.

    Raises:
        InvalidTopicError: The name is empty, ``.``, ``..`` or too long, or has characters outside ``[a-zA-Z0-9._-]``.
    """
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in {".", ".."}:
        reason = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_NAME_LENGTH}"
    elif not is_of_topic_characters(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    if reason is not None:
        raise InvalidTopicError(f"Topic name is invalid: {reason}")


def identity_of(resource_type: int, name: str) -> tuple[int, str]:
    """Return the identity of a resource for comparisons.

    Broker ``01`` equals broker ``1``; the same holds for its loggers.
    """
    if resource_type in _OF_BROKERS and (node_id := parse_java_int(name)) is not None:
        name = str(node_id)
    return resource_type, name


def parse_node_id(name: str, *, what: str = "Node") -> int:
    """Parse a broker id from a resource name. As in Kafka, ``01`` and ``+1`` are 1.

    Raises:
        InvalidRequestError: The name is not an integer.
    """
    node_id = parse_java_int(name)
    if node_id is None:
        raise InvalidRequestError(f"{what} id must be an integer, but it is: {name}")
    return node_id
