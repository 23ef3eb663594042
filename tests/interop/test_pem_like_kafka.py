"""PEM in settings is accepted in the forms that Kafka's own parser accepts, and in no other."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING

from klamm.properties import SettingsError
from klamm.security.stores import pem
from klamm.tls import client_context, load_own
from tests.support.java import java_tool
from tests.support.java_stores import identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
PROGRAM = """
import java.nio.charset.StandardCharsets; import java.util.*;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.ssl.DefaultSslEngineFactory;
public class ReadPem {
    static Password text(String s) {
        return new Password(new String(Base64.getDecoder().decode(s), StandardCharsets.UTF_8));
    }
    public static void main(String[] none) throws Exception {
        for (String line : new String(System.in.readAllBytes()).split("\\n")) {
            String[] given = line.split(" ");
            Map<String, Object> settings = new HashMap<>(Map.of("ssl.protocol", "TLSv1.3", "ssl.cipher.suites",
                List.of(), "ssl.enabled.protocols", List.of("TLSv1.3"), "ssl.keystore.type", "PEM",
                "ssl.truststore.type", "PEM", "ssl.keystore.key", text(given[0]),
                "ssl.keystore.certificate.chain", text(given[1]), "ssl.truststore.certificates", text(given[1])));
            try (DefaultSslEngineFactory factory = new DefaultSslEngineFactory()) {
                factory.configure(settings);
                System.out.println("accepted");
            } catch (Exception e) { System.out.println("rejected"); }
        }
    }
}
""".replace("main(String[] none) throws Exception {", "main(String[] none) throws Exception {")


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


def test_pem_is_accepted_in_kafkas_forms(java: None, tmp_path: Path) -> None:
    program = tmp_path / "ReadPem.java"
    program.write_text(PROGRAM, encoding="utf-8")
    pairs = [(form(KEY), form(CERTIFICATE)) for form in FORMS.values()]
    lines = [" ".join(base64.b64encode(text.encode()).decode() for text in pair) for pair in pairs]
    printed = java_tool(str(program), stdin="\n".join(lines)).split("\n")
    outcomes = [line for line in printed if line in ("accepted", "rejected")]
    expected = dict(zip(FORMS, outcomes, strict=True))
    assert {name: of_klamm(*pair) for name, pair in zip(FORMS, pairs, strict=True)} == expected
    assert {*outcomes} == {"accepted", "rejected"}
