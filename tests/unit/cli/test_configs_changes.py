"""Parsing of --add-config and similar flags."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from klamm.admin import AdminClient, ClusterDescription, ConfigEntry, ConfigResource, ConfigSource, ResourceType
from klamm.admin.results import DescribeConfigsResult
from klamm.admin.types import ConfigSynonym
from klamm.cli.configs.changes import Changes, client_changes, config_changes, parse_pairs, read_changes
from klamm.cli.configs.options import parse
from klamm.cli.connection import RequestError
from klamm.impact.changes import ClientConfigAltered, ConfigAltered, QuotaAltered
from klamm.kafka_client.pool.calls import Outcome
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


SERVER = ("--bootstrap-server", "a:1")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=[x,y],b=2", {"a": "x,y", "b": "2"}),
        ("a = 1 , b=2", {"a": "1", "b": "2"}),
        ("a=", {"a": ""}),
        ("a=[]", {"a": ""}),
        ("a=1,", {"a": "1"}),
        ("a=[x=1,y=2]", {"a": "x=1,y=2"}),
        ("retention.ms=7d,segment.bytes=1GiB", {"retention.ms": "604800000", "segment.bytes": "1073741824"}),
        ("linger.ms=500 ms,b=7d", {"linger.ms": "500", "b": "7d"}),
        ("retention.ms=7GiB,segment.bytes=-1", {"retention.ms": "7GiB", "segment.bytes": "-1"}),
        (None, {}),
    ],
)
def test_brackets_keep_commas_in_value(text: str | None, pairs: dict[str, str]) -> None:
    """K649-85: ``--add-config k1=v1,k2=[a,b]`` brackets group commas; ``--add-config-file f``."""
    assert parse_pairs(text) == pairs


@pytest.mark.parametrize("text", ["1e3", "+1000", "1000d", " 1000.0f"])
def test_impact_reads_quotas_as_they_are_sent(text: str) -> None:
    entity = (("user", "alice"),)
    quotas, dynamic = (
        Changes(added=added, deleted=(), appended={}, subtracted={})
        for added in ({"producer_byte_rate": text}, {"acks": "all"})
    )
    assert client_changes(entity, quotas, dynamic, present={"rollout.acks": "5:1"}, percent=0.0) == [
        QuotaAltered(entity=entity, name="producer_byte_rate", value=1000.0),
        ClientConfigAltered(entity=entity, name="rollout.acks", value=None, value_before="5:1"),
    ]


def test_impact_of_removed_client_config_has_the_value_and_the_rollout_before() -> None:
    entity, present = (("user", "alice"),), {"acks": "1", "rollout.acks": "100:all", "rollout.linger.ms": "5:1"}
    nothing, removal = (Changes(added={}, deleted=keys, appended={}, subtracted={}) for keys in ((), ("acks",)))
    assert client_changes(entity, nothing, removal, present=present) == [
        ClientConfigAltered(entity=entity, name="acks", value=None, value_before="1"),
        ClientConfigAltered(entity=entity, name="rollout.acks", value=None, value_before="100:all"),
    ]


@pytest.mark.parametrize(
    ("features", "finalized", "own", "operation", "stored"),
    [
        ((), (), None, "append", ["delete,compact"]),
        ((), (), None, "subtract", ["delete"]),
        ((), (), "compact", "append", []),
        (("client.configs",), ("client.configs",), None, "append", ["other,compact"]),
        (("client.configs",), ("metadata.version",), None, "append", ["delete,compact"]),
    ],
    ids=["Kafka", "Kafka, subtract", "Kafka, own value", "klamm", "Kafka behind a gateway with client configs"],
)
def test_impact_of_extended_list_starts_from_the_default_of_the_server(
    features: tuple[str, ...], finalized: tuple[str, ...], own: str | None, operation: str, stored: list[str]
) -> None:
    """K339-11: Kafka starts from the built-in default, even where the cluster has another one."""
    # given
    synonyms = (
        *([ConfigSynonym("cleanup.policy", own, ConfigSource.DYNAMIC_TOPIC_CONFIG)] if own else []),
        ConfigSynonym("log.cleanup.policy", "other", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    )
    entry = ConfigEntry("cleanup.policy", synonyms[0].value, source=synonyms[0].source, synonyms=synonyms)
    resource = ConfigResource(ResourceType.TOPIC, "t")
    described, cluster = DescribeConfigsResult([resource]), Outcome[ClusterDescription]()
    described.succeed(resource, {"cleanup.policy": entry})
    versions, levels = dict.fromkeys(features, (0, 1)), dict.fromkeys(finalized, 1)
    cluster.set_result(
        ClusterDescription(cluster_id="c", controller_id=1, nodes=(), features=versions, finalized_features=levels)
    )
    admin = create_autospec(AdminClient, instance=True)
    admin.describe_configs.return_value, admin.describe_cluster.return_value = described, cluster
    extended = {"cleanup.policy": "compact"}
    appended, subtracted = (extended, {}) if operation == "append" else ({}, extended)
    changes = Changes(added={}, deleted=(), appended=appended, subtracted=subtracted)
    # when
    predicted = config_changes(admin, ResourceType.TOPIC, "t", changes)
    # then
    assert predicted == [
        ConfigAltered(resource_type=ResourceType.TOPIC, resource_name="t", name="cleanup.policy", value=value)
        for value in stored
    ]


@pytest.mark.parametrize("text", ["a", "a=1=2", "a,b=1", "=1=", "a=x,y"])
def test_config_without_value_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match='must be in the format "key=val"'):
        parse_pairs(text)


def test_add_config_file_is_properties_file(tmp_path: Path) -> None:
    """K649-85: ``--add-config k1=v1,k2=[a,b]`` brackets group commas; ``--add-config-file f``."""
    # given
    file = tmp_path / "configs.properties"
    file.write_text("# mine\nacks = all\nlist=a,b\nlinger.ms=1 s\n")
    # when
    words = ("--alter", "--user", "u", "--add-config-file", str(file), "--delete-config", "x, y")
    changes = read_changes(parse([*SERVER, *words]))
    # then
    assert changes == Changes(
        added={"acks": "all", "list": "a,b", "linger.ms": "1000"}, deleted=("x", "y"), appended={}, subtracted={}
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--broker 1 --add-config listener.name.a.ssl.key.password=x", None),
        ("--broker 1 --add-config sasl.jaas.config=x", None),
        ("--broker 1 --add-config plugin.token=x", None),
        ("--broker 1 --add-config log.cleaner.threads=2", "2"),
        ("--topic orders --add-config retention.ms=5", "5"),
        ("--user u --add-config SCRAM-SHA-256=[password=x]", None),
    ],
)
def test_passwords_are_not_in_the_document(words: str, shown: str | None) -> None:
    options = parse([*SERVER, "--alter", *words.split()])
    (change,) = read_changes(options).document(of_brokers="--broker" in words)
    assert change["value"] == shown


def test_missing_file_is_reported_by_name() -> None:
    with pytest.raises(SettingsError, match="/no/such/file: cannot be read"):
        read_changes(parse([*SERVER, "--alter", "--user", "u", "--add-config-file", "/no/such/file"]))
