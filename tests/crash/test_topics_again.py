"""Topics that are deleted and created again under the same names while the broker is killed (SIGKILL)."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from klamm.protocol.records import Record, decode_records, encode_batch
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.probe import Cluster

_NAMES = ("t", "n" * 240, "m" * 249)
_PARTITIONS = 3
_KILLS = 40 if os.environ.get("KLAMM_SOAK") else 3


def test_recreated_topic_has_no_older_records_after_kills(crashing: Cluster) -> None:
    moments = random.Random()
    for number in range(_KILLS):
        # given
        value = b"round %d" % number
        with WireClient(crashing.bootstrap_servers) as client:
            for name in _NAMES:
                if name not in client.topic_ids():
                    client.create_topic(name, partitions=_PARTITIONS)
                for partition in range(_PARTITIONS):
                    client.produce(name, partition, _batch(value))
                    assert set(_values(client, name, partition)) == {value}
        # when
        deleter = threading.Thread(target=_delete, args=(crashing.bootstrap_servers, _NAMES))
        deleter.start()
        time.sleep(moments.uniform(0, 0.02))
        crashing.restart(kill=True)
        deleter.join()
        # then
        with WireClient(crashing.bootstrap_servers) as client:
            there = client.topic_ids()
            for name in _NAMES:
                if name in there:
                    assert set(_values(client, name, 0)) <= {value}
                    client.delete_topic(name)
                client.create_topic(name, partitions=_PARTITIONS)
                assert [_values(client, name, partition) for partition in range(_PARTITIONS)] == [[]] * _PARTITIONS


def _delete(address: str, names: Sequence[str]) -> None:
    with suppress(OSError, EOFError, RejectedError), WireClient(address) as client:
        for name in names:
            client.delete_topic(name)


def _values(client: WireClient, topic: str, partition: int) -> list[bytes]:
    return [
        bytes(record.value or b"") for batch in client.read_to_end(topic, partition) for record in decode_records(batch)
    ]


def _batch(value: bytes) -> bytearray:
    return encode_batch([Record(key=None, value=value, headers=(), timestamp=1_700_000_000_000, offset=0)])
