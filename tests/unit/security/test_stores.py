"""Java's key stores, read without Java."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klamm.security.stores import KeyPasswordError, StoreError, StorePasswordError, pem, read_store
from tests.support.java_stores import identity, jks, p12

OF_STORE, OF_KEY, WRONG, SPECIAL = "store-pw", "key-pw", "hunter2", "pässwörd"
AUTHORITY = identity("authority")
OWN = identity("own", AUTHORITY)
OTHER = identity("other")
JKS = jks([(OWN, [AUTHORITY])], [OTHER], OF_STORE, OF_KEY)
P12 = p12(OWN, [AUTHORITY], OF_STORE)


@pytest.mark.parametrize("version", [1, 2])
def test_jks_has_key_with_own_password_and_certificates(version: int) -> None:
    data = jks([(OWN, [AUTHORITY])], [OTHER], OF_STORE, OF_KEY, version)
    read = read_store(data, password=OF_STORE, key_password=OF_KEY)
    assert read.key == OWN.key_der
    assert read.chain == (OWN.der, AUTHORITY.der)
    assert read.trusted == (OWN.der, OTHER.der)


def test_key_without_own_password_uses_the_store_password() -> None:
    data = jks([(OWN, [])], [], SPECIAL)
    assert read_store(data, password=SPECIAL).key == OWN.key_der


def test_first_of_several_keys_is_used() -> None:
    data = jks([(OWN, [AUTHORITY]), (OTHER, [])], [], OF_STORE)
    read = read_store(data, password=OF_STORE)
    assert (read.key, read.chain) == (OWN.key_der, (OWN.der, AUTHORITY.der))
    assert read.trusted == (OWN.der, OTHER.der)


def test_truststore_needs_no_key_passwords() -> None:
    assert read_store(JKS, password=None, wants_key=False).trusted == (OWN.der, OTHER.der)
    assert read_store(JKS, password=OF_STORE, wants_key=False).key is None


def test_pkcs12_has_key_and_ordered_chain() -> None:
    between = identity("between", AUTHORITY)
    last = identity("last", between)
    read = read_store(p12(last, [AUTHORITY, OTHER, between], OF_STORE), password=OF_STORE)
    assert read.key == last.key_der
    assert read.chain == (last.der, between.der, AUTHORITY.der)


def test_pkcs12_with_a_key_trusts_named_certificates_like_java() -> None:
    assert read_store(P12, password=OF_STORE, wants_key=False).trusted == (OWN.der,)
    named = p12(OWN, [AUTHORITY], OF_STORE, name=b"caroot")
    assert read_store(named, password=OF_STORE, wants_key=False).trusted == (OWN.der, AUTHORITY.der)


def test_pkcs12_without_a_key_trusts_every_certificate() -> None:
    data = p12(None, [AUTHORITY, OTHER], OF_STORE)
    assert set(read_store(data, password=OF_STORE).trusted) == {AUTHORITY.der, OTHER.der}


@pytest.mark.parametrize("data", [JKS, P12], ids=["jks", "pkcs12"])
def test_wrong_store_and_key_passwords_are_distinguished(data: bytes) -> None:
    with pytest.raises(StorePasswordError, match="wrong"):
        read_store(data, password=WRONG, key_password=OF_KEY)
    with pytest.raises(KeyPasswordError) as rejected:
        read_store(data, password=OF_STORE, key_password=WRONG)
    assert WRONG not in str(rejected.value)


def test_missing_password_is_named() -> None:
    with pytest.raises(StorePasswordError, match="needs its password"):
        read_store(P12, password=None, wants_key=False)
    with pytest.raises(KeyPasswordError, match="needs a password"):
        read_store(JKS, password=None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "neither"),
        (b"not a store", "neither"),
        (b"-----BEGIN CERTIFICATE-----\n", "set the type to PEM"),
        (b"\xce\xce\xce\xce\x00\x00\x00\x02", "JCEKS.*keytool"),
        (b"\x30\x03\x02\x01\x03", "wrong, or the file is damaged"),
    ],
)
def test_invalid_store_is_rejected(data: bytes, reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        read_store(data, password=WRONG)


def test_store_repr_hides_its_key() -> None:
    assert "key=" not in repr(read_store(P12, password=OF_STORE))


def test_der_is_encoded_as_pem() -> None:
    text = pem("CERTIFICATE", OWN.der)
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----")
    assert base64.b64decode("".join(lines[1:-1])) == OWN.der
    assert max(map(len, lines[1:-1])) == 64


@settings(deadline=None)
@example(position=35, bit=0)  # the length of the protected key: it falls into several objects
@given(position=st.integers(0, len(JKS) - 1), bit=st.integers(0, 7))
def test_corrupt_store_raises_store_error(position: int, bit: int) -> None:
    damaged = bytearray(JKS)
    damaged[position] ^= 1 << bit
    for password in (OF_STORE, None):
        try:
            read_store(bytes(damaged), password=password, key_password=OF_KEY)
        except StoreError:
            continue
        assert password is None, "a digest notices everything"


@given(end=st.integers(0, len(JKS) - 1))
def test_truncated_store_is_rejected(end: int) -> None:
    with pytest.raises(StoreError):
        read_store(JKS[:end], password=None, key_password=OF_KEY)
