"""Principal of a client, read from a SASL login that passes through the gateway.

The upstream checks the credentials. The gateway reads the user name from the token that the upstream accepts:

=============  ==============================================  =======================================================
Mechanism      User name                                       Success
=============  ==============================================  =======================================================
PLAIN          Second part of the token                        Response without an error
SCRAM-SHA-*    ``n=`` of the first message                     Response without an error that begins with ``v=``
OAUTHBEARER    Claim ``sub`` of the token (or another one)     Response without an error and without a challenge
=============  ==============================================  =======================================================

GSSAPI and logins by delegation token are rejected with a message that names them: their principal is not in the bytes.
So is an OAUTHBEARER token whose claim begins or ends with white space: Kafka trims it only if the token is signed.
A client may log in again on the same connection (KIP-368).
"""

from __future__ import annotations

import re
from typing import Final

from klamm.configs.values import JAVA_BLANKS
from klamm.protocol.errors import ProtocolError
from klamm.security.oauth import Jwt, TokenError
from klamm.security.principals import user_principal
from klamm.security.sasl import OAUTHBEARER, PLAIN

PASSED_MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
"""Mechanisms of which the gateway can read the principal."""
# None of these can match a prefix in several ways: a token has up to 512 KiB, and is read on the event loop.
_SCRAM: Final = re.compile(r"n,(?:a=[^,]*)?,n=(?P<name>[^,]+),r=[^,]+(?P<extensions>.*)", re.DOTALL)
_BEARER: Final = re.compile(r"n,(?:a=[^,]*)?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]+\x01)+)\x01")
_AUTH: Final = re.compile(r"bearer +(?P<token>[^ ].*)", re.IGNORECASE)
_PLAIN_PARTS: Final = 3


class SaslReader:
    """Reader of the SASL logins of one connection.

    Args:
        principal_claim: Claim of an OAUTHBEARER token that names the user (``sasl.oauthbearer.sub.claim.name``).
    """

    __slots__ = ("_first_message", "_mechanism", "_principal_claim", "principal")

    def __init__(self, principal_claim: str = "sub") -> None:
        self._principal_claim = principal_claim
        self._mechanism = ""
        self._first_message = b""
        """First message of a SCRAM exchange that the upstream has not completed."""
        self.principal: str | None = None
        """Principal of the latest successful login; None before the first one."""

    @property
    def is_under_way(self) -> bool:
        """Return whether a login has begun and has not succeeded."""
        return bool(self._mechanism) and self.principal is None

    def start(self, mechanism: str) -> None:
        """Begin a login by a mechanism of ``PASSED_MECHANISMS`` after the upstream has accepted its SaslHandshake."""
        self._mechanism = mechanism
        self._first_message = b""

    def on_answer(self, token: bytes, error_code: int, answer: bytes) -> None:
        """Read a client's token together with the upstream's response to it.

        A rejected token leaves no trace: the client may send another one, as OAUTHBEARER allows.

        Raises:
            ProtocolError: The upstream accepts a token that names no principal.
        """
        if error_code != 0:
            self._first_message = b""
        elif not self._mechanism.startswith("SCRAM"):
            if not answer:
                self._accept(token)
        elif answer.startswith(b"r="):
            self._first_message = token
        elif answer.startswith(b"v="):
            self._accept(self._first_message)

    def _accept(self, token: bytes) -> None:
        self._first_message = b""
        self.principal = user_principal(self._read(token.decode(errors="replace")))

    def _read(self, text: str) -> str:
        if self._mechanism == PLAIN:
            parts = text.split("\0")
            if len(parts) == _PLAIN_PARTS and parts[1]:
                return parts[1]
        elif self._mechanism == OAUTHBEARER:
            if (match := _BEARER.fullmatch(text)) is not None:
                # As in Kafka, only the key "auth" has the token. A client may send others, such as "AUTH", unchecked.
                pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
                if (auth := _AUTH.fullmatch(pairs.get("auth", ""))) is not None:
                    return self._subject(auth["token"])
        elif (match := _SCRAM.fullmatch(text)) is not None:
            if ",tokenauth=true" in match["extensions"].lower():
                raise ProtocolError("Logins by delegation token cannot pass the gateway: their principal is not known")
            return match["name"].replace("=2C", ",").replace("=3D", "=")
        raise ProtocolError(f"A SASL token of mechanism {self._mechanism or '(none)'} names no user")

    def _subject(self, token: str) -> str:
        try:
            subject = Jwt.parse(token).claims.get(self._principal_claim)
        except TokenError as error:
            raise ProtocolError(f"A SASL token of mechanism {OAUTHBEARER} cannot be read: {error}") from error
        if not isinstance(subject, str) or not subject:
            raise ProtocolError(f"A SASL token of mechanism {OAUTHBEARER} has no claim {self._principal_claim}")
        if subject != subject.strip(JAVA_BLANKS):
            raise ProtocolError(
                f"The claim {self._principal_claim} of a SASL token of mechanism {OAUTHBEARER} begins or ends with"
                " white space: the upstream may trim it, so its principal is not known"
            )
        return subject
