"""Compression codecs of record batches (``attributes`` bits 0-2), in the framings that Kafka's clients expect.

snappy: xerial framing (snappy-java's SnappyOutputStream); unframed data is accepted when decompressing. lz4: frames of
independent blocks, the only kind that the Java client reads; other frames are accepted when decompressing. Message sets
of magic 0 carry a wrong lz4 header checksum (Kafka below 0.10), which is corrected before decompression.
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam

from klamm.protocol.errors import CorruptBatchError, DecompressedTooLargeError, UnsupportedCompressionTypeError

if TYPE_CHECKING:
    from collections.abc import Callable


class Codec(IntEnum):
    """Wire values of the compression type."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MAX_DECOMPRESSED_BYTES: Final = 256 * 1024 * 1024
"""Limit for the decompressed size of one batch, in bytes. A megabyte of zstd can expand to thirty gigabytes."""

_TOO_LARGE: Final = "The decompressed records of the batch exceed the size limit"
_SCRATCH: Final = 1024 * 1024
_of_thread: Final = threading.local()
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 * 1024
_INT32: Final = struct.Struct(">i")

# lz4 frame header: magic, version 1 with independent blocks, blocks of up to 64 KiB, and the header checksum.
_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
_LZ4_MAGIC_SIZE: Final = 4
_LZ4_CONTENT_CHECKSUM_FLAG: Final = 0x04
_LZ4_CONTENT_SIZE_FLAG: Final = 0x08
_LZ4_BLOCK_CHECKSUM_FLAG: Final = 0x10
_LZ4_FIXED_FLAGS: Final = 0xE3
"""Version (1), independence of the blocks (1) and the bits that Kafka reserves (0)."""
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_DEFAULT_LEVEL: Final = 9
_GZIP_DEFAULT_LEVEL: Final = -1
_LZ4_STORED: Final = 0x80000000
_LZ4_EMPTY_BLOCK: Final = 1
"""Size of a compressed block without data: a token for no literals."""
_LZ4_SIZE: Final = struct.Struct("<I")


