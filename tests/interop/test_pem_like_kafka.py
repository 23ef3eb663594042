"""PEM in settings is accepted in the forms that Kafka's own parser accepts, and in no other."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING

from klamm.properties import SettingsError
from klamm.security.stores import pem
from klamm.tls import client_context, load_own
from tests.support.java_stores import identity
from tests.support.kafka_tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Callable

OWN = identity("own", identity("authority"))
KEY, CERTIFICATE = pem("PRIVATE KEY", OWN.key_der), pem("CERTIFICATE", OWN.der)
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "one line": lambda text: text.replace("\n", " "),
    "tabs": lambda text: text.replace("\n", "\t"),
    "indented": lambda text: "  " + text.replace("\n", "\n  "),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "no line end": lambda text: text.strip(),
    "nothing between": lambda text: text.replace("\n", ""),
    "escaped line ends": lambda text: text.replace("\n", "\\n"),
    "empty lines": lambda text: text.replace("\n", "\n\n"),
    "attributes": lambda text: f"Bag Attributes\n    localKeyID: 01 02\nsubject=/CN=a\n{text}",
    "text before": lambda text: f"x {text}",
    "four dashes": lambda text: text.replace("-----", "----"),
    "lower case": str.lower,
    "wide": lambda text: text.replace("BEGIN ", "BEGIN  "),
}


def of_klamm(key: str, certificate: str) -> str:
    settings = {
        "ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": certificate,
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificate,
    }  # fmt: skip
    try:
        client_context(settings)
        load_own(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings.get)
    except SettingsError:
        return "rejected"
    return "accepted"


def test_pem_is_accepted_in_kafkas_forms(java: None) -> None:
    pairs = [(form(KEY), form(CERTIFICATE)) for form in FORMS.values()]
    lines = [" ".join(base64.b64encode(text.encode()).decode() for text in pair) for pair in pairs]
    printed = run_tool("ReadPem", stdin="\n".join(lines)).split("\n")
    outcomes = [line for line in printed if line in ("accepted", "rejected")]
    expected = dict(zip(FORMS, outcomes, strict=True))
    assert {name: of_klamm(*pair) for name, pair in zip(FORMS, pairs, strict=True)} == expected
    assert {*outcomes} == {"accepted", "rejected"}
