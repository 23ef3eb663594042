"""SASL/OAUTHBEARER (RFC 7628, KIP-255): the client sends a token that names its user and its lifetime.

Tokens are JSON Web Tokens. They are either unsecured (for development, and Kafka's default) or signed with keys from a
JSON Web Key Set of their issuer (RFC 7517, KIP-768): RS256, ES256 and their longer variants. The package PyJWT parses
the keys and checks the signatures. It is imported only if tokens are signed. The reason for a rejection is logged; the
client receives only a status.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

from klamm.configs.values import JAVA_BLANKS
from klamm.extras import MissingExtraError, require_extra
from klamm.lazy_dataclass import dataclass
from klamm.security.sasl import InvalidCredentialsError, SaslExchange, SaslRejectedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from jwt import PyJWK

# Like that of SCRAM, it never backtracks.
_FIRST_MESSAGE: Final = re.compile(
    r"n,(?:a=(?P<user>(?:[^=,\x00]++|=2C|=3D)++))?,\x01(?P<pairs>(?:[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01)*+)\x01"
)
_AUTH: Final = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE)
_ACKNOWLEDGED: Final = b"\x01"
_PARTS: Final = 3
_MAX_SECONDS: Final = 2**63 // 1000 - 1
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_COORDINATE_BYTES: Final = {"P-256": 32, "P-384": 48, "P-521": 66}
_RSA: Final = frozenset({"RS256", "RS384", "RS512"})
ALGORITHMS: Final = (*sorted(_RSA), *_CURVES)


class TokenError(Exception):
    """A token is rejected. The message is for the log and never contains the token."""

    def __init__(self, message: str, *, missing_scope: str | None = None) -> None:
        super().__init__(message)
        self.missing_scope = missing_scope
        """Required scope that the token lacks; None if it is rejected for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Content of a valid token."""

    principal: str
    expires_at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    """Parsed JSON Web Token. Parsing checks neither claims nor signature."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signature: bytes

    @classmethod
    def parse(cls, text: str) -> Jwt:
        """Split a token into header, claims and signature.

        Raises:
            TokenError: The text is not a JSON Web Token.
        """
        parts = text.split(".")
        if len(parts) != _PARTS:
            raise TokenError("a token has three parts with dots between them")
        header, claims, signature = map(_decoded, parts)
        try:
            read = tuple(json.loads(part, parse_constant=_reject_constant) for part in (header, claims))
            json.dumps(read[1], ensure_ascii=False).encode()  # half a surrogate pair could not be written anywhere
        except (ValueError, RecursionError) as error:
            raise TokenError("header or claims are not JSON") from error
        if not all(isinstance(part, dict) for part in read):
            raise TokenError("header or claims are not JSON objects")
        return cls(header=read[0], claims=read[1], signature=signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """Requirements on the claims of a token."""

    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    clock_skew_s: float = 0
    issuer: str | None = None
    audiences: Collection[str] = ()
    needs_issued_at: bool = False
    checks_audience: bool = False
    """Whether a token with an audience is rejected unless the audience is expected."""

    def check(self, claims: Mapping[str, Any], now_s: float) -> Token:
        """Check the claims and return the token's content.

        Raises:
            TokenError: A claim is missing, is meant for another audience, or the token is not valid at this time.
        """
        principal = claims.get(self.principal_claim)
        if not isinstance(principal, str) or not principal.strip(JAVA_BLANKS):
            raise TokenError(f"the claim {self.principal_claim} contains no name")
        expires_at = self._check_times(claims, now_s)
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenError(f"the claim iss is not {self.issuer}")
        if self.checks_audience and not _is_among(claims.get("aud"), self.audiences):
            raise TokenError("the claim aud has no value of sasl.oauthbearer.expected.audience")
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
            raise TokenError("the claim iat is in the future, or after exp")
        if not_before is not None and self.needs_issued_at and not_before > now_s + self.clock_skew_s:
            raise TokenError("the claim nbf is in the future")
        return expires_at


def check_unsecured(text: str, rules: ClaimRules, now_s: float) -> Token:
    """Check an unsecured token and return its content (Kafka's ``OAuthBearerUnsecuredValidatorCallbackHandler``).

    Raises:
        TokenError: The token is rejected.
    """
    token = Jwt.parse(text)
    if token.header.get("alg") != "none" or token.signature:
        raise TokenError("an unsecured token has the algorithm none and no signature")
    return rules.check(token.claims, now_s)


class OAuthBearerExchange(SaslExchange):
    """OAUTHBEARER exchange: one message with a token. A rejected client first acknowledges the reason.

    Args:
        check: Returns the content of a valid token, or raises TokenError.
        now_s: Clock in seconds since the epoch.
        log: Called with the reason of a rejection.
    """

    def __init__(
        self, check: Callable[[str], Token], *, now_s: Callable[[], float], log: Callable[[str], None]
    ) -> None:
        self._check = check
        self._now_s = now_s
        self._log = log
        self._rejection: str | None = None
        self._token: Token | None = None

    @property
    def user_name(self) -> str | None:
        """Return the authenticated user, None before the end of the exchange."""
        return None if self._token is None else self._token.principal

    @property
    def lifetime_s(self) -> float | None:
        """Return for how many seconds from now the token is valid."""
        return None if self._token is None else max(0.0, self._token.expires_at_s - self._now_s())

    def step(self, token: bytes) -> bytes:
        """Check the token of a client message.

        Raises:
            SaslRejectedError: The client has acknowledged its rejection, or asks to act for another user.
            InvalidCredentialsError: The message does not belong to this mechanism.
        """
        if self._rejection is not None and token == _ACKNOWLEDGED:
            raise SaslRejectedError(self._rejection)
        user, text = _first_message(token)
        try:
            verified = self._check(text)
        except TokenError as error:
            self._log(str(error))
            self._rejection = _status(error)
            return self._rejection.encode()
        if user and user != verified.principal:
            raise SaslRejectedError(
                f"Authentication failed: Client requested an authorization id ({user}) that is different from the"
                f" token's principal name ({verified.principal})"
            )
        self._token = verified
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
        raise TokenError("a part of it is not Base64") from error


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time in seconds. As in Kafka, one that milliseconds in 64 bits cannot hold is the last or the first."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"the claim {name} is no number")
    return float(max(-_MAX_SECONDS, min(value, _MAX_SECONDS)))


def _reject_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which are not JSON. A comparison with NaN is never true, so its token never expired."""
    raise ValueError(f"{name} is not JSON")


def _is_among(named: object, expected: Collection[str]) -> bool:
    audiences = named if isinstance(named, list) else [] if named is None else [named]
    return any(isinstance(each, str) and each in expected for each in audiences) if audiences or expected else True


class KeysError(ValueError):
    """The text is not a JSON Web Key Set, or no key in it can be used."""


def parse_keys(text: str) -> tuple[PyJWK, ...]:
    """Parse a JSON Web Key Set. Keys of other kinds and keys for encryption are skipped.

    Raises:
        KeysError: The text is not a key set, no key in it can be used, or the extra ``security`` is not installed.
    """
    try:
        require_extra("security", feature="a JSON Web Key Set")
    except MissingExtraError as error:
        raise KeysError(str(error)) from error
    from jwt import PyJWKSet, PyJWTError  # noqa: PLC0415 - only where tokens are signed

    try:
        listed = [_padded(each) for each in json.loads(text)["keys"] if each.get("use", "sig") == "sig"]
        keys = tuple(key for key in PyJWKSet(listed).keys if _kind(key) is not None) if listed else ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PyJWTError) as error:
        raise KeysError(f"expected a JSON Web Key Set, an object with an array called keys: {error!r}") from error
    if not keys:
        raise KeysError("no key in it is of kind RSA, or EC on P-256, P-384 or P-521")
    return keys


def _padded(key: dict[str, Any]) -> dict[str, Any]:
    """Add leading zeros that a point's coordinates lack. Kafka accepts such keys, PyJWT skips them."""
    padded = dict(key)
    with suppress(KeyError, TypeError, ValueError):  # PyJWT skips a key that cannot be used
        count = _COORDINATE_BYTES[key["crv"]]
        for name in ("x", "y"):
            coordinate = base64.urlsafe_b64decode(key[name] + "==")
            padded[name] = base64.urlsafe_b64encode(coordinate.rjust(count, b"\0")).decode()
    return padded


def check_signed(text: str, keys: Sequence[PyJWK], rules: ClaimRules, now_s: float) -> Token:
    """Verify a signed token and return its content (Kafka's ``BrokerJwtValidator``).

    As in Kafka, the principal of a signed token is trimmed, and that of an unsecured one is not.

    Raises:
        TokenError: The token is rejected.
    """
    token = Jwt.parse(text)
    algorithm, key_id = token.header.get("alg"), token.header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenError(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    if "crit" in token.header:
        raise TokenError("its header requires unknown extensions")
    kind = "RSA" if algorithm in _RSA else _CURVES[algorithm]
    fitting = [key for key in keys if _kind(key) == kind and key_id in (None, key.key_id)]
    if not any(_has_signed(key, algorithm, text) for key in fitting):
        raise TokenError(f"none of the issuer's {len(fitting)} keys that fit has signed it")
    checked = rules.check(token.claims, now_s)
    return Token(principal=checked.principal.strip(JAVA_BLANKS), expires_at_s=checked.expires_at_s)


def _kind(key: PyJWK) -> str | None:
    """Return ``RSA``, the name of the elliptic curve, or None for a key that verifies no algorithm of ours."""
    return "RSA" if key.key_type == "RSA" else _CURVES.get(key.algorithm_name) if key.key_type == "EC" else None


def _has_signed(key: PyJWK, algorithm: str, text: str) -> bool:
    from jwt import PyJWS, PyJWTError  # noqa: PLC0415

    try:
        # The bare key, because PyJWK is bound to one algorithm, and an RSA key may sign with each of three.
        PyJWS(options={"enforce_minimum_key_length": True}).decode_complete(text, key.key, algorithms=[algorithm])
    except PyJWTError:
        return False
    return True
