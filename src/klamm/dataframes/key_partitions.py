"""Partitions of many keys at once, as in Kafka's default partitioner (``BuiltInPartitioner``, murmur2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from klamm.dataframes.rows import lengths

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_WORD: Final = 4
_TO_POSITIVE: Final = np.uint32(0x7FFFFFFF)


def partitions_of(keys: Any, partition_counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the partition that Kafka's Java producer selects for each key.

    Args:
        keys: A ``pyarrow.BinaryArray``. The result for a null is that of the empty key.
        partition_counts: Number of partitions of the topic of each key, at least 1.
    """
    return ((_murmur2(keys) & _TO_POSITIVE) % partition_counts).astype(np.int32)


def _murmur2(keys: Any) -> NDArray[np.uint32]:
    """Return the hashes of all keys. Each step of the algorithm runs over all keys that are long enough for it."""
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys)].astype(np.int64)
    # Words are read past the end of the last key.
    content = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(_WORD, np.uint8)]).astype(np.uint32)
    sizes = lengths(keys)
    hashes = _SEED ^ sizes.astype(np.uint32)
    words = sizes // _WORD
    for at in range(int(words.max(initial=0))):
        some = np.flatnonzero(words > at)
        where = starts[some] + at * _WORD
        word = content[where] | content[where + 1] << 8 | content[where + 2] << 16 | content[where + 3] << 24
        word *= _M
        word ^= word >> 24
        word *= _M
        hashes[some] = hashes[some] * _M ^ word
    rest = sizes % _WORD
    for at in range(_WORD - 2, -1, -1):
        some = np.flatnonzero(rest > at)
        hashes[some] ^= content[starts[some] + words[some] * _WORD + at] << np.uint32(8 * at)
    some = np.flatnonzero(rest > 0)
    hashes[some] *= _M
    hashes ^= hashes >> 13
    hashes *= _M
    hashes ^= hashes >> 15
    return hashes
