from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from klamm.properties import SettingsError
from klamm.security.certificates import CertificateError, map_subject, parse_mapping_rules, subject_of

if TYPE_CHECKING:
    from pathlib import Path


def certificate(directory: Path, subject: str) -> bytes:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k.pem", "-out", "c.pem", "-utf8"]
    subprocess.run([*command, "-subj", subject], cwd=directory, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert((directory / "c.pem").read_text())


@pytest.mark.process
@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("/C=CZ/ST=Bohemia/L=Prag/O=Castle/OU=Offices/CN=k", "CN=k,OU=Offices,O=Castle,L=Prag,ST=Bohemia,C=CZ"),
        ("/O=Castle, Inc./CN=Klamm \\+ Co;", "CN=Klamm \\+ Co\\;,O=Castle\\, Inc."),
        ("/CN=Brückenhof", "CN=Brückenhof"),
        ("/CN=a/emailAddress=a@b", "1.2.840.113549.1.9.1=#1603614062,CN=a"),
        ("/DC=org/DC=example/UID=42/CN=a", "CN=a,UID=42,DC=example,DC=org"),
    ],
)
def test_certificate_subject_is_formatted_like_kafka(tmp_path: Path, subject: str, expected: str) -> None:
    assert subject_of(certificate(tmp_path, subject)) == expected


@pytest.mark.parametrize("data", [b"", b"\x30", b"\x30\x05\x30\x80", b"no certificate at all", bytes(200)])
def test_invalid_certificate_is_rejected(data: bytes) -> None:
    with pytest.raises(CertificateError):
        subject_of(data)


def test_first_matching_rule_maps_the_subject() -> None:
    rules = parse_mapping_rules(r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=([^,]*),.*$/user-$1/U,DEFAULT")
    assert map_subject("CN=Alice,OU=ServiceUsers,O=x", rules) == "Alice"
    assert map_subject("CN=bob,O=x", rules) == "USER-BOB"
    assert map_subject("O=x", rules) == "O=x"


def test_subject_without_a_matching_rule_has_no_principal() -> None:
    assert map_subject("O=x", parse_mapping_rules("RULE:^CN=(.*)$/$1/L")) is None
    assert map_subject("O=x", parse_mapping_rules(None)) == "O=x"


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (r"RULE:^CN=(.*)$/$1@$2/", "bob@$2"),
        (r"RULE:^CN=(b)(ob)$/$21-$0/", "ob1-CN=bob"),
        (r"RULE:^CN=(.*)$/\$1\.\d\\/U", "$1.D\\"),
        (r"RULE:^CN=(a)?(.*)$/<$1>$2/", "<>bob"),
        (r"RULE:CN=(.*)/$1$9999999999999999999999/", "bob$9999999999999999999999"),
        (r"RULE:(.*)/x-$1/", "x-CN=bobx-"),
    ],
)
def test_replacement_is_expanded_as_in_java(rule: str, name: str) -> None:
    assert map_subject("CN=bob", parse_mapping_rules(rule)) == name


@pytest.mark.parametrize("text", ["RULE:abc", "FALSE", "RULE:(/x/", "RULE:^CN=.*$/$1/", "RULE:^CN=(.*)$/${name}/"])
def test_invalid_mapping_rule_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match=r"ssl\.principal\.mapping\.rules"):
        parse_mapping_rules(text)
