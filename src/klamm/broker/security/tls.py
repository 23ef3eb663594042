"""TLS of a listener from Kafka's ``ssl.*`` settings; key and trust stores are PEM (KIP-651)."""

from __future__ import annotations

import os
import ssl
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.broker.security.listeners import Listener, SecurityProtocol, setting_of
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_HOW_TO_CONVERT: Final = {
    "JKS": "keytool -importkeystore -srckeystore STORE.jks -destkeystore STORE.p12 -deststoretype PKCS12, then"
    " openssl pkcs12 -in STORE.p12 -out STORE.pem",
    "PKCS12": "openssl pkcs12 -in STORE.p12 -out STORE.pem",
}


def server_context(listener: Listener, configs: Mapping[str, str]) -> ssl.SSLContext:
    """Return what a listener's connections are encrypted by.

    Raises:
        SettingsError: Something is missing, of another format, or cannot be read; never shows a key or a password.
    """

    def setting(name: str) -> str | None:
        return setting_of(configs, listener.name, name)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_versions(context, setting("ssl.enabled.protocols"))
    if setting("ssl.cipher.suites"):
        raise SettingsError("ssl.cipher.suites is not served: leave it out, and OpenSSL's own list applies")
    _require_pem("ssl.keystore.type", setting("ssl.keystore.type"))
    chain, key, location = (
        setting("ssl.keystore.certificate.chain"), setting("ssl.keystore.key"), setting("ssl.keystore.location"),
    )  # fmt: skip
    try:
        if chain and key:
            with _as_file(f"{key}\n{chain}\n") as path:
                context.load_cert_chain(path, password=setting("ssl.key.password") or "")
        elif location:
            context.load_cert_chain(location, password=setting("ssl.key.password") or "")
        else:
            raise SettingsError(
                f"Listener {listener.name} needs ssl.keystore.location, or ssl.keystore.certificate.chain and"
                " ssl.keystore.key"
            )
    except (OSError, ssl.SSLError) as error:
        where = location or "ssl.keystore.key"
        raise SettingsError(
            f"The key store of listener {listener.name} ({where}) cannot be used: {_why(error)}"
        ) from None
    _set_client_auth(context, listener, configs)
    return context


def _set_versions(context: ssl.SSLContext, text: str | None) -> None:
    names = [name.strip() for name in (text or "TLSv1.2,TLSv1.3").split(",") if name.strip()]
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown or not names:
        raise SettingsError(f"ssl.enabled.protocols={text}: expected some of {', '.join(_VERSIONS)}")
    versions = sorted(_VERSIONS[name] for name in names)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]


def _set_client_auth(context: ssl.SSLContext, listener: Listener, configs: Mapping[str, str]) -> None:
    """Ask for certificates of clients; with SASL only when the listener itself says so, as in Kafka."""
    if listener.protocol is SecurityProtocol.SASL_SSL:
        asked = configs.get(f"listener.name.{listener.name.lower()}.ssl.client.auth")
    else:
        asked = setting_of(configs, listener.name, "ssl.client.auth")
    try:
        context.verify_mode = _CLIENT_AUTH[(asked or "none").strip().lower()]
    except KeyError:
        raise SettingsError(f"ssl.client.auth={asked}: expected one of {', '.join(_CLIENT_AUTH)}") from None
    if context.verify_mode is ssl.CERT_NONE:
        return
    location = setting_of(configs, listener.name, "ssl.truststore.location")
    certificates = setting_of(configs, listener.name, "ssl.truststore.certificates")
    if location or certificates:
        _require_pem("ssl.truststore.type", setting_of(configs, listener.name, "ssl.truststore.type"))
    try:
        if certificates:
            context.load_verify_locations(cadata=certificates)
        elif location:
            context.load_verify_locations(cafile=location)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"The trust store of listener {listener.name} cannot be used: {_why(error)}") from None


def _require_pem(name: str, kind: str | None) -> None:
    kind = (kind or "JKS").strip().upper()
    if kind != "PEM":
        how = _HOW_TO_CONVERT.get(kind)
        raise SettingsError(
            f"{name}={kind} is not served, only PEM is"
            + (f"; convert the store by {how} and set {name}=PEM" if how else "")
        )


def _why(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL reads keys from files only: give it one that nobody else can read, for a moment."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()
