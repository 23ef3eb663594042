"""TLS contexts from Kafka's ``ssl.*`` settings, for broker listeners and for clients.

Stores are JKS, PKCS12 or PEM (KIP-651), in files or, as PEM, in the settings themselves. Settings have the meaning of
Kafka's ``DefaultSslEngineFactory``. A setting without support is rejected by name. No message contains a secret.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.properties import SettingsError, parse_list
from klamm.security.stores import (
    KINDS,
    KeyPasswordError,
    StoreContents,
    StoreError,
    StorePasswordError,
    pem,
    read_store,
)
from klamm.small_file import read_small_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Setting = Callable[[str], str | None]
    """Returns the value of a setting like ``ssl.keystore.type``, None when it is not set."""

SINCE_TLS_1_3: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
"""Suites of TLS 1.3. Their names say nothing about keys and are the same in Java and OpenSSL."""
SIGNALLING: Final = frozenset({"TLS_EMPTY_RENEGOTIATION_INFO_SCSV"})
"""Signalling value that Java lists among the suites. OpenSSL applies it by default."""
_SUITE: Final = re.compile(
    r"(?:TLS|SSL)_(?P<exchange>RSA|(?:ECDHE|DHE|ECDH|DH)_(?:RSA|ECDSA|DSS))_WITH_"
    r"(?:(?P<cipher>AES|CAMELLIA|ARIA)_(?P<bits>128|256)_(?P<mode>CBC|GCM|CCM_8|CCM)(?:_(?P<hash>SHA\d*))?"
    r"|(?P<chacha>CHACHA20_POLY1305)_SHA256)"
)
PEM: Final = "PEM"
DEFAULT_KIND: Final = "JKS"
DEFAULT_VERSIONS: Final = "TLSv1.2,TLSv1.3"
_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CERTIFICATE: Final = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*+)-----END")
"""Certificate with any of the labels that OpenSSL accepts for the one that belongs to a key."""
_PEM_ENTRY: Final = re.compile(r"(?<!-)-++BEGIN\s(?P<label>[^-]++)-++\s(?P<body>[^-]*+)-++END\s[^-]++-++(?=\s|\Z)")
"""Entry of a PEM text. Nothing in it backtracks: the text comes from a request, and a search holds up all threads."""
_NOT_IN_LINES: Final = re.compile(r"^[ \t]|-BEGIN[^-]+-+[ \t]*[^-\s]", re.MULTILINE)
_PROTOCOLS: Final = ("TLS", *_VERSIONS)


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


def client_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Raises:
        SettingsError: A setting is missing, has the wrong format, or its file cannot be read.
    """
    context, has_trusted = _client_context(properties)
    if not has_trusted:
        context.load_default_certs()
    return context


def check_client(properties: Mapping[str, str]) -> None:
    """Check the TLS settings of a client, without the 40 ms in which OpenSSL loads the system's trusted certificates.

    Raises:
        SettingsError: A setting is missing, has the wrong format, or its file cannot be read.
    """
    _client_context(properties)


