"""Policies on the page, drawn from the document of ``/policies.json``."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from klamm.display import counted
from klamm.page.html import Cell, Table, heading, section, short, table, time_text
from klamm.policy.kinds import PolicyMode
from klamm.policy_runtime.service import MAX_LATEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from klamm.page.html import Query
    from klamm.page.views import Document
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.service import PolicyVerdict

DECISIONS: Final = 10
"""Number of decisions in a table of the page."""
_MAX_RULES: Final = 25
_KINDS: Final = {"allow": "good", "deny": "bad", "override": "wait", "throttle": "wait"}
_WOULD: Final = {"deny": "would deny", "override": "would override", "throttle": "would throttle"}
"""Texts of actions that audit mode did not carry out."""
_SUMMED: Final = ("decisions", "rules")
_LATEST: Final = ("latest", "latest_audited")


def policies_document(policies: Policies) -> Document:
    """Return the policies with their decisions as a JSON object. The latest decisions are the first ones."""
    return {
        "configured": [
            {"policy": kind.stem, "class": guard.spec.name, "mode": policies.mode(kind).value}
            for guard in policies.guards
            for kind in guard.spec.keys
        ],
        "decisions": [{**decided._asdict(), "count": count} for decided, count in sorted(policies.decisions.items())],
        "rules": [
            {**decided._asdict(), "rule": rule, "count": count}
            for (decided, rule), count in sorted(policies.rules.items())
        ],
        "latest": [_verdict(each) for each in reversed(policies.latest)],
        "latest_audited": [_verdict(each) for each in reversed(policies.latest_audited)],
        "reload_failure": policies.reload_failure,
    }


def _verdict(verdict: PolicyVerdict) -> Document:
    return {
        "at_ms": int(verdict.at_s * 1000),
        **verdict.decided._asdict(),
        "subject": verdict.subject,
        "principal": verdict.principal,
        "client_id": verdict.client_id,
        "reason": verdict.reason,
    }


def merged_policies(documents: Sequence[Document]) -> Document:
    """Return one document for processes that ask the same policies: counters are added."""
    merged: Document = {"configured": documents[0]["configured"] if documents else []}
    merged["reload_failure"] = next((each["reload_failure"] for each in documents if each["reload_failure"]), None)
    for name in _SUMMED:
        merged[name] = _added(counter for document in documents for counter in document[name])
    for name in _LATEST:
        verdicts = (verdict for document in documents for verdict in document[name])
        merged[name] = sorted(verdicts, key=lambda each: -each["at_ms"])[:MAX_LATEST]
    return merged


def _added(counters: Iterable[Document]) -> list[Document]:
    totals: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for counter in counters:
        labels = tuple((name, value) for name, value in counter.items() if name != "count")
        totals[labels] += counter["count"]
    return [{**dict(labels), "count": count} for labels, count in sorted(totals.items())]


def policy_warnings(document: Document) -> list[str]:
    """Return why policies were not reloaded, and how many decisions failed, one line for each policy."""
    failed: Counter[str] = Counter()
    for decided in document["decisions"]:
        if decided["action"] in ("fail", "timeout"):
            failed[decided["policy"]] += decided["count"]
    failure = document["reload_failure"]
    stale = [f"The policies were not reloaded, the last valid ones stay in use: {failure}"] if failure else []
    return stale + [
        f"Policy {name}: {counted(count, 'decision')} failed or timed out" for name, count in failed.items()
    ]


def policies_section(document: Document, query: Query) -> str:
    """Return the part of the page with the policies."""
    rules = "Rules" if len(document["rules"]) <= _MAX_RULES else f"The {_MAX_RULES} most frequent rules"
    audited = "Audit mode: latest changes that enforce mode would stop or change"
    parts = [
        table(_configured(document), query),
        _titled("Decisions", _counts(document), query),
        _titled(rules, _rules(document), query),
        _titled(audited, _verdicts(document["latest_audited"]), query),
        _titled("Latest decisions", _verdicts(document["latest"]), query),
    ]
    return section("Policies", "\n".join(part for part in parts if part))


def _titled(title: str, content: Table, query: Query) -> str:
    """Return a table under a heading; empty HTML for a table without rows."""
    return f"{heading(title, level=3)}{table(content, query)}" if content.rows else ""


def _configured(document: Document) -> Table:
    return Table(
        heads=[("Policy", ""), ("Mode", ""), ("Class", "")],
        rows=[
            (Cell(one["policy"], kind="word"), Cell(one["mode"]), Cell(short(one["class"]), kind="name"))
            for one in document["configured"]
        ],
        total=len(document["configured"]),
        empty="No policy is configured.",
    )


def _counts(document: Document) -> Table:
    return Table(
        heads=[("Policy", ""), ("Mode", "extra"), ("Action", ""), ("Decisions", "number")],
        rows=[
            (
                Cell(one["policy"], kind="word"),
                Cell(one["mode"], kind="extra"),
                _action(one),
                Cell(f"{one['count']:,}", kind="number"),
            )
            for one in document["decisions"]
        ],
        total=len(document["decisions"]),
    )


def _rules(document: Document) -> Table:
    rules = sorted(document["rules"], key=lambda each: -each["count"])
    return Table(
        heads=[("Rule", ""), ("Policy", "extra"), ("Action", ""), ("Decisions", "number")],
        rows=[
            (
                Cell(short(one["rule"]), kind="name"),
                Cell(one["policy"], kind="word extra"),
                _action(one),
                Cell(f"{one['count']:,}", kind="number"),
            )
            for one in rules[:_MAX_RULES]
        ],
        total=len(rules),
    )


def _verdicts(verdicts: Sequence[Document]) -> Table:
    """Return the table of the latest decisions, the latest one first. The reason of one is in a row below it."""
    return Table(
        heads=[
            ("Time", ""), ("Policy", "extra"), ("Action", ""), ("Subject", ""), ("Requested by", "extra"),
        ],
        rows=[
            (
                Cell(time_text(each["at_ms"] / 1000).split(" ")[1]),
                Cell(each["policy"], kind="word extra"),
                _action(each),
                Cell(short(each["subject"]), kind="name", narrow=f"by {_requester(each)}"),
                Cell(_requester(each), kind="extra"),
                *([Cell(each["reason"], kind="note", span=5)] if each["reason"] else ()),
            )
            for each in islice(verdicts, DECISIONS)
        ],
        total=len(verdicts),
    )  # fmt: skip


def _requester(each: Document) -> str:
    return f"{each['principal']} ({each['client_id']})"


def _action(each: Document) -> Cell:
    action = str(each["action"])
    is_audited = each["mode"] == PolicyMode.AUDIT.value
    return Cell(_WOULD.get(action, action) if is_audited else action, kind=f"word {_KINDS.get(action, 'bad')}")
