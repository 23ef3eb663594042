"""Policies on the page: decisions, rules, and the results of audit mode."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from klamm.page.policies import merged_policies, policies_document, policies_section, policy_warnings
from klamm.page.views import encoded
from klamm.policy import DeleteTopicDetails, PolicyViolationError
from klamm.policy.kinds import DELETE_TOPIC
from klamm.policy_runtime import Policies

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = '<script>alert("x")</script>\x1b[2J&'
MODULE = f"""
from klamm.policy import PolicyViolationError

class Strict:
    def validate(self, details):
        if details.topic == "broken":
            raise ValueError("oops")
        if details.topic != "fine":
            raise PolicyViolationError("Rule 'no <b>': " + {HOSTILE!r})
"""


def document_after(directory: Path, mode: str, *topics: str) -> dict[str, Any]:
    """Return the document after a policy was asked whether topics may be deleted."""
    name = f"page_{uuid4().hex}"
    (directory / f"{name}.py").write_text(MODULE)
    properties = {"delete.topic.policy.class.name": f"{name}:Strict", "delete.topic.policy.mode": mode}

    async def ask() -> dict[str, Any]:
        policies = await Policies.load(properties)
        try:
            for topic in topics:
                details = DeleteTopicDetails(topic=topic, principal=HOSTILE, client_id=HOSTILE)
                try:
                    await policies.check(DELETE_TOPIC, details)
                except PolicyViolationError:
                    assert mode == "enforce"
            return policies_document(policies)
        finally:
            await policies.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        return asyncio.run(ask())


def test_audit_mode_denials_are_shown_apart_from_latest_decisions(tmp_path: Path) -> None:
    # when
    document = document_after(tmp_path, "audit", "fine", HOSTILE, *["fine"] * 60)
    html = policies_section(document, {})
    # then: the many allowed ones do not push it out
    assert [(decision["action"], decision["subject"]) for decision in document["latest_audited"]] == [
        ("deny", repr(HOSTILE))
    ]
    assert {decision["action"] for decision in document["latest"]} == {"allow"}
    assert "would deny" in html
    assert "Audit mode: latest changes" in html
    assert "<script" not in html
    assert "<b>" not in html
    assert "\x1b" not in html


def test_enforced_decisions_are_no_results_of_audit_mode(tmp_path: Path) -> None:
    document = document_after(tmp_path, "enforce", HOSTILE)
    html = policies_section(document, {})
    assert document["latest_audited"] == []
    assert "Audit mode" not in html
    assert "would" not in html
    assert document["configured"][0]["mode"] == "enforce"


def test_failed_decisions_are_a_warning(tmp_path: Path) -> None:
    document = document_after(tmp_path, "audit", "broken", "broken")
    assert policy_warnings(document) == ["Policy delete.topic: 2 decisions failed or timed out"]


def test_processes_are_added_and_the_newest_decisions_kept(tmp_path: Path) -> None:
    first, other = document_after(tmp_path, "audit", "one", "fine"), document_after(tmp_path, "audit", *["other"] * 50)
    # when
    merged = merged_policies([first, other])
    # then
    counts = {(each["action"], each["count"]) for each in merged["decisions"]}
    assert counts == {("allow", 1), ("deny", 51)}
    assert [(each["rule"], each["count"]) for each in merged["rules"]] == [("no <b>", 51)]
    assert [each["subject"] for each in merged["latest"]] == ["'other'"] * 50
    assert merged_policies([first])["decisions"] == first["decisions"]


def test_missing_policies_are_reported() -> None:
    document = merged_policies([])
    assert "No policy is configured." in policies_section(document, {})
    assert asyncio.run(encoded(document)).startswith('{"configured": [], ')


def test_denial_and_override_have_different_colors() -> None:
    # given
    decided = {"policy": "create.topic", "mode": "enforce", "count": 1}
    actions = [{**decided, "action": action} for action in ("deny", "override")]
    document = {"configured": [], "decisions": actions, "rules": [], "latest": [], "latest_audited": []}
    # when
    html = policies_section(document, {})
    # then
    assert '<td class="word bad">deny</td>' in html
    assert '<td class="word wait">override</td>' in html
