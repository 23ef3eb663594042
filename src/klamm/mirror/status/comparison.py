"""Comparison of the records of a source partition and its remote partition. Pure, in bounded memory.

Both sides are read once, in log order. While both first records are equal, they are counted and dropped. When they
differ, each side is searched for the first record of the other, at most ``MAX_LOOK_AHEAD`` records ahead:

- Found on the target only, or closer there: the target has surplus records before it, such as duplicates.
- Found on the source only, or closer there: the source has records before it that are missing on the target.
- Found on neither side: the pair differs, and counts as one missing and one surplus record.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_OFFSET: Final = (1 << 63) - 1
MAX_LOOK_AHEAD: Final = 20_000
"""Maximum number of records searched ahead. The records that a restarted mirror copies again lie within it."""


class Fingerprint(NamedTuple):
    """One record of one side, reduced to a checksum."""

    offset: int
    digest: bytes
    """Checksum of key, value, headers and timestamp."""


@dataclass(slots=True)
class Findings:
    """Differences between both sides. Offsets are -1 if there is no such record."""

    same: int = 0
    missing: int = 0
    """Number of source records that the target lacks."""
    first_missing: int = -1
    """Source offset of the first missing record."""
    surplus: int = 0
    """Number of target records that the source does not have there: duplicates, or records of another producer."""
    first_surplus: int = -1
    """Target offset of the first surplus record."""
    leading_missing: int = 0
    """Part of ``missing`` before the first equal record. If the target's log does not start at 0, its retention removed
    them.
    """
    leading_surplus: int = 0
    """Part of ``surplus`` before the first equal record. If the source's log does not start at 0, its retention removed
    them.
    """


@dataclass(slots=True)
class _Side:
    """Records of one side in log order, with a buffer of those that were read ahead."""

    records: Iterator[Fingerprint]
    ahead: deque[Fingerprint] = field(default_factory=deque)

    def first(self) -> Fingerprint | None:
        return self.ahead[0] if self.ahead or self._read() else None

    def find(self, digest: bytes) -> int | None:
        """Return the number of records before the first one with this digest, or None if it is not near."""
        for at, record in enumerate(self.ahead):
            if record.digest == digest:
                return at
        while len(self.ahead) < MAX_LOOK_AHEAD and self._read():
            if self.ahead[-1].digest == digest:
                return len(self.ahead) - 1
        return None

    def _read(self) -> bool:
        record = next(self.records, None)
        if record is None:
            return False
        self.ahead.append(record)
        return True


def compare(
    source: Iterable[Fingerprint], target: Iterable[Fingerprint], *, mirrored_to: int | None = None
) -> Findings:
    """Compare the records of a partition with those of its remote partition, each in log order.

    Args:
        source: Records of the source partition, including records that are not mirrored yet.
        target: Records of the remote partition.
        mirrored_to: Source offset from which on records may be missing on the target. None: no record may be
            missing.
    """
    left, right = _Side(iter(source)), _Side(iter(target))
    found = Findings()
    limit = MAX_OFFSET if mirrored_to is None else mirrored_to
    while True:
        wanted, there = left.first(), right.first()
        if wanted is None or there is None:
            break
        if wanted.digest == there.digest:
            found.same += 1
            left.ahead.popleft()
            right.ahead.popleft()
            continue
        _resolve(left, right, found, limit)
    while (wanted := left.first()) is not None and wanted.offset < limit:
        _miss(left, found, limit)
    while right.first() is not None:
        _skip(right, found)
    return found


def _resolve(left: _Side, right: _Side, found: Findings, limit: int) -> None:
    """Decide which side has additional records: the side that reaches the first record of the other side sooner."""
    surplus, missing = right.find(left.ahead[0].digest), left.find(right.ahead[0].digest)
    if surplus is not None and (missing is None or surplus <= missing):
        for _ in range(surplus):
            _skip(right, found)
    elif missing is not None:
        for _ in range(missing):
            _miss(left, found, limit)
    else:
        _miss(left, found, limit)
        _skip(right, found)


def _miss(left: _Side, found: Findings, limit: int) -> None:
    record = left.ahead.popleft()
    if record.offset >= limit:
        return
    found.missing += 1
    found.leading_missing += not found.same
    if found.first_missing < 0:
        found.first_missing = record.offset


def _skip(right: _Side, found: Findings) -> None:
    record = right.ahead.popleft()
    found.surplus += 1
    found.leading_surplus += not found.same
    if found.first_surplus < 0:
        found.first_surplus = record.offset
