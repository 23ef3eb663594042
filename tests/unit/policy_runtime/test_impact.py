"""The impact of a change, which the server predicts if a policy reads it."""

from __future__ import annotations

import asyncio
import textwrap
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from klamm.impact.changes import TopicDeleted
from klamm.impact.findings import Finding, Impact, ImpactLevel
from klamm.policy.kinds import ALTER_CONFIG, DELETE_TOPIC, PolicyMode
from klamm.policy.testing import a_config_change, a_deletion
from klamm.policy_runtime import Policies
from klamm.policy_runtime.service import Decided
from klamm.protocol.errors import KafkaApiError, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from klamm.impact.changes import Change
    from klamm.policy.details import Details
    from klamm.policy.kinds import PolicyKind
    from klamm.policy_runtime.service import PredictImpact

SOURCE = """
    from klamm.policy import Override, Policy, PolicyViolationError

    class Careful(Policy):
        only_computes = {only_computes}
        calls = 0

        def validate_delete_topic(self, details):
            type(self).calls += 1
            if details.topic.startswith("harmless"):
                return
            if details.topic.startswith("catching"):
                try:
                    details.impact
                except Exception as error:
                    raise PolicyViolationError(f"caught: {{error}}")
            if details.impact.deleted_bytes > 10:
                raise PolicyViolationError(f"{{details.topic}}: {{details.impact.findings[0].message}}")

        def validate_alter_config(self, details):
            if details.result.get("retention.ms") == "1":
                return Override(configs={{"retention.ms": "2"}}, reason="two")
            if details.impact.deleted_bytes:
                raise PolicyViolationError(f"{{details.result['retention.ms']}} deletes")
"""
LOSS = Finding(
    kind="records_deleted",
    level=ImpactLevel.LOSS,
    resource="topic orders",
    message="20 bytes go.",
    figures={"deleted_bytes": 20},
)


@pytest.fixture(params=[True, False], ids=["at once", "on its thread"])
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"careful_{request.param}_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE.format(only_computes=request.param)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@asynccontextmanager
async def serving(module: str, **properties: str) -> AsyncIterator[Policies]:
    named = {f"{kind.stem}.policy.class.name": f"{module}:Careful" for kind in (DELETE_TOPIC, ALTER_CONFIG)}
    policies = await Policies.load({**named, **{k.replace("_", "."): v for k, v in properties.items()}})
    try:
        yield policies
    finally:
        await policies.close()


async def verdict(policies: Policies, details: Details, kind: PolicyKind = DELETE_TOPIC) -> str:
    async with policies.turn(kind):
        try:
            override = await policies.check(kind, details)
        except KafkaApiError as error:
            return f"{error.error_code.name}: {error.error_message}"
    return "allowed" if override is None else override.reason


def predicting(impact: Impact, calls: list[Sequence[Change]] | None = None) -> PredictImpact:
    async def predict(changes: Sequence[Change], timeout_s: float) -> Impact:
        assert 0 < timeout_s < 2
        await asyncio.sleep(0)
        if calls is not None:
            calls.append(changes)
        return impact

    return predict


def failing(error: Exception) -> PredictImpact:
    async def predict(changes: Sequence[Change], timeout_s: float) -> Impact:
        raise error

    return predict


async def test_policy_reads_the_impact_of_the_change(module: str) -> None:
    calls: list[Sequence[Change]] = []
    async with serving(module) as policies:
        policies.predict_impact = predicting(Impact(findings=(LOSS,)), calls)
        assert await verdict(policies, a_deletion("orders")) == "POLICY_VIOLATION: orders: 20 bytes go."
        policies.predict_impact = predicting(Impact(), calls)
        assert await verdict(policies, a_deletion("orders")) == "allowed"
        assert calls == [(TopicDeleted(topic="orders"),)] * 2
        assert policies.decisions == {
            Decided("delete.topic", "enforce", "deny"): 1,
            Decided("delete.topic", "enforce", "allow"): 1,
        }


async def test_unread_impact_is_not_predicted(module: str) -> None:
    async with serving(module) as policies:
        policies.predict_impact = failing(AssertionError("predicted"))
        assert await verdict(policies, a_deletion("harmless")) == "allowed"
        assert __import__(module).Careful.calls == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError("log sizes"), "log sizes could not be read within 1500 ms (policy.timeout.ms)"),
        (StorageError("Cannot read orders-0"), "Cannot read orders-0"),
    ],
)
async def test_failed_prediction_denies_the_change(module: str, error: Exception, text: str) -> None:
    async with serving(module, policy_timeout_ms="1500") as policies:
        policies.predict_impact = failing(error)
        assert await verdict(policies, a_deletion("orders")) == f"POLICY_VIOLATION: {text}"
        assert (await verdict(policies, a_deletion("catching"))).startswith("POLICY_VIOLATION: caught:")


async def test_late_prediction_denies_the_change(module: str) -> None:
    async def endless(changes: Sequence[Change], timeout_s: float) -> Impact:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(module, policy_timeout_ms="1500") as policies:
        policies.predict_impact = endless
        limit = "within 1500 ms (policy.timeout.ms)"
        assert await verdict(policies, a_deletion("a")) == f"POLICY_VIOLATION: the facts could not be read {limit}"
        policies.predict_impact = predicting(Impact())
        assert await verdict(policies, a_deletion("b")) == "allowed"


async def test_other_changes_are_checked_during_a_prediction(module: str) -> None:
    async with serving(module) as policies:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(changes: Sequence[Change], timeout_s: float) -> Impact:
            begun.set()
            await goes_on.wait()
            return Impact()

        policies.predict_impact = slow
        waiting = asyncio.create_task(policies.check(DELETE_TOPIC, a_deletion("orders")))
        await begun.wait()
        assert await policies.check(DELETE_TOPIC, a_deletion("harmless")) is None
        assert not waiting.done()
        goes_on.set()
        assert await waiting is None


async def test_server_without_facts_denies_the_change(module: str) -> None:
    async with serving(module) as policies:
        text = "this server collects no facts for policies"
        assert await verdict(policies, a_deletion("orders")) == f"POLICY_VIOLATION: {text}"


async def test_impact_of_an_override_is_that_of_its_result(module: str) -> None:
    calls: list[Sequence[Change]] = []
    async with serving(module, alter_config_policy_mode="audit") as policies:
        policies.predict_impact = predicting(Impact(findings=(LOSS,)), calls)
        assert policies.mode(ALTER_CONFIG) is PolicyMode.AUDIT
        change = a_config_change(sets={"retention.ms": "1"})
        assert await verdict(policies, change, ALTER_CONFIG) == "allowed"
        assert policies.latest_audited[-1].reason == "2 deletes"
        assert [change.value for changes in calls for change in changes] == ["2"]  # type: ignore[union-attr]
