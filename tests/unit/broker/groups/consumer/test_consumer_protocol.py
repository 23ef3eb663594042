from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.groups.consumer.consumer_protocol import (
    read_assignment,
    read_subscription,
    read_version,
    write_assignment,
)


def test_assignment_decodes_to_itself() -> None:
    partitions = {"a": (0, 2), "b": (1,)}

    assert read_assignment(write_assignment(partitions, 3)) == partitions
    assert read_assignment(b"") == {}


@pytest.mark.parametrize(
    ("version", "rest", "owned", "rack_id"),
    [
        (0, b"", {}, None),
        (1, b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\4", {"t": (4,)}, None),
        (2, b"\0\0\0\0\0\0\0\7", {}, None),
        (3, b"\0\0\0\0\0\0\0\7\0\1r", {}, "r"),
        (4, b"\0\0\0\0\0\0\0\7\0\1r and more", {}, "r"),
        (3, b"", {}, None),
    ],
)
def test_subscription_of_any_version_is_decoded(
    version: int, rest: bytes, owned: dict[str, tuple[int, ...]], rack_id: str | None
) -> None:
    subscription = read_subscription(struct.pack(">hi", version, 1) + b"\0\1t" + struct.pack(">i2s", 2, b"xx") + rest)

    assert (subscription.topics, dict(subscription.owned), subscription.rack_id) == (("t",), owned, rack_id)
    assert subscription.version == min(version, 3)
    assert read_version(struct.pack(">h", version)) == subscription.version


@given(st.binary(max_size=40))
def test_arbitrary_bytes_parse_or_raise_value_error(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        try:
            read(data)
        except ValueError:
            continue
