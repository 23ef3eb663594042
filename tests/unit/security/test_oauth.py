"""OAUTHBEARER tokens: claims and validation."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from functools import partial
from itertools import count, product

import pytest

from klamm.protocol.errors import ErrorCode
from klamm.security.oauth import (
    ClaimRules,
    Jwt,
    KeysError,
    OAuthBearerExchange,
    TokenError,
    check_signed,
    check_unsecured,
    parse_keys,
)
from klamm.security.sasl import InvalidCredentialsError, SaslRejectedError
from klamm.server.security.login import Login, LoginSettings
from tests.support.cases import case
from tests.support.tokens import Issuer, claims_of, encoded, key_set, part, unsecured, unsecured_with

NOW = time.time()
claims = partial(claims_of, now=NOW)
RSA, EC, STRANGER = Issuer("r"), Issuer("e", "ES256"), Issuer("r")
KEYS = parse_keys(key_set(RSA, EC))
STRICT = ClaimRules(needs_issued_at=True, checks_audience=True, clock_skew_s=30)


def an_exchange(reasons: list[str] | None = None) -> OAuthBearerExchange:
    rules = ClaimRules(required_scope=("kafka",))
    return OAuthBearerExchange(
        lambda text: check_unsecured(text, rules, NOW),
        now_s=lambda: NOW,
        log=(reasons if reasons is not None else []).append,
    )


def first(token: str, user: str = "", more: str = "") -> bytes:
    return f"n,{f'a={user}' if user else ''},\x01auth=Bearer {token}\x01{more}\x01".encode()


def test_token_determines_principal_and_lifetime() -> None:
    login = an_exchange()
    token = unsecured(claims("alice", scope="kafka more", exp=NOW + 60))
    assert login.step(first(token, "alice", "key=value\x01")) == b""
    assert login.user_name == "alice"
    assert login.lifetime_s == pytest.approx(60)


def test_rejected_token_is_answered_with_a_status() -> None:
    reasons: list[str] = []
    login = an_exchange(reasons)
    assert login.step(first(unsecured(claims("alice", scope="kafka", exp=1.0)))) == b'{"status":"invalid_token"}'
    assert login.user_name is None
    with pytest.raises(SaslRejectedError) as rejected:
        login.step(b"\x01")
    assert rejected.value.error_message == '{"status":"invalid_token"}'
    assert reasons == ["it has expired"]


def test_missing_scope_is_reported() -> None:
    answer = an_exchange().step(first(unsecured(claims("alice", scope=["other"]))))
    assert json.loads(answer) == {"status": "insufficient_scope", "scope": "[kafka]"}


def test_authorization_id_must_equal_the_principal() -> None:
    with pytest.raises(SaslRejectedError, match="different from the token's principal name"):
        an_exchange().step(first(unsecured(claims("alice", scope="kafka")), "bob"))


@pytest.mark.parametrize(
    "message",
    [b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"y,,\x01auth=Bearer x\x01\x01", b"\xff" * 9],
)
def test_invalid_first_message_is_rejected(message: bytes) -> None:
    with pytest.raises(InvalidCredentialsError):
        an_exchange().step(message)


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("abc", "three parts"),
        ("a.b.", "Base64|JSON"),
        (f"{part({'alg': 'none'})}.{encoded(b'[]')}.", "not JSON objects"),
        (f"{part({'alg': 'none'})}.{encoded(b'[' * 100_000)}.", "not JSON"),
        (unsecured(claims("\ud800")), "not JSON"),
        (unsecured(claims("alice"), alg="None"), "algorithm none"),
        (unsecured(claims("alice")) + "c2ln", "no signature"),
        (RSA.sign(claims("alice")), "algorithm none"),
        (unsecured(claims(" \x01")), "sub contains no name"),
        (unsecured(claims("alice", sub=7)), "sub contains no name"),
        (unsecured(claims("alice", exp=None)), "exp is missing"),
        (unsecured(claims("alice", exp="soon")), "exp is no number"),
        (unsecured(claims("alice", exp=True)), "exp is no number"),
        (unsecured(claims("alice", iat=NOW + 100)), "iat is in the future"),
        (unsecured(claims("alice", exp=NOW + 5, iat=NOW + 5)), "iat is in the future, or after exp"),
    ],
    ids=count(),  # tokens hold the time, and ids must be the same in every process
)
def test_invalid_unsecured_token_is_rejected_with_reason(token: str, reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        check_unsecured(token, ClaimRules(), NOW)


HOSTILE = ["1e999", "-1e999", "9" * 400, "-" + "9" * 400, "9" * 5000, "1e300", "NaN", "Infinity", "-Infinity", "true",
           "null", '""', "[]", "{}", "[{}]", "[[]]", '"\\ud800"', '"\\n"', "0"]  # fmt: skip


def test_rejected_authorization_id_of_any_length_fits_the_response() -> None:
    """A string of the response has at most 32,767 bytes."""
    login = Login(LoginSettings(mechanisms={"OAUTHBEARER": an_exchange}, now=lambda: 0.0))
    login.handshake("OAUTHBEARER", 1)
    answer = login.authenticate(first(unsecured(claims("alice", scope="kafka")), user="b" * 40_000))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == login.failure
    assert login.failure.startswith("Authentication failed: Client requested an authorization id (bbb")
    assert len(login.failure) == 1000


def test_any_claim_is_accepted_or_rejected_without_a_traceback() -> None:
    for name, value in product(("exp", "iat", "nbf", "sub", "scope", "aud", "iss"), HOSTILE):
        with case(name, value):
            settings = LoginSettings(mechanisms={"OAUTHBEARER": an_exchange}, now=lambda: 0.0)
            login = Login(settings)
            login.handshake("OAUTHBEARER", 1)
            answer = login.authenticate(first(unsecured_with(name, value, claims("alice", scope="kafka"))))
            assert 0 <= answer.session_lifetime_ms < 2**63
            assert (answer.error_code, login.is_open) == (0, answer.auth_bytes == b"")
            with contextlib.suppress(TokenError):
                ClaimRules(audiences={"us"}, checks_audience=True, needs_issued_at=True, issuer="us").check(
                    Jwt.parse(unsecured_with(name, value, claims("alice"))).claims, NOW
                )


@pytest.mark.parametrize(
    ("value", "is_accepted"),
    [("1e999", True), ("9" * 400, True), ("-1e999", False), ("NaN", False), ("Infinity", False)],
)
def test_expiry_beyond_64_bits_is_accepted_and_nan_rejected(value: str, is_accepted: bool) -> None:
    exchange = an_exchange()
    assert (exchange.step(first(unsecured_with("exp", value, claims("alice", scope="kafka")))) == b"") == is_accepted


@pytest.mark.parametrize("issuer", [RSA, EC], ids=["RS256", "ES256"])
def test_signed_token_is_verified_with_the_issuers_key(issuer: Issuer) -> None:
    token = issuer.sign(claims("alice"))
    assert check_signed(token, KEYS, STRICT, NOW).principal == "alice"
    header, body, signature = token.split(".")
    for forged in (
        f"{header}.{part(claims('admin'))}.{signature}",
        f"{header}.{body}.",
        f"{header}.{body}.{signature[:-4]}",
        f"{part({'alg': 'none'})}.{body}.",
        f"{part({'alg': 'HS256', 'kid': issuer.key_id})}.{body}.{signature}",
        f"{part({'alg': 'ES256' if issuer is RSA else 'RS256'})}.{body}.{signature}",
    ):
        with pytest.raises(TokenError):
            check_signed(forged, KEYS, STRICT, NOW)


@pytest.mark.parametrize(
    ("token", "rules", "reason"),
    [
        (STRANGER.sign(claims("alice")), STRICT, "none of the issuer's 1 keys"),
        (RSA.sign(claims("alice"), kid="other"), STRICT, "0 keys"),
        (RSA.sign(claims("alice"), crit=["x"]), STRICT, "extensions"),
        (RSA.sign(claims("alice", iat=None)), STRICT, "iat is missing"),
        (RSA.sign(claims(" \x01")), STRICT, "sub contains no name"),
        (RSA.sign(claims("alice", nbf=NOW + 100)), STRICT, "nbf is in the future"),
        (RSA.sign(claims("alice", exp=NOW - 31)), STRICT, "expired"),
        (RSA.sign(claims("alice", aud="other")), STRICT, "claim aud"),
        (RSA.sign(claims("alice")), ClaimRules(checks_audience=True, audiences={"us"}), "claim aud"),
        (RSA.sign(claims("alice", iss="other")), ClaimRules(issuer="https://us"), "iss is not https://us"),
    ],
    ids=count(),  # signatures differ from run to run
)
def test_signed_token_with_wrong_key_or_claims_is_rejected(token: str, rules: ClaimRules, reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        check_signed(token, KEYS, rules, NOW)


def test_rsa_key_of_1024_bits_is_rejected() -> None:
    """Kafka's library (jose4j) requires 2048 bits, too."""
    weak = Issuer("weak", bits=1024)
    with pytest.raises(TokenError, match="none of the issuer's 1 keys"):
        check_signed(weak.sign(claims("alice")), parse_keys(key_set(weak)), STRICT, NOW)


