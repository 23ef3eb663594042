"""Metrics of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.policy_runtime.service import Decided

if TYPE_CHECKING:
    from klamm.monitoring.exposition import Page
    from klamm.policy_runtime.service import Policies


LAST_RELOAD_SUCCESSFUL: Final = "klamm_policy_last_reload_successful"
_FAILURES: Final = ("fail", "timeout")


def report_decisions(page: Page, policies: Policies) -> None:
    """Add the number of decisions by policy, mode and action to a page of metrics.

    Failures are reported from 0 on. Prometheus computes no increase for a series that begins with the first failures.
    """
    failures = {
        Decided(kind.stem, policies.mode(kind).value, action): 0
        for guard in policies.guards
        for kind in guard.spec.keys
        for action in _FAILURES
    }
    page.family(
        "klamm_policy_decisions_total",
        "counter",
        "Policy decisions.",
        [(decided._asdict(), count) for decided, count in sorted((failures | policies.decisions).items())],
    )
    page.family(
        "klamm_policy_rule_decisions_total",
        "counter",
        "Changes that a rule denied, changed or delayed.",
        [({**decided._asdict(), "rule": rule}, count) for (decided, rule), count in sorted(policies.rules.items())],
    )
    page.family(
        LAST_RELOAD_SUCCESSFUL,
        "gauge",
        "Whether the latest reload of the policies succeeded: 1 or 0. After a failure the last valid ones stay in use.",
        [({}, int(policies.reload_failure is None))],
    )
