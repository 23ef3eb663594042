"""Translation of librdkafka's properties to our own connection: address, login and request interval."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final[Mapping[str, str]] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
_VERIFICATION: Final = "enable.ssl.certificate.verification"
SWITCH: Final = "enable.dynamic.config"
_TRUE: Final = frozenset({"true", "t", "1"})
_FALSE: Final = frozenset({"false", "f", "0"})
DEFAULT_CLIENT_ID: Final = "rdkafka"
DEFAULT_INTERVAL_MS: Final = 300_000
"""Default of ``metadata.max.age.ms`` in the Java client. librdkafka's own 15 minutes are for metadata only."""
DEFAULT_BACKOFF_MS: Final = 100
_KEYWORDS: Final = frozenset({"logger"})
"""Keyword arguments of confluent-kafka's clients that are not properties."""
_OF_TOPICS: Final = "default.topic.config"
_UNUSABLE: Final = ("sasl.oauthbearer", "oauth_cb", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key", "ssl.keystore")
_USABLE: Final = frozenset({"ssl.key.location", "ssl.key.password"})


def split_properties(
    config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return librdkafka's properties, which may also be given as keywords, and the other keyword arguments.

    The deprecated ``default.topic.config`` is merged into the properties, which it overrides, as in confluent-kafka.
    """
    own = {name: value for name, value in keywords.items() if name in _KEYWORDS}
    properties = dict(config or {}) | {name: value for name, value in keywords.items() if name not in own}
    if isinstance(properties.get(_OF_TOPICS), Mapping):  # confluent-kafka rejects other types
        properties |= properties.pop(_OF_TOPICS)
    return properties, own


def takes_dynamic_configs(properties: dict[str, Any], argument: bool) -> bool:
    """Remove KIP-649's switch, which librdkafka rejects, from the properties. Return whether both switches are on.

    Raises:
        ValueError: The switch has a value that is no boolean of librdkafka.
    """
    is_on = is_true(properties, SWITCH, default="true")
    value = properties.pop(SWITCH, False)
    if not is_on and str(value).lower() not in _FALSE:
        raise ValueError(f"{SWITCH}={value!r}: expected true or false")
    return is_on and argument


def connection_settings(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return kafka-python's settings for a connection.

    Raises:
        ValueError: The login mechanism is one that only librdkafka supports.
        OSError: A certificate cannot be read.
    """
    unusable = [name for name in properties if name.startswith(_UNUSABLE) and name not in _USABLE]
    if unusable:
        raise ValueError(f"{', '.join(sorted(unusable))} cannot be used for a connection outside librdkafka")
    servers = properties.get("bootstrap.servers", properties.get("metadata.broker.list", ""))
    settings: dict[str, Any] = {"bootstrap_servers": servers.split(","), "client_id": client_id(properties)}
    for name, ours in _NAMES.items():
        if name in properties:
            settings[ours] = properties[name]
    if "security_protocol" in settings:
        settings["security_protocol"] = str(settings["security_protocol"]).upper()
    if str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        settings["ssl_check_hostname"] = False
    if "SSL" in settings.get("security_protocol", "") and not is_true(properties, _VERIFICATION, default="true"):
        settings["ssl_context"] = _trusting(settings)
    return settings


def _trusting(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate, as configured, with the client's own certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl_certfile" in settings:
        context.load_cert_chain(settings["ssl_certfile"], settings.get("ssl_keyfile"), settings.get("ssl_password"))
    return context


def client_id(properties: Mapping[str, Any]) -> str:
    """Return the client id that librdkafka sends."""
    return str(properties.get("client.id", DEFAULT_CLIENT_ID))


def interval_s(properties: Mapping[str, Any]) -> float:
    """Return the interval of requests in seconds."""
    return int(properties.get("metadata.max.age.ms", DEFAULT_INTERVAL_MS)) / 1000


def backoff_s(properties: Mapping[str, Any]) -> float:
    """Return the delay before a retry in seconds."""
    return int(properties.get("retry.backoff.ms", DEFAULT_BACKOFF_MS)) / 1000


def is_true(properties: Mapping[str, Any], name: str, *, default: str = "false") -> bool:
    """Return whether a switch is on. librdkafka accepts words as well."""
    return str(properties.get(name, default)).lower() in _TRUE
