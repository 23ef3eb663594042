"""TLS of a listener: Kafka's ``ssl.*`` settings, its own under ``listener.name.<listener>.`` before the broker's."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.security.listeners import Listener, SecurityProtocol, setting_of
from klamm.properties import SettingsError
from klamm.tls import load_own, load_trusted, restrict

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ReplaceableContext(ssl.SSLContext):
    """What a listening socket is opened with: each new connection is encrypted by the context that counts then."""

    current: ssl.SSLContext

    @classmethod
    def around(cls, context: ssl.SSLContext) -> ReplaceableContext:
        """Return one that stands for ``context`` until ``current`` is set anew."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.current = context
        return made

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self.current.wrap_bio(*arguments, **named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """How a listener encrypts, and whom its certificate speaks of."""

    context: ssl.SSLContext
    certificate: bytes
    """In DER."""


def server_tls(listener: Listener, configs: Mapping[str, str]) -> ServerTls:
    """Return what a listener's connections are encrypted by.

    Raises:
        SettingsError: Something is missing, of another format, or cannot be read; never shows a key or a password.
    """
    try:
        return _server_tls(listener, configs)
    except SettingsError as error:
        raise SettingsError(f"Listener {listener.name}: {error}") from None


def _server_tls(listener: Listener, configs: Mapping[str, str]) -> ServerTls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    setting = partial(setting_of, configs, listener.name)
    restrict(context, setting)
    certificate = load_own(context, setting)
    if certificate is None:
        raise SettingsError(
            "ssl.keystore.location: a listener with TLS needs it, or ssl.keystore.certificate.chain and"
            " ssl.keystore.key"
        )
    context.verify_mode = _client_auth(listener, configs)
    if context.verify_mode is not ssl.CERT_NONE and not load_trusted(context, setting):
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    return ServerTls(context=context, certificate=certificate)


def _client_auth(listener: Listener, configs: Mapping[str, str]) -> ssl.VerifyMode:
    """Ask for certificates of clients; with SASL only when the listener itself says so, as in Kafka."""
    if listener.protocol is SecurityProtocol.SASL_SSL:
        asked = configs.get(f"listener.name.{listener.name.lower()}.ssl.client.auth")
    else:
        asked = setting_of(configs, listener.name, "ssl.client.auth")
    try:
        return _CLIENT_AUTH[(asked or "none").strip().lower()]
    except KeyError:
        raise SettingsError(f"ssl.client.auth={asked}: expected one of {', '.join(_CLIENT_AUTH)}") from None
