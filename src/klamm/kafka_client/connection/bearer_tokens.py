"""Tokens of SASL/OAUTHBEARER (KIP-255, KIP-768). Imports kafka-python, so it is imported only at such a login."""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafka.net.sasl.oauth import AbstractTokenProvider

from klamm.hosts import proxies_to
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_CLAIM: Final = "unsecuredLoginStringClaim_"
_SUBJECT: Final = f"{_CLAIM}sub"
_UNSECURED_LIFETIME_S: Final = 3_600
_TIMEOUT_S: Final = 10.0


class BearerTokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Token provider in the form that kafka-python's mechanism requires.

    Args:
        options: Options of the login module and the ``sasl.oauthbearer.*`` properties.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__()
        self._options = options

    def token(self) -> str:
        """Return a token.

        - With ``sasl.oauthbearer.token.endpoint.url`` of a file: the contents of the file.
        - With another URL: a token from that server, by the grant type ``client_credentials`` with the login module's
          ``clientId``, ``clientSecret`` and ``scope``.
        - Without a URL: an unsecured token with the login module's ``unsecuredLoginStringClaim_sub``, for development.

        Raises:
            SettingsError: An option is missing.
            OSError: The file cannot be read, or the server does not issue a token.
        """
        endpoint = self._options.get(_ENDPOINT)
        if endpoint is None:
            return _unsecured(self._options)
        url = urllib.parse.urlsplit(endpoint)
        if url.scheme == "file":
            return Path(urllib.request.url2pathname(url.path)).read_text(encoding="ascii").strip()
        if url.scheme not in {"http", "https"}:
            raise SettingsError(f"{_ENDPOINT}={endpoint}: expected a URL of http, https or file")
        return _issued(endpoint, self._options)


def _issued(endpoint: str, options: Mapping[str, str]) -> str:
    """Return the access token that an authorization server issues (RFC 6749, section 4.4)."""
    if "clientId" not in options or "clientSecret" not in options:
        raise SettingsError('sasl.jaas.config: expected a login module with clientId="..." and clientSecret="..."')
    form = {"grant_type": "client_credentials"}
    if "scope" in options:
        form["scope"] = options["scope"]
    credentials = base64.b64encode(f"{options['clientId']}:{options['clientSecret']}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310  # the scheme was checked
        endpoint, data=urllib.parse.urlencode(form).encode(), headers={"Authorization": f"Basic {credentials}"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies_to(endpoint)))
    with opener.open(request, timeout=_TIMEOUT_S) as response:
        answer = json.load(response)
    if not isinstance(answer, dict) or not isinstance(answer.get("access_token"), str):
        raise OSError(f"{endpoint}: the response has no access_token")
    return str(answer["access_token"])


def _unsecured(options: Mapping[str, str]) -> str:
    """Return an unsigned JWT (RFC 7515, appendix A.5), which brokers accept only if they do not validate tokens."""
    if _SUBJECT not in options:
        raise SettingsError(f'{_ENDPOINT}: required unless sasl.jaas.config has {_SUBJECT}="..."')
    now = int(time.time())
    claims = {name.removeprefix(_CLAIM): value for name, value in options.items() if name.startswith(_CLAIM)}
    parts = ({"alg": "none"}, {**claims, "iat": now, "exp": now + _UNSECURED_LIFETIME_S})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."
