"""Subscriptions and assignments inside requests of the classic protocol (Kafka's ConsumerProtocol, v0-3)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST_VERSION: Final = 3
_OWNED_SINCE: Final = 1
_GENERATION_SINCE: Final = 2
_RACK_SINCE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSubscription:
    """A ConsumerProtocolSubscription. Its user data, which only assignors of clients read, is left out."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    """Partitions that the member owns; empty before v1."""
    rack_id: str | None = None


class UserDataError(ValueError):
    """An assignment has user data, which a custom assignor of the clients wrote."""


class ElementLimit:
    """Number of topics and partitions that may still be read, from several subscriptions and assignments together."""

    def __init__(self, left: int) -> None:
        self.left = left
        """Negative once more of them were found."""

    def take(self, count: int) -> None:
        """Reduce the number.

        Raises:
            ValueError: Fewer than ``count`` are left.
        """
        self.left -= count
        if self.left < 0:
            raise ValueError(f"{-self.left} topics and partitions too many")


def read_subscription(metadata: bytes, limit: ElementLimit | None = None) -> ClassicSubscription:
    """Return the subscription in the metadata of a JoinGroup request.

    Raises:
        ValueError: The bytes are not a subscription, or it exceeds the limit.
    """
    reader = _Reader(metadata, limit)
    version = min(reader.number(">h"), LAST_VERSION)
    if version < 0:
        raise ValueError(f"Not a subscription: version {version}")
    topics = tuple(reader.text() or "" for _ in range(reader.count()))
    reader.blob()
    owned: dict[str, tuple[int, ...]] = {}
    rack_id = None
    # Some clients announce a later version than they write.
    if version >= _OWNED_SINCE and not reader.is_at_end:
        owned = reader.partitions()
    if version >= _GENERATION_SINCE and not reader.is_at_end:
        reader.number(">i")
    if version >= _RACK_SINCE and not reader.is_at_end:
        rack_id = reader.text()
    return ClassicSubscription(version=version, topics=topics, owned=owned, rack_id=rack_id)


def read_version(metadata: bytes) -> int:
    """Return the version of a subscription, for the assignment of its member; 0 if the bytes are not a subscription.

    The upgrade of a group reads only the subscriptions of its protocol. A member's other protocols may have any bytes.
    """
    version = int.from_bytes(metadata[:2], signed=True) if len(metadata) > 1 else 0
    return max(0, min(version, LAST_VERSION))


def read_topics(metadata: bytes) -> tuple[str, ...]:
    """Return the topics of a subscription of any version; what follows them is not read.

    Raises:
        ValueError: The bytes are not a subscription.
    """
    reader = _Reader(metadata)
    version, count = reader.number(">h"), reader.number(">i")
    if version < 0 or count < 0:
        raise ValueError(f"Not a subscription: version {version}, {count} topics")
    return tuple(reader.required_text() for _ in range(count))


def read_assignment(
    data: bytes, limit: ElementLimit | None = None, *, allows_user_data: bool = True
) -> dict[str, tuple[int, ...]]:
    """Return the partitions by topic name in an assignment of SyncGroup; empty bytes mean none.

    Raises:
        UserDataError: The assignment has user data, and ``allows_user_data`` is False.
        ValueError: The bytes are not an assignment, or it exceeds the limit.
    """
    if not data:
        return {}
    reader = _Reader(data, limit)
    reader.number(">h")
    partitions = reader.partitions()
    if not allows_user_data and reader.blob():
        raise UserDataError
    return partitions


def write_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    """Return an assignment for SyncGroup, without user data."""
    parts = [struct.pack(">hi", version, len(partitions))]
    for name, indexes in partitions.items():
        text = name.encode()
        parts.append(struct.pack(f">h{len(text)}si{len(indexes)}i", len(text), text, len(indexes), *indexes))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)


class _Reader:
    """Big-endian values, read one after the other. Each method raises ValueError where the bytes end too early."""

    def __init__(self, data: bytes, limit: ElementLimit | None = None) -> None:
        self._data = data
        self._position = 0
        self._limit = limit

    @property
    def is_at_end(self) -> bool:
        """Whether everything is read."""
        return self._position >= len(self._data)

    def number(self, form: str) -> int:
        (value,) = self._numbers(form)
        return value

    def _numbers(self, form: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(form, self._data, self._position)
        except struct.error as error:
            raise ValueError(f"Not of the consumer protocol: {error}") from error
        self._position += struct.calcsize(form)
        return values

    def count(self) -> int:
        """Return a number of elements. Each of them needs at least two bytes."""
        value = self.number(">i")
        if not -1 <= value <= len(self._data) // 2:
            raise ValueError(f"Not of the consumer protocol: an array of {value} elements")
        if self._limit is not None:
            self._limit.take(max(value, 0))
        return max(value, 0)

    def text(self) -> str | None:
        length = self.number(">h")
        return None if length < 0 else self._take(length).decode()

    def required_text(self) -> str:
        value = self.text()
        if value is None:
            raise ValueError("Not of the consumer protocol: a name that is null")
        return value

    def blob(self) -> bytes:
        return self._take(max(self.number(">i"), 0))

    def partitions(self) -> dict[str, tuple[int, ...]]:
        return {self.text() or "": self._numbers(f">{self.count()}i") for _ in range(self.count())}

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ValueError(f"Not of the consumer protocol: {length} bytes at byte {self._position}")
        taken = self._data[self._position : end]
        self._position = end
        return taken