def _client_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, bool]:
    """Return a context, and whether the settings name certificates to trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https").strip() != ""
    restrict(context, properties.get)
    has_trusted = bool(load_trusted(context, properties.get))
    load_own(context, properties.get)
    return context, has_trusted


def restrict(context: ssl.SSLContext, setting: Setting) -> None:
    """Restrict the protocol versions and cipher suites to the configured ones.

    Raises:
        SettingsError: A name is unknown, or the names cannot be combined.
    """
    protocol = (setting("ssl.protocol") or "TLSv1.3").strip()
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"ssl.protocol={protocol}: expected one of {', '.join(_PROTOCOLS)}")
    _set_versions(context, setting("ssl.enabled.protocols"))
    text = setting("ssl.cipher.suites") or ""
    suites = [suite for suite in (part.strip() for part in text.split(",")) if suite and suite not in SIGNALLING]
    if suites:
        _set_ciphers(context, suites)


def load_own(context: ssl.SSLContext, setting: Setting) -> bytes | None:
    """Load our own key and certificates. Return our certificate in DER, None if the settings name none.

    Raises:
        SettingsError: Key or certificates cannot be used.
    """
    location, kind = _location(setting, "ssl.keystore"), _kind(setting, "ssl.keystore")
    key, chain = setting("ssl.keystore.key"), setting("ssl.keystore.certificate.chain")
    if key or chain:
        _need_pem("ssl.keystore.key", kind, location)
        if not (key and chain):
            raise SettingsError("ssl.keystore.key and ssl.keystore.certificate.chain: set both or none of them")
        _load_text(context, _in_lines(f"{key}\n{chain}"), setting, where="ssl.keystore.key")
        return _first_certificate(chain)
    if location is None:
        return None
    if kind == PEM:
        where = f"ssl.keystore.location={location}"
        text = _read_pem(location, where)
        if _NOT_IN_LINES.search(text):
            _load_text(context, _in_lines(text), setting, where=where)
        else:
            _load_chain(context, location, setting, where=where)
        return _first_certificate(text)
    return _load_store(context, setting, location, kind)


def _load_store(context: ssl.SSLContext, setting: Setting, location: str, kind: str) -> bytes:
    if setting("ssl.keystore.password") is None:
        raise SettingsError(f"ssl.keystore.location={location}: a {kind} store needs ssl.keystore.password")
    store = _open(setting, "ssl.keystore", location, wants_key=True)
    if store.key is None or not store.chain:
        raise SettingsError(
            f"ssl.keystore.location={location}: the store holds no private key"
            " (keytool -list shows a PrivateKeyEntry where there is one)"
        )
    text = pem("PRIVATE KEY", store.key) + "".join(pem("CERTIFICATE", each) for each in store.chain)
    _load_text(context, text, setting, where=f"ssl.keystore.location={location}")
    return store.chain[0]


def load_trusted(context: ssl.SSLContext, setting: Setting) -> bool:
    """Load the trusted certificates. Return whether the settings name any.

    Raises:
        SettingsError: The certificates cannot be used.
    """
    location, kind = _location(setting, "ssl.truststore"), _kind(setting, "ssl.truststore")
    certificates = setting("ssl.truststore.certificates")
    if certificates:
        _need_pem("ssl.truststore.certificates", kind, location)
        where = "ssl.truststore.certificates"
    elif location is None:
        return False
    else:
        where = f"ssl.truststore.location={location}"
    try:
        if certificates:
            context.load_verify_locations(cadata=_in_lines(certificates))
        elif location is not None and kind == PEM:
            text = _read_pem(location, where)
            if _NOT_IN_LINES.search(text):
                context.load_verify_locations(cadata=_in_lines(text))
            else:
                context.load_verify_locations(cafile=location)
        elif location is not None:
            trusted = _open(setting, "ssl.truststore", location, wants_key=False).trusted
            if not trusted:
                raise SettingsError(f"{where}: the store holds no certificates (keytool -importcert adds one)")
            context.load_verify_locations(cadata=b"".join(trusted))
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{where}: cannot be read: {_why(error)}") from None
    # Every certificate in the store is trusted, as in Java. By default OpenSSL requires a chain up to a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return True


def _set_versions(context: ssl.SSLContext, text: str | None) -> None:
    names = parse_list(text or DEFAULT_VERSIONS)
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown or not names:
        raise SettingsError(f"ssl.enabled.protocols={text}: expected some of {', '.join(_VERSIONS)}")
    versions = sorted(_VERSIONS[name] for name in names)
    left_out = [name for name, at in _VERSIONS.items() if versions[0] < at < versions[-1] and at not in versions]
    if left_out:
        raise SettingsError(f"ssl.enabled.protocols={text}: OpenSSL cannot leave out {', '.join(left_out)} in between")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _set_ciphers(context: ssl.SSLContext, suites: Sequence[str]) -> None:
    """Map suite names to OpenSSL's. If all belong to one TLS version, the other version is disabled, as in Java."""
    newer = [suite for suite in suites if suite in SINCE_TLS_1_3]
    older = {suite: openssl_name(suite) for suite in suites if suite not in SINCE_TLS_1_3}
    context.set_ciphers("ALL")
    there = {str(cipher["name"]) for cipher in context.get_ciphers()}
    unknown = [suite for suite, name in older.items() if name not in there]
    if unknown:
        raise SettingsError(
            f"ssl.cipher.suites: {', '.join(unknown)}: expected Java's names of suites that this OpenSSL offers, like"
            " TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 or TLS_AES_256_GCM_SHA384"
        )
    if newer and len(set(newer)) < len(SINCE_TLS_1_3):
        raise SettingsError(
            f"ssl.cipher.suites: {', '.join(newer)}: Python cannot choose among the suites of TLS 1.3; name all of"
            f" {', '.join(SINCE_TLS_1_3)}, or none and TLS 1.3 is off"
        )
    if not newer:
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
    if not older:
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_3)
    if context.minimum_version > context.maximum_version:
        raise SettingsError("ssl.cipher.suites: none of them belongs to a version in ssl.enabled.protocols")
    context.set_ciphers(":".join(name for name in older.values() if name) or "DEFAULT")


