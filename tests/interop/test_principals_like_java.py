"""Subjects of certificates are written exactly as Java writes them, so ACLs of Apache Kafka apply unchanged."""

from __future__ import annotations

import base64
import random
import subprocess
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from klamm.security.certificates import subject_of
from tests.support.java import java_executable

if TYPE_CHECKING:
    from pathlib import Path

OIDS = [NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.LOCALITY_NAME, NameOID.USER_ID, NameOID.TITLE]
CHARACTERS = [*"aZ7 .-_@/:'()", *',=+<>#;"\\', "\r", "\t", "é", "ß", "\u0416", "\U0001d11e"]
PROGRAM = """
import java.nio.charset.StandardCharsets; import java.util.*; import javax.security.auth.x500.X500Principal;
public class Names {
    public static void main(String[] args) throws Exception {
        for (String line : new String(System.in.readAllBytes()).split("\\n")) {
            String name = new X500Principal(Base64.getDecoder().decode(line)).getName(X500Principal.RFC2253);
            System.out.println(Base64.getEncoder().encodeToString(name.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
"""


def test_three_hundred_subjects_are_written_as_java_writes_them(tmp_path: Path) -> None:
    draw = random.Random(108)
    names = [
        x509.Name(
            [
                x509.NameAttribute(draw.choice(OIDS), "".join(draw.choices(CHARACTERS, k=draw.randint(1, 12))))
                for _ in range(draw.randint(1, 4))
            ]
        )
        for _ in range(300)
    ]
    program = tmp_path / "Names.java"
    program.write_text(PROGRAM, encoding="utf-8")
    lines = "\n".join(base64.b64encode(name.public_bytes()).decode() for name in names)
    command = [java_executable(), "-XX:TieredStopAtLevel=1", str(program)]
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=True)
    key = generate_private_key(SECP256R1())
    for name, line in zip(names, ended.stdout.split(), strict=True):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
        assert subject_of(builder.sign(key, SHA256()).public_bytes(Encoding.DER)) == base64.b64decode(line).decode()
