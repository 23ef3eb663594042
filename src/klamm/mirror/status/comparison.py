"""Two streams of records side by side: what is missing, what is too much, what differs. Pure, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_OFFSET: Final = (1 << 63) - 1
MAX_LOOK_AHEAD: Final = 20_000
"""How far the other side is searched for a record: what a restarted mirror copies again lies within that."""


class Fingerprint(NamedTuple):
    """A record of one side."""

    offset: int
    digest: bytes
    """Of key, value, headers and timestamp."""


@dataclass(slots=True)
class Findings:
    """How two sides differ; offsets are -1 where nothing was found."""

    same: int = 0
    missing: int = 0
    """Records of the source that the target does not have."""
    first_missing: int = -1
    """Its offset on the source."""
    surplus: int = 0
    """Records of the target that the source does not have there: duplicates, or written by somebody else."""
    first_surplus: int = -1
    """Its offset on the target."""
    leading_missing: int = 0
    """Those of ``missing`` before anything was the same: gone by the target's retention, if its log begins later."""
    leading_surplus: int = 0
    """Those of ``surplus`` before anything was the same: gone by the source's retention, if its log begins later."""

    @property
    def is_equal(self) -> bool:
        """Tell whether each side has just what the other has, in the same order."""
        return not self.missing and not self.surplus


@dataclass(slots=True)
class _Side:
    records: Iterator[Fingerprint]
    ahead: deque[Fingerprint] = field(default_factory=deque)

    def first(self) -> Fingerprint | None:
        return self.ahead[0] if self.ahead or self._read() else None

    def find(self, digest: bytes) -> int | None:
        """Return how many records stand before one with this digest; None: it does not come soon."""
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
    """Compare the records of a partition with those of its remote partition, each in the order of its log.

    Args:
        source: the records of the partition, also those that may not be mirrored yet.
        target: the records of the remote partition.
        mirrored_to: the target need not have records of the source from this offset on; None: it needs all.
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
    """Decide which side has something more where they differ: the one that comes back to the other's record sooner."""
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
