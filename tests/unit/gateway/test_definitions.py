"""Settings without an effect are reported. Every documented setting, and every one of the examples, has an effect."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from klamm.gateway.definitions import SETTINGS, UPSTREAM_PREFIX
from klamm.gateway.settings import GatewaySettings, read_settings, reject_unknown, unknown_names
from klamm.properties import SettingsError, parse_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[3]


def settings_of(names: Iterable[str]) -> GatewaySettings:
    upstream = {name.removeprefix(UPSTREAM_PREFIX): "" for name in names if name.startswith(UPSTREAM_PREFIX)}
    own = {name: "a:B" for name in names if not name.startswith(UPSTREAM_PREFIX)}
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092"})
    return replace(settings, configs=own, upstream_properties=upstream)


def unknown_of(names: Iterable[str]) -> tuple[str, ...]:
    return unknown_names(settings_of(names))


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("client.config.enable", "client.configs.enable"),
        ("flows.policy.class.name", "flow.policy.class.name"),
        ("upstream.securty.protocol", "upstream.security.protocol"),
        ("ssl.keystore.locaton", "ssl.keystore.location"),
    ],
)
def test_misspelled_setting_is_rejected_with_similar_name(name: str, similar: str) -> None:
    message = f"setting {name} has no effect in a gateway; did you mean {similar}?"
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        reject_unknown(settings_of((name, "shutdown.grace.ms")))


def test_unknown_setting_is_accepted_beside_a_policy_that_may_read_it() -> None:
    reject_unknown(settings_of(("house.limit", "flow.policy.class.name")))


def test_settings_of_a_broker_or_a_producer_have_no_effect() -> None:
    assert unknown_of(("log.retention.ms", "upstream.linger.ms")) == ("log.retention.ms", "upstream.linger.ms")


def test_settings_of_logins_that_end_at_the_gateway_have_an_effect() -> None:
    read = ("connection.failed.authentication.delay.ms", "connections.max.reauth.ms", "sasl.server.max.receive.size")
    assert unknown_of([*read, *(f"listener.name.sasl_ssl.{name}" for name in read)]) == ()


def test_every_documented_setting_has_an_effect() -> None:
    page = (ROOT / "docs/gateway-reference.md").read_text(encoding="utf-8")
    rows = page.partition("## Settings")[2].partition("\n## ")[0].splitlines()
    names = [name for row in rows if row.startswith("| `") for name in re.findall(r"`([a-z.]+)`", row.split("|")[1])]
    assert SETTINGS.keys() <= set(names), "each setting of the table is documented"
    assert unknown_of(names) == ()


def test_every_setting_of_the_examples_has_an_effect() -> None:
    examples = ROOT / "examples" / "gateway"
    texts = [(examples / "gateway.properties").read_text(encoding="utf-8")]
    for manifest in ("kubernetes.yaml", "kubernetes-sni.yaml"):
        for document in yaml.safe_load_all((examples / manifest).read_text(encoding="utf-8")):
            texts += [text for name, text in (document.get("stringData") or {}).items() if name == "gateway.properties"]
    assert [unknown_of(parse_properties(text)) for text in texts] == [(), (), ()]
