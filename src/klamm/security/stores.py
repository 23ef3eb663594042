"""Reader for Java key stores: JKS and PKCS12 files with their passwords.

A file is recognised by its content, as Java does since version 9: a store declared as JKS may be PKCS12 and vice versa.
This module reads JKS itself (``sun.security.provider.JavaKeyStore``: certificates are in plain form, keys are masked by
a stream of SHA-1 digests, and the file ends in a digest over the password). The package ``cryptography`` reads PKCS12
and is imported only for such a store.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.extras import MissingExtraError, require_extra
from klamm.lazy_dataclass import dataclass
from klamm.security.certificates import DerError, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.x509 import Certificate

KINDS: Final = ("JKS", "PKCS12")
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_WITH_CERTIFICATE_TYPES: Final = 2
"""JKS version whose entries name the type of their certificates."""
_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_DIGEST_BYTES: Final = 20
_WHITENER: Final = b"Mighty Aphrodite"
_TO_PKCS12: Final = "keytool -importkeystore -srckeystore OLD -destkeystore NEW.p12 -deststoretype PKCS12"


class StoreError(ValueError):
    """A store cannot be opened. The message gives the reason and never contains the store's content."""


class StorePasswordError(StoreError):
    """The password of the store is wrong or missing."""


class KeyPasswordError(StoreError):
    """The password of the key is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContents:
    """Content of a store that TLS can use, all in DER."""

    key: bytes | None = field(default=None, repr=False)
    """Private key as unencrypted PKCS #8. None if the store has none or no key was requested."""
    chain: tuple[bytes, ...] = ()
    """Certificate of the key, followed by its issuers in order."""
    trusted: tuple[bytes, ...] = ()
    """Trusted certificates, including those of the store's own keys, as Java's trust managers see them."""


def read_store(
    data: bytes, *, password: str | None, key_password: str | None = None, wants_key: bool = True
) -> StoreContents:
    """Open a store. If it has several keys, the first one is used.

    Args:
        data: Content of the file.
        password: Password of the store. None opens a JKS store without checking its digest.
        key_password: Password of the key; None means the store's password.
        wants_key: Whether to open the key. False for a trust store.

    Raises:
        StoreError: The store is damaged or of another kind, or a password is wrong.
    """
    if data.startswith(_JKS_MAGIC):
        return _Jks(data, password).read(password if key_password is None else key_password, wants_key=wants_key)
    if data.startswith(_JCEKS_MAGIC):
        raise StoreError(f"it is a JCEKS store; convert it by {_TO_PKCS12}")
    if data.lstrip().startswith(b"-----BEGIN"):
        raise StoreError("it is PEM text; set the type to PEM")
    if not data.startswith(b"\x30"):
        raise StoreError("it is neither a JKS nor a PKCS12 store")
    return _read_pkcs12(data, password, key_password, wants_key=wants_key)


def pem(label: str, der: bytes) -> str:
    """Return DER as PEM text."""
    text = base64.encodebytes(der).decode().replace("\n", "")
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


class _Jks:
    """Reader of one JKS file."""

    def __init__(self, data: bytes, password: str | None) -> None:
        self._data, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        self._position = len(_JKS_MAGIC)
        if password is not None:
            expected = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + self._data).digest()  # noqa: S324 - the format
            if not hmac.compare_digest(expected, digest):
                raise StorePasswordError("its password is wrong, or the file is damaged")

    def read(self, key_password: str | None, *, wants_key: bool) -> StoreContents:
        """Return the content of the store."""
        key: bytes | None = None
        chain: tuple[bytes, ...] = ()
        trusted: list[bytes] = []
        try:
            version, count = struct.unpack(">II", self._take(8))
            for _ in range(count):
                (tag,) = struct.unpack(">I", self._take(4))
                self._short()  # skip the alias
                self._take(8)  # skip the creation time
                if tag == _KEY_ENTRY:
                    protected, own = self._key_entry(version)
                    trusted += own[:1]
                    if wants_key and key is None:
                        key, chain = _unprotect(protected, key_password), tuple(own)
                elif tag == _CERTIFICATE_ENTRY:
                    trusted.append(self._certificate(version))
                else:
                    raise StoreError(f"the JKS store has an entry of kind {tag}, which is not known")
        except (struct.error, IndexError, DerError) as error:
            raise StoreError("the JKS store is damaged") from error
        return StoreContents(key=key, chain=chain, trusted=tuple(trusted))

    def _key_entry(self, version: int) -> tuple[bytes, list[bytes]]:
        protected = self._long()
        (count,) = struct.unpack(">I", self._take(4))
        return protected, [self._certificate(version) for _ in range(count)]

    def _certificate(self, version: int) -> bytes:
        if version == _WITH_CERTIFICATE_TYPES:
            self._short()
        return self._long()

    def _short(self) -> bytes:
        (length,) = struct.unpack(">H", self._take(2))
        return self._take(length)

    def _long(self) -> bytes:
        (length,) = struct.unpack(">I", self._take(4))
        return self._take(length)

    def _take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            raise IndexError
        self._position += count
        return taken


def _unprotect(protected: bytes, password: str | None) -> bytes:
    """Decrypt a key of a JKS store: salt, the key masked by chained SHA-1, and a digest over password and key."""
    if password is None:
        raise KeyPasswordError("the key needs a password")
    try:
        ((_, body),) = values(protected)
        _, (_, content) = values(body)
    except ValueError as error:
        raise DerError("a protected key has unexpected parts") from error
    secret = password.encode("utf-16-be")
    salt, hidden, digest = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    stream, block = bytearray(), salt
    while len(stream) < len(hidden):
        block = hashlib.sha1(secret + block).digest()  # noqa: S324 - the format
        stream += block
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), digest):  # noqa: S324 - the format
        raise KeyPasswordError("the password of the key is wrong")
    return key


def _read_pkcs12(data: bytes, password: str | None, key_password: str | None, *, wants_key: bool) -> StoreContents:
    try:
        require_extra("security", feature="a PKCS12 store")
    except MissingExtraError as error:
        raise StoreError(str(error)) from error
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow, and most brokers have no such store
    from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415

    if password is None:
        raise StorePasswordError("a PKCS12 store needs its password")
    try:
        store = pkcs12.load_pkcs12(data, password.encode())
    except ValueError as error:
        # OpenSSL cannot always distinguish a wrong password from a damaged file, so both get the same message.
        raise StorePasswordError("its password is wrong, or the file is damaged") from error
    if wants_key and key_password not in (None, password):
        raise KeyPasswordError("a key in a PKCS12 store has the password of the store; leave the key's out")
    others = [other.certificate for other in store.additional_certs]
    if store.key is None or store.cert is None:
        return StoreContents(trusted=tuple(map(_der, others)))
    # Java gives names to trusted certificates and leaves the rest of a chain unnamed.
    named = [other.certificate for other in store.additional_certs if other.friendly_name is not None]
    leaf = store.cert.certificate
    key = store.key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return StoreContents(
        key=key if wants_key else None,
        chain=tuple(map(_der, _chain(leaf, others))),
        trusted=tuple(map(_der, (leaf, *named))),
    )


def _chain(leaf: Certificate, others: Sequence[Certificate]) -> list[Certificate]:
    """Return the leaf certificate followed by its issuers. PKCS12 stores certificates in no order."""
    by_subject = {other.subject: other for other in others}
    chain = [leaf]
    while (issuer := by_subject.pop(chain[-1].issuer, None)) is not None and issuer != chain[-1]:
        chain.append(issuer)
    return chain


def _der(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return certificate.public_bytes(serialization.Encoding.DER)
