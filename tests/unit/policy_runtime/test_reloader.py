"""Policies that change at run time."""

from __future__ import annotations

import asyncio
import textwrap
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from klamm.policy import PolicyLoadError, PolicyViolationError, TopicDetails
from klamm.policy.kinds import CREATE_TOPIC
from klamm.policy_runtime import Policies
from klamm.policy_runtime.reloader import PolicyReloader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

VERSION = """
    from klamm.policy import PolicyViolationError

    CLOSED = []

    class Rules:
        watched_files = ({watched!r},)

        def validate(self, details):
            raise PolicyViolationError("version {version}")

        def close(self):
            CLOSED.append("{version}")
"""


class ReloadedPolicy:
    def __init__(self, directory: Path, interval_ms: int) -> None:
        self.name = f"rules_{uuid4().hex}"
        self.path = directory / f"{self.name}.py"
        self.watched = directory / "rules.yaml"
        self.properties = {
            "create.topic.policy.class.name": f"{self.name}:Rules",
            "policy.reload.interval.ms": str(interval_ms),
        }

    def write(self, version: str, more: str = "") -> None:
        text = VERSION.format(version=version, watched=str(self.watched))
        self.path.write_text(textwrap.dedent(text) + more)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[Policies, PolicyReloader]]:
        policies = await Policies.load(self.properties)
        reloader = PolicyReloader(policies, self.properties)
        reloader.start()
        try:
            yield policies, reloader
        finally:
            await reloader.stop()
            await policies.close()


@pytest.fixture
def rules_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReloadedPolicy:
    monkeypatch.syspath_prepend(str(tmp_path))
    rules_policy = ReloadedPolicy(tmp_path, 20)
    rules_policy.write("1")
    return rules_policy


async def version(policies: Policies) -> str:
    async with policies.turn(CREATE_TOPIC):
        with pytest.raises(PolicyViolationError) as denied:
            await policies.check(CREATE_TOPIC, TopicDetails("t", 1, 1, None, {}))
    return str(denied.value.error_message)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.01)


async def eventually(policies: Policies, expected: str) -> None:
    for _ in range(1000):
        if await version(policies) == expected:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"never {expected}")


async def test_changed_module_replaces_policy_and_closes_old_instance(rules_policy: ReloadedPolicy) -> None:
    async with rules_policy.serving() as (policies, _):
        closed: list[Any] = __import__(rules_policy.name).CLOSED
        rules_policy.write("2")
        await eventually(policies, "version 2")
        await until(lambda: closed == ["1"])


@pytest.mark.parametrize("more", ["\nraise RuntimeError('half-way')", "\nthis is no Python", "\ndel Rules"])
async def test_broken_module_keeps_last_good_policy(
    rules_policy: ReloadedPolicy, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rules_policy.serving() as (policies, _):
        rules_policy.write("2", more)
        async with asyncio.timeout(60):
            while "last good ones" not in caplog.text:
                assert await version(policies) == "version 1"
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert caplog.text.count("last good ones") == 1, "it is tried again only when the file changes again"
        assert await version(policies) == "version 1"
        rules_policy.write("3")
        await eventually(policies, "version 3")


async def test_unexpected_error_does_not_end_the_watch(
    rules_policy: ReloadedPolicy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rules_policy.serving() as (policies, reloader):
        prepare = reloader.prepare

        async def fail(_: object) -> Any:
            monkeypatch.setattr(reloader, "prepare", prepare)
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(reloader, "prepare", fail)
        reloader.ask()
        await until(lambda: policies.reload_failure == "ZeroDivisionError: odd")
        assert await version(policies) == "version 1"
        rules_policy.write("2")
        await eventually(policies, "version 2")
        await until(lambda: policies.reload_failure is None)
    assert "the last good ones keep serving" in caplog.text


async def test_files_named_by_policy_are_watched(rules_policy: ReloadedPolicy) -> None:
    async with rules_policy.serving():
        before = __import__(rules_policy.name)
        rules_policy.watched.write_text("new")
        await until(lambda: __import__(rules_policy.name) is not before)


async def test_reload_on_demand_works_without_watching(rules_policy: ReloadedPolicy) -> None:
    rules_policy.properties["policy.reload.interval.ms"] = "0"
    async with rules_policy.serving() as (policies, reloader):
        rules_policy.write("2")
        await asyncio.sleep(0.05)
        assert await version(policies) == "version 1"
        reloader.ask()
        await eventually(policies, "version 2")


async def test_policy_call_finishes_before_instance_is_replaced(rules_policy: ReloadedPolicy) -> None:
    rules_policy.path.write_text(
        textwrap.dedent("""
            import time

            CLOSED = []

            class Rules:
                busy = False
                def validate(self, details):
                    self.busy = True
                    time.sleep(0.05)
                    self.busy = False
                def close(self):
                    CLOSED.append(self.busy)
        """)
    )
    async with rules_policy.serving() as (policies, reloader):
        closed: list[Any] = __import__(rules_policy.name).CLOSED

        async def ask() -> None:
            async with policies.turn(CREATE_TOPIC):
                await policies.check(CREATE_TOPIC, TopicDetails("t", 1, 1, None, {}))

        _, reloaded = await asyncio.gather(ask(), reloader.reload())
        assert reloaded
        await until(lambda: bool(closed))
        assert closed == [False]


async def test_invalid_reload_interval_is_rejected() -> None:
    with pytest.raises(PolicyLoadError, match=r"Invalid value often for configuration policy\.reload\.interval\.ms"):
        PolicyReloader(Policies(), {"policy.reload.interval.ms": "often"})


async def test_imported_module_is_watched_and_broken_one_keeps_policy(
    rules_policy: ReloadedPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    limits = rules_policy.path.with_name(f"{rules_policy.name}_limits.py")
    limits.write_text('VERSION = "1"\n')
    rules_policy.write("{limit}", "")
    text = rules_policy.path.read_text().replace('"version {limit}"', '"version " + VERSION')
    rules_policy.path.write_text(f"from {rules_policy.name}_limits import VERSION\n" + text)
    async with rules_policy.serving() as (policies, _):
        assert await version(policies) == "version 1"
        limits.write_text("this is no Python\n")
        await until(lambda: "last good ones" in caplog.text)
        assert await version(policies) == "version 1"
        limits.write_text('VERSION = "of its neighbour"\n')
        await eventually(policies, "version of its neighbour")


async def test_only_computes_is_read_from_every_policy_version(rules_policy: ReloadedPolicy) -> None:
    rules_policy.properties["policy.reload.interval.ms"] = "0"
    async with rules_policy.serving() as (policies, reloader):

        async def thread() -> str:
            with pytest.raises(PolicyViolationError) as denied:
                await policies.check(CREATE_TOPIC, TopicDetails("t", 1, 1, None, {}))
            return str(denied.value.error_message)

        for only_computes, expected in ((False, "klamm-policy-Rules"), (True, threading.current_thread().name)):
            rules_policy.path.write_text(
                textwrap.dedent(f"""
                    import threading
                    from klamm.policy import PolicyViolationError

                    class Rules:
                        only_computes = {only_computes}
                        def validate(self, details):
                            raise PolicyViolationError(threading.current_thread().name)
                """)
            )
            assert await reloader.reload()
            assert await thread() == expected