def _location(setting: Setting, store: str) -> str | None:
    return (setting(f"{store}.location") or "").strip() or None


def _kind(setting: Setting, store: str) -> str:
    kind = (setting(f"{store}.type") or DEFAULT_KIND).strip().upper()
    if kind not in (PEM, *KINDS):
        raise SettingsError(f"{store}.type={kind}: expected one of {', '.join((*KINDS, PEM))}")
    return kind


def _need_pem(name: str, kind: str, location: str | None) -> None:
    store = name.rpartition(".")[0]
    if kind != PEM:
        raise SettingsError(f"{name} can be set for PEM only, but {store}.type is {kind}")
    if location is not None:
        raise SettingsError(f"{name} and {store}.location={location}: set one or the other")


def _open(setting: Setting, store: str, location: str, *, wants_key: bool) -> StoreContents:
    where = f"{store}.location={location}"
    try:
        return read_store(
            read_small_file(location),
            password=setting(f"{store}.password"),
            key_password=setting("ssl.key.password") if wants_key else None,
            wants_key=wants_key,
        )
    except StorePasswordError as error:
        raise SettingsError(f"{where}: the store cannot be opened by {store}.password: {error}") from None
    except KeyPasswordError as error:
        raise SettingsError(
            f"{where}: the key cannot be opened by ssl.key.password (without one: ssl.keystore.password): {error}"
        ) from None
    except StoreError as error:
        raise SettingsError(f"{where}: {error}") from None
    except Exception as error:  # noqa: BLE001 -- not only OSError: cryptography has errors of its own for unsupported keys
        raise SettingsError(f"{where}: cannot be read: {_why(error)}") from None


def _load_text(context: ssl.SSLContext, text: str, setting: Setting, *, where: str) -> None:
    try:
        with _as_file(text) as path:
            _load_chain(context, path, setting, where=where)
    except OSError as error:
        raise SettingsError(f"{where}: cannot be written to a temporary file for OpenSSL: {_why(error)}") from None


def _load_chain(context: ssl.SSLContext, path: str, setting: Setting, *, where: str) -> None:
    password = setting("ssl.key.password") or setting("ssl.keystore.password") or ""
    try:
        # A missing password is an error. Without this callback OpenSSL would prompt on the terminal.
        context.load_cert_chain(path, password=lambda: password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{where}: cannot be read as key and certificates: {_why(error)}") from None


def _read_pem(location: str, where: str) -> str:
    try:
        return read_small_file(location).decode(errors="replace")
    except OSError as error:
        raise SettingsError(f"{where}: cannot be read: {_why(error)}") from None


def _in_lines(text: str) -> str:
    """Return PEM with the lines that OpenSSL needs. Kafka also reads indented lines, and blanks in place of line ends.

    The result is ASCII, as OpenSSL requires. Text without a complete entry is otherwise returned unchanged.
    """

    def entry(match: re.Match[str]) -> str:
        label, lines = " ".join(match["label"].split()), match["body"].splitlines()
        headers = [line.strip() for line in lines if ":" in line]
        content = "".join("".join(line.split()) for line in lines if ":" not in line)
        wrapped = [content[at : at + 64] for at in range(0, len(content), 64)]
        head = [*headers, ""] if headers else []
        return "\n".join((f"-----BEGIN {label}-----", *head, *wrapped, f"-----END {label}-----", ""))

    lines = "".join(map(entry, _PEM_ENTRY.finditer(text))) or text
    return lines.encode("ascii", "replace").decode()


def _first_certificate(text: str) -> bytes:
    match = _CERTIFICATE.search(_in_lines(text))
    return ssl.PEM_cert_to_DER_cert(f"{ssl.PEM_HEADER}{match[1]}{ssl.PEM_FOOTER}") if match else b""


def _why(error: Exception) -> str:
    words = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
    return str(words)


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Provide a key as a file for a moment, readable by this user only. OpenSSL reads keys from files only."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
