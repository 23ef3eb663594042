"""``klamm.offsets`` and ``klamm.offsets.by``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.configs.definitions import broker_configs
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.settings import listener_configs
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
        ("klamm.offsets.by = luck\n", "klamm.offsets.by=luck: expected one of auto, replay, replica"),
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


def test_lease_carries_the_settings_of_replay() -> None:
    settings = copy_settings(flow_of(PRESERVE))
    group = PartitionGroup(number=0, shares=(FlowShare(settings=settings, partitions=()),))
    assert from_json(to_json(group)).shares[0].settings.replay == settings.replay


REPLICA = (
    PRESERVE
    + """
B.bootstrap.controllers = c1:9093, c2:9093
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = 1000
klamm.replica.listeners = 0.0.0.0:9192, INTERNAL://10.0.0.9:9193
klamm.replica.advertised.listeners = klamm:9192
klamm.replica.listener.security.protocol.map = PLAINTEXT:PLAINTEXT, INTERNAL:SASL_SSL
"""
)


def test_replica_is_a_broker_that_copies_everything() -> None:
    settings = copy_settings(flow_of(REPLICA + "A.consumer.isolation.level = read_committed\n"))
    assert (settings.read_committed, settings.syncs, settings.transactions, settings.replay) == (
        False,
        None,
        None,
        None,
    )
    assert settings.replica is not None
    assert settings.replica.node_id == 1000
    assert settings.replica.controllers.bootstrap_servers == ("c1:9093", "c2:9093")
    advertised = [(each.name, each.host, each.port, each.security_protocol) for each in settings.replica.listeners]
    assert advertised == [("PLAINTEXT", "klamm", 9192, "PLAINTEXT"), ("INTERNAL", "10.0.0.9", 9193, "SASL_SSL")]
    assert list(map(str, settings.replica.bind)) == ["0.0.0.0:9192", "10.0.0.9:9193"]


def test_replica_warns_that_remote_topics_are_read_only() -> None:
    (warning,) = flow_of(REPLICA).warnings
    assert warning.startswith("klamm.offsets.by=replica: remote topics are read-only")


def test_lease_carries_the_settings_of_a_replica() -> None:
    settings = copy_settings(flow_of(REPLICA))
    group = PartitionGroup(number=0, shares=(FlowShare(settings=settings, partitions=()),))
    assert from_json(to_json(group)).shares[0].settings.replica == settings.replica


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("klamm.replica.experimental = true", "is experimental and not for clusters in production: expected"),
        ("klamm.replica.node.id = 1000", "klamm.replica.node.id: expected an id that no node of B has"),
        ("klamm.replica.listeners = 0.0.0.0:9192, INTERNAL://10.0.0.9:9193", "klamm.replica.listeners: expected"),
        ("klamm.replica.advertised.listeners = klamm:9192", "expected PLAINTEXT://HOST:9192 with an address"),
        ("B.bootstrap.controllers = c1:9093, c2:9093", "B.bootstrap.controllers: expected host:port[,host:port...]"),
        (PRESERVE.strip(), "klamm.offsets.by=replica without klamm.offsets=preserve: expected both"),
    ],
)
def test_replica_without_a_setting_is_rejected(line: str, message: str) -> None:
    assert line in REPLICA
    with pytest.raises(SettingsError) as caught:
        flow_of(REPLICA.replace(line, ""))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("klamm.replica.node.id = -1", "klamm.replica.node.id=-1: expected"),
        (
            "klamm.replica.listeners = 9192",
            "klamm.replica.listeners=9192: expected [NAME://]HOST:PORT[,...], 9192 is not",
        ),
        (
            "klamm.replica.listener.security.protocol.map = PLAINTEXT:PLAINTEXT",
            "klamm.replica.listener.security.protocol.map: expected the security protocol of the listener INTERNAL",
        ),
        (
            "klamm.replica.listener.security.protocol.map = INTERNAL:TLS",
            "klamm.replica.listener.security.protocol.map: 'INTERNAL:TLS': expected NAME:PROTOCOL with one",
        ),
        ("klamm.replica.super.users = admin", "klamm.replica.super.users: 'admin' is no principal"),
        ("klamm.replica.listeners = h:1, h:2", "expected each listener once, PLAINTEXT is there twice"),
        ("klamm.replica.advertised.listeners = X://h:1", "expected listeners of klamm.replica.listeners: X is not one"),
        (
            "B.bootstrap.controllers = c1",
            "B.bootstrap.controllers=c1: expected host:port[,host:port...], c1 is not one",
        ),
        ("replication.factor = -1", "replication.factor=-1 with klamm.offsets.by=replica: expected a number from 1"),
        ("use.incremental.alter.configs = never", "use.incremental.alter.configs=never with klamm.offsets.by=replica"),
    ],
)
def test_wrong_settings_of_a_replica_are_rejected(more: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        flow_of(f"{REPLICA}{more}\n")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("connections.max.reauth.ms", "abc", "Not a number of type LONG"),
        ("listener.name.internal.connection.failed.authentication.delay.ms", "-1", "must be at least 0"),
        ("max.connections", "many", "Not a number of type INT"),
        ("ssl.client.auth", "yes", "String must be one of"),
        ("allow.everyone.if.no.acl.found", "yes", "expected true or false"),
        ("sasl.server.callback.handler.class", "com.example.Own", "only OAUTHBEARER has a handler"),
        ("listener.name.internal.plain.sasl.server.callback.handler.class", "com.example.Own", "only OAUTHBEARER has"),
        ("ssl.engine.factory.class", "com.example.Own", "Java classes are not run"),
        ("sasl.kerberos.service.name", "kafka", "Kerberos is not served"),
        ("sasl.mechanism.inter.broker.protocol", "PLAIN", "klamm's listeners do not read this config: remove it"),
        ("listener.name.internal.super.users", "User:a", "klamm's listeners do not read this config: remove it"),
        ("listener.name.internal.allow.everyone.if.no.acl.found", "true", "do not read this config: remove it"),
        ("listener.name.internal.connections.max.idle.ms", "1000", "do not read this config: remove it"),
        ("listener.name.internal.PLAIN.sasl.jaas.config", "m required;", "do not read this config: remove it"),
        ("plain.sasl.jaas.config", "m required;", "do not read this config: remove it"),
        (
            "listener.name.INTERNAL.ssl.client.auth",
            "required",
            "expected a prefix of klamm's listeners, in lower case: klamm.replica.listener.name.plaintext., "
            "klamm.replica.listener.name.internal.",
        ),
        ("listener.name.external.ssl.client.auth", "required", "expected a prefix of klamm's listeners, in lower case"),
    ],
)
@pytest.mark.parametrize("prefix", ["klamm.replica.", "A->B.klamm.replica."])
def test_listener_config_that_klamm_cannot_honour_is_rejected(prefix: str, key: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        flow_of(f"{REPLICA}{prefix}{key} = {value}\n")
    assert str(caught.value).startswith(prefix + key)
    assert reason in str(caught.value)


def test_each_config_of_listeners_is_one_of_a_broker() -> None:
    own = {"super.users", "allow.everyone.if.no.acl.found"}  # of Kafka's authorizer
    names = listener_configs._LISTENER | listener_configs._ALL_LISTENERS
    assert names - own <= broker_configs().keys()


SECOND = "clusters = A, B, C\nC.bootstrap.servers = c:9092\nC->B.enabled = true\nC->B.klamm.offsets = preserve\n"
OWN_LISTENERS = """
C->B.klamm.replica.listeners = 0.0.0.0:9292, INTERNAL://10.0.0.9:9293
C->B.klamm.replica.advertised.listeners = klamm:9292
"""


def test_two_replicas_in_one_target_are_two_brokers() -> None:
    text = f"{BASE}{REPLICA}{SECOND}{OWN_LISTENERS}C->B.klamm.replica.node.id = 1001\n"
    flows = parse_settings(parse_properties(text)).flows
    assert [flow.replica.node_id for flow in flows if flow.replica is not None] == [1000, 1001]


@pytest.mark.parametrize(
    ("more", "shared"),
    [
        (OWN_LISTENERS, "klamm.replica.node.id=1000 in cluster B"),
        ("C->B.klamm.replica.node.id = 1001\n", "the address klamm:9192"),
        (
            f"{OWN_LISTENERS}C->B.klamm.replica.node.id = 1001\nC->B.klamm.replica.listeners = h:1, INTERNAL://h:9192\n"
            "C->B.klamm.replica.advertised.listeners = h:1, INTERNAL://klamm:9192\n",
            "the address klamm:9192",
        ),
    ],
)
def test_two_replicas_with_one_id_or_address_are_rejected(more: str, shared: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(parse_properties(BASE + REPLICA + SECOND + more))
    assert str(caught.value).startswith(f"A->B and C->B both have {shared}: expected an id and listeners of its own")
    assert str(caught.value).endswith("such as C->B.klamm.replica.node.id and C->B.klamm.replica.listeners")


def test_two_replicas_of_two_targets_may_have_one_id() -> None:
    more = f"{SECOND.replace('C->B', 'A->C')}{OWN_LISTENERS.replace('C->B', 'A->C')}C.bootstrap.controllers = d:1\n"
    assert len(parse_settings(parse_properties(BASE + REPLICA + more)).flows) == 2


def test_keys_of_a_replica_without_one_are_reported() -> None:
    flow = flow_of("klamm.replica.node.id = 7\n")
    assert flow.replica is None
    assert flow.warnings == ("klamm.replica.node.id: no effect without klamm.offsets.by=replica",)


def test_listener_configs_of_a_replica_are_those_of_a_broker() -> None:
    keys = """
