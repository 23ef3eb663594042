"""``klamm.offsets`` and ``klamm.offsets.by``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.settings.definitions import IsolationLevel
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark.leases import FlowShare, PartitionGroup, from_json, to_json
from klamm.properties import SettingsError, parse_properties

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings

BASE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
PRESERVE = "A->B.klamm.offsets = preserve\n"


def flow_of(more: str) -> FlowSettings:
    (flow,) = parse_settings(parse_properties(BASE + more)).flows
    return flow


def test_offsets_are_translated_by_default() -> None:
    flow = flow_of("")
    assert not flow.preserves_offsets
    assert flow.syncs_topic is not None
    assert copy_settings(flow).replay is None


@pytest.mark.parametrize("way", ["", "klamm.offsets.by = auto\n", "A->B.klamm.offsets.by = replay\n"])
def test_preserve_reads_committed_records_and_writes_no_offset_syncs(way: str) -> None:
    flow = flow_of(PRESERVE + way)
    settings = copy_settings(flow)
    assert (flow.isolation_level, flow.syncs_topic, flow.exactly_once) == (IsolationLevel.READ_COMMITTED, None, None)
    assert settings.read_committed
    assert settings.replay is not None
    assert settings.replay.id_prefix == "A-mm2-klamm-A"
    assert flow.groups is not None


def test_preserve_keeps_configs_that_change_records_off_the_target() -> None:
    wants = flow_of(
        PRESERVE + "config.properties.exclude = retention.ms\n"
    ).config_filter.should_replicate_config_property
    assert [wants(name) for name in ("message.timestamp.type", "compression.type", "retention.ms")] == [False] * 3
    assert wants("cleanup.policy")


def test_preserve_accepts_kip_618_keys_without_transactions() -> None:
    flow = flow_of(PRESERVE + "exactly.once.source.support = enabled\nA.consumer.isolation.level = read_committed\n")
    assert flow.exactly_once is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("klamm.offsets.by = replica\n", "klamm.offsets.by=replica: not built yet; expected one of auto, replay"),
        ("klamm.offsets.by = luck\n", "klamm.offsets.by=luck: expected one of auto, replay"),
        ("klamm.exactly.once = true\n", "klamm.exactly.once=true with klamm.offsets=preserve: expected"),
        (
            "A.consumer.isolation.level = read_uncommitted\n",
            "A.consumer.isolation.level=read_uncommitted with klamm.offsets=preserve: expected read_committed",
        ),
        (
            "A.consumer.auto.offset.reset = latest\n",
            "A.consumer.auto.offset.reset=latest with klamm.offsets=preserve: expected earliest",
        ),
    ],
)
def test_settings_that_contradict_equal_offsets_are_rejected(more: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        flow_of(PRESERVE + more)
    assert message in str(caught.value)


def test_offsets_rejects_other_values() -> None:
    with pytest.raises(SettingsError, match=r"klamm.offsets=keep: expected one of translate, preserve"):
        flow_of("klamm.offsets = keep\n")


def test_replica_is_rejected_without_preserve_too() -> None:
    with pytest.raises(SettingsError, match="not built yet"):
        flow_of("klamm.offsets.by = replica\n")


def test_lease_carries_the_settings_of_replay() -> None:
    settings = copy_settings(flow_of(PRESERVE))
    group = PartitionGroup(number=0, shares=(FlowShare(settings=settings, partitions=()),))
    assert from_json(to_json(group)).shares[0].settings.replay == settings.replay
