"""Properties files in the manner of those that people publish (``tests/data/mm2``), with the files they refer to."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from klamm.security.stores import pem
from tests.support.java_stores import identity, jks

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "data" / "mm2"
NAMES: Final = sorted(file.stem for file in DIRECTORY.glob("*.properties"))
_SECRETS: Final = "/etc/kafka/secrets"
_PASSWORD: Final = "changeit"  # noqa: S105 - of test files


@cache
def _stores() -> dict[str, bytes]:
    authority = identity("authority")
    own = identity("mirror", authority)
    certificate, key = pem("CERTIFICATE", own.der), pem("PRIVATE KEY", own.key_der)
    return {
        "truststore.jks": jks([], [authority], _PASSWORD),
        "keystore.jks": jks([(own, [authority])], [], _PASSWORD, _PASSWORD),
        "ca.pem": pem("CERTIFICATE", authority.der).encode(),
        "client.pem": (key + certificate).encode(),
        "credentials.properties": f"password={_PASSWORD}\n".encode(),
        "password": _PASSWORD.encode(),
    }


def text_of(name: str, secrets: Path) -> str:
    """Return a file's text. The files it refers to are written to the directory ``secrets``."""
    for file, content in _stores().items():
        (secrets / file).write_bytes(content)
    text = (DIRECTORY / f"{name}.properties").read_bytes().decode()
    one_line = " ".join(_stores()["ca.pem"].decode().split("\n"))
    return text.replace(_SECRETS, str(secrets)).replace("@CERTIFICATE@", one_line)
