"""Record batches: reading and patching headers in place, and decoding or building records where that is unavoidable.

Pure: bytes in, bytes out. Shared by the broker's logs and the mirror.
"""

from __future__ import annotations

from klamm.protocol.records import decoder
from klamm.protocol.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RecordBatch,
    iter_batches,
    patch_header,
    patched_header,
    verify_crc,
    write_crc,
)
from klamm.protocol.records.codecs import Codec, compress, decompress, decompress_view
from klamm.protocol.records.control import ControlRecord, ControlType, decode_marker, encode_marker
from klamm.protocol.records.decoder import decode_records, iter_records, read_headers, read_varint
from klamm.protocol.records.encoder import encode_batch, encode_headers, encode_section, varint
from klamm.protocol.records.layout import BATCH_OVERHEAD, LOG_OVERHEAD
from klamm.protocol.records.record import Record, TimestampType
from klamm.protocol.records.record_check import RecordFields, check_records, iter_fields, record_ends

__all__ = [
    "BATCH_OVERHEAD",
    "LOG_OVERHEAD",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "Codec",
    "ControlRecord",
    "ControlType",
    "Record",
    "RecordBatch",
    "RecordFields",
    "TimestampType",
    "check_records",
    "compress",
    "decode_marker",
    "decode_records",
    "decompress",
    "decompress_view",
    "encode_batch",
    "encode_headers",
    "encode_marker",
    "encode_section",
    "is_compiled",
    "iter_batches",
    "iter_fields",
    "iter_records",
    "patch_header",
    "patched_header",
    "read_headers",
    "read_varint",
    "record_ends",
    "varint",
    "verify_crc",
    "write_crc",
]


def is_compiled() -> bool:
    """Return whether the per-record checks run as compiled code, as in a wheel, or as interpreted Python."""
    return not decoder.__file__.endswith(".py")
