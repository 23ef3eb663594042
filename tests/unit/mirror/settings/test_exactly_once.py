from __future__ import annotations

from datetime import timedelta

import pytest

from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.settings.definitions import IsolationLevel
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.properties import SettingsError, parse_properties

BASE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
COMMITTED = "A.consumer.isolation.level = read_committed\n"
ENABLED = "B.exactly.once.source.support = enabled\n"


def settings(more: str) -> MirrorSettings:
    return parse_settings(parse_properties(BASE + more))


def test_delivery_is_at_least_once_by_default() -> None:
    (flow,) = settings(COMMITTED).flows
    assert flow.exactly_once is None
    assert copy_settings(flow).transactions is None


def test_mirrormaker_keys_enable_exactly_once() -> None:
    """K894-39: the worker's key belongs to the target; committed records only."""
    (flow,) = settings(COMMITTED + ENABLED).flows
    assert flow.exactly_once is not None
    transactions = copy_settings(flow).transactions
    assert transactions is not None
    assert transactions.transactional_id == "A-mm2-klamm-A-1-0"
    assert (transactions.interval_s, transactions.timeout_ms) == (0.2, 60_000)
    assert copy_settings(flow).read_committed


@pytest.mark.parametrize("prefix", ["", "A->B.", "B."])
def test_exactly_once_source_support_is_read_at_any_place(prefix: str) -> None:
    assert settings(COMMITTED + f"{prefix}exactly.once.source.support=ENABLED\n").flows[0].exactly_once is not None


def test_klamm_exactly_once_replaces_kip_618_keys() -> None:
    (flow,) = settings("klamm.exactly.once = true\n").flows
    assert flow.exactly_once is not None
    assert flow.isolation_level is IsolationLevel.READ_COMMITTED


def test_exactly_once_with_read_uncommitted_is_unsupported() -> None:
    """K894-39: requested of a flow that reads everything, it is told and not done."""
    parsed = settings(ENABLED)
    assert parsed.flows[0].exactly_once is None
    assert parsed.warnings == (
        "A->B: exactly.once.source.support=enabled is UNSUPPORTED with A.consumer.isolation.level=read_uncommitted, "
        "delivery is at least once: set A.consumer.isolation.level=read_committed",
    )


def test_preparing_stays_at_least_once() -> None:
    parsed = settings(COMMITTED + "B.exactly.once.source.support = preparing\n")
    assert parsed.flows[0].exactly_once is None
    assert "preparing" in parsed.warnings[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (ENABLED + "exactly.once.support=required\n", "exactly.once.support=required with A.consumer.isolation.level"),
        (
            COMMITTED + "exactly.once.support=required\n",
            "exactly.once.support=required with exactly.once.source.support=disabled: expected "
            "exactly.once.source.support=enabled",
        ),
        (
            "klamm.exactly.once=true\nA.consumer.isolation.level=read_uncommitted\n",
            "klamm.exactly.once=true with A.consumer.isolation.level=read_uncommitted: expected "
            "A.consumer.isolation.level=read_committed",
        ),
        (ENABLED + "A->B.exactly.once.support=maybe\n", "expected one of requested, required"),
        ("exactly.once.source.support=on\n", "expected one of disabled, preparing, enabled"),
        (COMMITTED + ENABLED + "transaction.boundary=connector\n", "expected one of poll, interval"),
        (COMMITTED + ENABLED + "klamm.exactly.once.shards=0\n", "klamm.exactly.once.shards=0"),
        (
            COMMITTED + ENABLED + "transaction.boundary=interval\ntransaction.boundary.interval.ms=70000\n",
            "expected less than the producer's transaction.timeout.ms=60000",
        ),
        ("klamm.on.source.loss=ignore\n", "expected one of stop, continue"),
    ],
)
def test_impossible_exactly_once_settings_are_rejected(more: str, message: str) -> None:
    """K894-39: required without read_committed is rejected, with the key that has to change."""
    with pytest.raises(SettingsError, match=message):
        settings(more)


def test_exactly_once_settings_are_configurable() -> None:
    (flow,) = settings(
        COMMITTED
        + ENABLED
        + "klamm.exactly.once.shards = 16\ntransaction.boundary = interval\n"
        + "transaction.boundary.interval.ms = 900\nB.producer.transaction.timeout.ms = 5000\nB.group.id = team\n"
    ).flows
    assert flow.exactly_once is not None
    assert flow.exactly_once.interval == timedelta(milliseconds=900)
    assert flow.exactly_once.timeout == timedelta(seconds=5)
    transactions = copy_settings(flow).transactions
    assert transactions is not None
    assert transactions.transactional_id == "team-klamm-A-16-0"


@pytest.mark.parametrize(("tasks_max", "shards"), [(3, 3), (50, 4)])
def test_default_number_of_shards_is_tasks_max_and_at_most_four(tasks_max: int, shards: int) -> None:
    (flow,) = settings(COMMITTED + ENABLED + f"A->B.tasks.max = {tasks_max}\n").flows
    assert flow.exactly_once is not None
    assert flow.exactly_once.shards == shards


def test_source_loss_stops_partition_by_default() -> None:
    assert not copy_settings(settings("").flows[0]).continue_after_loss
    assert copy_settings(settings("klamm.on.source.loss = continue\n").flows[0]).continue_after_loss
