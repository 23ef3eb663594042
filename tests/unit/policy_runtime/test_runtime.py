"""Properties of policies change while they run: a rules file is loaded before the change is accepted."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.monitoring.exposition import Page
from klamm.page.policies import policies_document, policy_warnings
from klamm.policy.details import TopicDetails
from klamm.policy.errors import PolicyLoadError
from klamm.policy.kinds import CREATE_TOPIC
from klamm.policy_runtime import PolicyRuntime
from klamm.policy_runtime.guard import make_instance
from klamm.policy_runtime.metrics import report_decisions
from klamm.policy_runtime.service import Decided
from klamm.protocol.errors import PolicyViolationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

POLICY: Final = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy"}


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Write a rules file that requires a prefix; return the properties that name it."""

    def write(prefix: str) -> dict[str, str]:
        path = tmp_path / f"{prefix or 'malformed'}.yaml"
        rule = f'rules: [{{name: names, naming: "{prefix}-.*"}}]'
        path.write_text(rule if prefix else "rules: [")
        return {"policy.rules.file": str(path)}

    return write


async def is_allowed(runtime: PolicyRuntime, topic: str) -> bool:
    async with runtime.policies.turn(CREATE_TOPIC):
        try:
            await runtime.policies.check(CREATE_TOPIC, TopicDetails(topic, 1, 1, None, {}))
        except PolicyViolationError:
            return False
        return True


@asynccontextmanager
async def running(properties: dict[str, str]) -> AsyncIterator[PolicyRuntime]:
    runtime = await PolicyRuntime.load(properties)
    try:
        yield runtime
    finally:
        await runtime.stop()
        await runtime.policies.close()


async def test_checked_rules_file_applies_after_the_change(file: Callable[[str], dict[str, str]]) -> None:
    async with running({**POLICY, **file("a")}) as runtime:
        new = {**POLICY, **file("b")}
        # when
        await runtime.check(new, validate_only=False)
        # then
        assert await is_allowed(runtime, "a-1")
        assert not await is_allowed(runtime, "b-1")
        # when
        runtime.follow(new)
        await asyncio.sleep(0)
        # then
        assert runtime.properties == new
        assert not await is_allowed(runtime, "a-1")
        assert await is_allowed(runtime, "b-1")


async def test_invalid_rules_file_keeps_current_rules(file: Callable[[str], dict[str, str]]) -> None:
    async with running({**POLICY, **file("a")}) as runtime:
        with pytest.raises(PolicyLoadError):
            await runtime.check({**POLICY, **file("")}, validate_only=False)
        assert await is_allowed(runtime, "a-1")
        assert not await is_allowed(runtime, "b-1")


async def test_validate_only_check_keeps_current_rules(file: Callable[[str], dict[str, str]]) -> None:
    async with running({**POLICY, **file("a")}) as runtime:
        await runtime.check({**POLICY, **file("b")}, validate_only=True)
        runtime.follow({**runtime.properties, "create.topic.policy.mode": "audit"})
        assert await is_allowed(runtime, "b-1"), "audit only"
        runtime.follow({**runtime.properties, "create.topic.policy.mode": "enforce"})
        assert not await is_allowed(runtime, "b-1")


def rewrite(path: Path, text: str | None) -> None:
    """Replace the text of a file of the same length at the same time, or delete it."""
    if text is None:
        path.unlink()
        return
    status = path.stat()
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def rules_file(properties: dict[str, str]) -> tuple[Path, str]:
    path = Path(properties["policy.rules.file"])
    return path, path.read_text()


async def test_unchanged_path_set_again_reloads_the_file(file: Callable[[str], dict[str, str]]) -> None:
    properties = {**POLICY, **file("b"), "policy.reload.interval.ms": "0"}
    path, rules = rules_file(properties)
    async with running(properties) as runtime:
        rewrite(path, "rules: [")
        with pytest.raises(PolicyLoadError, match="no YAML"):
            await runtime.check(dict(properties), validate_only=False, loads_again=True)
        assert await is_allowed(runtime, "b-1")
        # and when
        rewrite(path, rules.replace("b-", "c-"))
        await runtime.check(properties, validate_only=False, loads_again=True)
        runtime.follow(properties)
        await asyncio.sleep(0)
        assert not await is_allowed(runtime, "b-1")
        assert await is_allowed(runtime, "c-1")


