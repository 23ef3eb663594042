from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from klamm.admin import ConfigEntry, ConfigSource, OpType
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.naming import IdentityReplicationPolicy
from klamm.mirror.settings.clients import ROLES
from klamm.mirror.settings.definitions import SETTINGS, IncrementalAlterConfigs, IsolationLevel
from klamm.mirror.settings.key_reader import KeyReader
from klamm.mirror.settings.mirror import LiveKeys, MirrorSettings, parse_settings
from klamm.mirror.topics.plans import plan_config_operations
from klamm.properties import SettingsError, parse_properties
from tests.support import client_keys

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings

BASE = """
clusters = A, B
A.bootstrap.servers = a1:9092, a2:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""


def settings(more: str = "", *targets: str) -> MirrorSettings:
    return parse_settings(parse_properties(BASE + more), target_aliases=targets)


def flow(more: str = "") -> FlowSettings:
    return settings(more).flows[0]


def test_clusters_and_enabled_flows_are_parsed() -> None:
    """K894-26: mm2.properties: ``clusters``, ``<alias>.bootstrap.servers``, ``A->B.enabled=true``; a flow is off unless
    enabled.
    """
    parsed = settings()
    assert [f.name for f in parsed.flows] == ["A->B"]
    assert parsed.clusters["A"].bootstrap_servers == ("a1:9092", "a2:9092")


def test_flow_is_disabled_by_default() -> None:
    """K894-26: mm2.properties: ``clusters``, ``<alias>.bootstrap.servers``, ``A->B.enabled=true``; a flow is off unless
    enabled.
    """
    assert [f.name for f in settings("B->A.enabled=true\n").flows] == ["A->B", "B->A"]
    with pytest.raises(SettingsError, match="No flow is enabled"):
        settings("A->B.enabled=false\nemit.heartbeats.enabled=false\n")


@pytest.mark.parametrize(
    ("more", "flows"),
    [
        ("", ["A->B", "B->A"]),
        ("B->A.enabled=false\n", ["A->B"]),
        ("B->A.emit.heartbeats.enabled=false\n", ["A->B"]),
        ("emit.heartbeats.enabled=false\n", ["A->B"]),
        ("emit.heartbeats.enabled=false\nB->A.enabled=true\n", ["A->B", "B->A"]),
    ],
)
def test_top_level_enabled_counts_for_pairs_with_heartbeats(more: str, flows: list[str]) -> None:
    parsed = settings(f"enabled=true\n{more}")
    assert [flow.name for flow in parsed.flows] == flows
    assert parsed.unused == ()


def test_defaults_match_mirrormaker() -> None:
    parsed = flow()
    assert parsed.replication_factor == 2
    assert parsed.refresh_topics_interval == timedelta(seconds=600)
    assert parsed.sync_topic_configs_interval == timedelta(seconds=600)
    assert parsed.source_offsets_topic == "mm2-offsets.A.internal"
    assert parsed.source_offsets_partitions == 25
    assert parsed.source_offsets_replication_factor == 3
    assert parsed.isolation_level is IsolationLevel.READ_UNCOMMITTED
    assert parsed.remote_topic("t") == "A.t"


@pytest.mark.parametrize("value", ["requested", "required", "never"])
def test_use_incremental_alter_configs_accepts_three_values(value: str) -> None:
    """K894-01: New key ``use.incremental.alter.configs``: string, default ``requested``; values requested, required,
    never.
    """
    assert flow(f"use.incremental.alter.configs={value}\n").use_incremental_alter_configs == value
    assert flow().use_incremental_alter_configs is IncrementalAlterConfigs.REQUESTED


@pytest.mark.parametrize("value", ["sometimes", "Required", ""])
def test_invalid_use_incremental_alter_configs_is_rejected_with_allowed_values(value: str) -> None:
    """K894-02: case-sensitive."""
    allowed = f"use.incremental.alter.configs={value}: expected one of requested, required, never"
    with pytest.raises(SettingsError, match=allowed):
        flow(f"use.incremental.alter.configs={value}\n")


def test_use_incremental_alter_configs_is_deprecated() -> None:
    """K894-03, K894-24: and what a later major version does instead."""
    assert settings().warnings == ()
    (warning,) = settings("A->B.use.incremental.alter.configs=never\n").warnings
    assert warning.startswith("A->B.use.incremental.alter.configs is deprecated")
    assert "removed in a later major version" in warning
    assert "always written with IncrementalAlterConfigs" in warning


@pytest.mark.parametrize("key", ["use.defaults.from", "A->B.use.defaults.from"])
def test_use_defaults_from_applies_at_top_level_and_per_flow(key: str) -> None:
    """K894-12: DefaultConfigPropertyFilter gains ``use.defaults.from``: source or target.

    K894-16: ``use.defaults.from`` works at top level of mm2.properties and per flow.
    """
    assert not flow().config_filter.should_replicate_source_default("retention.ms")
    assert flow(f"{key}=source\n").config_filter.should_replicate_source_default("retention.ms")


def test_invalid_use_defaults_from_is_rejected() -> None:
    """K894-12: DefaultConfigPropertyFilter gains ``use.defaults.from``: source or target."""
    with pytest.raises(SettingsError, match=r"use.defaults.from=broker: expected one of source, target"):
        flow("use.defaults.from=broker\n")


def test_flow_keys_override_top_level() -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.
    """
    parsed = flow("replication.factor=1\nA->B.replication.factor=3\ntopics=x\nA->B.topics=orders\n")
    assert parsed.replication_factor == 3
    assert parsed.selection.includes("orders")
    assert not parsed.selection.includes("x")


