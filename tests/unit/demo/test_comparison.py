"""Comparison of the records of two clusters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from examples.demo import comparison

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def a_record(**changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {"timestamp": 1, "timestamp_type": 0, "key": b"k", "value": b"v", "headers": ()}
    return SimpleNamespace(**{**fields, **changes})


RECORDS = [
    a_record(),
    a_record(timestamp=2),
    a_record(timestamp_type=1),
    a_record(key=None),
    a_record(key=b""),
    a_record(key=b"kv", value=b""),
    a_record(value=None),
    a_record(headers=(("h", b"1"),)),
    a_record(headers=(("h", None),)),
    a_record(headers=(("h", b"1"), ("h", b"1"))),
]


def test_different_records_have_different_canonical_forms() -> None:
    assert len({comparison.canonical(record) for record in RECORDS}) == len(RECORDS)


def test_canonical_records_are_split_again() -> None:
    dump = b"".join(map(comparison.canonical, RECORDS))
    assert len(list(comparison.split_dump(dump))) == len(RECORDS)


def test_equal_records_have_no_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared(tmp_path, monkeypatch, {0: RECORDS, 1: []}, {0: RECORDS, 1: []}).is_same


def test_changed_missing_and_duplicate_records_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    source = {0: RECORDS, 1: RECORDS, 2: RECORDS, 3: RECORDS}
    target = {0: [*RECORDS[:4], a_record(value=b"w"), *RECORDS[5:]], 1: RECORDS[:-1], 2: [*RECORDS, RECORDS[-1]]}
    # when
    comparison = compared(tmp_path, monkeypatch, source, target)
    # then
    assert comparison.differences == (
        "partition 0: record 4 differs; 10 records here, 10 there",
        "partition 1: 10 records here, 9 there",
        "partition 2: 10 records here, 11 there",
        "partition 3 exists on one side only",
    )


def compared(
    directory: Path, monkeypatch: pytest.MonkeyPatch, source: dict[int, Any], target: dict[int, Any]
) -> comparison.Comparison:
    """Compare two sides without processes and brokers."""
    sides = {"source": source, "target": target}

    class InPlace:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> InPlace:
            return self

        def __exit__(self, *_: object) -> None: ...
        def submit(self, _: Any, side: comparison.Side, place: Path) -> Any:
            place.mkdir()
            for partition, records in sides[side.topic].items():
                (place / str(partition)).write_bytes(b"".join(map(comparison.canonical, records)))
            counts = {partition: len(records) for partition, records in sides[side.topic].items()}
            return SimpleNamespace(result=lambda: comparison.Dump(counts=counts, without_key=0))

    monkeypatch.setattr(comparison, "ProcessPoolExecutor", InPlace)
    return comparison.compare(
        comparison.Side(bootstrap_servers="", topic="source"),
        comparison.Side(bootstrap_servers="", topic="target"),
        directory,
    )
