"""Codecs for kafka-python: compression for which it needs further packages, and lenient header names."""

from __future__ import annotations

import functools
from typing import Any, Final

import kafka.codec
from kafka import KafkaProducer
from kafka.record import default_records
from kafka.record.default_records import DefaultRecordBatch

from klamm.protocol.records import Codec, compress, decompress

_read_record: Final = DefaultRecordBatch._read_msg
"""kafka-python's own method. It raises UnicodeDecodeError for a header name that is not UTF-8."""


def add_codecs() -> None:
    """Register klamm's codecs in kafka-python for those that are not installed. Affects this process only."""
    for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        name = codec.name.lower()
        if getattr(kafka.codec, f"has_{name}")():
            continue
        setattr(kafka.codec, f"has_{name}", _is_present)
        setattr(default_records, f"{name}_encode", functools.partial(compress, codec))
        setattr(default_records, f"{name}_decode", functools.partial(_decompressed, codec))
        KafkaProducer._COMPRESSORS[name] = (_is_present, codec.value)


def accept_any_header_name() -> None:
    """Let kafka-python decode header names as Java does, with replacement characters. Affects this process only."""
    DefaultRecordBatch._read_msg = _read_record_leniently


def _is_present() -> bool:
    return True


def _decompressed(codec: Codec, data: bytes) -> bytes:
    return bytes(decompress(codec, data))


def _read_record_leniently(batch: Any) -> Any:
    """Return the next record of a batch.

    The slower buffer is used only from the first record on whose header name is not UTF-8. kafka-python moves the
    position after a whole record, so the record is read again.
    """
    try:
        return _read_record(batch)
    except UnicodeDecodeError:
        batch._buffer = _LenientBuffer(batch._buffer)
        return _read_record(batch)


class _LenientBuffer(bytearray):
    """Records of a batch. Slices of it can be decoded even if they are not UTF-8."""

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        return _LenientSlice(item) if isinstance(index, slice) else item


class _LenientSlice(bytes):
    def decode(self, encoding: str = "utf-8", _: str = "strict") -> str:
        return super().decode(encoding, "replace")
