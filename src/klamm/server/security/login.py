"""SASL login of one connection (KIP-43, KIP-152, KIP-368).

======  ==========================================================  ===================================================
State   Allowed requests                                            Next state
======  ==========================================================  ===================================================
FIRST   ApiVersions, SaslHandshake                                  TOKENS after SaslHandshake with a served mechanism,
                                                                    else FAILED
TOKENS  SaslAuthenticate; after SaslHandshake v0 bare tokens        OPEN after the last valid token, FAILED after an
        without a request header                                    invalid token or a second SaslHandshake
OPEN    all; after the session lifetime only SaslHandshake and      TOKENS after SaslHandshake, if sessions have a
        SaslAuthenticate (re-authentication, KIP-368)               lifetime; it must name the same mechanism
FAILED  none                                                        The response is sent after a delay, then the
                                                                    connection is closed.
======  ==========================================================  ===================================================

The session lifetime is the shorter of ``connections.max.reauth.ms`` of the mechanism and the lifetime of an OAUTHBEARER
token. Without either, a session never expires and a second SaslHandshake gets ILLEGAL_SASL_STATE. Re-authentication
must result in the same principal.
"""

from __future__ import annotations

import secrets
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.security.principals import user_principal
from klamm.security.sasl import OAUTHBEARER, PLAIN, InvalidCredentialsError, PlainExchange, SaslRejectedError
from klamm.security.scram import ScramCredential, ScramExchange, ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.security.sasl import SaslExchange

DEFAULT_MAX_TOKEN_BYTES: Final = 524_288
DEFAULT_FAILURE_DELAY_MS: Final = 100
_MAX_FAILURE_LENGTH: Final = 1000
"""Maximum number of characters in the reason of a failed login, which may repeat a text of the client."""
SERVED_MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

FindScram: TypeAlias = "Callable[[str, ScramMechanism], ScramCredential | None]"
"""Function that returns the SCRAM credential of a user; None when the user has none for that mechanism."""


class LoginState(Enum):
    """State of a login; see the module's table."""

    FIRST = "first"
    TOKENS = "tokens"
    OPEN = "open"
    FAILED = "failed"