@pytest.mark.parametrize("number", [379, 43], ids=["x", "y"])
def test_ec_coordinate_without_leading_zero_is_accepted(number: int) -> None:
    """Some issuers write the integer. RFC 7518 requires 32 bytes, and Kafka's library (jose4j) does not."""
    issuer = Issuer("e", "ES256", ec_number=number)
    key = issuer.public_key()
    short = {name: encoded(base64.urlsafe_b64decode(key[name] + "=").lstrip(b"\0")) for name in ("x", "y")}
    assert {name: len(value) for name, value in short.items()} != {"x": 43, "y": 43}
    for each in (key, {**key, **short}):
        keys = parse_keys(json.dumps({"keys": [each]}))
        assert check_signed(issuer.sign(claims("alice")), keys, STRICT, NOW).principal == "alice"


@pytest.mark.parametrize("x", ["A", 7, None], ids=["no Base64", "no text", "none"])
def test_unusable_key_does_not_hide_others(x: object) -> None:
    unusable = {**EC.public_key(), "x": x}
    assert len(parse_keys(json.dumps({"keys": [unusable, RSA.public_key()]}))) == 1


def test_expected_audience_and_issuer_are_accepted() -> None:
    rules = ClaimRules(checks_audience=True, audiences={"us", "them"}, issuer="i", principal_claim="azp")
    token = EC.sign(claims("x", azp="alice", aud=["others", "us"], iss="i"), kid=None)
    assert check_signed(token, KEYS, rules, NOW).principal == "alice"


@pytest.mark.parametrize("name", [" alice\t", "alice\x00", "\u00a0alice"])
def test_principal_of_a_signed_token_only_is_trimmed(name: str) -> None:
    """As in Kafka, by the rule of Java's ``String.trim``: ACLs for alice concern the signed tokens."""
    signed = check_signed(RSA.sign(claims(name)), KEYS, STRICT, NOW)
    unsigned = check_unsecured(unsecured(claims(name)), ClaimRules(), NOW)
    assert (signed.principal, unsigned.principal) == (name if name[0] == "\u00a0" else "alice", name)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keys": []}', '{"keys": [{"kty": "oct"}]}', '{"keys": [7]}',
                                  '{"keys": [{"kty": "RSA", "n": "AQAB", "e": "!"}]}'])  # fmt: skip
def test_invalid_key_set_is_rejected(text: str) -> None:
    with pytest.raises(KeysError):
        parse_keys(text)


def test_long_first_message_is_rejected_quickly() -> None:
    def rejection_s() -> float:
        began = time.thread_time()
        with pytest.raises(InvalidCredentialsError):
            an_exchange().step(b"n,a=" + b"x" * 500_000)
        return time.thread_time() - began

    assert min(rejection_s() for _ in range(5)) < 0.02
