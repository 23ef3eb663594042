from __future__ import annotations

import pytest

from klamm.mirror.naming import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    is_cycle,
    is_heartbeats_topic,
    original_topic,
    source_offsets_topic,
)

DEFAULT = DefaultReplicationPolicy()
IDENTITY = IdentityReplicationPolicy(source_cluster_alias="source")


def test_default_policy_prefixes_alias() -> None:
    """K894-32: DefaultReplicationPolicy: remote = alias + separator + topic."""
    assert DEFAULT.format_remote_topic("us-west", "t") == "us-west.t"
    assert DEFAULT.topic_source("us-west.a.b") == "us-west"
    assert DEFAULT.upstream_topic("us-west.a.b") == "a.b"
    assert DEFAULT.topic_source("local") is None
    assert DEFAULT.upstream_topic("local") is None
    assert original_topic(DEFAULT, "a.b.c") == "c"


def test_name_starting_with_separator_has_empty_source() -> None:
    """K894-32: DefaultReplicationPolicy: remote = alias + separator + topic."""
    assert DEFAULT.topic_source(".b") == ""
    assert not is_cycle(DEFAULT, "target", ".b")


@pytest.mark.parametrize(
    ("separator", "topic", "source", "upstream"),
    [(".", "a.", None, None), (".", "..", None, None), (".", "a..", None, None), (".", "a..b", "a", ".b"),
     ("", "ab", "a", "b"), ("", "a", None, None), ("__", "a___b", "a", "_b")],
)  # fmt: skip
def test_names_are_split_like_java_pattern(
    separator: str, topic: str, source: str | None, upstream: str | None
) -> None:
    policy = DefaultReplicationPolicy(separator=separator)
    assert (policy.topic_source(topic), policy.upstream_topic(topic)) == (source, upstream)


def test_separator_is_configurable() -> None:
    policy = DefaultReplicationPolicy(separator="__")
    assert policy.format_remote_topic("A", "t") == "A__t"
    assert policy.checkpoints_topic("A") == "A__checkpoints__internal"
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncs__B__internal"
    plain = DefaultReplicationPolicy(separator="__", internal_topic_separator_enabled=False)
    assert plain.checkpoints_topic("A") == "A.checkpoints.internal"


def test_identity_policy_keeps_names_except_heartbeats() -> None:
    """K894-33: IdentityReplicationPolicy: same name, except names ending ``heartbeats``, which are prefixed."""
    assert IDENTITY.format_remote_topic("source", "t") == "t"
    assert IDENTITY.topic_source("t") == "source"
    assert IDENTITY.format_remote_topic("source", "heartbeats") == "source.heartbeats"
    assert IDENTITY.topic_source("source.heartbeats") == "source"
    assert IDENTITY.topic_source("heartbeats") is None
    assert original_topic(IDENTITY, "t") == "t"


@pytest.mark.parametrize(
    ("topic", "cycle"),
    [
        ("target.t1", True),
        ("source.target.t1", True),
        ("target.source.t1", True),
        ("source.t1", False),
        ("t1", False),
    ],
)
def test_topic_from_target_is_cycle(topic: str, cycle: bool) -> None:
    """K894-34: Cycle: walk sources of the topic name; if any is the target alias, do not mirror."""
    assert is_cycle(DEFAULT, "target", topic) is cycle


def test_identity_policy_detects_cycles_of_heartbeats_only() -> None:
    """K894-33: IdentityReplicationPolicy: same name, except names ending ``heartbeats``, which are prefixed."""
    assert not is_cycle(IDENTITY, "target", "t")
    assert is_cycle(IDENTITY, "target", "target.heartbeats")


@pytest.mark.parametrize(
    ("topic", "internal"),
    [
        ("__consumer_offsets", True),
        (".hidden", True),
        ("mm2-offsets.A.internal", True),
        ("A.checkpoints.internal", True),
        ("orders.internal", False),
        ("orders-internal", False),
        ("mm2-orders-internal", False),
        ("orders", False),
    ],
)
def test_internal_topics_are_detected_by_name(topic: str, internal: bool) -> None:
    """K894-31: the rule of MirrorMaker since Kafka 4.1 (KAFKA-17200), with the separator of internal topics."""
    assert DEFAULT.is_internal_topic(topic) is internal
    policy = DefaultReplicationPolicy(separator="__")
    assert policy.is_internal_topic(topic.replace(".", "__")) is internal or topic.startswith(".")


def test_heartbeats_are_detected_over_any_number_of_hops() -> None:
    assert is_heartbeats_topic(DEFAULT, "heartbeats")
    assert is_heartbeats_topic(DEFAULT, "a.b.heartbeats")
    assert not is_heartbeats_topic(DEFAULT, "my-heartbeats")


def test_offsets_topic_has_connect_name() -> None:
    assert source_offsets_topic("A") == "mm2-offsets.A.internal"