def test_closer_client_keys_take_precedence() -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.
    """
    parsed = flow(
        """
sasl.mechanism = PLAIN
A.sasl.mechanism = SCRAM-SHA-256
A.consumer.fetch.max.bytes = 2
A->B.consumer.fetch.max.bytes = 1
A->B.source.consumer.fetch.min.bytes = 7
B.producer.linger.ms = 1
A->B.producer.override.linger.ms = 5
A->B.target.admin.request.timeout.ms = 9
"""
    )
    assert parsed.clients["source.consumer"]["sasl.mechanism"] == "SCRAM-SHA-256"
    assert parsed.clients["source.consumer"]["fetch.max.bytes"] == "2"
    assert parsed.clients["source.consumer"]["fetch.min.bytes"] == "7"
    assert parsed.clients["target.producer"]["sasl.mechanism"] == "PLAIN"
    assert parsed.clients["target.producer"]["linger.ms"] == "5"
    assert parsed.clients["target.admin"]["request.timeout.ms"] == "9"


@pytest.mark.parametrize("client", [f"{side}.{role}" for side in client_keys.ALIASES for role in ROLES])
@pytest.mark.parametrize("key", [client_keys.OF_SECURITY, client_keys.OTHER])
def test_client_keys_have_mirrormaker_precedence(client: str, key: str) -> None:
    """K894-27: its own classes are asked in the interop tests."""

    def ask(file: Mapping[str, str]) -> str | None:
        return parse_settings(file).flows[0].clients[client].get(key)

    order = client_keys.strongest_first(client, key, ask)
    if client != "target.producer":
        assert order == client_keys.mirrormakers_order(client, key)
        return
    # One producer here is two of MirrorMaker, that of records and that of offset syncs.
    override, *rest = order
    assert tuple(rest) == client_keys.mirrormakers_order(client, key)
    assert (
        tuple(place for place in order if place in client_keys.ORDER_OF_RECORDS[key])
        == (client_keys.ORDER_OF_RECORDS[key])
    )
    assert override == "A->B.producer.override."


def test_worker_keys_are_read_at_target() -> None:
    assert flow("offset.storage.replication.factor=1\n").source_offsets_replication_factor == 1
    assert flow("B.offset.storage.replication.factor=2\n").source_offsets_replication_factor == 2
    assert flow("B.offset.storage.topic=mine\n").source_offsets_topic == "mine"


def test_offsets_topic_gets_offset_storage_configs() -> None:
    """KIP-605; MirrorMaker always compacts it, too."""
    parsed = settings(
        "offset.storage.min.insync.replicas=2\nB.offset.storage.segment.bytes=1000\n"
        "offset.storage.partitions=7\noffset.storage.cleanup.policy=delete\n"
    )
    assert parsed.unused == ()
    assert parsed.flows[0].source_offsets_topic_configs == {"min.insync.replicas": "2", "segment.bytes": "1000"}
    assert flow("").source_offsets_topic_configs == {"segment.bytes": "104857600"}


def test_flow_may_have_own_offsets_topic() -> None:
    """KIP-618; K894-27: Kafka's own classes are asked in the interop tests."""
    alone = flow()
    assert (alone.source_offsets_topic, alone.worker_offsets_topic) == ("mm2-offsets.A.internal", None)
    both = flow("A->B.offsets.storage.topic= own \nB.offset.storage.topic=mine\n")
    assert (both.source_offsets_topic, both.worker_offsets_topic) == ("own", "mine")
    assert settings("A->B.offsets.storage.topic=own\n").unused == ()
    same = flow("A->B.offsets.storage.topic=mine\nB.offset.storage.topic=mine\n")
    assert (same.source_offsets_topic, same.worker_offsets_topic) == ("mine", None)


