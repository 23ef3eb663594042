"""Admin connections for commands, made from the flags and from the Java client's properties.

Errors are reported as one line and an exit code.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_FAILED, EXIT_USAGE, flush_output, is_output_failure
from klamm.cli.arguments import TIMEOUT
from klamm.cli.output import print_error
from klamm.config_providers import resolve
from klamm.display import one_line
from klamm.kafka_client.errors import explain
from klamm.properties import SettingsError, did_you_mean, read_properties, split_address, split_servers
from klamm.protocol.errors import KafkaApiError, ProtocolError, UnwritableMessageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.admin import AdminClient

_TIMEOUT: Final = "default.api.timeout.ms"
_ALMOST: Final = 0.88
"""Similarity, as of ``did_you_mean``, of a key with one or two wrong characters."""
_CLIENT_KEYS: Final = (
    "client.id",
    "config.providers",
    "default.api.timeout.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
)
"""Keys of ``--command-config`` that have an effect, apart from those of security."""
_SILENCE_S: Final = 3.0
_PROBE_TIMEOUT_S: Final = 1.0


class RequestError(Exception):
    """A request that cannot be carried out; the message is for the user."""

    exit_code = EXIT_FAILED


class UsageError(RequestError):
    """A flag with a wrong value."""

    exit_code = EXIT_USAGE


@contextmanager
def connect(
    options: argparse.Namespace,
    *,
    timeout_ms: int = 60_000,
    client_id: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[AdminClient]:
    """Yield an admin client for ``--bootstrap-server`` with the settings of ``--command-config``.

    If no server answers for some seconds, a line on stderr names the servers that are tried and the reason for the
    failure.

    Args:
        options: Flags of the command.
        timeout_ms: Default of ``--timeout``.
        properties: Properties of the client if they are not only in the file of ``--command-config``.
        client_id: Client id in place of that in the settings.

    Raises:
        SettingsError: The properties cannot be read or used.
    """
    from klamm.admin import AdminClient  # noqa: PLC0415  # --help and wrong flags need no network library

    if properties is None:
        properties = read_client_properties(options.command_config)
    properties = {**properties, _TIMEOUT: call_timeout(options, properties, timeout_ms)}
    if client_id is not None:
        properties["client.id"] = client_id
    addresses = parse_addresses(options.bootstrap_server)
    admin = AdminClient.from_properties(addresses, properties)
    limit = f"{int(properties[_TIMEOUT]) / 1000:g} s in all ({'--timeout' if hasattr(options, TIMEOUT) else _TIMEOUT})"
    uses_tls = properties.get("security.protocol", "").upper().endswith("SSL")
    timer = threading.Timer(_SILENCE_S, report_silence, (admin, addresses, limit), {"uses_tls": uses_tls})
    timer.daemon = True
    timer.start()
    try:
        with admin:
            yield admin
    finally:
        timer.cancel()


def call_timeout(options: argparse.Namespace, properties: Mapping[str, str], default_ms: int = 60_000) -> str:
    """Return the time limit of a call in ms: that of ``--timeout``, else ``default.api.timeout.ms``, else a default."""
    flag = getattr(options, TIMEOUT, None)
    return properties.get(_TIMEOUT, str(default_ms)) if flag is None else str(flag)


def read_client_properties(path: Path | str | None) -> dict[str, str]:
    """Return the properties of a client in a file, with references to config providers resolved; none without a file.

    Raises:
        SettingsError: The file cannot be read, or a reference cannot be resolved.
    """
    if path is None:
        return {}
    properties = read_properties(Path(path))
    _warn_of_misspelt_keys(properties, path)
    return resolve(properties)


def _warn_of_misspelt_keys(properties: Mapping[str, str], path: Path | str) -> None:
    """Report keys without an effect whose name is almost that of a key with one.

    Kafka's clients ignore all other unknown keys, too: a file may be shared with programs that know further keys.
    """
    from klamm.kafka_client.connection.security import SECURITY_KEYS  # noqa: PLC0415

    effective = {*_CLIENT_KEYS, *SECURITY_KEYS}
    suggestions = {key: did_you_mean(key, sorted(effective), cutoff=_ALMOST) for key in properties.keys() - effective}
    if suspicious := {key: suggestion for key, suggestion in suggestions.items() if suggestion}:
        from klamm.configs.definitions import broker_configs  # noqa: PLC0415 - brokers have the same ssl and sasl keys

        for key in (key for key in properties if key in suspicious and key not in broker_configs()):
            print_error(f"Warning: {path}: {one_line(key)} has no effect{suspicious[key]}")


def report_silence(admin: AdminClient, addresses: Sequence[str], limit: str, *, uses_tls: bool) -> None:
    """Print the probable reason why no broker answers, unless one has answered by then."""
    if not admin.is_searching:
        return
    tried = "; ".join(f"{address}: {_obstacle(address, uses_tls=uses_tls)}" for address in addresses)
    if admin.is_searching:
        print_error(f"No answer yet, trying for {limit}: {tried}")


def _obstacle(address: str, *, uses_tls: bool) -> str:
    """Return the probable reason why a server does not answer, found by a separate connection with a TLS handshake."""
    host, port = split_address(address) or ("", 0)
    try:
        with socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S) as connected:
            speaks_tls = _speaks_tls(connected, host)
    except TimeoutError:
        return "no connection (is a firewall in between?)"
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return (reason or str(error)).lower()
    if speaks_tls and not uses_tls:
        return "the server speaks TLS: set security.protocol=SSL or SASL_SSL in --command-config"
    request = "a TLS handshake" if uses_tls and not speaks_tls else "a Kafka request"
    return f"connected, but no answer to {request} (does security.protocol match the listener?)"


def _speaks_tls(connected: socket.socket, host: str) -> bool:
    """Return whether the server answers a TLS handshake, be it with an alert. Nothing else is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(connected, server_hostname=host).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


def parse_addresses(text: str) -> list[str]:
    """Return the addresses of the servers, each ``host:port``.

    They are checked before connecting, because a misspelt address would only fail after a minute.

    Raises:
        SettingsError: A server is not HOST:PORT, or none of the host names can be resolved.
    """
    addresses = list(split_servers(text))
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


def guarded(prog: str, work: Callable[[], int], *, on_failure: Callable[[str], None] | None = None) -> int:
    """Run a command; report every expected error as one line and return its exit code, mostly 1."""
    try:
        code = work()
        flush_output()
    except (
        RequestError,
        SettingsError,
        KafkaApiError,
        ProtocolError,
        OSError,
        UnicodeEncodeError,
        UnwritableMessageError,  # such as a name of more than 32,767 bytes
    ) as error:
        if is_output_failure(error):
            raise
        line = one_line(explain(error))
        if on_failure is None:
            print_error(f"{prog}: {line}")
        else:
            on_failure(line)
        return error.exit_code if isinstance(error, RequestError) else EXIT_FAILED
    return code
