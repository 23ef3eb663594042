"""Published properties files: each is accepted or rejected as a table says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.config_providers import resolve
from klamm.mirror.settings.mirror import MirrorSettings, parse_settings
from klamm.properties import SettingsError, parse_properties
from tests.support import mm2_files

if TYPE_CHECKING:
    from pathlib import Path

ACCEPTED: dict[str, tuple[dict[str, str | None], tuple[str, ...]]] = {
    "active_active": ({"dc1->dc2": "dc1.orders", "dc2->dc1": "dc2.orders"}, ()),
    "aggregation": ({"paris->central": "paris.orders", "berlin->central": "berlin.orders"}, ("central.tasks.max",)),
    "blacklist_of_2_4": ({"primary->backup": "primary.orders"}, ()),
    "cloud_api_key": ({"dc->ccloud": "dc.orders"}, ("ccloud.request.timeout.ms",)),
    "compose_demo": ({"source->target": "source.orders"}, ()),
    "connector_keys_in_a_file": ({"source->target": "source.orders"}, ("producer.override.bootstrap.servers",)),
    "continuation_lines": ({"primary->secondary": "primary.orders"}, ()),
    "event_hubs": ({"source->eventhub": "source.orders"}, ("eventhub.producer.max.request.size",)),
    "exactly_once": ({"us-west->us-east": "us-west.orders"}, ()),
    "exactly_once_at_the_source": (
        {"us-west->us-east": "us-west.orders"}, ("us-west.exactly.once.source.support",)
    ),
    "groups": ({"A->B": "A.orders"}, ("consumer.auto.offset.reset",)),
    "identity": ({"onprem->cloud": "orders"}, ()),
    "intervals": ({"A->B": "A.orders"}, ()),
    "msk_migration": ({"msksource->mskdest": "orders"}, ()),
    "no_prefix_cloud": (
        {"source->cloud": "orders"},
        ("cloud.cluster.alias", "source.offset-syncs.topic.replication.factor",
         "cloud.heartbeats.topic.replication.factor"),
    ),
    "no_prefix_lab": ({"ot2dev->labs": "orders"}, ()),
    "nothing_on_the_way_back": ({"A->B": "A.orders"}, ()),
    "oauth": ({"A->B": "A.orders"}, ("B.sasl.login.callback.handler.class",)),
    "other_separators": ({"dc1.eu->dc-2": "dc1.eu.orders"}, ()),
    "quickstart": ({"A->B": "A.orders", "B->A": "B.orders"}, ()),
    "regular_expressions": ({"A->B": "A.orders"}, ()),
    "sasl_per_client": (
        {"A->B": "A.orders"}, ("B.producer.compression.type", "B.producer.linger.ms", "A.consumer.max.poll.records")
    ),
    "sasl_plain_one_side": ({"local->remote": "local.orders"}, ()),
    "secrets_in_a_directory": ({"A->B": "A.orders"}, ()),
    "secrets_in_a_file": ({"A->B": "A.orders"}, ()),
    "secrets_in_the_environment": ({"A->B": "A.orders"}, ()),
    "separator_for_topics_only": ({"eu->us": "eu__orders"}, ()),
    "separator_underscore": ({"eu->us": "eu_orders"}, ()),
    "strimzi_identity": ({"legacy->next": "orders"}, ()),
    "tls_both_sides": ({"A->B": "A.orders"}, ("ssl.client.auth",)),
    "tls_pem_files": ({"A->B": "A.orders"}, ()),
    "tls_pem_inline": ({"A->B": "A.orders"}, ()),
    "truststore_without_protocol": (
        {"A->B": "A.orders"}, ("A.ssl.truststore.location", "A.ssl.truststore.password")
    ),
}  # fmt: skip
"""By file: the remote topic of ``orders`` in each flow, and the keys without an effect, which ``--strict`` rejects."""
REJECTED = {
    "blanks_in_a_key": "a key ends at a blank",
    "comment_after_a_value": "expected no comment after the value",
    "connector_style": "clusters: expected the aliases of the clusters",
    "masking_transform": "A->B.transforms: transforms do not exist here",
    "misspelt_protocol": "B.security.protocl does not exist; did you mean B.security.protocol?",
    "msk_iam": "sasl.mechanism=AWS_MSK_IAM: expected one of PLAIN",
    "own_filter_in_java": "topic.filter.class=com.example.kafka.RegexTopicFilter: expected one of Kafka's default",
    "repetition_in_a_list": "has an unclosed brace: the list is split at its commas",
    "secrets_in_a_vault": "config.providers.vault.class=com.example.connect.VaultConfigProvider: expected org.apache",
}
"""By file: a part of the reason."""


def settings_of(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> MirrorSettings:
    monkeypatch.setenv("MM2_SOURCE", "a:9092")
    settings = parse_settings(resolve(parse_properties(mm2_files.text_of(name, directory))))
    settings.check_keys()
    settings.check_clients()
    return settings


def test_every_public_file_has_expected_result() -> None:
    assert sorted({**ACCEPTED, **REJECTED}) == mm2_files.NAMES


@pytest.mark.parametrize("name", ACCEPTED)
def test_public_file_is_accepted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote_topics, unused = ACCEPTED[name]
    settings = settings_of(name, tmp_path, monkeypatch)
    assert {
        flow.name: flow.remote_topic("orders") if flow.selection.includes("orders") else None for flow in settings.flows
    } == remote_topics
    listed = {key for line in settings.unused for key in line.split(":")[0].removesuffix(" has no effect").split(", ")}
    assert listed == set(unused)


@pytest.mark.parametrize("name", REJECTED)
def test_public_file_is_rejected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError) as error:
        settings_of(name, tmp_path, monkeypatch)
    assert REJECTED[name] in str(error.value)