_SERVED_BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """SASL settings of a listener."""

    mechanisms: Mapping[str, Callable[[], SaslExchange]]
    """Functions that start a SASL exchange, by mechanism name."""
    max_token_bytes: int = DEFAULT_MAX_TOKEN_BYTES
    """``sasl.server.max.receive.size``."""
    failure_delay_s: float = DEFAULT_FAILURE_DELAY_MS / 1000
    """``connection.failed.authentication.delay.ms``."""
    max_session_ms: Mapping[str, int] = field(default_factory=dict)
    """``connections.max.reauth.ms`` by mechanism name; if it is 0 or missing, sessions do not expire."""
    now: Callable[[], float]
    """Monotonic clock, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAnswer:
    """Fields of a SaslAuthenticate response."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class Login:
    """SASL login of one connection; see the module's table for its states. Owned by the connection."""

    def __init__(self, settings: LoginSettings) -> None:
        self.settings = settings
        self.state = LoginState.FIRST
        self.principal: str | None = None
        """Principal of the latest successful login; None before the first one."""
        self.failure = ""
        """Reason for which the login has failed, or the session has ended, cut to ``_MAX_FAILURE_LENGTH``."""
        self.mechanism: str | None = None
        self._exchange: SaslExchange | None = None
        self._has_bare_tokens = False
        self._ends_at: float | None = None
        self._lifetime_ms = 0

    @property
    def is_open(self) -> bool:
        """Return whether the client is logged in and may send every request."""
        return self.state is LoginState.OPEN

    @property
    def expires(self) -> bool:
        """Return whether the session is valid for some time only."""
        return self._ends_at is not None

    @property
    def takes_bare_token(self) -> bool:
        """Return whether the next frame is a SASL token without a request header."""
        return self.state is LoginState.TOKENS and self._has_bare_tokens

    def check(self, api_key: int) -> None:
        """Reject a request that the login's state does not allow.

        Raises:
            ProtocolError: The request is not allowed; the caller closes the connection.
        """
        if self.state is LoginState.OPEN:
            if self._ends_at is None or api_key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
                return
            if self.settings.now() >= self._ends_at:
                self.failure = "The session has expired and the client did not re-authenticate"
                raise ProtocolError(self.failure)
            return
        is_served = api_key in _SERVED_BEFORE_LOGIN and self.state is not LoginState.FAILED
        if not is_served or (self.state is LoginState.FIRST and api_key == ApiKey.SASL_AUTHENTICATE):
            raise ProtocolError(f"Unexpected Kafka request with key {api_key} during SASL login")

    def handshake(self, mechanism: str, api_version: int) -> ErrorCode:
        """Select a mechanism; return the error code of the SaslHandshake response."""
        if self.state is LoginState.TOKENS or (self.is_open and self._ends_at is None):
            if not self.is_open:
                self._fail("A second SaslHandshake during SASL login")
            return ErrorCode.ILLEGAL_SASL_STATE
        begin = self.settings.mechanisms.get(mechanism)
        if begin is None or (self.mechanism is not None and self.mechanism != mechanism):
            expected = ",".join(self.settings.mechanisms) if begin is None else self.mechanism
            self._fail(f"SASL mechanism {mechanism}: expected {expected}")
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange = begin()
        self._has_bare_tokens = api_version == 0
        self.mechanism = mechanism
        self.state = LoginState.TOKENS
        return ErrorCode.NONE

    def authenticate(self, token: bytes) -> TokenAnswer:
        """Process a SASL token; return the fields of the SaslAuthenticate response."""
        exchange = self._exchange
        if self.state is not LoginState.TOKENS or exchange is None:
            return TokenAnswer(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        again = self.principal is not None
        try:
            answer = exchange.step(token)
            if exchange.user_name is not None:
                self._accept(user_principal(exchange.user_name), exchange.lifetime_s)
        except SaslRejectedError as error:
            return self._reject(error.error_message)
        except InvalidCredentialsError:
            what = "re-authentication" if again else "authentication"
            return self._reject(
                f"Authentication failed during {what} due to invalid credentials with SASL mechanism {self.mechanism}"
            )
        return TokenAnswer(auth_bytes=answer, session_lifetime_ms=self._lifetime_ms if self.is_open else 0)

    def _accept(self, principal: str, lifetime_s: float | None) -> None:
        if self.principal is not None and self.principal != principal:
            raise SaslRejectedError("Cannot change principals during re-authentication")
        self.principal = principal
        self.state = LoginState.OPEN
        self._exchange = None
        limits = [] if lifetime_s is None else [int(lifetime_s * 1000)]
        max_session_ms = self.settings.max_session_ms.get(self.mechanism or "", 0)
        limits += [max_session_ms] if max_session_ms > 0 else []
        if limits:
            self._lifetime_ms = min(limits)
            self._ends_at = self.settings.now() + self._lifetime_ms / 1000

    def _fail(self, reason: str) -> None:
        self.state, self.failure, self._exchange = LoginState.FAILED, reason[:_MAX_FAILURE_LENGTH], None

    def _reject(self, error_message: str) -> TokenAnswer:
        self._fail(error_message)
        return TokenAnswer(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=self.failure)


def mechanisms_of(
    names: tuple[str, ...],
    *,
    plain_users: Mapping[str, str],
    find_scram: FindScram,
    by_token: Callable[[], SaslExchange] | None = None,
) -> dict[str, Callable[[], SaslExchange]]:
    """Return the functions that start a SASL exchange, by mechanism name."""

    def begin(name: str) -> Callable[[], SaslExchange]:
        if name == OAUTHBEARER and by_token is not None:
            return by_token
        mechanism = ScramMechanism.from_name(name)
        if mechanism is ScramMechanism.UNKNOWN:
            return lambda: PlainExchange(plain_users)
        return lambda: ScramExchange(
            mechanism,
            find=lambda user: find_scram(user, mechanism),
            new_nonce=lambda: secrets.token_hex(16),
        )

    return {name: begin(name) for name in names}
