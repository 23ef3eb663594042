"""Rules for the names of topics (Kafka's ``Topic``) and brokers."""

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
"""The log of Kafka's controllers; not a topic that clients see."""
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
"""Topics that belong to the broker, by name (Kafka's ``Topic.INTERNAL_TOPICS``)."""

_OF_BROKERS: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_of_topic_characters(text: str) -> bool:
    """Tell whether a text has characters that names of topics may have, and at least one."""
    return _LEGAL.fullmatch(text) is not None


def check_topic_name(name: str) -> None:
    """Refuse what cannot be the name of a topic.

    Raises:
        InvalidTopicError: Empty, ``.`` or ``..``, too long, or with characters outside ``[a-zA-Z0-9._-]``.
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
    """Return what a resource is compared by: the broker ``01`` is the broker ``1``, of loggers too."""
    if resource_type in _OF_BROKERS and (node_id := parse_java_int(name)) is not None:
        name = str(node_id)
    return resource_type, name


def parse_node_id(name: str, *, what: str = "Node") -> int:
    """Read a broker's id from a resource's name; ``01`` and ``+1`` are 1, as in Kafka.

    Raises:
        InvalidRequestError: Not a number.
    """
    node_id = parse_java_int(name)
    if node_id is None:
        raise InvalidRequestError(f"{what} id must be an integer, but it is: {name}")
    return node_id
