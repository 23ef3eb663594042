"""Settings of a kafka-python client, from the properties of a Java client and from flags."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import INT32_MAX, INT64_MAX
from klamm.cli.connection import RequestError
from klamm.kafka_client.errors import meaning_of
from klamm.properties import parse_bool, read_properties
from klamm.protocol.errors import ErrorCode
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HANDLED: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.",
    "ssl.",
    "default.api.timeout.ms",
    "config.providers",
)
"""Beginnings of properties that the connection is made from, and of those that say where secrets are."""
_JAVA_CLASSES: Final = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "partition.assignment.strategy",
        "metric.reporters",
    }
)
"""Properties with names of Java classes. Settings of kafka-python with the same names expect Python objects."""
_BUFFERS: Final = {"send_buffer_bytes": socket.SO_SNDBUF, "receive_buffer_bytes": socket.SO_RCVBUF}
"""Socket options by the setting for the size of a socket's buffer."""
_CODES: Final = frozenset(map(int, ErrorCode))
_NUMBERS: Final = (int, float)


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Parse ``name=value`` of a flag that may be repeated. The name alone means an empty value, as in Kafka's tools.

    Raises:
        RequestError: An entry has no name.
    """
    pairs = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name:
            raise RequestError(f"{flag} {text}: expected name=value")
        pairs[name] = value
    return pairs


def read_pairs(path: str | None, texts: Sequence[str], flag: str) -> dict[str, str]:
    """Return the properties of a file, overridden by those of a flag.

    Raises:
        RequestError: An entry of the flag has no name.
        SettingsError: The file cannot be read.
    """
    return {**({} if path is None else read_properties(Path(path))), **parse_pairs(texts, flag)}


def kafka_python_settings(properties: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Translate properties of a Java client to settings of kafka-python. Properties without a counterpart are left out.

    Those with names of Java classes are left out, too. Kafka's console tools replace the serializers and deserializers.

    Args:
        properties: Properties of the Java client, including those of the connection.
        defaults: Settings of the kafka-python client with their defaults, by name.

    Raises:
        RequestError: A value is not a number.
        SettingsError: A value is neither true nor false, or the connection cannot be made from the properties.
    """
    settings = _security(properties)
    for key, text in properties.items():
        name = key.replace(".", "_")
        if name not in settings and _is_setting(key, defaults) and not key.startswith(_HANDLED):
            settings[name] = _value(key, text.strip(), -1 if name in _BUFFERS else defaults[name])
    return settings


def with_socket_options(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings whose sizes of socket buffers are socket options, because kafka-python ignores those settings.

    A negative size means that of the operating system, as in Java.
    """
    sizes = {option: settings.get(name, -1) for name, option in _BUFFERS.items()}
    options = [(socket.SOL_SOCKET, option, size) for option, size in sizes.items() if size >= 0]
    return {**settings, "socket_options": [*defaults["socket_options"], *options]}


def _is_setting(key: str, defaults: Mapping[str, Any]) -> bool:
    return key.replace(".", "_") in defaults and key not in _JAVA_CLASSES


def _security(properties: Mapping[str, str]) -> dict[str, Any]:
    from klamm.kafka_client.connection.login import login_settings  # noqa: PLC0415  # wrong flags need no network library
    from klamm.kafka_client.connection.security import Security  # noqa: PLC0415

    security = Security.of(properties)
    return {
        "security_protocol": security.protocol,
        **({"ssl_context": security.tls_context()} if security.uses_tls else {}),
        **(login_settings(security) if security.uses_sasl else {}),
    }


def _value(key: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        return parse_bool(key, text)
    if isinstance(default, _NUMBERS) and not (key == "acks" and text == "all"):
        try:
            number = whole_number(INT64_MAX)(text)
        except argparse.ArgumentTypeError as error:
            raise RequestError(f"{key}={text}: expected a whole number") from error
        return min(max(number, -INT32_MAX - 1), INT32_MAX)  # kafka-python sends some that are longs in Java as integers
    return text


def explain_client_error(error: Exception) -> str:
    """Return an error of kafka-python as text, without the names of its classes."""
    code = getattr(error, "errno", None)
    details = [str(part) for group in error.args for part in (sorted(group) if isinstance(group, set) else [group])]
    if code in _CODES:
        details.insert(0, meaning_of(ErrorCode(code)))
    return ": ".join(details) or type(error).__name__


def unknown_properties(properties: Mapping[str, str], defaults: Mapping[str, Any]) -> list[str]:
    """Return the properties that have no effect."""
    return [key for key in properties if not _is_setting(key, defaults) and not key.startswith(_HANDLED)]
