"""Kafka's DumpLogSegments reads klamm's segments and reports no error."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.kafka_tools import run_tool
from tests.support.logs import NOON_MS, CrashableLogs, batch
from tests.support.transactions import ABORT, COMMIT, end, write

if TYPE_CHECKING:
    from pathlib import Path

TOOL = "org.apache.kafka.tools.DumpLogSegments"


pytestmark = pytest.mark.usefixtures("java")


def dump(*files: Path, options: tuple[str, ...] = ()) -> str:
    return run_tool(TOOL, "--files", ",".join(map(str, files)), *options)


def test_kafkas_tool_reads_segments_and_indexes(tmp_path: Path) -> None:
    # given
    crashable = CrashableLogs(tmp_path, segment_bytes="20000", index_interval_bytes="500", compression_type="producer")
    codecs = list(Codec)
    for number in range(200):
        records = [
            Record(b"key-%d" % number, b"x" * (number * 7 % 300), (("h", None),), NOON_MS + number * 13 % 997, 0),
            Record(None, None, (), NOON_MS + number, 1),
        ]
        packed = encode_batch(
            records, codec=codecs[number % 5], producer_id=5, producer_epoch=0, base_sequence=2 * number
        )
        crashable.log.append(memoryview(packed))
    asyncio.run(crashable.manager.close())
    directory = tmp_path / "t-0"
    logs = sorted(directory.glob("*.log"))
    indexes = sorted([*directory.glob("*.index"), *directory.glob("*.timeindex")])
    assert len(logs) > 1
    assert len(indexes) == 2 * len(logs)
    # when
    batches = dump(*logs, options=("--deep-iteration",))
    entries = dump(*indexes)
    # then
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", batches, re.MULTILINE)]
    assert offsets == list(range(400))
    assert batches.count("isvalid: true") == 200
    assert "isvalid: false" not in batches
    assert set(re.findall(r"compresscodec: (\w+)", batches)) == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert len(re.findall(r"^offset: \d+ position: \d+", entries, re.MULTILINE)) > 10
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", entries, re.MULTILINE)) > 10
    for complaint in ("Mismatch", "mismatch", "out of order", "Non-consecutive", "Found"):
        assert complaint not in batches + entries


def test_kafkas_tool_reads_a_truncated_and_reindexed_log(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, index_interval_bytes="200")
    for number in range(100):
        crashable.log.append(batch("x" * number, at=NOON_MS + number))
    log = tmp_path / "t-0" / f"{0:020d}.log"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 5)
    log.with_suffix(".index").unlink(missing_ok=True)

    crashable.open()
    assert crashable.log.end_offset == 99
    asyncio.run(crashable.manager.close())

    dumped = dump(log, log.with_suffix(".index"), log.with_suffix(".timeindex"))
    assert dumped.count("isvalid: true") == 99
    assert "ismatch" not in dumped


def test_kafkas_tool_reads_markers_and_the_index_of_aborted_transactions(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 5, "no", sequence=0)
    end(crashable.log, 5, ABORT)
    write(crashable.log, 6, "yes", sequence=0)
    end(crashable.log, 6, COMMIT)
    asyncio.run(crashable.manager.close())
    directory = tmp_path / "t-0"

    output = dump(directory / f"{0:020d}.log", directory / f"{0:020d}.txnindex", options=("--print-data-log",))

    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in output
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in output
    assert re.search(r"producerId: 5 firstOffset: 0 lastOffset: 1 lastStableOffset: 2", output)
