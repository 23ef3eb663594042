"""File descriptors after the admin client, producer and consumer are closed, counted in a separate process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only

if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNTED = """
import itertools, os, sys
from klamm.admin import AdminClient
from klamm.clients import KafkaConsumer, KafkaProducer

numbers = itertools.count()

def admin():
    with AdminClient(bootstrap_servers=sys.argv[1]) as opened:
        opened.describe_cluster().result(300)

def producer():
    opened = KafkaProducer(bootstrap_servers=sys.argv[1])
    opened.send("left-open", b"value").get(10)
    opened.close()

def consumer():
    # A consumer that is closed while it joins is a pending member until its session ends, for which others would wait.
    group_id = f"left-open-{next(numbers)}"
    opened = KafkaConsumer("left-open", bootstrap_servers=sys.argv[1], group_id=group_id)
    opened.poll(100)
    opened.close()

def count():
    return len(os.listdir("/proc/self/fd"))

door = {"admin": admin, "producer": producer, "consumer": consumer}[sys.argv[2]]
door()  # what is opened once and kept, such as the source of random bytes
before = count()
for _ in range(3):
    door()
print(count() - before)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"group.initial.rebalance.delay.ms": "0"}) as started:
        yield started


@pytest.mark.parametrize("door", ["consumer", *long_only("admin", "producer")])
def test_closed_client_leaves_no_open_file_descriptor(broker: KlammBroker, door: str) -> None:
    # when
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, broker.bootstrap_servers, door],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # then
    assert done.stdout.strip() == "0", done.stdout + done.stderr