async def test_rules_of_a_rejected_change_are_not_used_later(file: Callable[[str], dict[str, str]]) -> None:
    properties = {**POLICY, **file("b"), "policy.reload.interval.ms": "0"}
    path, rules = rules_file(properties)
    async with running(properties) as runtime:
        # given: another guard rejects the change after the check
        await runtime.check(dict(properties), validate_only=False, loads_again=True)
        rewrite(path, rules.replace("b-", "c-"))
        await runtime.reloader.reload()
        # when: another config of the broker is changed
        runtime.follow(dict(properties), sets_rules=False)
        await asyncio.sleep(0)
        # then
        assert await is_allowed(runtime, "c-1")


async def test_failures_of_an_unused_policy_are_reported_as_zero(file: Callable[[str], dict[str, str]]) -> None:
    # given
    page = Page()
    async with running({**POLICY, **file("a"), "create.topic.policy.mode": "audit"}) as runtime:
        # when
        report_decisions(page, runtime.policies)
    # then
    lines = [line for line in page.text().splitlines() if line.startswith("klamm_policy_decisions_total{")]
    assert lines == [
        f'klamm_policy_decisions_total{{policy="create.topic",mode="audit",action="{action}"}} 0'
        for action in ("fail", "timeout")
    ]


async def test_counted_failures_replace_the_zero(file: Callable[[str], dict[str, str]]) -> None:
    # given
    page = Page()
    async with running({**POLICY, **file("a")}) as runtime:
        runtime.policies.decisions[Decided("create.topic", "enforce", "fail")] = 3
        # when
        report_decisions(page, runtime.policies)
    # then
    assert page.text().count('action="fail"') == 1
    assert 'mode="enforce",action="fail"} 3' in page.text()


@pytest.mark.parametrize("text", [None, "rules: ["])
async def test_failed_reload_is_reported_until_one_succeeds(
    file: Callable[[str], dict[str, str]], text: str | None
) -> None:
    properties = {**POLICY, **file("b"), "policy.reload.interval.ms": "10"}
    path, rules = rules_file(properties)

    async def reported(runtime: PolicyRuntime, *, failure: bool) -> str:
        while (runtime.policies.reload_failure is not None) != failure:  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.01)
        page = Page()
        report_decisions(page, runtime.policies)
        assert f"klamm_policy_last_reload_successful {int(not failure)}" in page.text()
        return "".join(policy_warnings(policies_document(runtime.policies)))

    async with running(properties) as runtime:
        runtime.start()
        rewrite(path, text)
        assert "not reloaded, the last valid ones stay in use: " in await reported(runtime, failure=True)
        assert await is_allowed(runtime, "b-1")
        await asyncio.to_thread(path.write_text, rules)
        assert await reported(runtime, failure=False) == ""


