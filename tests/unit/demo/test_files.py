"""The demo's step with a file: a plan with its impact, a change, and no drift."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer
from rich.console import Console

from examples.demo.display import Display
from examples.demo.files import show_files
from klamm.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from pathlib import Path

    import klamm

JANUARY_2013_MS = 1_357_000_000_000


@pytest.mark.long
@pytest.mark.process
def test_file_step_rejects_a_loss_and_ends_without_drift(klamm_broker: klamm.Broker, tmp_path: Path) -> None:
    # given
    with AdminClient(klamm_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("old.flights", 2, 1, configs={"retention.ms": "-1"})]).all().result()
    producer = KafkaProducer(bootstrap_servers=klamm_broker.bootstrap_servers)
    for _ in range(20):
        producer.send("old.flights", b"flight", timestamp_ms=JANUARY_2013_MS)
    producer.close()
    shown = io.StringIO()
    # when
    claims = show_files(
        klamm_broker.bootstrap_servers, "old.flights", tmp_path, Display(Console(file=shown, width=200))
    )
    # then
    assert [claim for claim in claims if not claim.holds] == []
    assert "20 records" in claims[0].evidence
    assert claims[1].evidence == "Topics: 0 to create, 0 to change, 1 in line, 0 rejected."
