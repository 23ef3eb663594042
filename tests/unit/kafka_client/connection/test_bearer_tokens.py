"""Tokens of SASL/OAUTHBEARER from an authorization server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.connection.bearer_tokens import BearerTokenProvider
from tests.support.page_behind_proxy import page_behind_proxy

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("url_of", "target"),
    [
        (lambda address: f"http://{address}/token", "/token"),
        (lambda _: "http://login.example/token", "http://login.example/token"),
    ],
    ids=["this machine", "elsewhere"],
)
def test_only_a_server_elsewhere_is_asked_through_the_proxy_of_the_environment(
    url_of: Callable[[str], str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with page_behind_proxy(monkeypatch, b'{"access_token": "abc"}') as (address, targets):
        options = {"sasl.oauthbearer.token.endpoint.url": url_of(address), "clientId": "me", "clientSecret": "hush"}
        assert BearerTokenProvider(options).token() == "abc"
    assert targets == [target]