@pytest.mark.parametrize("place", ["", "A.", "B."])
def test_offsets_storage_topic_outside_flow_is_reported(place: str) -> None:
    """K894-27: as in MirrorMaker."""
    parsed = settings(f"{place}offsets.storage.topic=own\n")
    assert parsed.flows[0].source_offsets_topic == "mm2-offsets.A.internal"
    assert parsed.unused == (
        f"{place}offsets.storage.topic has no effect: MirrorMaker takes it as A->B.offsets.storage.topic only; "
        "offset.storage.topic counts here",
    )


@pytest.mark.parametrize("key", client_keys.WORKERS_ORDER)
def test_worker_keys_have_mirrormaker_precedence(key: str) -> None:
    """K894-27: its own classes are asked in the interop tests."""
    place = next(setting.place for setting in SETTINGS if setting.key == key)
    place = next(setting.place for setting in SETTINGS if setting.key == key)

    def ask(file: Mapping[str, str]) -> str | None:
        entry = KeyReader(file, "A", "B").find(key, place)
        return None if entry is None else entry[1]

    kafkas = client_keys.WORKERS_ORDER[key]
    order = client_keys.strongest_first("target.consumer", key, ask)
    assert order[: len(kafkas)] == kafkas
    assert set(order) == {"", "B.", "A->B."}


def test_setting_the_excluded_configs_replaces_the_list() -> None:
    config_filter = flow("config.properties.exclude=retention\\\\.ms\n").config_filter
    assert not config_filter.should_replicate_config_property("retention.ms")
    assert config_filter.should_replicate_config_property("min.insync.replicas")


def test_deprecated_blacklist_keys_are_accepted() -> None:
    """As in MirrorMaker 3.9, where the newer name has precedence; a warning says that later ones ignore them."""
    newer = flow("A->B.topics.blacklist=users\ntopics.exclude=orders\n").selection
    assert [name for name in ("orders", "users") if newer.includes(name)] == ["users"]
    old = settings("topics.blacklist=b.*\nconfig.properties.blacklist=segment.*\n")
    (parsed,) = old.flows
    assert not parsed.selection.includes("bills")
    assert not parsed.config_filter.should_replicate_config_property("segment.bytes")
    assert [warning.partition(":")[0] for warning in old.warnings] == [
        "topics.blacklist is deprecated", "config.properties.blacklist is deprecated",
    ]  # fmt: skip


def test_java_names_of_default_classes_are_accepted() -> None:
    parsed = flow(
        """
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
topic.filter.class = org.apache.kafka.connect.mirror.DefaultTopicFilter
config.property.filter.class = org.apache.kafka.connect.mirror.DefaultConfigPropertyFilter
"""
    )
    assert isinstance(parsed.policy, IdentityReplicationPolicy)
    assert parsed.remote_topic("t") == "t"


@pytest.mark.parametrize("key", ["", "A->B."])
def test_empty_alias_and_separator_keep_names(key: str) -> None:
    parsed = flow(f"{key}source.cluster.alias=\n{key}target.cluster.alias=\nreplication.policy.separator=\n")
    assert (parsed.name, parsed.remote_topic("t"), parsed.keeps_names) == ("A->B", "t", True)
    assert (parsed.source_offsets_topic, parsed.syncs_topic) == ("mm2-offsets.A.internal", "mm2-offset-syncsinternal")
    assert parsed.groups is not None
    assert parsed.groups.checkpoints_topic == "checkpointsinternal"
    assert copy_settings(parsed).source_alias == ""
    assert not parsed.selection.includes("mm2-offset-syncsinternal")
    assert parsed.selection.includes("A.t")


def test_cluster_alias_keys_rename_aliases() -> None:
    parsed = settings("A->B.source.cluster.alias=eu\ntarget.cluster.alias=us\n")
    (only,), heartbeats = parsed.flows, {pair.name: pair for pair in parsed.heartbeats}
    assert (only.remote_topic("t"), only.syncs_topic) == ("eu.t", "mm2-offset-syncs.us.internal")
    assert not only.selection.includes("us.t")
    assert copy_settings(only).source_alias == "eu"
    assert (heartbeats["A->B"].source_alias, heartbeats["A->B"].target_alias) == ("eu", "us")
    assert (heartbeats["B->A"].source_alias, heartbeats["B->A"].target_alias) == ("B", "us")


