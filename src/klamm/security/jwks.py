"""JSON Web Key Sets of token issuers (RFC 7517), and signatures with them: RS256, ES256 and their longer variants.

The package PyJWT parses the keys and checks the signatures. It is imported only if tokens are signed.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from klamm.extras import MissingExtraError, require_extra
from klamm.security.oauth import ClaimRules, Jwt, Token, TokenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jwt import PyJWK

_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_COORDINATE_BYTES: Final = {"P-256": 32, "P-384": 48, "P-521": 66}
_RSA: Final = frozenset({"RS256", "RS384", "RS512"})
ALGORITHMS: Final = (*sorted(_RSA), *_CURVES)


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
    """Verify a signed token and return its content.

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
    return rules.check(token.claims, now_s)


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
