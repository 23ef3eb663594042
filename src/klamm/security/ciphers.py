"""Names of TLS cipher suites: from Java's and IANA's names to OpenSSL's."""

from __future__ import annotations

import re
from typing import Final

SINCE_TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""Suites of TLS 1.3. Their names say nothing about keys and are the same in Java and OpenSSL."""
SIGNALLING: Final = frozenset({"TLS_EMPTY_RENEGOTIATION_INFO_SCSV"})
"""Signalling value that Java lists among the suites. OpenSSL applies it by default."""
_SUITE: Final = re.compile(
    r"(?:TLS|SSL)_(?P<exchange>RSA|(?:ECDHE|DHE|ECDH|DH)_(?:RSA|ECDSA|DSS))_WITH_"
    r"(?:(?P<cipher>AES|CAMELLIA|ARIA)_(?P<bits>128|256)_(?P<mode>CBC|GCM|CCM_8|CCM)(?:_(?P<hash>SHA\d*))?"
    r"|(?P<chacha>CHACHA20_POLY1305)_SHA256)"
)


def openssl_name(suite: str) -> str | None:
    """Return OpenSSL's name of a suite before TLS 1.3. None means that the name has an unknown form."""
    match = _SUITE.fullmatch(suite)
    if match is None:
        return None
    exchange = match["exchange"].replace("_", "-")
    if match["chacha"]:
        words = ["CHACHA20", "POLY1305"]
    else:
        mode = {"CBC": None, "GCM": "GCM", "CCM": "CCM", "CCM_8": "CCM8"}[match["mode"]]
        words = [word for word in (f"{match['cipher']}{match['bits']}", mode, match["hash"]) if word is not None]
        if match["cipher"] == "ARIA" and exchange == "ECDHE-RSA":
            exchange = "ECDHE"
    return "-".join(words if exchange == "RSA" else [exchange, *words])
