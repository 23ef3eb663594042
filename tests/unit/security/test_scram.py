from __future__ import annotations

import base64
import hashlib
import hmac
import time

import pytest

from klamm.security.sasl import InvalidCredentialsError, SaslRejectedError
from klamm.security.scram import (
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    credential_from_salted_password,
    salt_password,
)

MECHANISM = ScramMechanism.SCRAM_SHA_256


def credential(password: str, *, salt: bytes = b"salt", iterations: int = 4096) -> ScramCredential:
    salted = salt_password(MECHANISM, password, salt=salt, iterations=iterations)
    return credential_from_salted_password(MECHANISM, salted_password=salted, salt=salt, iterations=iterations)


def exchange(users: dict[str, ScramCredential], *, nonce: str = "server") -> ScramExchange:
    return ScramExchange(MECHANISM, find=users.get, new_nonce=lambda: nonce)


def final_message(first_bare: str, server_first: str, password: str) -> bytes:
    parts = dict(part.split("=", 1) for part in server_first.split(","))
    salted = salt_password(MECHANISM, password, salt=base64.b64decode(parts["s"]), iterations=int(parts["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    unproven = f"c=biws,r={parts['r']}"
    message = f"{first_bare},{server_first},{unproven}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproven},p={base64.b64encode(proof).decode()}".encode()


def test_rfc_7677_example_logs_in() -> None:
    # given
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    login = exchange({"user": credential("pencil", salt=salt)}, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    # when
    first = login.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    final = login.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    # then
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.user_name == "user"


@pytest.mark.parametrize("password", ["wrong", ""])
def test_wrong_password_is_rejected(password: str) -> None:
    login = exchange({"user": credential("right")})
    first = login.step(b"n,,n=user,r=client").decode()
    with pytest.raises(InvalidCredentialsError):
        login.step(final_message("n=user,r=client", first, password))
    assert login.user_name is None


def test_unknown_user_is_rejected_like_a_wrong_password() -> None:
    with pytest.raises(InvalidCredentialsError):
        exchange({}).step(b"n,,n=nobody,r=client")


def test_names_with_commas_and_equals_signs_are_unescaped() -> None:
    login = exchange({"a,b=c": credential("right")})
    first = login.step(b"n,,n=a=2Cb=3Dc,r=client").decode()
    login.step(final_message("n=a=2Cb=3Dc,r=client", first, "right"))
    assert login.user_name == "a,b=c"


def test_authorization_id_of_another_user_is_rejected() -> None:
    with pytest.raises(SaslRejectedError, match="authorization id"):
        exchange({"user": credential("right")}).step(b"n,a=admin,n=user,r=client")


@pytest.mark.parametrize(
    "token", [b"", b"\xff\xfe", b"p=tls-unique,,n=user,r=x", b"n,,n=,r=x", b"n,,n=user,r=", b"n,,n=user", b"a" * 9999]
)
def test_invalid_first_message_is_rejected(token: bytes) -> None:
    with pytest.raises(InvalidCredentialsError):
        exchange({"user": credential("right")}).step(token)


@pytest.mark.parametrize(
    "token",
    [b"", b"c=biws,r=clientserver", b"c=biws,r=other,p=AAAA", b"c=biws,r=clientserver,p=!!"],
)
def test_invalid_proof_is_rejected(token: bytes) -> None:
    login = exchange({"user": credential("right")})
    login.step(b"n,,n=user,r=client")
    with pytest.raises(InvalidCredentialsError):
        login.step(token)
    assert login.user_name is None


def test_finished_login_accepts_no_further_message() -> None:
    login = exchange({"user": credential("right")})
    first = login.step(b"n,,n=user,r=client").decode()
    final = final_message("n=user,r=client", first, "right")
    login.step(final)
    with pytest.raises(InvalidCredentialsError):
        login.step(final)


def test_credential_repr_hides_secrets() -> None:
    assert repr(credential("right")) == "ScramCredential(iterations=4096)"


@pytest.mark.parametrize("start", [b"n,a=", b"n,,n="])
def test_long_first_message_is_rejected_quickly(start: bytes) -> None:
    """No client is logged in at this point. A pattern that backtracks took 60 ms."""
    token = start + b"x" * 500_000 + b"="

    def rejection_s() -> float:
        began = time.thread_time()
        with pytest.raises(InvalidCredentialsError):
            exchange({}).step(token)
        return time.thread_time() - began

    assert min(rejection_s() for _ in range(5)) < 0.02