def compress(codec: Codec, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress the records section of a batch.

    Args:
        codec: The codec. ``Codec.NONE`` returns the data unchanged.
        data: The encoded records.
        level: ``compression.gzip.level`` (-1 means the codec's default), ``compression.zstd.level`` or
            ``compression.lz4.level`` (9, the default, means the fast compressor, as in Kafka). None means the default.
    """
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=None if level == _GZIP_DEFAULT_LEVEL else level))
    if codec is Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data, level=level))
    return _compress_snappy(memoryview(data)) if codec is Codec.SNAPPY else _compress_lz4(memoryview(data), level)


def decompress(
    codec: int, data: bytes | bytearray | memoryview, *, magic: int = 2, limit: int = MAX_DECOMPRESSED_BYTES
) -> memoryview:
    """Decompress the records section of a batch.

    Args:
        codec: Bits 0-2 of ``attributes``.
        data: The compressed records.
        magic: Magic of the batch. With 0, a wrong lz4 header checksum is expected and corrected.
        limit: Maximum size of the result in bytes. At most this much memory is allocated for it.

    Raises:
        UnsupportedCompressionTypeError: The codec is unknown.
        DecompressedTooLargeError: The result exceeds ``limit``.
        CorruptBatchError: The data is not valid for the codec.
    """
    view = decompress_view(codec, data, magic=magic, limit=limit)
    return memoryview(bytes(view)) if view.obj is getattr(_of_thread, "scratch", None) else view


def decompress_view(
    codec: int, data: bytes | bytearray | memoryview, *, magic: int = 2, limit: int = MAX_DECOMPRESSED_BYTES
) -> memoryview:
    """Decompress as ``decompress`` does, into memory that the next call on the same thread overwrites."""
    if codec == Codec.NONE:
        return memoryview(data)
    if codec not in _DECOMPRESS:
        raise UnsupportedCompressionTypeError(f"Unknown compression type id: {codec}")
    try:
        if codec == Codec.LZ4 and magic == 0:
            data = _with_right_lz4_checksum(bytes(data))
        return _DECOMPRESS[Codec(codec)](memoryview(data), limit)
    except (cramjam.DecompressionError, ValueError, struct.error, IndexError, OverflowError) as error:
        raise CorruptBatchError(f"Cannot decompress the records: {error}") from error


def check_lz4_frame(data: memoryview) -> None:
    """Raise an error unless the Java client can read all of the lz4 data, which ``decompress`` has accepted.

    The Java client reads one frame of independent blocks. It stops at the end mark, ignores what is behind it, and
    takes an empty block for the end of the records. ``decompress`` also reads linked blocks and several frames.

    Raises:
        CorruptBatchError: The data is not one frame, or the frame has linked or empty blocks.
    """
    end = len(_LZ4_HEADER)
    flags = _LZ4_HEADER[_LZ4_MAGIC_SIZE]
    if data[:end] != _LZ4_HEADER:
        if data[:_LZ4_MAGIC_SIZE] != _LZ4_HEADER[:_LZ4_MAGIC_SIZE]:
            raise CorruptBatchError("The lz4 data does not begin with a frame of blocks")
        if data[_LZ4_MAGIC_SIZE] & _LZ4_FIXED_FLAGS != flags:
            raise CorruptBatchError("The lz4 frame has linked blocks, or flags that Kafka does not support")
        flags = data[_LZ4_MAGIC_SIZE]
    end += 8 if flags & _LZ4_CONTENT_SIZE_FLAG else 0
    overhead = _LZ4_SIZE.size + (4 if flags & _LZ4_BLOCK_CHECKSUM_FLAG else 0)
    while size := (block := _LZ4_SIZE.unpack_from(data, end)[0]) & ~_LZ4_STORED:
        end += size + overhead
        if block == _LZ4_EMPTY_BLOCK and _LZ4_SIZE.unpack_from(data, end)[0]:
            raise CorruptBatchError("The lz4 frame has an empty block")
    end += _LZ4_SIZE.size + (4 if flags & _LZ4_CONTENT_CHECKSUM_FLAG else 0)
    if end != len(data):
        raise CorruptBatchError(f"The lz4 frame is followed by {len(data) - end} bytes")


def _compress_snappy(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    parts = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block = _lz4_block(plain, level)
        if len(block) < len(plain):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(plain) | _LZ4_STORED), bytes(plain))
    parts.append(_LZ4_SIZE.pack(0))
    return b"".join(parts)


def _lz4_block(plain: memoryview, level: int | None) -> bytes:
    if level is None or level == _LZ4_DEFAULT_LEVEL:
        return bytes(cramjam.lz4.compress_block(plain, store_size=False))
    # The library supports levels only for whole frames. For this little data, a frame holds one block after header and
    # size.
    frame = bytes(cramjam.lz4.compress(plain, level=level))
    (size,) = _LZ4_SIZE.unpack_from(frame, len(_LZ4_HEADER))
    start = len(_LZ4_HEADER) + _LZ4_SIZE.size
    return frame[start : start + (size & ~_LZ4_STORED)]


def _decompress_snappy(data: memoryview, limit: int) -> memoryview:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return memoryview(_decompress_snappy_block(data, limit))
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 <= size <= len(data) - position:
            raise ValueError(f"snappy block declares {size} bytes, but only {len(data) - position} remain")
        out += _decompress_snappy_block(data[position : position + size], limit - len(out))
        position += size
    return memoryview(out)


def _decompress_snappy_block(block: memoryview, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    # Three bytes of snappy expand to at most 64. A much larger declared size is false, so nothing is allocated for it.
    if size > 64 * len(block):
        raise ValueError(f"snappy block declares an impossible size of {size} bytes")
    if size > limit:
        raise DecompressedTooLargeError(_TOO_LARGE)
    return bytes(cramjam.snappy.decompress_raw(block))


def _growing(decompress_into: Callable[[memoryview, memoryview], int]) -> Callable[[memoryview, int], memoryview]:
    """Decompress into a buffer that grows step by step up to the limit, however small the input is.

    Most batches fit into the thread's scratch buffer: allocating a new one costs as much as decompressing 16 KiB.
    """

    def run(data: memoryview, limit: int) -> memoryview:
        room = memoryview(_scratch())[:limit]
        while True:
            try:
                size = decompress_into(data, room)
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):
                    raise
                size = len(room)
                if size >= limit:
                    raise DecompressedTooLargeError(_TOO_LARGE) from None
                room = memoryview(b"")  # release the old buffer before allocating the next one
                room = memoryview(bytearray(min(max(8 * len(data), 8 * size), limit)))
            else:
                return room[:size]

    return run


def _scratch() -> bytearray:
    """Return this thread's scratch buffer. Its content may change with the next call."""
    scratch: bytearray | None = getattr(_of_thread, "scratch", None)
    if scratch is None:
        scratch = _of_thread.scratch = bytearray(_SCRATCH)
    return scratch


def _decompress_lz4_into(data: memoryview, room: memoryview) -> int:
    """Decompress the blocks of a frame one by one if it has the header that Kafka's producers write.

    The library's function for frames allocates a state for each one, which takes twice as long as 16 KiB of records. It
    still decides about frames that are not plain: with large blocks, with bytes after the end, or without room.
    """
    position, size = len(_LZ4_HEADER), 0
    if data[:position] != _LZ4_HEADER:
        return cramjam.lz4.decompress_into(data, room)
    while len(room) - size >= _LZ4_BLOCK:
        (block,) = _LZ4_SIZE.unpack_from(data, position)
        position += _LZ4_SIZE.size
        if not block and position == len(data):
            return size
        content = data[position : position + (block & ~_LZ4_STORED)]
        if not 0 < len(content) <= _LZ4_BLOCK:
            break
        if block & _LZ4_STORED:
            count = len(content)
            room[size : size + count] = content
        else:
            # Without output_len, the library takes the first four bytes of many blocks for their size.
            count = cramjam.lz4.decompress_block_into(content, room[size : size + _LZ4_BLOCK], output_len=_LZ4_BLOCK)
            if _has_lz4_size(content, count):
                break
        size += count
        position += len(content)
    return cramjam.lz4.decompress_into(data, room)  # it also reports that the room may be too small


def _has_lz4_size(block: memoryview, count: int) -> bool:
    """Return whether a block can be read as its size followed by a block, too. The library does so if it is damaged."""
    if len(block) <= _LZ4_SIZE.size or not count <= _LZ4_SIZE.unpack_from(block)[0] <= _LZ4_BLOCK:
        return False
    try:
        cramjam.lz4.decompress_block_into(block[_LZ4_SIZE.size :], bytearray(_LZ4_BLOCK), output_len=_LZ4_BLOCK)
    except cramjam.DecompressionError:
        return False
    return True


def _with_right_lz4_checksum(frame: bytes) -> bytes:
    flags = frame[_LZ4_MAGIC_SIZE]
    end = _LZ4_MAGIC_SIZE + (10 if flags & _LZ4_CONTENT_SIZE_FLAG else 2)
    checksum = _xxh32(frame[_LZ4_MAGIC_SIZE:end]) >> 8 & 0xFF
    return frame[:end] + bytes([checksum]) + frame[end + 1 :]


def _xxh32(data: bytes) -> int:
    """Compute XXH32 with seed 0 for fewer than 16 bytes, which is all that an lz4 frame header needs."""
    mask = 0xFFFFFFFF
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    value = (prime5 + len(data)) & mask
    position = 0
    while position + 4 <= len(data):
        value = (value + int.from_bytes(data[position : position + 4], "little") * prime3) & mask
        value = ((value << 17 | value >> 15) & mask) * prime4 & mask
        position += 4
    for byte in data[position:]:
        value = (value + byte * prime5) & mask
        value = ((value << 11 | value >> 21) & mask) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16


_DECOMPRESS: Final[dict[Codec, Callable[[memoryview, int], memoryview]]] = {
    Codec.GZIP: _growing(cramjam.gzip.decompress_into),
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _growing(_decompress_lz4_into),
    Codec.ZSTD: _growing(cramjam.zstd.decompress_into),
}
