"""TLS of a listener: Kafka's ``ssl.*`` settings. Those under ``listener.name.<listener>.`` outrank the broker's."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.server.listeners import Listener, SecurityProtocol, setting_of
from klamm.tls import load_own, load_trusted, restrict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class ReplaceableContext(ssl.SSLContext):
    """SSL context of a listening socket that delegates each new connection to a replaceable context."""

    current: ssl.SSLContext

    @classmethod
    def around(cls, context: ssl.SSLContext) -> ReplaceableContext:
        """Return a replaceable context that delegates to ``context`` until ``current`` is replaced."""
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.current = context
        return made

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Create the TLS object of a new connection with the current context."""
        return self.current.wrap_bio(*arguments, **named)


class AlertingTls(ssl.SSLObject):
    """TLS object of a connection whose client receives the alert that says why its handshake failed.

    asyncio closes a connection whose handshake fails, and with it drops the alert that OpenSSL has written. So the
    first failure is reported as "more bytes are needed", upon which asyncio sends what there is to send. A client that
    receives the alert closes the connection; any further bytes raise the failure itself, and a silent client is ended
    by the time limit of handshakes.
    """

    outgoing: ssl.MemoryBIO | None = None
    """Bytes to send to the client."""
    on_failure: Callable[[str], None] | None = None
    """Called with the reason of a failure. None: it is logged."""
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """Continue the handshake with the bytes received so far.

        Raises:
            ssl.SSLWantReadError: More bytes are needed, or the alert of a failed handshake is to be sent.
            ssl.SSLError: The handshake failed.
        """
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            reason = f"its TLS handshake failed: {error.strerror or error}"
            if self.on_failure is None:
                logger.info("A client was rejected: %s", reason)
            else:
                self.on_failure(reason)
            if self.outgoing is None or not self.outgoing.pending:
                raise
            self._failure = error
            raise ssl.SSLWantReadError from error


class ServerContext(ssl.SSLContext):
    """Context of the connections that a listener accepts."""

    sslobject_class = AlertingTls
    on_failure: Callable[[str], None] | None = None
    """Called with the reason for which a TLS handshake failed. None: it is logged."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any) -> ssl.SSLObject:
        """Create the TLS object of a new connection."""
        made = cast("AlertingTls", super().wrap_bio(incoming, outgoing, *more, **named))
        made.outgoing, made.on_failure = outgoing, self.on_failure
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS context of a listener and its own certificate."""

    context: ssl.SSLContext
    certificate: bytes
    """Certificate of the broker, in DER."""


def server_tls(listener: Listener, configs: Mapping[str, str]) -> ServerTls:
    """Create the TLS context of a listener from its settings.

    Raises:
        SettingsError: A setting is missing or not allowed, or a store cannot be read. The message never contains a key
            or a password.
    """
    try:
        return _server_tls(listener, configs)
    except SettingsError as error:
        raise SettingsError(f"Listener {listener.name}: {error}") from None


def _server_tls(listener: Listener, configs: Mapping[str, str]) -> ServerTls:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
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
    """Return the verify mode for client certificates. With SASL only the listener's own setting counts, as in Kafka."""
    if listener.protocol is SecurityProtocol.SASL_SSL:
        client_auth = configs.get(f"listener.name.{listener.name.lower()}.ssl.client.auth")
    else:
        client_auth = setting_of(configs, listener.name, "ssl.client.auth")
    try:
        return _CLIENT_AUTH[(client_auth or "none").strip().lower()]
    except KeyError:
        raise SettingsError(f"ssl.client.auth={client_auth}: expected one of {', '.join(_CLIENT_AUTH)}") from None
