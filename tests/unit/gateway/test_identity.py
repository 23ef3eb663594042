"""Principals read from SASL logins that pass through the gateway."""

from __future__ import annotations

import base64
import json

import pytest

from klamm.gateway.identity import SaslReader
from klamm.protocol.errors import ProtocolError


def jwt(claims: dict[str, object]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims)]
    return ".".join([*parts, ""])


def test_plain_names_the_user_when_the_upstream_accepts_the_login() -> None:
    reader = SaslReader()
    reader.start("PLAIN")
    reader.on_token(b"\0alice\0secret")
    assert reader.principal is None
    reader.on_answer(0, b"")
    assert reader.principal == "User:alice"


def test_a_rejected_login_names_no_user() -> None:
    reader = SaslReader()
    reader.start("PLAIN")
    reader.on_token(b"\0alice\0wrong")
    reader.on_answer(58, b"")
    assert reader.principal is None


def test_scram_names_the_user_after_the_last_message_of_the_server() -> None:
    reader = SaslReader()
    reader.start("SCRAM-SHA-256")
    reader.on_token(b"n,,n=a=2Cb=3Dc,r=nonce")
    reader.on_answer(0, b"r=nonce123,s=c2FsdA==,i=4096")
    assert reader.principal is None
    reader.on_token(b"c=biws,r=nonce123,p=proof")
    reader.on_answer(0, b"v=signature")
    assert reader.principal == "User:a,b=c"


def test_oauthbearer_names_the_subject_of_the_token() -> None:
    reader = SaslReader("client")
    reader.start("OAUTHBEARER")
    reader.on_token(b"n,,\x01auth=Bearer " + jwt({"sub": "x", "client": "orders"}).encode() + b"\x01\x01")
    reader.on_answer(0, b'{"status":"invalid_token"}')
    assert reader.principal is None
    reader.on_answer(0, b"")
    assert reader.principal == "User:orders"


@pytest.mark.parametrize("key", ["AUTH", "Auth", "extra"])
def test_an_extension_of_oauthbearer_names_no_user(key: str) -> None:
    """The upstream checks the token of the key ``auth`` only, and takes all other keys as extensions."""
    checked, other = (f"=Bearer {jwt({'sub': user})}\x01".encode() for user in ("client", "admin"))
    for pairs in ((b"auth" + checked, key.encode() + other), (key.encode() + other, b"auth" + checked)):
        reader = SaslReader()
        reader.start("OAUTHBEARER")
        reader.on_token(b"n,,\x01" + b"".join(pairs) + b"\x01")
        reader.on_answer(0, b"")
        assert reader.principal == "User:client"


def test_the_principal_stays_until_a_login_again_succeeds() -> None:
    reader = SaslReader()
    for user, error_code, expected in (("a", 0, "User:a"), ("b", 58, "User:a"), ("c", 0, "User:c")):
        reader.start("PLAIN")
        reader.on_token(f"\0{user}\0secret".encode())
        reader.on_answer(error_code, b"")
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
        ("", b"\0alice\0secret", "names no user"),
    ],
)
def test_a_token_without_a_user_is_never_accepted_and_not_quoted(mechanism: str, token: bytes, message: str) -> None:
    reader = SaslReader()
    reader.start(mechanism)
    reader.on_token(token)
    reader.on_answer(58, b"")  # the upstream rejects it
    reader.on_token(token)
    with pytest.raises(ProtocolError, match=message) as refused:
        reader.on_answer(0, b"")
    assert "secret" not in str(refused.value)
    assert reader.principal is None
