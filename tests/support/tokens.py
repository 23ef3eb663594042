"""Issuers of tokens, for OAUTHBEARER."""

from __future__ import annotations

import base64
import functools
import json
import time
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

if TYPE_CHECKING:
    from collections.abc import Mapping


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(fields: Mapping[str, Any]) -> str:
    return encoded(json.dumps(fields).encode())


def claims_of(user: str, *, seconds: float = 3600, now: float | None = None, **more: Any) -> dict[str, Any]:
    """Return claims that are valid for some time from now on; a claim that is None is left out."""
    now = time.time() if now is None else now
    claims = {"sub": user, "iat": now - 1, "exp": now + seconds, **more}
    return {name: value for name, value in claims.items() if value is not None}


def unsecured(claims: Mapping[str, Any], **header: Any) -> str:
    return f"{part({'alg': 'none', **header})}.{part(claims)}."


def unsecured_with(name: str, value: str, claims: Mapping[str, Any]) -> str:
    """Return an unsecured token with a claim whose value is any text, valid JSON or not."""
    others = json.dumps({key: other for key, other in claims.items() if key != name})
    body = others[:-1] + f', "{name}": {value}' + "}"
    return f"{part({'alg': 'none'})}.{encoded(body.encode())}."


def _of_integer(value: int, count: int | None = None) -> str:
    return encoded(value.to_bytes((value.bit_length() + 7) // 8 if count is None else count))


class Issuer:
    """Issuer that signs tokens with RS256 or ES256. A header that is None is left out."""

    def __init__(self, key_id: str, algorithm: str = "RS256", *, bits: int = 2048, ec_number: int = 0) -> None:
        self.key_id, self.algorithm = key_id, algorithm
        self._bits = bits
        curve = ec.SECP256R1()
        self._ec = ec.derive_private_key(ec_number, curve) if ec_number else ec.generate_private_key(curve)

    @functools.cached_property
    def _rsa(self) -> rsa.RSAPrivateKey:
        """Private key, generated at first use: it takes tenths of a second, also where tests are only collected."""
        return rsa.generate_private_key(65537, self._bits)

    def public_key(self) -> dict[str, str]:
        """Return the entry of a JSON Web Key Set."""
        if self.algorithm == "RS256":
            numbers = self._rsa.public_key().public_numbers()
            fields = {"kty": "RSA", "n": _of_integer(numbers.n), "e": _of_integer(numbers.e)}
        else:
            point = self._ec.public_key().public_numbers()
            fields = {"kty": "EC", "crv": "P-256", "x": _of_integer(point.x, 32), "y": _of_integer(point.y, 32)}
        return {"kid": self.key_id, **fields}

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        header = {"alg": self.algorithm, "kid": self.key_id, **header}
        signed = f"{part({name: value for name, value in header.items() if value is not None})}.{part(claims)}"
        if self.algorithm == "RS256":
            signature = self._rsa.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        else:
            r, s = decode_dss_signature(self._ec.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
            signature = r.to_bytes(32) + s.to_bytes(32)
        return f"{signed}.{encoded(signature)}"


def key_set(*issuers: Issuer) -> str:
    return json.dumps({"keys": [issuer.public_key() for issuer in issuers]})
