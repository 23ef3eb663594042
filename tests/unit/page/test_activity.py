"""Requests, denials and waiting time of a server: their samples, the sum of several processes, and their plots."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.page.activity import ActivitySampler, activity_plots, merged_activity
from klamm.page.plot import SAMPLE_EVERY_S, Samples
from klamm.policy_runtime.service import Decided


def policies(*decided: tuple[str, str, int]) -> Any:
    """Return policies with these numbers of decisions, each by mode and action."""
    counts = Counter({Decided("create.topic", mode, action): count for mode, action, count in decided})
    return SimpleNamespace(guards=(object(),), decisions=counts)


def captions(html: str) -> list[str]:
    return re.findall("<figcaption[^>]*>(.*?)</figcaption>", html)


def test_denials_of_audit_mode_and_other_actions_are_not_counted() -> None:
    # given
    decided = policies(("enforce", "allow", 3), ("audit", "deny", 5), ("enforce", "override", 7))
    sampler = ActivitySampler(lambda: 100, lambda: [decided])
    sampler.add(1000.0, took_s=5.0, delay_s=0.001)
    # when
    decided.decisions += policies(("enforce", "deny", 1), ("enforce", "fail", 2), ("enforce", "timeout", 4)).decisions
    sampler.add(1005.0, took_s=5.0, delay_s=0.25)
    # then
    assert [sample.values for sample in sampler.samples] == [(20.0, 0, 1.0), (0.0, 7, 250.0)]
    assert captions(activity_plots(sampler.samples, until_s=1005.0)) == [
        "Requests/s: 0, highest of 15 min 20",
        "Denials in 5 s: 7, highest of 15 min 7",
        "Waiting time: 250 ms, highest of 15 min 250 ms",
    ]


def test_server_without_policies_has_no_plot_of_denials() -> None:
    sampler = ActivitySampler(lambda: 1, lambda: [SimpleNamespace(guards=(), decisions=Counter())])  # type: ignore[list-item]
    for at_s in (1000.0, 1005.0):
        sampler.add(at_s, took_s=5.0, delay_s=0.0)
    titles = [caption.partition(":")[0] for caption in captions(activity_plots(sampler.samples, until_s=1005.0))]
    assert titles == ["Requests/s", "Waiting time"]


def test_samples_of_processes_are_added_by_time() -> None:
    # given
    first = [(1000.0, (10.0, None, 1.0)), (1005.0, (20.0, 1, 3.0))]
    other = json.loads(json.dumps([(1000.1, (1.0, None, 2.0)), (1004.9, (2.0, 4, 1.0)), (1010.0, (5.0, 0, 7.0))]))
    # when
    merged = merged_activity([first, other])
    # then
    assert [sample.values for sample in merged] == [(11.0, None, 2.0), (22.0, 5, 3.0), (5.0, 0, 7.0)]


async def test_blocked_event_loop_is_a_waiting_time() -> None:
    # given
    # when
    counts, is_sampled = iter([0, 10]), asyncio.Event()

    def requests() -> int:
        count = next(counts)
        if count:
            is_sampled.set()
        return count

    sampler = ActivitySampler(requests, lambda: (), every_s=0.05)
    task = asyncio.create_task(sampler.keep_sampling())
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251  # the event loop is blocked on purpose
    await is_sampled.wait()
    task.cancel()
    sample, *_ = sampler.samples
    # then
    rate, _, delay_ms = sample.values
    assert delay_ms is not None
    assert delay_ms > 100
    assert rate is not None
    assert 0 < rate < 10 / 0.05
    assert sample.at_s % 0.05 == pytest.approx(0, abs=1e-3) or sample.at_s % 0.05 == pytest.approx(0.05, abs=1e-3)


def test_samples_older_than_fifteen_minutes_are_dropped() -> None:
    samples = Samples()
    for number in range(500):
        samples.add(number * SAMPLE_EVERY_S, {"A->B": (1.0,)})
    kept = samples.by_name()["A->B"]
    assert kept[-1].at_s - kept[0].at_s == 900