def claim_identity(more: str = "") -> str:
    return next(pair.identity for pair in settings(more).heartbeats if pair.name == "A->B")


@pytest.mark.parametrize(
    "more",
    [
        "A->B.source.cluster.alias=eu\n",
        "target.cluster.alias=us\n",
        "offset.storage.topic=mine\n",
        "A->B.offsets.storage.topic=mine\n",
        "group.id=mine\n",
    ],
)
def test_file_of_an_independent_flow_of_the_same_name_has_its_own_claim(more: str) -> None:
    assert claim_identity(more) != claim_identity()


@pytest.mark.parametrize(
    "more",
    ["topics=orders\n", "offset.storage.topic=mm2-offsets.A.internal\n", "B.group.id=A-mm2\n", "tasks.max=3\n"],
)
def test_other_keys_and_defaults_do_not_change_the_claim(more: str) -> None:
    assert claim_identity(more) == claim_identity()


def test_pair_without_a_flow_has_no_claim_and_reads_none_of_its_keys() -> None:
    parsed = settings("B->A.group.id=mine\n")
    assert {pair.name: bool(pair.identity) for pair in parsed.heartbeats} == {"A->B": True, "B->A": False}
    assert parsed.unused == ("B->A.group.id has no effect: B->A is not enabled",)


def test_flows_overwriting_each_others_source_offsets_are_rejected() -> None:
    both = "clusters=A,B,C\nC.bootstrap.servers=c:1\nC->B.enabled=true\nsource.cluster.alias=\n"
    assert len(settings(both).flows) == 2
    with pytest.raises(SettingsError, match=r"C->B and A->B both have source\.cluster\.alias= and the"):
        settings(both + "offset.storage.topic=mine\n")


TO_TWO_TARGETS = "clusters=A,B,C\nC.bootstrap.servers=c:1\nA->C.enabled=true\n"


@pytest.mark.parametrize(
    "more",
    [
        "target.cluster.alias=dr\n",
        "source.cluster.alias=\ntarget.cluster.alias=\nreplication.policy.separator=\n",
        "target.cluster.alias=dr\nA->B.emit.checkpoints.enabled=false\n",
    ],
)
def test_flows_with_the_same_topic_of_offset_syncs_are_rejected(more: str) -> None:
    expected = r"A->B and A->C both have the topic mm2-offset-syncs.*internal on cluster A .* A->C.target.cluster.alias"
    with pytest.raises(SettingsError, match=expected):
        settings(TO_TWO_TARGETS + more)


def test_flows_with_the_same_topic_of_offset_syncs_on_the_target_are_rejected() -> None:
    both = "clusters=A,B,C\nC.bootstrap.servers=c:1\nC->B.enabled=true\nsource.cluster.alias=eu\n"
    with pytest.raises(
        SettingsError, match=r"on cluster B for their offset syncs.* such as by C->B.source.cluster.alias"
    ):
        settings(f"{both}offset-syncs.topic.location=target\n")


@pytest.mark.parametrize(
    "more",
    [
        "A->C.target.cluster.alias=c\n",
        "A->C.emit.offset-syncs.enabled=false\n",
        "emit.checkpoints.enabled=false\n",
        "A->C.offset-syncs.topic.location=target\n",
        "klamm.offsets=preserve\n",
    ],
)
def test_same_alias_is_accepted_with_separate_or_unused_offset_syncs(more: str) -> None:
    assert len(settings(f"{TO_TWO_TARGETS}target.cluster.alias=dr\n{more}").flows) == 2


@pytest.mark.parametrize(
    "name",
    [
        "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy",
        "com.amazonaws.kafka.samples.CustomMM2ReplicationPolicy",
    ],
)
def test_known_identity_policies_are_recognized(name: str) -> None:
    assert isinstance(flow(f"replication.policy.class={name}\n").policy, IdentityReplicationPolicy)


def test_unloadable_class_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"topic.filter.class=com.example.Mine: expected one of Kafka's default"):
        flow("topic.filter.class=com.example.Mine\n")
    with pytest.raises(SettingsError, match=r"topic.filter.class=nowhere:Filter: cannot be loaded"):
        flow("topic.filter.class=nowhere:Filter\n")


