"""Keys of mm2.properties without an effect are reported with the reason and an alternative."""

from __future__ import annotations

import pytest

from klamm.configs.definitions import broker_configs
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.properties import SettingsError, parse_properties

BASE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
A->B.enabled = true
"""
SSL = "A.security.protocol=SSL\nA.ssl.truststore.location=t\n"


def settings(text: str) -> MirrorSettings:
    return parse_settings(parse_properties(BASE + text))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("something.else", "it is unknown"),
        ("tpoics", "it is unknown; did you mean topics?"),
        ("A->B.tpoics", "it is unknown; did you mean A->B.topics?"),
        ("B.tpoics", "it is unknown; did you mean A->B.topics?"),
        ("B.topics", "nothing reads it at this place; did you mean A->B.topics?"),
        ("B.tasks.max", "nothing reads it at this place; did you mean A->B.tasks.max?"),
        ("A.exactly.once.source.support",
         "nothing reads it at this place; did you mean B.exactly.once.source.support?"),
        ("A.offset.storage.topic", "nothing reads it at this place; did you mean B.offset.storage.topic?"),
        ("B->A.topics", "B->A is not enabled"),
        ("B->A.transforms", "B->A is not enabled"),
        ("B.transforms", "it is unknown"),
        ("transforms.mask.type", "it is unknown"),
        ("A.consumer.fetch.max.byte", "it is unknown; did you mean A.consumer.fetch.max.bytes?"),
        ("B.producer.linger", "it is unknown"),
        ("producer.linger.ms", "nothing reads it at this place"),
        ("A->B.linger.ms", "nothing reads it at this place"),
        ("B.config.providers", "nothing reads it at this place"),
        ("B.metadata.maximum.age.ms", "it is unknown"),
        ("A.fetch.max.bytes", "nothing reads it at this place; did you mean A.consumer.fetch.max.bytes?"),
        ("consumer.auto.offset.reset", "nothing reads it at this place; did you mean A->B.consumer.auto.offset.reset?"),
        ("fetch.max.bytes", "nothing reads it at this place; did you mean A->B.consumer.fetch.max.bytes?"),
        ("A.ssl.truststore.location", "security.protocol is PLAINTEXT"),
        ("A.sasl.jaas.config", "security.protocol is PLAINTEXT"),
        ("A.ssl.engine.factory.class", "klamm's clients do not support it"),
        ("A.ssl.engine.factory.foo", "klamm's clients do not support it"),
        ("A.sasl.user", "klamm's clients do not support it"),
        ("sasl.password", "klamm's clients do not support it"),
        ("A->B.ssl.quorum.hostnameVerification", "it is unknown"),
        ("B.producer.linger.ms", "klamm's clients do not support it"),
        ("B.producer.acks", "klamm's clients do not support it"),
        ("A.frobnicate", "it is unknown"),
        ("A->B.source.cluster.fetch.max.bytes", "nothing reads it at this place"),
    ],
)  # fmt: skip
def test_unused_key_is_warning_and_error_with_strict(key: str, reason: str) -> None:
    parsed = settings(f"{key} = 1\n")
    (warning,) = parsed.unused
    assert warning in (f"{key} has no effect: {reason}", f"{key}: no effect: {reason}")
    parsed.check_keys()
    with pytest.raises(SettingsError, match="remove these keys, or run without --strict"):
        parsed.check_keys(strict=True)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("klamm.exactly.onec", "; did you mean klamm.exactly.once?"),
        ("A->B.klamm.ofsets", "; did you mean A->B.klamm.offsets?"),
        ("klamm.replica.ssl.keystore.lokation", "; did you mean klamm.replica.ssl.keystore.location?"),
        ("A->B.klamm.replica.max.conections", "; did you mean A->B.klamm.replica.max.connections?"),
        ("A.ssl.keystore.lokation", "; did you mean A.ssl.keystore.location?"),
        ("A.security.protocl", "; did you mean A.security.protocol?"),
        ("sasl.mechanims", "; did you mean sasl.mechanism?"),
        ("A->B.source.cluster.sasl.jas.config", "; did you mean A->B.source.cluster.sasl.jaas.config?"),
        ("A.consumer.ssl.keystore.loaction", "; did you mean A.consumer.ssl.keystore.location?"),
        ("A.sasl.login.clas", "; did you mean A.sasl.login.class?"),
        ("A->B.klamm.replica.advertised.listener", "; did you mean A->B.klamm.replica.advertised.listeners?"),
        ("klamm.replica.something", ""),
    ],
)
def test_key_of_a_checked_family_that_does_not_exist_is_rejected(key: str, hint: str) -> None:
    """A misspelt security property would not protect what it should."""
    parsed = settings(f"A.security.protocol = SASL_SSL\n{key} = 1\n")
    assert [each for each in parsed.misspelt if each.startswith(key)] == [f"{key} does not exist{hint}"]
    with pytest.raises(SettingsError, match=r"correct or remove these keys$"):
        parsed.check_keys()


@pytest.mark.parametrize(
    "key",
    [
        "A.ssl.engine.factory.class",
        "A->B.source.cluster.sasl.login.class",
        "A.sasl.client.callback.handler.class",
        "security.providers",
    ],
)
def test_keys_of_a_client_with_a_custom_class_may_have_any_name(key: str) -> None:
    """Kafka passes all properties of the client to such a class."""
    name = "ssl.keystore.lokation"
    parsed = settings(f"{key} = com.example.Own\nA.consumer.{name} = k\nB.{name} = k\n")
    misspelt = [sentence.partition(" ")[0] for sentence in parsed.misspelt]
    assert misspelt == ([] if key == "security.providers" else [f"B.{name}"])
    assert any(sentence.startswith(f"A.consumer.{name} has no effect") for sentence in parsed.unused)


@pytest.mark.parametrize(
    "name", ["security.inter.broker.protocol", "num.network.threads", "authorizer.class.name", "log.dirs"]
)
def test_broker_config_that_klamms_listeners_do_not_read_is_rejected(name: str) -> None:
    parsed = settings(f"A->B.klamm.replica.{name} = 1\n")
    assert parsed.misspelt == (f"A->B.klamm.replica.{name} has no effect: klamm's listeners do not read this config",)
    with pytest.raises(SettingsError, match=r"correct or remove these keys$"):
        parsed.check_keys()


@pytest.mark.parametrize("place", ["", "A.", "A->B.", "A.consumer.", "A->B.target.producer."])
def test_security_property_that_kafka_has_is_not_rejected(place: str) -> None:
    brokers = [name for name in broker_configs() if name.startswith(("ssl.", "sasl.", "security."))]
    names = [*brokers, "sasl.mechanism", "sasl.oauthbearer.header.urlencode", "security.protocol"]
    assert len(names) > 75
    text = "".join(f"{place}{name} = PLAINTEXT\n" for name in names)
    parsed = settings(text)
    assert parsed.misspelt == ()
    parsed.check_keys()


def test_keys_of_the_replica_are_no_error_without_it() -> None:
    lines = "klamm.offsets=preserve\nklamm.offsets.by=replay\nklamm.replica.node.id=9\n"
    parsed = settings(
        f"{lines}klamm.replica.ssl.keystore.location=k\nklamm.replica.listener.name.x.ssl.client.auth=none\n"
    )
    assert parsed.misspelt == ()


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("A->B.consumer.poll.timeout.ms=5", "the mirror waits for data on its own connections"),
        ("B.config.storage.replication.factor=1", "the mirror keeps no configuration on the target"),
        ("value.converter.schemas.enable=false", "records are copied byte for byte"),
        ("add.source.alias.to.metrics=true", "there is no JMX"),
        ("B.metrics.recording.level=DEBUG", "there is no JMX"),
        ("B.metadata.max.age.ms=60000", "there is no Connect worker"),
        ("B.retry.backoff.ms=500", "there is no Connect worker"),
        ("B.heartbeat.interval.ms=500", "there is no Connect worker"),
        ("B.topic.tracking.enable=false", "there is no Connect worker"),
        ("B.inter.worker.key.size=256", "there is no Connect worker"),
        ("B.internal.topics.automatic.creation.enable=false", "there is no Connect worker"),
        ("access.control.allow.origin=*", "there is no REST server"),
        ("A->A.enabled=true", "a cluster is not mirrored to itself"),
        ("B->A.topics=x\nB->A.enabled=false", "B->A is not enabled"),
    ],
)
def test_key_accepted_without_effect_is_note(line: str, note: str) -> None:
    parsed = settings(line + "\n")
    assert parsed.notes == (f"{line.partition('=')[0]} has no effect: {note}",)
    parsed.check_keys(strict=True)


@pytest.mark.parametrize(
    "lines",
    [
        "A->B.topics=x\ntopics=y\ngroups.blacklist=z\ntopics.blacklist=q\nconfig.properties.blacklist=a\n",
        "B.exactly.once.source.support=disabled\ntransaction.boundary=poll\nklamm.exactly.once.shards=2\n",
        "A.consumer.fetch.min.bytes=1\nA->B.source.consumer.fetch.min.bytes=1\nA->B.consumer.fetch.min.bytes=1\n",
        "A->B.producer.override.acks=all\nB.producer.enable.idempotence=true\n",
        SSL + "ssl.protocol=TLSv1.3\n",
        "spark.ui.enabled=false\nklamm.lease.seconds=5\nconfig.providers=file\nklamm.on.source.loss=stop\n",
        "B->A.emit.heartbeats.interval.seconds=2\nB->A.enabled=false\n",
        "sync.group.offsets.enabled=true\nemit.offset-syncs.enabled=true\noffset-syncs.topic.location=source\n",
        "emit.heartbeats.enabled=false\nheartbeats.topic.replication.factor=1\nemit.offset-syncs.enabled=false\n"
        "offset-syncs.topic.location=target\nemit.checkpoints.enabled=false\ngroups=a\nrefresh.groups.enabled=false\n"
        "checkpoints.topic.replication.factor=1\nsync.group.offsets.interval.seconds=5\n"
        "offset-syncs.topic.replication.factor=1\n",
    ],
)
def test_used_keys_are_not_reported(lines: str) -> None:
    """A key may be overridden by another one, or belong to a feature that is switched off."""
    parsed = settings(lines)
    assert (parsed.notes, parsed.unused) == ((), ())


def test_transforms_are_rejected_without_ignore_transforms() -> None:
    parsed = settings("A->B.transforms=mask\nA->B.transforms.mask.type=org.example.Mask\npredicates=p\n")
    assert (parsed.transforms, parsed.unused) == (("predicates", "A->B.transforms"), ())
    with pytest.raises(SettingsError, match=r"^predicates, A->B\.transforms: transforms do not exist here"):
        parsed.check_keys()
    parsed.check_keys(ignore_transforms=True, strict=True)
