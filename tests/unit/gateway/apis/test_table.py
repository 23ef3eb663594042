"""The table of APIs that the gateway serves, and the modules of those that need more than to be forwarded unread."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from klamm.gateway import apis
from klamm.gateway.apis.table import APIS, POLICIES, RECORDED
from klamm.gateway.history.feature import recording_filters
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.gateway.relay.api import serve
from tests.support.gateway_context import FakePolicies
from tests.support.relay_rig import RelayRig, feature, request, shared_objects

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


FILTERS = {
    "policies": {api.key: api.filter(FakePolicies().as_policies(), ResourceTurns()) for api in POLICIES},
    "history": recording_filters(RECORDED),
}


@pytest.mark.parametrize(("name", "raised"), [("policies", {8: 2, 19: 2, 20: 1}), ("history", {19: 2, 20: 1})])
def test_versions_that_filters_cannot_decode_are_not_announced(name: str, raised: dict[int, int]) -> None:
    served = serve(APIS, [feature(filters=FILTERS[name])])
    assert {key: served[key].first_version for key in FILTERS[name] if served[key].first_version} == raised
    for key, each in FILTERS[name].items():
        if each.request is not None and each.claims is None:
            first, last = each.request.VERSIONS
            assert served[key].last_version <= last
            assert served[key].first_version >= first or served[key].api.announces_all


async def test_produce_that_a_policy_cannot_decode_is_announced_and_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in Kafka 4: older versions of librdkafka disable compression if v0 is not announced."""
    shared = shared_objects(feature(filters=FILTERS["policies"]))
    assert (shared.apis[0].first_version, shared.apis[0].last_version) == (0, 13)
    with RelayRig(shared) as rig:
        await rig.client.send(request(0, 2, bytes(10)))
        assert await rig.client.is_closed()
    assert "ProduceRequest v2 is not served, only v3-13" in caplog.text


def test_api_keys_and_messages_are_named_in_the_modules_of_the_apis_alone() -> None:
    root = Path(apis.__file__).parents[1]
    sources = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "apis"]
    named = re.compile(r"\bApiKey\.[A-Z]|klamm\.protocol\.messages")
    assert [str(path.relative_to(root)) for path in sources if named.search(path.read_text())] == []
    assert {"policies", "history", "client_configs"} <= {path.parent.name for path in sources}