def test_clusters_option_limits_targets() -> None:
    """K894-29: ``--clusters X Y`` limits the *target* clusters served; no flow -> error; bad args/fatal -> non-zero
    exit.
    """
    both = "B->A.enabled=true\n"
    assert [f.name for f in settings(both, "A").flows] == ["B->A"]
    with pytest.raises(SettingsError, match="No flow to A is enabled"):
        settings("emit.heartbeats.enabled=false\n", "A")
    assert [pair.name for pair in settings("", "B").heartbeats] == ["A->B"]
    with pytest.raises(SettingsError, match="--clusters C: expected aliases out of clusters=A,B"):
        settings("", "C")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A->B.enabled=yes", "A->B.enabled=yes: expected true or false"),
        ("A->C.enabled=true", "A->C.enabled: C is not one of clusters=A,B"),
        ("replication.factor=0", "replication.factor=0: expected a whole number from 1, or -1"),
        ("replication.factor=two", "replication.factor=two: expected a whole number"),
        ("refresh.topics.interval.seconds=0", "refresh.topics.interval.seconds=0: expected a whole number from 1"),
        ("topics=a[", r"topics=a\[: expected a list of regular expressions"),
        ("A.consumer.isolation.level=dirty", "isolation.level=dirty: expected one of read_uncommitted, read_committed"),
        ("B.bootstrap.servers=nothing", "B.bootstrap.servers=nothing: expected host:port"),
        ("spark.speculation=true", "spark.speculation=true: expected false"),
        ("klamm.lease.seconds=0", "klamm.lease.seconds=0: expected a whole number from 1"),
        ("clusters=", "clusters: expected the aliases"),
        ("B.bootstrap.servers=", "B.bootstrap.servers: expected host:port"),
        ("source.cluster.alias=a b", "source.cluster.alias=a b: expected characters that are allowed in topic names"),
        ("A->B.offsets.storage.topic= ", "A->B.offsets.storage.topic=: expected the name of a topic"),
        (
            "A->B.replication.policy.separator=/",
            "A->B.replication.policy.separator=/: expected characters that are allowed",
        ),
    ],
)
def test_invalid_value_is_rejected_with_key_and_allowed_values(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(line + "\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A.security.protocol=SSLL", "A.security.protocol=SSLL: expected one of PLAINTEXT"),
        ("security.protocol=SSLL", "^security.protocol=SSLL: expected one of PLAINTEXT"),
        ("A->B.target.admin.security.protocol=X", "A->B.target.admin.security.protocol=X: expected one of PLAINTEXT"),
        ("B.security.protocol=SASL_SSL", "B.sasl.mechanism=GSSAPI: requires the Python package gssapi"),
        ("B.producer.request.timeout.ms=soon", "B.producer.request.timeout.ms=soon: expected a whole number from 1"),
        ("A.consumer.fetch.max.wait.ms=-1", "A.consumer.fetch.max.wait.ms=-1: expected a whole number from 0"),
        ("clusters=A,B,C\nC.bootstrap.servers=c:1\nC.security.protocol=X", "C.security.protocol=X: expected one of"),
    ],
)
def test_invalid_client_property_is_rejected_with_key_of_file(line: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        settings(line + "\n").check_clients()


def test_duplicate_cluster_is_one_and_not_mirrored_to_itself() -> None:
    parsed = settings("clusters=A,B,A\nA->A.enabled=true\n")
    assert [flow.name for flow in parsed.flows] == ["A->B"]
    assert parsed.notes == ("A->A.enabled has no effect: a cluster is not mirrored to itself",)


def test_aliases_may_contain_dots_and_share_prefixes() -> None:
    """K894-26: as in MirrorMaker, which looks for keys that begin with an alias."""
    parsed = parse_settings(
        parse_properties(
            "clusters=eu, eu.west, us-east\neu.bootstrap.servers=a:1\neu.west.bootstrap.servers=b:1\n"
            "us-east.bootstrap.servers=c:1\neu->eu.west.enabled=true\neu.west->us-east.enabled=true\n"
            "eu->eu.west.topics=x\neu->eu.west.use.incremental.alter.configs=never\n"
        )
    )
    assert [flow.name for flow in parsed.flows] == ["eu->eu.west", "eu.west->us-east"]
    assert [flow.selection.includes("x") and flow.selection.includes("y") for flow in parsed.flows] == [False, True]
    assert (parsed.unused, len(parsed.warnings)) == ((), 1)


def test_opposite_flows_keeping_names_cause_warning() -> None:
    """K894-33: there is no protection against cycles but for heartbeats."""
    identity = "replication.policy.class=IdentityReplicationPolicy\n"
    assert settings(identity).warnings == ()
    assert settings("B->A.enabled=true\n").warnings == ()
    (warning,) = settings(identity + "B->A.enabled=true\n").warnings
    assert warning.startswith("A->B and B->A both keep the names of topics: records of a")
    dotted = {"clusters": "eu.a,b", "eu.a.bootstrap.servers": "a:1", "b.bootstrap.servers": "b:1"}
    (warning,) = parse_settings({**dotted, "eu.a->b.enabled": "true", "b->eu.a.enabled": "true"}).warnings
    assert "name topics by aliases with the separator '.', so names do not show their origin" in warning


def test_flows_to_one_target_that_keep_names_may_share_topics() -> None:
    """As in MirrorMaker: records of another cluster in a remote topic are no reason to stop."""

    def shared(text: str) -> dict[str, tuple[str, ...]]:
        topics = ("heartbeats", "orders", "payments")
        return {flow.name: flow.shared_topics(topics) for flow in settings(text).flows}

    more = "clusters=A,B,C\nC.bootstrap.servers=c:1\nC->B.enabled=true\nA->C.enabled=true\n"
    identity = "replication.policy.class=IdentityReplicationPolicy\n"
    assert shared(more + identity) == {"A->B": ("orders", "payments"), "A->C": (), "C->B": ("orders", "payments")}
    assert set(shared(more + "C->B." + identity).values()) == {()}
    assert settings(more + identity).warnings == ()


def test_flows_with_different_topics_or_preserved_offsets_share_no_topic() -> None:
    more = "clusters=A,B,C\nC.bootstrap.servers=c:1\nC->B.enabled=true\nC->B.topics=payments,users\n"
    more += "replication.policy.class=IdentityReplicationPolicy\n"
    first, second = settings(more + "A->B.topics=orders,users\n").flows
    assert first.shared_topics(["orders", "users"]) == second.shared_topics(["payments", "users"]) == ("users",)
    flows = settings(more + "A->B.topics=.*\nA->B.klamm.offsets=preserve\n").flows
    assert [flow.shared_topics(["payments", "users"]) for flow in flows] == [(), ()]


class FailingFilter:
    """Topic filter that decides about no topic."""

    def should_replicate_topic(self, topic: str) -> bool:
        raise LookupError(topic)


def test_flow_whose_topic_filter_fails_may_share_every_topic() -> None:
    more = "clusters=A,B,C\nC.bootstrap.servers=c:1\nC->B.enabled=true\n"
    more += f"replication.policy.class=IdentityReplicationPolicy\nC->B.topic.filter.class={__name__}:FailingFilter\n"
    assert settings(more).flows[0].shared_topics(["orders"]) == ("orders",)


class FailingPolicy:
    """Replication policy that names no topic."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        raise LookupError(source_alias + topic)

    def topic_source(self, topic: str) -> str | None:
        raise LookupError(topic)

    upstream_topic = topic_source


def test_failing_replication_policy_is_left_to_the_flows() -> None:
    """One flow must not end the others."""
    failing = f"A->B.replication.policy.class={__name__}:FailingPolicy\nB->A.enabled=true\n"
    assert [flow.keeps_names for flow in settings(failing).flows] == [False, False]


def test_every_cluster_pair_has_heartbeats_by_default() -> None:
    """K894-44: also the pairs whose flow is not enabled."""
    three = "clusters=A,B,C\nC.bootstrap.servers=c:1\nA->B.enabled=false\n"
    parsed = settings(three)
    assert len(parsed.heartbeats) == 6
    assert parsed.flows == ()
    assert parsed.warnings == (
        "No flow is enabled: expected a key such as A->B.enabled=true; only heartbeats are written",
    )
    few = settings(three + "emit.heartbeats.enabled=false\nB->A.emit.heartbeats.enabled=true\n").heartbeats
    assert [pair.name for pair in few] == ["B->A"]
    (pair,) = few
    assert (pair.interval, pair.replication_factor) == (timedelta(seconds=1), 3)


def test_group_filter_defaults_match_mirrormaker() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic.

    K894-43: sync.group.offsets.enabled (false): writes translated offsets to the target group only if it has no active
    members and only forwards (never below the group's current target offset.
    """
    parsed = flow().groups
    assert parsed is not None
    wanted = {
        name: parsed.group_filter.should_replicate_group(name) for name in ("g", "connect-a", "console-consumer-1")
    }
    assert wanted == {"g": True, "connect-a": False, "console-consumer-1": False}
    assert (parsed.checkpoints_topic, parsed.checkpoints_replication_factor) == ("A.checkpoints.internal", 3)
    assert (parsed.checkpoints_interval, parsed.refresh_interval) == (timedelta(seconds=60), timedelta(seconds=600))
    assert (parsed.sync_enabled, parsed.sync_interval) == (False, timedelta(seconds=60))
    named = flow("groups=a.*\ngroups.blacklist=ab\nA->B.sync.group.offsets.enabled=true\n").groups
    assert named is not None
    assert [named.group_filter.should_replicate_group(name) for name in ("a", "ab", "b")] == [True, False, False]
    assert named.sync_enabled


def test_source_connector_is_that_of_mirrormaker_or_named() -> None:
    assert flow().connector == "MirrorSourceConnector"
    assert flow("klamm.source.connector.name=A->B.MirrorSourceConnector\n").connector == "A->B.MirrorSourceConnector"
    with pytest.raises(SettingsError, match=r"klamm.source.connector.name=klamm-mirror: expected the name of"):
        flow("klamm.source.connector.name=klamm-mirror\n")


def test_checkpoints_require_offset_syncs() -> None:
    """K894-40: Offset syncs: as 3.5."""
    parsed = settings("emit.offset-syncs.enabled=false\n")
    assert parsed.flows[0].groups is None
    assert parsed.warnings == (
        "A->B: emit.checkpoints.enabled=true (the default) has no effect because emit.offset-syncs.enabled=false",
    )
    assert not settings("emit.offset-syncs.enabled=false\nemit.checkpoints.enabled=false\n").warnings
    with pytest.raises(
        SettingsError, match=r"emit.checkpoints.enabled=true: expected false, because emit.offset-syncs"
    ):
        flow("emit.offset-syncs.enabled=false\nemit.checkpoints.enabled=true\n")
    parsed = settings("emit.checkpoints.enabled=false\nsync.group.offsets.enabled=true\n")
    assert parsed.flows[0].groups is None
    assert parsed.warnings == (
        "A->B: sync.group.offsets.enabled=true has no effect because emit.checkpoints.enabled=false",
    )


def test_offset_syncs_are_enabled_by_default() -> None:
    """K894-40: Offset syncs: as 3.5."""
    parsed = flow()
    assert (parsed.syncs_topic, parsed.offset_lag_max) == ("mm2-offset-syncs.B.internal", 100)
    assert parsed.syncs_replication_factor == 3
    assert flow("offset-syncs.topic.location=target\n").syncs_topic == "mm2-offset-syncs.A.internal"
    assert flow("replication.policy.separator=__\n").syncs_topic == "mm2-offset-syncs__B__internal"
    assert flow("emit.offset-syncs.enabled=false\n").syncs_topic is None
    with pytest.raises(SettingsError, match=r"offset-syncs\.topic\.location=here: expected one of source, target"):
        flow("offset-syncs.topic.location=here\n")


def test_offset_syncs_use_producer_of_their_cluster() -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.

    K894-40: Offset syncs: as 3.5.
    """
    more = "A.producer.client.id=to-a\nB.producer.client.id=to-b\n"
    here = copy_settings(flow(more)).syncs
    there = copy_settings(flow(more + "offset-syncs.topic.location=target\n")).syncs
    assert here is not None
    assert there is not None
    assert (here.connection.client_id, here.connection.bootstrap_servers) == ("to-a", ("a1:9092", "a2:9092"))
    assert (there.connection.client_id, there.connection.bootstrap_servers) == ("to-b", ("b:9092",))


OWN_CLASSES = """
class Policy:
    def configure(self, properties):
        self.suffix = properties["own.suffix"]
        assert properties.get("own.nothing") is None
        assert {"clusters", "own.suffix"} <= set(properties)
    def format_remote_topic(self, source_alias, topic):
        return topic + self.suffix
    def topic_source(self, topic):
        return "A" if topic.endswith(self.suffix) else None
    def upstream_topic(self, topic):
        return topic.removesuffix(self.suffix) if topic.endswith(self.suffix) else None
class Half:
    def topic_source(self, topic): ...
class Broken(Policy):
    def configure(self, properties):
        raise ValueError("no such place")
"""


def test_custom_replication_policy_is_configured_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K894-32: as Kafka's interface, which asks for three methods; it sees the flow's keys."""
    (tmp_path / "klamm_test_own_policy.py").write_text(OWN_CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    key = "replication.policy.class=klamm_test_own_policy:"
    parsed = flow(key + "Policy\nown.suffix=-x\nA->B.own.suffix=-of-a\nreplication.policy.separator=_\n")
    assert parsed.remote_topic("orders") == "orders-of-a"
    assert settings(key + "Policy\nown.suffix=-x\n").unused == (), "what it asks for is not called unknown"
    assert not parsed.selection.includes("mm2_internal")
    assert parsed.syncs_topic == "mm2-offset-syncs_B_internal"
    with pytest.raises(SettingsError, match="own_policy:Half: expected a class with format_remote_topic, upstream"):
        flow(key + "Half\n")
    with pytest.raises(SettingsError, match="own_policy:Broken: cannot be loaded: ValueError: no such place"):
        flow(key + "Broken\n")
    for kind in ("topic.filter", "group.filter", "config.property.filter"):
        with pytest.raises(SettingsError, match=f"{kind}.class=klamm_test_own_policy:Half: expected a class with shou"):
            flow(f"{kind}.class=klamm_test_own_policy:Half\n")


def test_custom_config_filter_decides_synced_configs_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K894-11: ConfigPropertyFilter gains shouldReplicateSourceDefault(prop), default false."""
    (tmp_path / "klamm_test_own_filters.py").write_text(
        "class OnlyRetention:\n"
        "    def should_replicate_config_property(self, name):\n"
        "        return name.startswith('retention.')\n"
        "class SourceDefaults(OnlyRetention):\n"
        "    def should_replicate_source_default(self, name):\n"
        "        return name == 'retention.ms'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entries = [ConfigEntry(name, "1", source=ConfigSource.DEFAULT_CONFIG) for name in ("retention.ms", "segment.ms")]
    key = "A->B.config.property.filter.class = klamm_test_own_filters:"
    (deleted,) = plan_config_operations(entries, flow(key + "OnlyRetention\n").config_filter)
    assert (deleted.name, deleted.operation) == ("retention.ms", OpType.DELETE)
    (kept,) = plan_config_operations(entries, flow(key + "SourceDefaults\n").config_filter)
    assert (kept.name, kept.operation, kept.value) == ("retention.ms", OpType.SET, "1")


def test_shared_bootstrap_server_warns_or_is_rejected() -> None:
    same = "B.bootstrap.servers = b:9092, a2:9092\n"
    [warning] = [warning for warning in settings(same).warnings if "both name" in warning]
    assert warning.startswith("A->B: A.bootstrap.servers and B.bootstrap.servers both name a2:9092")
    assert not [warning for warning in settings().warnings if "both name" in warning]
    with pytest.raises(SettingsError, match="copied to itself endlessly"):
        settings(same + "replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n")


KEY = "klamm.max.bytes.per.second"
FILE = """clusters=A,B,C
A.bootstrap.servers=a:1
B.bootstrap.servers=b:1
C.bootstrap.servers=c:1
A->B.enabled=true
A->C.enabled=true
"""


def test_changed_file_gives_new_limits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mm2.properties"
    flows = parse_settings(parse_properties(FILE)).flows
    live_keys = LiveKeys(path)
    contents = {
        "": {},
        f"{KEY}=100": {"A->B": 100, "A->C": 100},
        f"{KEY}=100\nA->B.{KEY}=7": {"A->B": 7, "A->C": 100},
        f"{KEY}=fast": None,
        f"A->C.{KEY}=8": {"A->C": 8},
    }
    for more, limits in contents.items():
        path.write_text(FILE + more)
        assert live_keys.limits(flows) == limits
    path.unlink()
    assert live_keys.limits(flows) is live_keys.limits(flows) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: the current {KEY} is kept: {KEY}=fast: expected a whole number from 1 to 9223372036854775807",
        f"{path}: the current {KEY} is kept: {path}: cannot be read: No such file or directory",
    ]


def test_overrides_have_precedence(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(f"{FILE}{KEY}=100")
    flows = parse_settings(parse_properties(FILE)).flows
    assert LiveKeys(path, {KEY: "5"}).limits(flows) == {"A->B": 5, "A->C": 5}


def test_limit_of_zero_is_rejected() -> None:
    with pytest.raises(SettingsError, match=r"A->B\.klamm\.max\.bytes\.per\.second=0: expected a whole number from 1"):
        parse_settings(parse_properties(f"{FILE}A->B.{KEY}=0"))
