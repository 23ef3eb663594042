from __future__ import annotations

import pytest

from klamm.security.sasl import PlainExchange, SaslRejectedError

USERS = {"alice": "secret", "nopassword": ""}


def test_name_and_password_log_in() -> None:
    login = PlainExchange(USERS)
    assert login.step(b"\x00alice\x00secret") == b""
    assert login.user_name == "alice"


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (b"\x00alice\x00wrong", "Authentication failed: Invalid username or password"),
        (b"\x00nobody\x00secret", "Authentication failed: Invalid username or password"),
        (b"\x00nobody\x00", "Authentication failed: password not specified"),
        (b"\x00nopassword\x00", "Authentication failed: password not specified"),
        (b"\x00\x00secret", "Authentication failed: username not specified"),
        (b"bob\x00alice\x00secret", "different from username"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"\x00a\x00b\x00c\x00d", "expected 3 tokens, got 4"),
        (b"\x00alice\x00\xff\xff", "Authentication failed: Invalid username or password"),
    ],
)
def test_invalid_plain_login_is_rejected_with_kafkas_message(token: bytes, reason: str) -> None:
    login = PlainExchange(USERS)
    with pytest.raises(SaslRejectedError, match=reason) as rejected:
        login.step(token)
    assert login.user_name is None
    assert "secret" not in str(rejected.value)