klamm.replica.ssl.keystore.location = /k.jks
A->B.klamm.replica.ssl.keystore.location = /own.jks
klamm.replica.listener.name.internal.plain.sasl.jaas.config = module required;
klamm.replica.listener.name.internal.ssl.client.auth = required
klamm.replica.super.users = User:CN=a,O=b;User:c
klamm.replica.ssl.keystore.lokation = typo
klamm.replica.log.dirs = /data
"""
    parsed = parse_settings(parse_properties(BASE + REPLICA + keys))
    settings = copy_settings(parsed.flows[0]).replica
    assert settings is not None
    assert settings.configs == {
        "listener.name.internal.plain.sasl.jaas.config": "module required;",
        "listener.name.internal.ssl.client.auth": "required",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT, INTERNAL:SASL_SSL",
        "ssl.keystore.location": "/own.jks",
        "super.users": "User:CN=a,O=b;User:c",
    }
    assert settings.super_users == {"User:CN=a,O=b", "User:c"}
    assert sorted(error.partition(" ")[0] for error in parsed.misspelt) == [
        "klamm.replica.log.dirs",
        "klamm.replica.ssl.keystore.lokation",
    ]


def test_listener_config_without_a_replica_is_reported() -> None:
    flow = flow_of("klamm.replica.ssl.keystore.location = /k.jks\n")
    assert flow.warnings == ("klamm.replica.ssl.keystore.location: no effect without klamm.offsets.by=replica",)


def test_key_store_of_a_replica_that_cannot_be_read_is_named() -> None:
    keys = "klamm.replica.ssl.keystore.type = PEM\nklamm.replica.ssl.keystore.location = /missing.pem\n"
    settings = copy_settings(flow_of(REPLICA + keys)).replica
    assert settings is not None
    message = (
        r"klamm.replica.listeners: Listener INTERNAL: ssl.keystore.location=/missing.pem: cannot be read: .* begin"
    )
    with pytest.raises(SettingsError, match=message):
        settings.endpoints(lambda _user, _mechanism: None)


def test_controllers_have_their_own_security_before_that_of_the_cluster() -> None:
    keys = """
B.security.protocol = SASL_PLAINTEXT
B.sasl.mechanism = SCRAM-SHA-512
B.sasl.jaas.config = module required username="klamm" password="p";
B.controller.sasl.mechanism = PLAIN
B.controller.sasl.jaas.config = module required username="node" password="q";
"""
    parsed = parse_settings(parse_properties(BASE + REPLICA + keys))
    settings = copy_settings(parsed.flows[0])
    assert settings.replica is not None
    brokers, controllers = settings.target.security, settings.replica.controllers.security
    assert (brokers.protocol, brokers.mechanism, brokers.username) == ("SASL_PLAINTEXT", "SCRAM-SHA-512", "klamm")
    assert (controllers.protocol, controllers.mechanism, controllers.username) == ("SASL_PLAINTEXT", "PLAIN", "node")
    assert parsed.unused == ()


def test_controller_property_that_does_not_exist_is_rejected() -> None:
    parsed = parse_settings(parse_properties(BASE + REPLICA + "B.controller.ssl.keystore.lokation = k\n"))
    assert parsed.misspelt == (
        "B.controller.ssl.keystore.lokation does not exist; did you mean B.controller.ssl.keystore.location?",
    )
