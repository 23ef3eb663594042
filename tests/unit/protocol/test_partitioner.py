"""The default partitioner agrees with Kafka's Java producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as reference_murmur2

from klamm.protocol.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_numbers_of_kafkas_java_producer(data: bytes, expected: int) -> None:
    """The expected numbers are those in the tests of Kafka's own client."""
    assert murmur2(data) == expected % 2**32


@given(st.binary(), st.integers(1, 10_000))
def test_every_key_has_a_partition(key: bytes, partition_count: int) -> None:
    assert 0 <= partition_for_key(key, partition_count) < partition_count


@given(st.binary())
def test_murmur2_equals_the_hash_of_kafka_python(data: bytes) -> None:
    assert murmur2(data) == reference_murmur2(data) % 2**32
