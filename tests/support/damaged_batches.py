"""Record batches with one defect each, in every codec, and the answers of Apache Kafka 4.4 to them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import cramjam

from klamm.protocol.records import BATCH_OVERHEAD, Codec, compress, varint, write_crc
from klamm.protocol.records.layout import HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

START_MS: Final = 1_700_000_000_000
_XERIAL: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_NO_BYTES: Final = b"\x01"
_UVARINT_TOO_LONG: Final = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """One record, field by field. A field given as bytes is written as it stands, a number as a zigzag varint."""

    length: int | bytes | None = None
    """None means the true length."""
    attributes: int = 0
    timestamp_delta: int | bytes = 0
    offset_delta: int | bytes = 0
    key: bytes = b"\x02k"
    value: bytes = b"\x04ab"
    headers: bytes = b"\x00"
    behind: bytes = b""
    """Bytes inside the record, behind its headers."""

    def encoded(self) -> bytes:
        """Return the bytes of the record."""
        body = bytes([self.attributes]) + _number(self.timestamp_delta) + _number(self.offset_delta)
        body += self.key + self.value + self.headers + self.behind
        return _number(len(body) if self.length is None else self.length) + body


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    """A batch, field by field. None means the value that fits the records."""

    records: tuple[RawRecord, ...] = field(default_factory=lambda: tuple(_three()))
    payload: bytes | None = None
    """Stands behind the header as it is, whatever the codec."""
    behind_records: bytes = b""
    """Bytes behind the last record, inside what is compressed."""
    behind_payload: bytes = b""
    """Bytes behind what is compressed."""
    codec: int = Codec.NONE
    written_codec: int | None = None
    """The codec in the attributes; None means ``codec``."""
    flags: int = 0
    base_offset: int = 0
    last_offset_delta: int | None = None
    record_count: int | None = None
    magic: int = 2
    base_timestamp: int = START_MS
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    wrong_crc: bool = False
    length_change: int = 0

    def encoded(self) -> bytes:
        """Return the bytes of the batch, with the right checksum unless the defect is a wrong one."""
        plain = b"".join(record.encoded() for record in self.records) + self.behind_records
        payload = self.payload if self.payload is not None else compress(Codec(self.codec), plain)
        payload += self.behind_payload
        count = len(self.records)
        batch = bytearray(
            HEADER.pack(
                self.base_offset,
                BATCH_OVERHEAD - 12 + len(payload) + self.length_change,
                -1,
                self.magic,
                0,
                self.flags | (self.codec if self.written_codec is None else self.written_codec),
                count - 1 if self.last_offset_delta is None else self.last_offset_delta,
                self.base_timestamp,
                self.base_timestamp + 2 if self.max_timestamp is None else self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                count if self.record_count is None else self.record_count,
            )
        )
        batch += payload
        write_crc(memoryview(batch))
        if self.wrong_crc:
            batch[17] ^= 0xFF
        return bytes(batch)


def _number(value: int | bytes) -> bytes:
    return varint(value) if isinstance(value, int) else value


def _three(**changes: object) -> list[RawRecord]:
    """Return three records; the changes concern the one in the middle."""
    good = [RawRecord(timestamp_delta=index, offset_delta=index) for index in range(3)]
    good[1] = replace(good[1], **changes)  # type: ignore[arg-type]  # the names are fields of a record
    return good


def _middle(**changes: object) -> tuple[RawRecord, ...]:
    return tuple(_three(**changes))


def _offsets(*deltas: int) -> tuple[RawRecord, ...]:
    return tuple(RawRecord(timestamp_delta=index, offset_delta=delta) for index, delta in enumerate(deltas))


_RECORDS: Final[Mapping[str, tuple[RawRecord, ...]]] = {
    "sound": _middle(),
    "offset deltas 0,0,0": _offsets(0, 0, 0),
    "offset deltas 0,2,1": _offsets(0, 2, 1),
    "offset deltas 1,2,3": _offsets(1, 2, 3),
    "offset deltas 0,1,5": _offsets(0, 1, 5),
    "offset deltas 0,-1,2": _offsets(0, -1, 2),
    "offset delta of five bytes": _middle(offset_delta=b"\x82\x80\x80\x80\x00"),
    "offset delta of six bytes": _middle(offset_delta=b"\x82\x80\x80\x80\x80\x00"),
    "offset delta beyond 32 bits": _middle(offset_delta=b"\xff\xff\xff\xff\x7f"),
    "timestamp delta of ten bytes": _middle(timestamp_delta=b"\x82\x80\x80\x80\x80\x80\x80\x80\x80\x00"),
    "timestamp delta of eleven bytes": _middle(timestamp_delta=_UVARINT_TOO_LONG),
    "timestamp delta -5": _middle(timestamp_delta=-5),
    "timestamp delta of a day": _middle(timestamp_delta=86_400_000),
    "attributes 1": _middle(attributes=1),
    "attributes 255": _middle(attributes=255),
    "record one byte shorter than its length": _middle(length=11),
    "record one byte longer than its length": _middle(length=9),
    "record of length 0": _middle(length=0),
    "record of length -1": _middle(length=-1),
    "record of length 2^31-1": _middle(length=2**31 - 1),
    "record of length of six bytes": _middle(length=b"\x94\x80\x80\x80\x80\x00"),
    "byte behind the headers": _middle(behind=b"\x00"),
    "key longer than the record": _middle(key=b"\x40k"),
    "key of length -2": _middle(key=b"\x03"),
    "key of length -2^31": _middle(key=b"\xff\xff\xff\xff\x0f"),
    "null key": _middle(key=_NO_BYTES),
    "null value": _middle(value=_NO_BYTES),
    "value longer than the record": _middle(value=b"\x40ab"),
    "value of length -2": _middle(value=b"\x03"),
    "a header": _middle(headers=b"\x02\x02h\x02v"),
    "header with null value": _middle(headers=b"\x02\x02h\x01"),
    "header with null key": _middle(headers=b"\x02\x01\x02v"),
    "header key that is not UTF-8": _middle(headers=b"\x02\x02\xff\x02v"),
    "header key longer than the record": _middle(headers=b"\x02\x40h\x02v"),
    "header value longer than the record": _middle(headers=b"\x02\x02h\x40v"),
    "two headers announced, one there": _middle(headers=b"\x04\x02h\x02v"),
    "one header announced, two there": _middle(headers=b"\x02\x02h\x02v\x02i\x02w"),
    "-1 headers": _middle(headers=b"\x01"),
    "2^31-1 headers": _middle(headers=b"\xfe\xff\xff\xff\x0f"),
}
"""Defects (and oddities) of one record."""

_BATCHES: Final[Mapping[str, RawBatch]] = {
    "count 2 of 3": RawBatch(record_count=2),
    "count 4 of 3": RawBatch(record_count=4),
    "count and last delta say 2 of 3": RawBatch(record_count=2, last_offset_delta=1),
    "count and last delta say 4 of 3": RawBatch(record_count=4, last_offset_delta=3),
    "count and last delta say 1,000,000": RawBatch(record_count=1_000_000, last_offset_delta=999_999),
    "count 2^31-1": RawBatch(record_count=2**31 - 1, last_offset_delta=2**31 - 2),
    "count -1": RawBatch(record_count=-1, last_offset_delta=-2),
    "count 0, last delta 2": RawBatch(record_count=0),
    "count 0, last delta -1": RawBatch(record_count=0, last_offset_delta=-1),
    "no records": RawBatch(records=(), record_count=0, last_offset_delta=-1),
    "no records, count 1": RawBatch(records=(), record_count=1, last_offset_delta=0),
    "last delta 5": RawBatch(last_offset_delta=5),
    "byte behind the last record": RawBatch(behind_records=b"\x00"),
    "record behind the last record": RawBatch(behind_records=RawRecord(offset_delta=3).encoded()),
    "byte behind the payload": RawBatch(behind_payload=b"\x00"),
    "100 bytes behind the payload": RawBatch(behind_payload=b"\x07" * 100),
    "empty payload": RawBatch(payload=b""),
    "garbage payload": RawBatch(payload=bytes(range(7, 250, 3))),
    "zeros as payload": RawBatch(payload=bytes(64)),
    "control": RawBatch(flags=0x20),
    "transactional": RawBatch(flags=0x10),
    "delete horizon": RawBatch(flags=0x40),
    "attribute bit 7": RawBatch(flags=0x80),
    "attribute bit 12": RawBatch(flags=0x1000),
    "log append time": RawBatch(flags=0x08),
    "log append time, no max timestamp": RawBatch(flags=0x08, max_timestamp=-1),
    "base offset 7": RawBatch(base_offset=7),
    "base offset -1": RawBatch(base_offset=-1),
    "max timestamp too small": RawBatch(max_timestamp=START_MS - 1000),
    "max timestamp too large": RawBatch(max_timestamp=START_MS + 1000),
    "max timestamp -1": RawBatch(max_timestamp=-1),
    "max timestamp in the year 2200": RawBatch(max_timestamp=7_258_118_400_000),
    "base timestamp in the year 2200": RawBatch(base_timestamp=7_258_118_400_000),
    "base timestamp -1": RawBatch(base_timestamp=-1),
    "base timestamp -1000": RawBatch(base_timestamp=-1000),
    "producer without sequence": RawBatch(producer_id=7, producer_epoch=0),
    "producer without epoch": RawBatch(producer_id=7, base_sequence=0),
    "sequence without producer": RawBatch(base_sequence=0),
    "epoch without producer": RawBatch(producer_epoch=0),
    "producer id -2": RawBatch(producer_id=-2, producer_epoch=0, base_sequence=0),
    "wrong checksum": RawBatch(wrong_crc=True),
    "magic 0": RawBatch(magic=0),
    "magic 1": RawBatch(magic=1),
    "magic 3": RawBatch(magic=3),
    "length 1 too large": RawBatch(length_change=1),
    "length 1 too small": RawBatch(length_change=-1),
    "length -1": RawBatch(length_change=-62),
}
"""Defects (and oddities) of a batch."""

_PLAIN: Final = b"".join(record.encoded() for record in _three())
_SKIPPABLE: Final = bytes.fromhex("502a4d1803000000616263")
"""A frame without data, in lz4 and zstd."""
_STORED: Final = 0x80000000
_BLOCKS: Final = tuple(struct.pack("<I", len(record.encoded()) | _STORED) + record.encoded() for record in _three())
"""The records as lz4 blocks that are not compressed."""
_BLOCK_CHECKSUMS: Final = tuple(bytes.fromhex(each) for each in ("7a8f3a41", "6b932c50", "510dfea4"))
_EMPTY_BLOCK: Final = bytes.fromhex("0100000000")
_STORED_EMPTY_BLOCK: Final = struct.pack("<I", _STORED)


def _lz4(header: str, *blocks: bytes, end: bytes = bytes(4)) -> bytes:
    return bytes.fromhex("04224d18" + header) + b"".join(blocks) + end


def _twice(codec: Codec) -> bytes:
    return compress(codec, _PLAIN[:15]) + compress(codec, _PLAIN[15:])


_PAYLOADS: Final[Mapping[Codec, Mapping[str, bytes]]] = {
    Codec.GZIP: {"two members": _twice(Codec.GZIP)},
    Codec.SNAPPY: {
        "without framing": bytes(cramjam.snappy.compress_raw(_PLAIN)),
        "stream behind the payload": _twice(Codec.SNAPPY),
        "two blocks": _XERIAL + _twice(Codec.SNAPPY).replace(_XERIAL, b""),
        "format version 2": compress(Codec.SNAPPY, _PLAIN).replace(_XERIAL, _XERIAL[:8] + struct.pack(">ii", 2, 2)),
        "format version 0": compress(Codec.SNAPPY, _PLAIN).replace(_XERIAL, _XERIAL[:8] + struct.pack(">ii", 0, 0)),
    },
    Codec.LZ4: {
        "two frames": _twice(Codec.LZ4),
        "empty frame behind the payload": compress(Codec.LZ4, _PLAIN) + compress(Codec.LZ4, b""),
        "skippable frame first": _SKIPPABLE + compress(Codec.LZ4, _PLAIN),
        "skippable frame behind the payload": compress(Codec.LZ4, _PLAIN) + _SKIPPABLE,
        "two blocks": _lz4("604082", *_BLOCKS),
        "linked blocks": _lz4("4040c0", *_BLOCKS),
        "blocks of 4 MiB": _lz4("607073", *_BLOCKS),
        "reserved flag": _lz4("6240f0", *_BLOCKS),
        "dictionary": _lz4("614000000000a0", *_BLOCKS),
        "content size": _lz4("68401e0000000000000089", *_BLOCKS),
        "content checksum": _lz4("6440a7", *_BLOCKS, end=bytes.fromhex("0000000046e753c8")),
        "wrong content checksum": _lz4("6440a7", *_BLOCKS, end=bytes(8)),
        "block checksums": _lz4("7040ad", *map(bytes.__add__, _BLOCKS, _BLOCK_CHECKSUMS)),
        "wrong block checksum": _lz4("7040ad", *(block + bytes(4) for block in _BLOCKS)),
        "wrong header checksum": _lz4("604083", *_BLOCKS),
        "empty block": _lz4("604082", _BLOCKS[0], _EMPTY_BLOCK, *_BLOCKS[1:]),
        "empty block before the end": _lz4("604082", *_BLOCKS, _EMPTY_BLOCK),
        "stored block of no bytes": _lz4("604082", _BLOCKS[0], _STORED_EMPTY_BLOCK, *_BLOCKS[1:]),
        "stored block of no bytes as end": _lz4("604082", *_BLOCKS, _STORED_EMPTY_BLOCK, end=b""),
        "no end mark": _lz4("604082", *_BLOCKS, end=b""),
    },
    Codec.ZSTD: {
        "two frames": _twice(Codec.ZSTD),
        "empty frame last": compress(Codec.ZSTD, _PLAIN) + compress(Codec.ZSTD, b""),
        "skippable frame first": _SKIPPABLE + compress(Codec.ZSTD, _PLAIN),
        "skippable frame last": compress(Codec.ZSTD, _PLAIN) + _SKIPPABLE,
    },
}
"""Defects (and oddities) of what is compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A batch with one defect."""

    name: str
    batch: bytes


def cases(codecs: tuple[Codec, ...] = tuple(Codec)) -> Iterator[Case]:
    """Yield every defect in every codec, and what has no codec of its own once."""
    for codec in codecs:
        for name, records in _RECORDS.items():
            yield Case(name=f"{codec.name.lower()}: {name}", batch=RawBatch(records=records, codec=codec).encoded())
        for name, batch in _BATCHES.items():
            yield Case(name=f"{codec.name.lower()}: {name}", batch=replace(batch, codec=codec).encoded())
        for name, payload in _PAYLOADS.get(codec, {}).items():
            yield Case(name=f"{codec.name.lower()}: {name}", batch=RawBatch(payload=payload, codec=codec).encoded())
        for other in (*(each for each in Codec if each is not codec), 5, 6, 7):
            wrong = RawBatch(codec=codec, written_codec=other).encoded()
            yield Case(name=f"{codec.name.lower()}: written as codec {int(other)}", batch=wrong)
    sound = RawBatch().encoded()
    rest: dict[str, Callable[[], bytes]] = {
        "nothing": lambda: b"",
        "two batches": lambda: sound + sound,
        "cut within the header": lambda: sound[:40],
        "cut within the records": lambda: sound[:-3],
        "bytes behind the batch": lambda: sound + b"\x00" * 5,
        "many bytes behind the batch": lambda: sound + b"\x00" * 80,
        "old message of magic 1": lambda: _message(1),
        "old message of magic 0": lambda: _message(0),
    }
    for name, build in rest.items():
        yield Case(name=f"whole: {name}", batch=build())


def _message(magic: int) -> bytes:
    import zlib  # noqa: PLC0415  # message sets of old only

    body = (
        bytes([magic, 0]) + (struct.pack(">q", START_MS) if magic else b"") + struct.pack(">i1si2s", 1, b"k", 2, b"ab")
    )
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
