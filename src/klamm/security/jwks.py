"""JSON Web Key Sets of token issuers (RFC 7517), and signatures with them: RS256, ES256 and their longer variants.

The package ``cryptography`` checks the signatures. It is imported only if tokens are signed.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.extras import MissingExtraError, require_extra
from klamm.security.oauth import ClaimRules, Jwt, Token, TokenError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import HashAlgorithm

_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_RSA: Final = frozenset({"RS256", "RS384", "RS512"})
ALGORITHMS: Final = (*sorted(_RSA), *_CURVES)


class KeysError(ValueError):
    """The text is not a JSON Web Key Set, or no key in it can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerKey:
    """One public key of an issuer."""

    key_id: str | None
    kind: str
    """``RSA``, or the name of the elliptic curve."""
    public: RSAPublicKey | EllipticCurvePublicKey


def parse_keys(text: str) -> tuple[IssuerKey, ...]:
    """Parse a JSON Web Key Set. Keys of other kinds and keys for encryption are skipped.

    Raises:
        KeysError: The text is not a key set, no key in it can be used, or the extra ``security`` is not installed.
    """
    try:
        require_extra("security", feature="a JSON Web Key Set")
    except MissingExtraError as error:
        raise KeysError(str(error)) from error
    try:
        listed = json.loads(text)["keys"]
        keys = tuple(filter(None, (_key(each) for each in listed if each.get("use", "sig") == "sig")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KeysError(f"expected a JSON Web Key Set, an object with an array called keys: {error!r}") from error
    if not keys:
        raise KeysError("no key in it is of kind RSA, or EC on P-256, P-384 or P-521")
    return keys


def check_signed(text: str, keys: Sequence[IssuerKey], rules: ClaimRules, now_s: float) -> Token:
    """Verify a signed token and return its content.

    Raises:
        TokenError: The token is rejected.
    """
    token = Jwt.parse(text)
    algorithm, key_id = token.header.get("alg"), token.header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenError(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    if "crit" in token.header:
        raise TokenError("its header asks for extensions that are not known")
    kind = "RSA" if algorithm in _RSA else _CURVES[algorithm]
    fitting = [key for key in keys if key.kind == kind and key_id in (None, key.key_id)]
    if not any(_has_signed(key, algorithm, token) for key in fitting):
        raise TokenError(f"none of the issuer's {len(fitting)} keys that fit has signed it")
    return rules.check(token.claims, now_s)


def _key(fields: Mapping[str, Any]) -> IssuerKey | None:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415 - only where tokens are signed

    if fields.get("kty") == "RSA":
        public = rsa.RSAPublicNumbers(_number(fields["e"]), _number(fields["n"])).public_key()
        return IssuerKey(key_id=fields.get("kid"), kind="RSA", public=public)
    curves: dict[str, ec.EllipticCurve] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}
    if fields.get("kty") == "EC" and (curve := curves.get(fields["crv"])) is not None:
        point = ec.EllipticCurvePublicNumbers(_number(fields["x"]), _number(fields["y"]), curve).public_key()
        return IssuerKey(key_id=fields.get("kid"), kind=fields["crv"], public=point)
    return None


def _has_signed(key: IssuerKey, algorithm: str, token: Jwt) -> bool:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature  # noqa: PLC0415

    made: dict[str, HashAlgorithm] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
    digest = made[algorithm[2:]]
    try:
        if isinstance(key.public, rsa.RSAPublicKey):
            key.public.verify(token.signature, token.signed, padding.PKCS1v15(), digest)
        else:
            size = (key.public.curve.key_size + 7) // 8
            if len(token.signature) != 2 * size:
                return False
            r, s = (int.from_bytes(half) for half in (token.signature[:size], token.signature[size:]))
            key.public.verify(encode_dss_signature(r, s), token.signed, ec.ECDSA(digest))
    except InvalidSignature:
        return False
    return True


def _number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
