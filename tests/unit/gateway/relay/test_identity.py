"""Principals read from SASL logins that pass through the gateway."""

from __future__ import annotations

import base64
import json

import pytest

from klamm.gateway.relay.identity import SaslReader
from klamm.protocol.errors import ProtocolError


def jwt(claims: dict[str, object]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims)]
    return ".".join([*parts, ""])


def bearer(claims: dict[str, object]) -> bytes:
    return b"n,,\x01auth=Bearer " + jwt(claims).encode() + b"\x01\x01"


SCRAM_FIRST = (b"n,,n=a=2Cb=3Dc,r=nonce", 0, b"r=nonce123,s=c2FsdA==,i=4096")
REJECTED_TOKEN = (bearer({"client": "admin"}), 0, b'{"status":"invalid_token"}')


@pytest.mark.parametrize(
    ("mechanism", "exchanges", "principal"),
    [
        ("PLAIN", [(b"\0alice\0secret", 0, b"")], "User:alice"),
        ("PLAIN", [(b"\0alice\0wrong", 58, b"")], None),
        ("SCRAM-SHA-256", [SCRAM_FIRST], None),
        ("SCRAM-SHA-256", [SCRAM_FIRST, (b"c=biws,r=nonce123,p=proof", 0, b"v=signature")], "User:a,b=c"),
        ("SCRAM-SHA-256", [SCRAM_FIRST, (b"n,,n=x,r=n", 58, b"")], None),
        ("OAUTHBEARER", [REJECTED_TOKEN], None),
        ("OAUTHBEARER", [REJECTED_TOKEN, (b"\x01", 58, b"")], None),
        ("OAUTHBEARER", [REJECTED_TOKEN, (bearer({"sub": "x", "client": "orders"}), 0, b"")], "User:orders"),
    ],
)
def test_principal_is_the_user_of_the_accepted_token(
    mechanism: str, exchanges: list[tuple[bytes, int, bytes]], principal: str | None
) -> None:
    reader = SaslReader("client")
    reader.start(mechanism)
    for exchange in exchanges:
        reader.on_answer(*exchange)
    assert reader.principal == principal


def test_value_of_a_scram_extension_may_contain_a_line_break() -> None:
    """Kafka accepts it. A pattern that does not tries each end of the nonce, of up to 512 KiB, before it fails."""
    reader = SaslReader()
    reader.start("SCRAM-SHA-256")
    reader.on_answer(b"n,,n=alice,r=" + b"x" * 10_000 + b",a=\n", 0, b"r=nonce123,s=c2FsdA==,i=4096")
    reader.on_answer(b"c=biws,r=nonce123,p=proof", 0, b"v=signature")
    assert reader.principal == "User:alice"


@pytest.mark.parametrize("key", ["AUTH", "Auth", "extra"])
def test_extension_of_oauthbearer_names_no_user(key: str) -> None:
    """The upstream checks the token of the key ``auth`` only, and takes all other keys as extensions."""
    checked, other = (f"=Bearer {jwt({'sub': user})}\x01".encode() for user in ("client", "admin"))
    for pairs in ((b"auth" + checked, key.encode() + other), (key.encode() + other, b"auth" + checked)):
        reader = SaslReader()
        reader.start("OAUTHBEARER")
        reader.on_answer(b"n,,\x01" + b"".join(pairs) + b"\x01", 0, b"")
        assert reader.principal == "User:client"


def test_principal_stays_until_a_login_again_succeeds() -> None:
    reader = SaslReader()
    for user, error_code, expected in (("a", 0, "User:a"), ("b", 58, "User:a"), ("c", 0, "User:c")):
        reader.start("PLAIN")
        reader.on_answer(f"\0{user}\0secret".encode(), error_code, b"")
        assert reader.principal == expected


@pytest.mark.parametrize(
    ("mechanism", "token", "message"),
    [
        ("PLAIN", b"alice", "names no user"),
        ("PLAIN", b"\0\0secret", "names no user"),
        ("SCRAM-SHA-512", b"y,,n=alice", "names no user"),
        ("SCRAM-SHA-512", b"n,,n=id,r=nonce,tokenauth=true", "delegation token"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer not.a-token\x01\x01", "cannot be read"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer " + jwt({}).encode() + b"\x01\x01", "no claim sub"),
        ("OAUTHBEARER", bearer({"sub": " secret"}), "claim sub .* begins or ends with white space"),
        ("OAUTHBEARER", bearer({"sub": "secret\x01"}), "claim sub .* begins or ends with white space"),
        ("", b"\0alice\0secret", "names no user"),
    ],
)
def test_token_without_a_user_is_never_accepted_and_not_quoted(mechanism: str, token: bytes, message: str) -> None:
    reader = SaslReader()
    reader.start(mechanism)
    reader.on_answer(token, 58, b"")  # the upstream rejects it
    accepted = b""
    if mechanism.startswith("SCRAM"):
        reader.on_answer(token, 0, b"r=nonce")
        accepted = b"v=signature"
    with pytest.raises(ProtocolError, match=message) as rejected:
        reader.on_answer(token, 0, accepted)
    assert "secret" not in str(rejected.value)
    assert reader.principal is None
