"""Settings of a gateway: flags outrank the file, and what the gateway does not serve is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.gateway.known_settings import unknown_names
from klamm.gateway.settings import parse_arguments, read_settings
from klamm.properties import SettingsError
from klamm.server.listeners import Address

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = {"upstream.bootstrap.servers": "kafka:9092"}


def test_flags_outrank_the_file_and_upstream_settings_are_those_of_a_client(tmp_path: Path) -> None:
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
        ({"upstream.security.protocol": "TLS"}, "security.protocol=TLS"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings(UPSTREAM | change)
