"""The table of APIs that the gateway serves, and the modules of those that need more than to be forwarded unread."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from klamm.gateway import apis
from klamm.gateway.apis.table import APIS
from klamm.gateway.relay.api import serve
from tests.support.relay_rig import feature

MODULES = sorted(path.stem for path in Path(apis.__file__).parent.glob("api_*.py"))
BY_KEY = {api.key: api for api in APIS}


def test_each_api_is_in_the_table_once() -> None:
    assert len(BY_KEY) == len(APIS)


@pytest.mark.parametrize("name", MODULES)
def test_module_has_the_key_of_its_name_and_is_in_the_table(name: str) -> None:
    module = import_module(f"klamm.gateway.apis.{name}")
    key = int(name.removeprefix("api_")[:3])
    assert module.API is BY_KEY[key]
    assert re.search(rf"\(key {key}\)", (module.__doc__ or "").splitlines()[0]), "the first line names the key"


def test_admin_only_leaves_out_produce_and_fetch() -> None:
    assert set(serve(APIS)) - set(serve(APIS, admin_only=True)) == {0, 1}


def test_delegation_tokens_are_left_out_when_logins_end_at_the_gateway() -> None:
    assert set(serve(APIS)) - set(serve(APIS, terminates=True)) == {38, 39, 40, 41}


def test_features_withhold_apis_and_limit_versions() -> None:
    served = serve(APIS, [feature(withheld=frozenset({88})), feature(last_versions={0: 12})])
    assert 88 not in served
    assert (served[0].first_version, served[0].last_version) == (0, 12)


def test_api_keys_and_messages_are_named_in_the_modules_of_the_apis_alone() -> None:
    root = Path(apis.__file__).parents[1]
    sources = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "apis"]
    named = re.compile(r"\bApiKey\.[A-Z]|klamm\.protocol\.messages")
    assert [str(path.relative_to(root)) for path in sources if named.search(path.read_text())] == []
    assert {"policies", "history", "client_configs"} <= {path.parent.name for path in sources}
