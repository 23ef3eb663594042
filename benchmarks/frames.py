"""What the worst frames of 1 MB cost that are read: thousands of tiny parts, and one error at the very end.

Run with ``python -m benchmarks.frames``. CPU time of one thread, so that other processes disturb little.
"""

from __future__ import annotations

import contextlib
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Final

from klamm.protocol.codec import decode, encode, granted_elements
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.create_topics import CreateTopicsRequest
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.list_offsets import ListOffsetsRequest
from klamm.protocol.messages.metadata import MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.schema import Message

_ROUNDS: Final = 5
_FRAME_BYTES: Final = 1 << 20


def frames() -> Iterator[tuple[str, Message, int, bytes]]:
    """Yield name, message, version and body; each body lacks its last byte."""
    count = granted_elements(_FRAME_BYTES) - 25_000
    topic = CreateTopicsRequest.CreatableTopic(
        name="abcde", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name="abcdef", configs=[])
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, current_leader_epoch=0, timestamp=0)
    messages: tuple[tuple[str, Message, int], ...] = (
        ("CreateTopics", CreateTopicsRequest(topics=[topic] * count, timeout_ms=1), 7),
        ("IncrementalAlterConfigs", IncrementalAlterConfigsRequest(resources=[resource] * count), 1),
        ("Metadata", MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="abcdefghij")] * count), 1),
        (
            "ListOffsets",
            ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name="a", partitions=[partition] * count)]
            ),
            7,
        ),
    )
    for name, message, version in messages:
        yield name, message, version, bytes(encode(message, version))[:-1]


def measure() -> Iterator[tuple[str, int, float, float]]:
    """Yield name, bytes, milliseconds of CPU and MB of memory at most."""
    for name, message, version, body in frames():
        milliseconds = []
        for _ in range(_ROUNDS):
            before = time.thread_time()
            _reject(message, version, body)
            milliseconds.append((time.thread_time() - before) * 1e3)
        tracemalloc.start()
        _reject(message, version, body)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        yield name, len(body), min(milliseconds), peak


def _reject(message: Message, version: int, body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(type(message), version, body, max_elements=granted_elements(_FRAME_BYTES))


def main() -> None:
    """Print a table."""
    sys.stdout.write(f"{'frame of':>24} {'bytes':>9} {'CPU ms':>8} {'MB':>6}\n")
    for name, size, milliseconds, megabytes in measure():
        sys.stdout.write(f"{name:>24} {size:>9} {milliseconds:>8.1f} {megabytes:>6.1f}\n")


if __name__ == "__main__":
    main()