async def test_rolled_back_change_reloads_old_rules_file(
    file: Callable[[str], dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running({**POLICY, **file("a")}) as runtime:
        old, new = runtime.properties, {**POLICY, **file("b")}
        runtime.start()
        await runtime.check(new, validate_only=False)
        runtime.follow(new)
        runtime.follow(old)
        for _ in range(500):
            await asyncio.sleep(0.01)
            if caplog.text.count("Policies reloaded") == 2:  # with the new file, and with the old one again
                break
        assert await is_allowed(runtime, "a-1")


async def test_outdated_reload_does_not_undo_a_later_change(
    file: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running({**POLICY, **file("a")}) as runtime:
        old, new, gate, make = runtime.properties, {**POLICY, **file("b")}, asyncio.Event(), make_instance

        async def slow(spec: Any, properties: Any, **more: Any) -> Any:
            if properties is old:
                await gate.wait()
            return await make(spec, properties, **more)

        monkeypatch.setattr("klamm.policy_runtime.reloader.make_instance", slow)
        await runtime.check(new, validate_only=False)
        # when
        reloading = asyncio.create_task(runtime.reloader.reload())
        await asyncio.sleep(0)
        runtime.follow(new)
        gate.set()
        # then
        assert not await reloading
        assert await is_allowed(runtime, "b-1")
        assert not await is_allowed(runtime, "a-1")


VENDOR: Final = (
    "rules: [{{name: a, configs: {{message.downconversion.enable: {{{}}}, confluent.tier.ms: {{max: 1d}}}}}}]"
)
TYPES: Final = {"retention.ms": 5, "message.downconversion.enable": 1, "confluent.tier.ms": 5}


@pytest.mark.parametrize(
    ("rule", "types", "error"),
    [
        ("one_of: [false]", TYPES, None),
        ("max: 5", TYPES, "message.downconversion.enable.max: the config is no number but a BOOLEAN"),
        ("one_of: [perhaps]", TYPES, "Expected value to be either true or false"),
        ("one_of: [perhaps]", {**TYPES, "message.downconversion.enable": 0}, None),
        (
            "forbidden: true",
            {"confluent.tiers.ms": 5, "message.downconversion.enable": 1},
            "confluent.tier.ms: not a topic config of the upstream; did you mean confluent.tiers.ms?",
        ),
    ],
)
@pytest.mark.parametrize("is_reachable", [True, False])
async def test_gateway_rules_accept_upstream_configs(
    tmp_path: Path, rule: str, types: dict[str, int], error: str | None, is_reachable: bool
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(VENDOR.format(rule))
    properties = {
        **POLICY,
        "policy.rules.file": str(path),
        "upstream.bootstrap.servers": "upstream:9092",
        "policy.reload.interval.ms": "10",
    }
    has_checked = asyncio.Event()
    answers = [] if is_reachable else [None]

    async def describe() -> dict[str, int] | None:
        if answers:
            return answers.pop()
        asyncio.get_running_loop().call_soon(has_checked.set)
        return types

    async with running(properties) as runtime:
        with nullcontext() if error is None or not is_reachable else pytest.raises(PolicyLoadError, match=error):
            await runtime.follow_upstream(describe)
        if not is_reachable:
            runtime.start()
            await has_checked.wait()
            assert (error or "None") in str(runtime.policies.reload_failure)


async def test_rules_that_change_while_the_upstream_cannot_be_read_are_loaded_later(tmp_path: Path) -> None:
    # given
    path = tmp_path / "rules.yaml"
    path.write_text(VENDOR.format("forbidden: true"))
    properties = {
        **POLICY,
        "policy.rules.file": str(path),
        "upstream.bootstrap.servers": "upstream:9092",
        "policy.reload.interval.ms": "10",
    }
    answers, failures = [TYPES, None, None], list[str | None]()

    async with running(properties) as runtime:

        async def describe() -> dict[str, int] | None:
            failures.append(runtime.policies.reload_failure)
            return answers.pop(0) if answers else TYPES

        await runtime.follow_upstream(describe)
        runtime.start()
        # when
        path.write_text('rules: [{name: names, naming: "a-.*", configs: {confluent.tier.ms: {max: 2d}}}]')
        # then
        async with asyncio.timeout(60):
            while await is_allowed(runtime, "b-1"):  # noqa: ASYNC110 -- a reload has no event
                await asyncio.sleep(0.01)
        assert "cannot be read" in str(failures[2])
        assert runtime.policies.reload_failure is None


async def test_broker_rejects_rules_on_configs_unknown_to_kafka(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(VENDOR.format("forbidden: true"))
    with pytest.raises(PolicyLoadError, match=r"message\.downconversion\.enable: not a topic config"):
        await PolicyRuntime.load({**POLICY, "policy.rules.file": str(tmp_path / "rules.yaml")})


async def test_rules_file_without_a_policy_is_an_error(file: Callable[[str], dict[str, str]]) -> None:
    async with running({}) as runtime:
        with pytest.raises(
            PolicyLoadError, match=r"a\.yaml: no policy reads the file; set create\.topic\.policy\.class"
        ):
            await runtime.check(file("a"), validate_only=False)
    with pytest.raises(PolicyLoadError, match="no policy reads the file"):
        await PolicyRuntime.load(file("a"))
