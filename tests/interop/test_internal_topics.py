"""The same requests for internal topics to Apache Kafka and to klamm, and the documented differences."""

from __future__ import annotations

from typing import Any, Final

import pytest

import klamm
from tests.support.internal_topics import OFFSETS, TRANSACTIONS, ask_all
from tests.support.kafka import KafkaCluster

PROPERTIES: Final = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "transaction.state.log.min.isr": "1",
}
RESERVED: Final = "Topic '{}' is reserved: the broker creates it when it is needed."
KEPT: Final = "An internal topic cannot be deleted; delete groups to remove their offsets."
BOTH: Final = [(OFFSETS, True, 50), (TRANSACTIONS, True, 50)]

DECIDED: Final[dict[str, tuple[Any, Any]]] = {
    **{
        f"create {name} before it exists": (("NONE", None), ("INVALID_TOPIC_EXCEPTION", RESERVED.format(name)))
        for name in (OFFSETS, TRANSACTIONS)
    },
    **{f"delete {name}": (("NONE", None), ("INVALID_TOPIC_EXCEPTION", KEPT)) for name in (OFFSETS, TRANSACTIONS)},
    "topics after the deletion": (None, BOTH),
}
"""By question: Kafka's answer, and klamm's. Kafka creates a topic again as soon as a coordinator is asked for."""


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    """klamm's answer to each question."""
    with klamm.Broker(config=PROPERTIES) as broker:
        return dict(ask_all(broker.bootstrap_servers))


def test_internal_topics_are_reserved_and_cannot_be_deleted(ours: dict[str, Any]) -> None:
    assert {q: ours[q] for q in DECIDED} == {q: answer for q, (_, answer) in DECIDED.items()}


@pytest.mark.long
def test_internal_topics_respond_like_kafka(java: None, ours: dict[str, Any]) -> None:
    with KafkaCluster(1, PROPERTIES) as kafka:
        theirs = dict(ask_all(kafka.bootstrap_servers))
    assert list(theirs) == list(ours)
    assert {q: ours[q] for q in ours if q not in DECIDED} == {q: theirs[q] for q in theirs if q not in DECIDED}
    expected = {q: answer for q, (answer, _) in DECIDED.items() if answer is not None}
    assert {q: theirs[q] for q in expected} == expected
