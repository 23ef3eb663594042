"""Key stores in Java's formats, created without Java. Interop tests use those of keytool."""

from __future__ import annotations

import datetime
import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from klamm.security.certificates import encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

_JKS_KEY_PROTECTION = bytes.fromhex("300e060a2b060104012a021101010500")
"""AlgorithmIdentifier of 1.3.6.1.4.1.42.2.17.1.1."""


class Identity(NamedTuple):
    """A key and its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def key_der(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)


def identity(name: str, issuer: Identity | None = None) -> Identity:
    """Create a key and a certificate, self-signed or signed by an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer.key if issuer else key, hashes.SHA256())
    )
    return Identity(key, certificate)


def jks(
    keys: Sequence[tuple[Identity, Sequence[Identity]]],
    trusted: Sequence[Identity],
    password: str,
    key_password: str | None = None,
    version: int = 2,
) -> bytes:
    """Return a JKS file. Each key is stored with its certificate chain."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def block(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    def certificate(of: Identity) -> bytes:
        return (text("X.509") if version == 2 else b"") + block(of.der)

    body = b"\xfe\xed\xfe\xed" + struct.pack(">II", version, len(keys) + len(trusted))
    for number, (own, vouching) in enumerate(keys):
        chain = b"".join(map(certificate, (own, *vouching)))
        body += struct.pack(">I", 1) + text(f"key{number}") + bytes(8)
        body += block(_protected(own.key_der, key_password or password)) + struct.pack(">I", 1 + len(vouching)) + chain
    for number, other in enumerate(trusted):
        body += struct.pack(">I", 2) + text(f"other{number}") + bytes(8) + certificate(other)
    return body + _sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body)


def _protected(key: bytes, password: str) -> bytes:
    secret, salt = password.encode("utf-16-be"), b"a salt of 20 bytes.."
    blocks = [salt]
    while 20 * len(blocks) < len(key) + 20:
        blocks.append(_sha1(secret + blocks[-1]))
    hidden = bytes(a ^ b for a, b in zip(key, b"".join(blocks[1:]), strict=False))
    content = salt + hidden + _sha1(secret + key)
    return encoded(0x30, _JKS_KEY_PROTECTION + encoded(0x04, content))


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()  # noqa: S324 - the format


def p12(own: Identity | None, others: Sequence[Identity], password: str, *, name: bytes | None = None) -> bytes:
    """Return a PKCS12 file. ``name`` is the alias of the other certificates, as keytool does for trusted ones."""
    return pkcs12.serialize_key_and_certificates(
        b"own" if own else None,
        own.key if own else None,
        own.certificate if own else None,
        [pkcs12.PKCS12Certificate(other.certificate, name) for other in others],
        serialization.BestAvailableEncryption(password.encode()),
    )
