"""From the flags and the Java client's properties to a connected admin; errors as one line and an exit code."""

from __future__ import annotations

import re
import socket
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import write_nothing_more
from klamm.cli.output import complain
from klamm.properties import SettingsError, read_properties, split_address
from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.admin import AdminClient

EXIT_FAILED: Final = 1
_SILENCE_S: Final = 3.0
_PROBE_TIMEOUT_S: Final = 1.0

_LOGIN = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAMES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", str),
    "sasl.mechanism": ("sasl_mechanism", str),
    "request.timeout.ms": ("request_timeout_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "default.api.timeout.ms": ("timeout_ms", int),
}
"""Properties of the Java admin client that mean the same here; the rest of Java's tuning is passed over."""


class RefusedError(Exception):
    """Something that was asked for cannot be done; the message is for the user."""


@contextmanager
def connect(options: argparse.Namespace, *, timeout_ms: int = 60_000) -> Iterator[AdminClient]:
    """Provide an admin client for ``--bootstrap-server`` with the settings of ``--command-config``.

    When no server has answered after some seconds, a line on stderr says what is being tried and why it fails.

    Raises:
        SettingsError: The properties cannot be read or used.
    """
    from klamm.admin import AdminClient  # noqa: PLC0415  # --help and wrong flags need no network library

    properties = {} if options.command_config is None else read_properties(Path(options.command_config))
    settings = {"timeout_ms": timeout_ms, **client_settings(properties)}
    addresses = _addresses(options.bootstrap_server)
    try:
        admin = AdminClient(addresses, **settings)
    except ValueError as error:
        raise SettingsError(f"--bootstrap-server {options.bootstrap_server}: {error}") from error
    timer = threading.Timer(_SILENCE_S, _report_silence, (admin, addresses, settings["timeout_ms"] / 1000))
    timer.daemon = True
    timer.start()
    try:
        with admin:
            yield admin
    finally:
        timer.cancel()


def _report_silence(admin: AdminClient, addresses: Sequence[str], limit_s: float) -> None:
    if not admin.is_searching:
        return
    tried = "; ".join(f"{address}: {_obstacle(address)}" for address in addresses)
    if admin.is_searching:
        complain(f"No answer yet, trying for {limit_s:g} s in all: {tried}")


def _obstacle(address: str) -> str:
    """Return why a server may not answer: found out by a connection of its own."""
    try:
        with socket.create_connection(split_address(address) or ("", 0), timeout=_PROBE_TIMEOUT_S):
            return "connected, but no answer to a Kafka request (does security.protocol match the listener?)"
    except TimeoutError:
        return "no connection (is a firewall in between?)"
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return (reason or str(error)).lower()


def _addresses(text: str) -> list[str]:
    """Return the servers to connect to, checked at once: a misspelt one would only fail after a minute.

    Raises:
        SettingsError: One is no address, or none of their hosts has one.
    """
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    unreadable = next((address for address in addresses or [text] if split_address(address) is None), None)
    if unreadable is not None:
        raise SettingsError(f"--bootstrap-server {text}: {unreadable!r}: expected HOST:PORT")
    if not any(map(_is_known, addresses)):
        raise SettingsError(f"--bootstrap-server {text}: the host name cannot be resolved; check its spelling")
    return addresses


def _is_known(address: str) -> bool:
    try:
        return bool(socket.getaddrinfo(*(split_address(address) or ("", 0)), type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def client_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """Translate properties of the Java admin client.

    Raises:
        SettingsError: A value is no number, a login without user or password, or a store that cannot be opened.
    """
    settings: dict[str, Any] = {}
    for name, value in properties.items():
        if name in _NAMES:
            ours, read = _NAMES[name]
            try:
                settings[ours] = read(value)
            except ValueError as error:
                raise SettingsError(f"{name}={value}: expected a whole number") from error
    if properties.get("security.protocol", "").strip().upper().endswith("SSL"):
        from klamm.tls import client_context  # noqa: PLC0415  # OpenSSL costs start-up time

        settings["ssl_context"] = client_context(properties)
    if "sasl.jaas.config" in properties:
        settings |= _login(properties["sasl.jaas.config"])
    return settings


def _login(jaas: str) -> dict[str, str]:
    found = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _LOGIN.findall(jaas)}
    if set(found) != {"username", "password"}:
        raise SettingsError('sasl.jaas.config: expected a login module with username="..." and password="..."')
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}


def explain(error: BaseException) -> str:
    """Return what went wrong as one line."""
    if isinstance(error, UnsupportedVersionError):
        return f"The cluster does not support this request: {error}"
    if isinstance(error, KafkaApiError):
        return error.error_message or _meaning(error.error_code)
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!a} holds bytes that are not text in this locale"
    return str(error) or type(error).__name__


def _meaning(code: ErrorCode) -> str:
    """Return an error code that came without a message in words, and the code itself to search for."""
    return f"{code.name.replace('_', ' ').capitalize()} ({code.name})"


def guarded(prog: str, work: Callable[[], int], *, complain_with: Callable[[str], None] | None = None) -> int:
    """Run a command; an error that has a meaning to its user becomes one line and exit code 1."""
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:  # who read the result has enough of it, as `head` does
        write_nothing_more()
        return 0
    except (RefusedError, SettingsError, KafkaApiError, ProtocolError, OSError, UnicodeEncodeError) as error:
        line = " ".join(explain(error).split("\n"))
        if complain_with is None:
            complain(f"{prog}: {line}")
        else:
            complain_with(line)
        return EXIT_FAILED
    return code
