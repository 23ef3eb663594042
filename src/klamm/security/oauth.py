"""SASL/OAUTHBEARER (RFC 7628, KIP-255): a client shows a token, and the token says who it is and for how long.

Tokens are JSON Web Tokens: unsecured ones (for development, what Kafka takes when nothing else is said) or signed ones,
whose keys are in ``klamm.security.jwks`` (KIP-768). Why one is refused is for the log; the client hears a status only.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.security.sasl import InvalidCredentialsError, SaslExchange, SaslRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

OAUTHBEARER: Final = "OAUTHBEARER"
_FIRST_MESSAGE: Final = re.compile(
    r"n,(?:a=(?P<user>(?:[^=,\x00]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_ACKNOWLEDGED: Final = b"\x01"
_PARTS: Final = 3


class TokenError(Exception):
    """A token is refused; the message is for the log and never holds the token."""

    def __init__(self, message: str, *, missing_scope: str | None = None) -> None:
        super().__init__(message)
        self.missing_scope = missing_scope
        """The scope that was required, when it was that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a valid token says."""

    principal: str
    expires_at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    """A JSON Web Token in its parts; nothing is checked yet."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    signature: bytes

    @classmethod
    def parse(cls, text: str) -> Jwt:
        """Take a token apart.

        Raises:
            TokenError: It is none.
        """
        parts = text.split(".")
        if len(parts) != _PARTS:
            raise TokenError("a token has three parts with dots between them")
        header, claims, signature = map(_decoded, parts)
        try:
            read = json.loads(header), json.loads(claims)
        except (ValueError, RecursionError) as error:
            raise TokenError("header or claims are no JSON") from error
        if not all(isinstance(part, dict) for part in read):
            raise TokenError("header or claims are no JSON object")
        return cls(header=read[0], claims=read[1], signed=text.rpartition(".")[0].encode(), signature=signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """What is asked of the claims of a token."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    clock_skew_s: float = 0
    issuer: str | None = None
    audiences: Collection[str] = ()
    needs_issued_at: bool = False
    checks_audience: bool = False
    """True: a token for an audience is good for nobody who does not expect it."""

    def check(self, claims: Mapping[str, Any], now_s: float) -> Token:
        """Return what the claims say.

        Raises:
            TokenError: They are not enough, or not for us, or not now.
        """
        principal = claims.get(self.principal_claim)
        if not isinstance(principal, str) or not principal.strip():
            raise TokenError(f"the claim {self.principal_claim} names nobody")
        expires_at = self._check_times(claims, now_s)
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenError(f"the claim iss is not {self.issuer}")
        if self.checks_audience and not _is_among(claims.get("aud"), self.audiences):
            raise TokenError("the claim aud names nobody of sasl.oauthbearer.expected.audience")
        scope = claims.get(self.scope_claim)
        scopes = scope.split() if isinstance(scope, str) else scope if isinstance(scope, list) else []
        if not all(each in scopes for each in self.required_scope):
            wanted = f"[{', '.join(self.required_scope)}]"
            raise TokenError(f"the claim {self.scope_claim} lacks some of {wanted}", missing_scope=wanted)
        return Token(principal=principal, expires_at_s=expires_at)

    def _check_times(self, claims: Mapping[str, Any], now_s: float) -> float:
        expires_at, issued_at, not_before = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires_at is None:
            raise TokenError("the claim exp is missing")
        if issued_at is None and self.needs_issued_at:
            raise TokenError("the claim iat is missing")
        if now_s - self.clock_skew_s >= expires_at:
            raise TokenError("it has expired")
        if issued_at is not None and (issued_at > now_s + self.clock_skew_s or expires_at <= issued_at):
            raise TokenError("the claim iat lies ahead, or after exp")
        if not_before is not None and self.needs_issued_at and not_before > now_s + self.clock_skew_s:
            raise TokenError("the claim nbf lies ahead")
        return expires_at


def check_unsecured(text: str, rules: ClaimRules, now_s: float) -> Token:
    """Return what an unsecured token says (Kafka's ``OAuthBearerUnsecuredValidatorCallbackHandler``).

    Raises:
        TokenError: It is refused.
    """
    token = Jwt.parse(text)
    if token.header.get("alg") != "none" or token.signature:
        raise TokenError("an unsecured token has the algorithm none and no signature")
    return rules.check(token.claims, now_s)


class OAuthBearerExchange(SaslExchange):
    """OAUTHBEARER: one message with a token; who is refused acknowledges the reason before it ends.

    Args:
        check: returns what a token says, or raises TokenError.
        now_s: the clock, in seconds since the epoch.
        log: takes the reason of a refusal.
    """

    def __init__(
        self, check: Callable[[str], Token], *, now_s: Callable[[], float], log: Callable[[str], None]
    ) -> None:
        self._check = check
        self._now_s = now_s
        self._log = log
        self._refusal: str | None = None
        self._token: Token | None = None

    @property
    def user_name(self) -> str | None:
        """Who logged in, None before the end."""
        return None if self._token is None else self._token.principal

    @property
    def lifetime_s(self) -> float | None:
        """How long the token is good from now on."""
        return None if self._token is None else max(0.0, self._token.expires_at_s - self._now_s())

    def step(self, token: bytes) -> bytes:
        """Check the token.

        Raises:
            SaslRefusedError: The client has acknowledged that it is refused, or wants to be somebody else.
            InvalidCredentialsError: The message is none of this mechanism.
        """
        if self._refusal is not None and token == _ACKNOWLEDGED:
            raise SaslRefusedError(self._refusal)
        user, text = _first_message(token)
        try:
            found = self._check(text)
        except TokenError as error:
            self._log(str(error))
            self._refusal = _status(error)
            return self._refusal.encode()
        if user and user != found.principal:
            raise SaslRefusedError(
                f"Authentication failed: Client requested an authorization id ({user}) that is different from the"
                f" token's principal name ({found.principal})"
            )
        self._token = found
        return b""


def _first_message(message: bytes) -> tuple[str, str]:
    match = _FIRST_MESSAGE.fullmatch(message.decode(errors="replace"))
    if match is None:
        raise InvalidCredentialsError
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None:
        raise InvalidCredentialsError
    return match["user"] or "", auth[1]


def _status(error: TokenError) -> str:
    if error.missing_scope is None:
        return '{"status":"invalid_token"}'
    return f'{{"status":"insufficient_scope", "scope":"{error.missing_scope}"}}'


def _decoded(part: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError) as error:
        raise TokenError("a part of it is no Base64") from error


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"the claim {name} is no number")
    return float(value)


def _is_among(named: object, expected: Collection[str]) -> bool:
    audiences = named if isinstance(named, list) else [] if named is None else [named]
    return any(each in expected for each in audiences) if audiences or expected else True
