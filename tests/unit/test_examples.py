"""The programs in examples/ print the expected output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import read_properties

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "embedded_broker.py": ["hello 0", "hello 1", "hello 2"],
    "incremental_configs.py": [
        "{'cleanup.policy': 'delete', 'retention.ms': '60000'}",
        "{'cleanup.policy': 'delete,compact', 'retention.ms': '60000'}",
        "rejected: ",
        "{'cleanup.policy': 'delete,compact', 'retention.ms': '604800000'}",
    ],
    "topic_policy.py": ["orders: ", "sales.orders: created"],
    "dynamic_acks.py": ["acks: 1 -> all"],
}


@pytest.mark.process
@pytest.mark.parametrize("example", sorted(EXPECTED))
def test_example_prints_expected_output(example: str) -> None:
    # when
    result = subprocess.run(
        [sys.executable, EXAMPLES / example], capture_output=True, text=True, timeout=60, check=False
    )
    # then
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line[: len(start)] for line, start in zip(lines, EXPECTED[example], strict=True)] == EXPECTED[example]


def test_every_example_is_run() -> None:
    elsewhere = {"masked_stream.py", "mirror_submit.py", "container_in_tests.py"}  # tests/spark, test_containers.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*EXPECTED, *elsewhere}


def test_mirror_example_is_parsed() -> None:
    settings = parse_settings(read_properties(EXAMPLES / "mm2.properties"))
    assert [(flow.source.alias, flow.target.alias) for flow in settings.flows] == [("eu", "us")]


def gitops_workflow() -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / "gitops" / "workflow.yaml").read_text(encoding="utf-8")))


def commented(folder: Path, *, plan: str, plan_code: int = 0, gh_code: int = 0) -> tuple[int, str]:
    """Run the workflow's step that comments the plan. Return its exit code and the comment."""
    (step,) = [step for step in gitops_workflow()["jobs"]["klamm"]["steps"] if "gh pr comment" in step.get("run", "")]
    (folder / "output").write_text(plan, encoding="utf-8")
    programs = {"klamm": f"cat output; exit {plan_code}", "gh": f'cp "$5" posted; exit {gh_code}'}
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    (folder / "step").write_text(step["run"].replace("${{ github.event.number }}", "7"), encoding="utf-8")
    assert step["shell"] == "bash {0}"
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "step"], cwd=folder, env={**os.environ, "PATH": path}, check=False)
    return done.returncode, (folder / "posted").read_text(encoding="utf-8")


def test_gitops_workflow_applies_one_merge_at_a_time() -> None:
    assert gitops_workflow()["concurrency"] == "clusters-${{ github.ref }}"


@pytest.mark.process
@pytest.mark.parametrize(("plan_code", "gh_code", "expected"), [(0, 0, 0), (3, 0, 3), (0, 1, 1), (3, 1, 1)])
def test_gitops_step_fails_with_plan_or_comment(tmp_path: Path, plan_code: int, gh_code: int, expected: int) -> None:
    code, comment = commented(tmp_path, plan="### klamm plan\n", plan_code=plan_code, gh_code=gh_code)
    assert (code, comment) == (expected, "### klamm plan\n")


@pytest.mark.process
def test_gitops_step_truncates_long_plan(tmp_path: Path) -> None:
    # given
    line = "+ topic größe: created"
    plan = "\n".join(["```diff", *[line] * 4_000, "```", ""])
    # when
    code, comment = commented(tmp_path, plan=plan, plan_code=1)
    # then
    assert code == 1
    assert 60_000 < len(comment.encode()) <= 65_536
    note, _, beginning = comment.partition("\n\n")
    assert note == "The plan is too long for a comment. This is its beginning; the log of this workflow has all of it."
    assert plan.startswith(beginning)
    assert beginning.endswith(f"{line}\n")
