"""Settings of a gateway: flags outrank the file, and what the gateway does not serve is rejected by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.gateway.settings import parse_arguments, read_settings, unknown_names
from klamm.properties import SettingsError
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = {"upstream.bootstrap.servers": "kafka:9092"}
CLIENT_CONFIGS = {"client.configs.enable": "true"}


@pytest.mark.parametrize("place", ["file", "file/child"])
def test_data_dir_that_cannot_be_a_directory_is_rejected(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"data.dir={tmp_path / place}: {tmp_path / 'file'} is not a directory"):
        read_settings({**UPSTREAM, "data.dir": str(tmp_path / place)})


def test_flags_override_file_and_upstream_settings_configure_client(tmp_path: Path) -> None:
    file = tmp_path / "gateway.properties"
    file.write_text(
        "upstream.bootstrap.servers=a:1,PLAINTEXT://b:2\nlisteners=0.0.0.0:19092\nupstream.request.timeout.ms=1234\n"
        "advertised.listeners=gateway:29092\ncreate.topic.policy.class.name=rules.Names\n"
    )
    arguments = ["--config", str(file), "--listen", "127.0.0.1:1000", "--set", "shutdown.grace.ms=5", "--admin-only"]
    settings = parse_arguments(arguments)
    assert settings.upstream.bootstrap_servers == ("a:1", "b:2")
    assert settings.upstream.request_timeout_s == 1.234
    assert settings.listener.listen == (Address(host="127.0.0.1", port=1000),)
    assert settings.advertised == Address(host="gateway", port=29092)
    assert (settings.shutdown_grace_s, settings.admin_only) == (0.005, True)
    assert settings.configs["create.topic.policy.class.name"] == "rules.Names"
    assert not [name for name in settings.configs if name.startswith("upstream.")]


def test_values_may_refer_to_secrets_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_PASSWORD", "geheim")
    pairs = [
        "config.providers=env",
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "upstream.ssl.key.password=${env:UPSTREAM_PASSWORD}",
    ]
    settings = parse_arguments(["--upstream", "a:1", *(part for pair in pairs for part in ("--set", pair))])
    assert settings.upstream_properties["ssl.key.password"] == "geheim"
    assert unknown_names(settings) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"upstream.bootstrap.servers": ""}, "--upstream"),
        ({"upstream.bootstrap.servers": "kafka"}, "expected HOST:PORT"),
        ({"listeners": "a:1,B://b:2"}, r"one \[NAME://\]HOST:PORT|security protocol"),
        ({"listeners": "SSL://0.0.0.0:9092", "ssl.client.auth": "requested"}, "expected none or required"),
        ({"broker.host.pattern": "b-$(nodeId).example"}, "use SSL://"),
        ({"proxy.protocol.networks": "10.0.0.1/8"}, "proxy.protocol.networks=10.0.0.1/8"),
        ({"admin.only": "maybe"}, "admin.only=maybe: expected true or false"),
        ({"metrics.listen": "nowhere"}, "metrics.listen=nowhere: expected HOST:PORT"),
        ({"shutdown.grace.ms": "soon"}, "shutdown.grace.ms=soon"),
        ({"change.history.enable": "perhaps"}, "change.history.enable=perhaps"),
        ({"client.configs.enable": "maybe"}, "client.configs.enable=maybe"),
        (CLIENT_CONFIGS | {"client.config.enforcement": "true"}, "client.config.enforcement=true: expected on or off"),
        ({"client.config.enforcement": "maybe"}, "client.config.enforcement=maybe: expected on or off"),
        ({"client.config.enforcement": "on"}, "client.config.enforcement: no effect without client.configs.enable"),
        ({"client.configs.allowed.keys": "acks"}, "client.configs.allowed.keys: no effect without"),
        (CLIENT_CONFIGS | {"client.configs.allowed.keys": "acks,linger.ms"}, "linger.ms cannot be set for clients"),
        (CLIENT_CONFIGS | {"group.min.session.timeout.ms": "0"}, "group.min.session.timeout.ms=0"),
        (CLIENT_CONFIGS | {"group.consumer.max.heartbeat.interval.ms": "soon"}, "heartbeat.interval.ms=soon"),
        ({"upstream.security.protocol": "TLS"}, "security.protocol=TLS"),
    ],
)
def test_wrong_setting_is_rejected_with_reason(change: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(UPSTREAM | change)


def test_history_and_client_configs_are_off_by_default() -> None:
    settings = read_settings(UPSTREAM)
    assert (settings.records_history, settings.client_configs) == (False, None)


def test_settings_of_client_configs_have_the_names_of_the_broker() -> None:
    limits = {
        "group.min.session.timeout.ms": 100,
        "group.max.session.timeout.ms": 200,
        "group.consumer.min.heartbeat.interval.ms": 3,
        "group.consumer.max.heartbeat.interval.ms": 4,
    }
    keys = {"client.config.enforcement": "on", "client.configs.allowed.keys": "acks, heartbeat.interval.ms"}
    settings = read_settings(
        UPSTREAM | CLIENT_CONFIGS | keys | {key: str(limit) for key, limit in limits.items()}
    ).client_configs
    assert settings is not None
    assert settings.is_enforced
    assert settings.allowed_keys == frozenset({"acks", "heartbeat.interval.ms"})
    assert settings.own_limits == limits
