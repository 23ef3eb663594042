"""Server side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), with Kafka's extensions (KIP-84)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.security.sasl import InvalidCredentialsError, SaslExchange, SaslRejectedError

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Upper limit of iterations. A client computes them at every login, so a larger number would overload it."""


class ScramMechanism(IntEnum):
    """Wire values of ``mechanism`` in the SCRAM credential APIs (KIP-554)."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @classmethod
    def from_wire(cls, number: int) -> ScramMechanism:
        """Return the member of a wire value, UNKNOWN for a value without a member."""
        return cls(number) if number in (1, 2) else cls.UNKNOWN

    @classmethod
    def from_name(cls, name: str) -> ScramMechanism:
        """Return the member of a SASL mechanism name, UNKNOWN for a mechanism that is not SCRAM."""
        return next((member for member in cls if member and member.mechanism_name == name), cls.UNKNOWN)

    @property
    def mechanism_name(self) -> str:
        """Name in SASL, such as ``SCRAM-SHA-256``."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """Name in ``hashlib``, such as ``sha256``."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Stored form of a password. It suffices to check a login, but not to log in elsewhere."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def credential_from_salted_password(
    mechanism: ScramMechanism, *, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive a credential with both keys. ``salted_password`` itself is not kept."""
    client_key = _hmac(mechanism, salted_password, b"Client Key")
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=_hmac(mechanism, salted_password, b"Server Key"),
        iterations=iterations,
    )


def salt_password(mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Clients send it to the broker instead of the password (KIP-554)."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


_SASL_NAME: Final = r"(?:[^\x00=,]++|=2C|=3D)++"
"""Name of a user. It never backtracks: a client that is not logged in may send 500 KB of it."""
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,(?:m=[^,]*,)?n=(?P<name>{_SASL_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]++=[^,]++)*+)"
)
_FINAL: Final = re.compile(
    r"(?P<unproven>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramExchange(SaslExchange):
    """SCRAM exchange of one login.

    Args:
        mechanism: SCRAM-SHA-256 or SCRAM-SHA-512.
        find: Returns the credential of a user, None for an unknown user.
        new_nonce: Returns an unguessable string of letters and digits.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        find: Callable[[str], ScramCredential | None],
        new_nonce: Callable[[], str],
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._new_nonce = new_nonce
        self._user_name = ""
        self._client_first_bare = ""
        self._server_first = ""
        self._nonce = ""
        self._credential: ScramCredential | None = None
        self._is_complete = False

    @property
    def user_name(self) -> str | None:
        """Return the authenticated user, None before the end of the exchange."""
        return self._user_name if self._is_complete else None

    def step(self, token: bytes) -> bytes:
        """Process a client token and return the server's.

        Raises:
            InvalidCredentialsError: The password is wrong, or the message is not SCRAM.
            SaslRejectedError: The client asks to act for another user.
        """
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise InvalidCredentialsError from error
        if self._credential is None:
            return self._first(text)
        return self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise InvalidCredentialsError
        user_name = _from_sasl_name(match["name"])
        credential = self._find(user_name)
        if credential is None or ",tokenauth=true" in match["extensions"].lower():
            raise InvalidCredentialsError
        if match["authzid"] is not None and _from_sasl_name(match["authzid"]) != user_name:
            raise SaslRejectedError(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._user_name = user_name
        self._nonce = match["nonce"] + self._new_nonce()
        self._client_first_bare = text.split(",", 2)[2]
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._credential = credential
        return self._server_first.encode()

    def _final(self, text: str, credential: ScramCredential) -> bytes:
        match = _FINAL.fullmatch(text)
        if match is None or self._is_complete or not hmac.compare_digest(match["nonce"], self._nonce):
            raise InvalidCredentialsError
        message = f"{self._client_first_bare},{self._server_first},{match['unproven']}".encode()
        try:
            proof = base64.b64decode(match["proof"], validate=True)
        except binascii.Error as error:
            raise InvalidCredentialsError from error
        signature = _hmac(self._mechanism, credential.stored_key, message)
        if len(proof) != len(signature):
            raise InvalidCredentialsError
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise InvalidCredentialsError
        self._is_complete = True
        return b"v=" + base64.b64encode(_hmac(self._mechanism, credential.server_key, message))


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _from_sasl_name(text: str) -> str:
    return text.replace("=2C", ",").replace("=3D", "=")
