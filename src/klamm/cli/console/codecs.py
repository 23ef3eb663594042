"""Compression codecs for kafka-python, which by itself needs further packages for snappy, lz4 and zstd."""

from __future__ import annotations

import functools

import kafka.codec
from kafka import KafkaProducer
from kafka.record import default_records

from klamm.protocol.records import Codec, compress, decompress


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


def _is_present() -> bool:
    return True


def _decompressed(codec: Codec, data: bytes) -> bytes:
    return bytes(decompress(codec, data))
