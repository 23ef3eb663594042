"""Subjects of certificates are written exactly as Java writes them, so ACLs of Apache Kafka apply unchanged."""

from __future__ import annotations

import base64
import os
import random
from typing import TYPE_CHECKING

from klamm.security.certificates import CertificateError, encoded, subject_of
from tests.support.kafka_tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBJECTS = 100_000 if os.environ.get("KLAMM_SOAK") else 3_000
SEQUENCE, SET, OID = 0x30, 0x31, 0x06
OIDS = [bytes.fromhex(oid) for oid in (
    "550403", "550406", "550407", "550408", "550409", "55040a", "55040b", "55040c", "550405", "55042a",
    "0992268993f22c640119", "0992268993f22c640101", "2a864886f70d010901",
)]  # fmt: skip
"""CN, C, L, ST, STREET, O, OU, T, SERIALNUMBER, GIVENNAME; DC, UID; the e-mail address."""
STRINGS = {0x0C: "utf-8", 0x12: "ascii", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1A: "ascii", 0x1B: "ascii",
           0x1C: "utf-32-be", 0x1E: "utf-16-be"}  # fmt: skip
OTHERS = [0x01, 0x02, 0x03, 0x04, 0x05, 0x0A, 0x17, 0x18, 0x19, 0x1D, 0x30, 0x31, 0x80, 0xA0]
"""Boolean, integer, bit and octet string, null, enumerated, times, graphic and character string, constructed."""
CHARACTERS = [
    *"aZ7 .-_@/:'()",
    *',=+<>#;"\\',
    "\0",
    "\r",
    "\n",
    "\t",
    "\x7f",
    "\x9b",
    "é",
    "ß",
    "\u0416",
    "\u2028",
    "\ufeff",
    "\U0001d11e",
]
NO_TEXT = bytes.fromhex("41 7f 80 8f 90 9f a0 af b0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f8 ff")
"""Bytes at the limits of the ranges of UTF-8."""


def test_random_subjects_are_written_as_java_writes_them(java: None) -> None:
    """Attributes of all ASN.1 types, more than one in a relative name, and bytes that their type does not allow."""
    draw = random.Random(SUBJECTS)
    names = [
        encoded(SEQUENCE, b"".join(relative_name(draw) for _ in range(draw.randint(1, 4)))) for _ in range(SUBJECTS)
    ]
    differences = []
    for name, written in zip(names, as_java_writes(names), strict=True):
        try:
            ours = f"={subject_of(certificate_of(name))}"
        except CertificateError:
            ours = "!"
        if ours != written and not ours == written[:1] == "!":
            differences.append((name.hex(), ours, written))
    assert not differences


def relative_name(draw: random.Random) -> bytes:
    attributes = [
        encoded(SEQUENCE, encoded(OID, draw.choice(OIDS)) + value(draw)) for _ in range(draw.choice((1, 1, 1, 2, 3)))
    ]
    return encoded(SET, b"".join(attributes))


def value(draw: random.Random) -> bytes:
    if draw.random() < 0.15:
        return encoded(draw.choice(OTHERS), draw.randbytes(draw.randint(0, 5)))
    tag, encoding = draw.choice(list(STRINGS.items()))
    text = "".join(draw.choices(CHARACTERS, k=draw.randint(0, 8)))
    data = text.encode(encoding, errors="ignore")
    if draw.random() < 0.1:
        data += bytes(draw.choices(NO_TEXT, k=draw.randint(1, 6)))
    return encoded(tag, data)


def certificate_of(subject: bytes) -> bytes:
    """Return the part of a certificate up to its subject."""
    return encoded(SEQUENCE, encoded(SEQUENCE, encoded(SEQUENCE, b"") * 4 + subject))


def as_java_writes(names: Sequence[bytes]) -> list[str]:
    """Return ``=`` and the text of each name, or ``!`` and the error."""
    lines = "\n".join(base64.b64encode(name).decode() for name in names)
    return [base64.b64decode(line).decode() for line in run_tool("NameSubjects", stdin=lines).split()]
