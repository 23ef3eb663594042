"""All policies of a broker or gateway, and the responses to clients that follow from their decisions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter, deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, cast

from klamm.configs.definitions import POLICY_TIMEOUT_MS
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import Override, Throttle, answer_fault
from klamm.policy.details import ApiDetails, ClientDetails, GroupDetails
from klamm.policy.details import overridden as overridden_details
from klamm.policy.errors import (
    ImpactNeeded,
    ImpactUnknownError,
    PolicyFailedError,
    PolicyRaisedError,
    PolicyTimeoutError,
)
from klamm.policy.kinds import KINDS, PolicyKind, PolicyMode, read_milliseconds, read_modes, read_specs
from klamm.policy_runtime.decision import TWICE, decide_and_check
from klamm.policy_runtime.denials import DeniedCreations, LogLimit
from klamm.policy_runtime.guard import PolicyGuard
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact
    from klamm.policy.answers import Answer
    from klamm.policy.details import Details
    from klamm.policy.impact import ImpactDetails
    from klamm.policy_runtime.decision import Revision

logger = logging.getLogger(__name__)

Decision = TypeVar("Decision")

PredictImpact: TypeAlias = "Callable[[Sequence[Change], float], Awaitable[Impact]]"
"""Predicts the impact of changes, with every finding. Takes the changes and the time limit in seconds.

It raises TimeoutError or KafkaApiError, with the missing facts as text, if it cannot.
"""
_COLLECTING: Final = 0.9
"""Share of the time limit of a policy after which no further facts are collected, so that those missing are named."""
MAX_LATEST: Final = 50
"""Number of decisions that are kept for display."""
_MAX_RULES: Final = 1000
"""Number of counters by rule."""
_RULE: Final = re.compile(r"Rule '([^']*)'")
"""Beginning of the message of a policy that decides by rules."""
_PAST: Final = {
    "deny": "denied",
    "override": "overrode",
    "throttle": "throttled",
    "fail": "failed on",
    "timeout": "did not decide in time on",
}
"""Text of the log line for each action of an enforced policy."""


class Decided(NamedTuple):
    """Labels of the counter of decisions."""

    policy: str
    """Stem of the policy kind, for example ``create.topic``."""
    mode: str
    action: str
    """``allow``, ``deny``, ``override``, ``throttle``, ``fail`` or ``timeout``.

    ``fail``: the policy raised another error, or the server cannot read what the policy decides on.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """One decision of a policy, for display: time, subject, principal and reason."""

    at_s: float
    """Seconds since the epoch."""
    decided: Decided
    subject: str
    """The topic, or the type and name of the resource."""
    principal: str
    client_id: str
    reason: str | None
    """Why the change was denied or overridden. None if it was allowed."""


class UndecidedChange(NamedTuple):
    """Change that the policy cannot decide on, because the server cannot read what the policy would see of it."""

    subject: str
    """The topic, or the type and name of the resource."""
    principal: str
    client_id: str | None
    validate_only: bool


class _Judged(NamedTuple):
    """Outcome of a call, as it is counted and logged."""

    action: str
    """Action of ``Decided``."""
    denial: KafkaApiError | None
    """Error for the client; None if the policy allows the request."""
    failure: Exception | None
    """Error of the policy itself; None if it has decided."""
    reason: str | None
    """Reason of an override or a pause."""

    @property
    def text(self) -> str | None:
        """Reason for the log and for display."""
        text = self.reason if self.denial is None else self.denial.error_message
        return f"it raised {self.failure.class_name}" if isinstance(self.failure, PolicyRaisedError) else text


class Policies:
    """Policies named by the broker's properties. Used on the event loop only.

    Args:
        guards: One guard for each policy class.
        modes: Mode of each kind; a kind that is missing is enforced.
    """

    def __init__(
        self, guards: Sequence[PolicyGuard] = (), modes: Mapping[PolicyKind, PolicyMode] | None = None
    ) -> None:
        self._guards = tuple(guards)
        self._by_kind = {kind: guard for guard in guards for kind in guard.spec.keys}
        self._modes = dict(modes or {})
        self._kinds = tuple(self._modes) or KINDS
        self.decisions: Counter[Decided] = Counter()
        """Number of decisions since the broker started."""
        self.rules: Counter[tuple[Decided, str]] = Counter()
        """Number of decisions other than ``allow`` by name of the rule, for policies with rules."""
        self.latest: Final[deque[PolicyVerdict]] = deque(maxlen=MAX_LATEST)
        """The latest decisions, the newest one last."""
        self.latest_audited: Final[deque[PolicyVerdict]] = deque(maxlen=MAX_LATEST)
        """The latest decisions of policies in audit mode other than ``allow``, the newest one last."""
        self.denied_creations: Final = DeniedCreations()
        """Cache of denied automatic topic creations."""
        self.reload_failure: str | None = None
        """Reason why the latest reload failed, so that earlier versions stay in use. None if it succeeded."""
        self.predict_impact: PredictImpact | None = None
        """Function of the server that collects the facts for ``details.impact``. None until the server has set it."""
        self._log_limit = LogLimit()

    @classmethod
    async def load(
        cls, properties: Mapping[str, str], kinds: Sequence[PolicyKind] = KINDS, *, in_threads: bool = False
    ) -> Policies:
        """Create the policies that the properties of a broker or a gateway name.

        Args:
            properties: The properties.
            kinds: Kinds of requests that it asks policies about.
            in_threads: Whether to call every policy in its thread, also one that only computes.

        Raises:
            PolicyLoadError: A policy cannot be created. The broker must not start.
        """
        modes, specs = read_modes(properties, kinds), read_specs(properties, kinds)
        timeout_s = read_milliseconds(properties, POLICY_TIMEOUT_MS) / 1000
        guards: list[PolicyGuard] = []
        try:
            for spec in specs:
                guard = await PolicyGuard.load(spec, properties=properties, timeout_s=timeout_s, in_thread=in_threads)
                guards.append(guard)
        except BaseException:
            for guard in guards:
                await guard.close()
            raise
        return cls(guards, modes)

    def follow(self, properties: Mapping[str, str]) -> None:
        """Apply changed modes and a changed time limit. The instances of the policies stay in use.

        Raises:
            PolicyLoadError: A value is not allowed. The config definitions check values before this is called.
        """
        self._modes = read_modes(properties, self._kinds)
        self.denied_creations.clear()
        timeout_s = read_milliseconds(properties, POLICY_TIMEOUT_MS) / 1000
        for guard in self._guards:
            guard.follow(properties, timeout_s=timeout_s)

    @property
    def guards(self) -> tuple[PolicyGuard, ...]:
        """One guard for each policy class."""
        return self._guards

    def guards_kind(self, kind: PolicyKind) -> bool:
        """Return whether a policy checks a kind of request."""
        return kind in self._by_kind

    def turn(self, kind: PolicyKind) -> AbstractAsyncContextManager[object]:
        """Return the context manager to hold from the decision on a change until the change is applied.

        Without a policy of this kind it is a null context.
        """
        guard = self._by_kind.get(kind)
        return contextlib.nullcontext() if guard is None else guard.turn

    async def decide(
        self,
        kind: PolicyKind,
        decide: Callable[[], Decision],
        details: Callable[[Decision], Details],
        revision: Revision,
        *,
        on_denied: Callable[[KafkaApiError], None] = lambda _: None,
        on_override: Callable[[Override], None] | None = None,
    ) -> Decision:
        """Decide on a change and let the policy check it.

        The caller must hold ``turn(kind)``, and must apply the returned decision before it awaits anything.

        Args:
            kind: Kind of the change. Without a policy of this kind, the decision is returned unchecked.
            decide: Function that decides, after all other checks. It is called again when the state has changed.
            details: Function that returns what the policy sees of a decision.
            revision: Revision of the state that the decision depends on.
            on_denied: Function that is called with the error when the policy denies the change.
            on_override: Function that changes what ``decide`` decides on, when the policy overrides it.

        Raises:
            KafkaApiError: ``decide`` raised it, or the policy denies the change as ``check`` describes.
        """
        if kind not in self._by_kind:
            return decide()

        async def override(_: int, changes: Override) -> None:
            if on_override is not None:
                on_override(changes)

        (outcome,) = await decide_and_check(
            lambda: [decide()],
            details,
            partial(self.check, kind),
            revision,
            None if on_override is None else override,
        )
        if not isinstance(outcome, KafkaApiError):
            return outcome
        on_denied(outcome)
        try:
            raise outcome
        finally:
            del outcome  # avoids a reference cycle: the error's traceback refers to this frame

    async def check(self, kind: PolicyKind, details: Details, overridden: Override | None = None) -> Override | None:
        """Ask the policy about a change that has passed all other checks.

        The caller must hold ``turn(kind)``, or other locks that keep what the policy sees until the change is made.

        Args:
            kind: Kind of the change.
            details: The change.
            overridden: Override by which this change was made from the requested one.

        Returns:
            The policy's changes to the request. The caller must apply them and ask again, with them as ``overridden``.
            None when the request is allowed as it is.

        Raises:
            KafkaApiError: The policy denies the change. Code and message are those of the error it raised.
            PolicyFailedError: The policy raised another error, or its answer cannot be carried out. Only this resource
                fails.
            PolicyTimeoutError: The policy exceeded its time limit. Only this resource fails.
        """
        guard = self._by_kind.get(kind)
        if guard is None:
            return None
        outcome = await self._ask(guard, kind, details)
        if not self.is_enforced(kind) and self.override_of(kind, details, outcome) is not None:
            outcome = await self._ask_about_result(guard, kind, details, outcome)
        answer = self.answer(kind, details, outcome, overridden)
        return answer if isinstance(answer, Override) else None

    async def _ask(self, guard: PolicyGuard, kind: PolicyKind, details: Details) -> PolicyOutcome:
        """Ask the policy, and once more with the impact of the change if it has read that."""
        outcome = await _call(guard, kind, details)
        if not isinstance(outcome.error, ImpactNeeded):
            return outcome
        details = cast("ImpactDetails", details)
        prediction = await self._predict(details, guard.timeout_s)
        return await _call(guard, kind, replace(details, prediction=prediction))

    async def _predict(self, details: ImpactDetails, timeout_s: float) -> Impact | ImpactUnknownError:
        """Return the impact of a change, or the error that says which facts are missing."""
        from klamm.impact.findings import Impact  # noqa: PLC0415 -- rarely needed, so not loaded at start
        from klamm.policy.impact import changes_of  # noqa: PLC0415

        changes = changes_of(details)
        if not changes:
            return Impact()
        if self.predict_impact is None:
            return ImpactUnknownError("this server collects no facts for policies")
        try:
            async with asyncio.timeout(timeout_s):
                return await self.predict_impact(changes, _COLLECTING * timeout_s)
        except TimeoutError as error:
            what = str(error) or "the facts"
            limit_ms = timeout_s * 1000
            return ImpactUnknownError(f"{what} could not be read within {limit_ms:.0f} ms ({POLICY_TIMEOUT_MS})")
        except KafkaApiError as error:
            return ImpactUnknownError(error.error_message or error.error_code.name)

    async def _ask_about_result(
        self, guard: PolicyGuard, kind: PolicyKind, details: Details, outcome: PolicyOutcome
    ) -> PolicyOutcome:
        """Return the outcome of an override in enforce mode: the denial of its result, or the override itself."""
        try:
            result = await self._ask(guard, kind, overridden_details(details, outcome.value))
        except KafkaApiError as error:
            return PolicyOutcome(None, error)
        if isinstance(result.value, Override):
            return PolicyOutcome(None, PolicyFailedError(TWICE))
        return outcome if result.error is None else result

    def cached_outcome(self, kind: PolicyKind, details: Details) -> PolicyOutcome | None:
        """Return the outcome of an equal question of a moment ago; None if the policy must be asked (``learn``)."""
        return self._by_kind[kind].cache.get(details)

    async def learn(
        self, kind: PolicyKind, questions: Mapping[Details, PolicyOutcome | None]
    ) -> dict[Details, PolicyOutcome]:
        """Ask the policy the questions without an outcome, one after the other; return the outcomes of all of them.

        They must be about requests that change nothing: no ``turn`` is needed. Outcomes are remembered for a while.
        They are counted and logged by ``answer`` only.
        """
        guard = self._by_kind[kind]
        outcomes: dict[Details, PolicyOutcome] = {}
        for details, outcome in questions.items():
            outcomes[details] = await guard.learn(kind, details) if outcome is None else outcome
            await asyncio.sleep(0)  # a request with many questions must not delay others
        return outcomes

    def answer(
        self, kind: PolicyKind, details: Details, outcome: PolicyOutcome, overridden: Override | None = None
    ) -> Answer | None:
        """Count and log the outcome of a call; return the policy's answer if it is enforced, None when it allows.

        An enforced override is neither counted nor logged before the policy has decided on its result.

        Raises:
            KafkaApiError: The policy denies the change, as ``check`` describes.
        """
        override = self.override_of(kind, details, outcome)
        if override is not None and overridden is None and self.is_enforced(kind):
            return override
        judged = _judge(kind, details, outcome, overridden)
        self._conclude(kind, details, judged)
        if not self.is_enforced(kind):
            return None
        if judged.denial is not None:
            raise judged.denial.with_traceback(None)  # a policy may raise the same object repeatedly
        return outcome.value if judged.action == "throttle" else None

    def deny_undecided(self, kind: PolicyKind, change: UndecidedChange, reason: str) -> bool:
        """Count and log a change that the policy cannot decide on; return whether it is denied: not in audit mode."""
        self._conclude(kind, change, _Judged("fail", KafkaApiError(reason), None, None))
        return self.is_enforced(kind)

    def override_of(self, kind: PolicyKind, details: Details, outcome: PolicyOutcome) -> Override | None:
        """Return the override that is the outcome of a call, in any mode; None for another outcome or a faulty one."""
        answer = outcome.value
        return answer if isinstance(answer, Override) and not _fault(kind, details, answer) else None

    def mode(self, kind: PolicyKind) -> PolicyMode:
        """Return the mode of the policy of a kind."""
        return self._modes.get(kind, PolicyMode.ENFORCE)

    def is_enforced(self, kind: PolicyKind) -> bool:
        """Return whether the policy of a kind is enforced, not only audited."""
        return self.mode(kind) is PolicyMode.ENFORCE

    def _conclude(self, kind: PolicyKind, details: Details | UndecidedChange, judged: _Judged) -> None:
        """Count a decision, keep it for display, and log it unless the change is allowed.

        A request that only validates decides on nothing. Of such a call only a failure of the policy is logged.
        """
        mode = self.mode(kind)
        action, text = judged.action, judged.text
        if getattr(details, "validate_only", False):
            if judged.failure is not None:
                self._log(kind, details, judged)
            return
        decided = Decided(kind.stem, mode.value, action)
        self.decisions[decided] += 1
        rule = _RULE.match(text or "")
        if rule is not None and (len(self.rules) < _MAX_RULES or (decided, rule[1]) in self.rules):
            self.rules[decided, rule[1]] += 1
        if action == "allow" and kind.must_compute:
            return  # requests that flow in numbers would push out all other decisions
        verdict = PolicyVerdict(
            at_s=time.time(),
            decided=decided,
            subject=_subject(details),
            principal=str(details.principal),
            client_id=str(details.client_id),
            reason=text,
        )
        self.latest.append(verdict)
        if action != "allow" and mode is PolicyMode.AUDIT:
            self.latest_audited.append(verdict)
        if action != "allow":
            self._log(kind, details, judged)

    def _log(self, kind: PolicyKind, details: Details | UndecidedChange, judged: _Judged) -> None:
        """Log a denial, unless an equal one was logged a moment ago."""
        is_enforced, action, text, failure = self.is_enforced(kind), judged.action, judged.text, judged.failure
        subject, principal, client_id = _subject(details), details.principal, details.client_id
        left_out = self._log_limit.admit((kind, is_enforced, action, subject, principal, client_id, text))
        if left_out is None:
            return
        logger.log(
            logging.WARNING if failure is None else logging.ERROR,
            "%s policy%s %s %s, asked by %s (client %s): %s%s",
            kind.label,
            ":" if is_enforced else ", audit only: would",
            _PAST[action] if is_enforced else action,
            subject,
            principal,
            client_id,
            text,
            f" ({left_out} more denials were not logged)" if left_out else "",
            exc_info=failure,
        )

    async def close(self) -> None:
        """Close all policies. One that fails to close is logged."""
        for guard in self._guards:
            await guard.close()


async def _call(guard: PolicyGuard, kind: PolicyKind, details: Details) -> PolicyOutcome:
    try:
        return await guard.ask(kind, details)
    except PolicyTimeoutError as timeout:
        return PolicyOutcome(None, timeout)


def _judge(kind: PolicyKind, details: Details, outcome: PolicyOutcome, overridden: Override | None) -> _Judged:
    answer, error = outcome
    if error is not None:
        return _judge_error(error)
    if answer is None:
        reason = None if overridden is None else overridden.reason
        return _Judged("allow" if overridden is None else "override", None, None, reason)
    if fault := _fault(kind, details, answer):
        text = f"{kind.label} policy: {fault}"
        return _Judged("fail", PolicyFailedError(text), TypeError(text), None)
    if isinstance(answer, Throttle) or overridden is None:
        return _Judged("throttle" if isinstance(answer, Throttle) else "override", None, None, answer.reason)
    return _Judged("deny", PolicyFailedError(TWICE), None, None)


def _judge_error(error: BaseException) -> _Judged:
    """Return the outcome of a call that raised an error, which is of klamm (``without_policy_code``)."""
    if isinstance(error, KafkaApiError):
        return _Judged("timeout" if isinstance(error, PolicyTimeoutError) else "deny", error, None, None)
    failure = error if isinstance(error, PolicyRaisedError) else PolicyRaisedError(type(error).__name__, "")
    return _Judged("fail", PolicyFailedError(), failure, None)


def _fault(kind: PolicyKind, details: Details, answer: object) -> str | None:
    """Return why an answer cannot be carried out; None if it can. Groups have nothing that can be overridden."""
    return answer_fault(answer, kind.answers, () if isinstance(details, GroupDetails) else kind.overridable)


def _subject(details: Details | UndecidedChange) -> str:
    if isinstance(details, UndecidedChange):
        return details.subject
    topic = getattr(details, "topic", None)
    if topic is not None:
        return repr(topic)
    group_id = getattr(details, "group_id", None)
    if group_id is not None:
        return f"group {group_id!r}"
    if isinstance(details, ClientDetails):
        return f"client id {details.client_id!r}"
    if isinstance(details, ApiDetails):
        return f"requests {details.api}"
    return f"{getattr(details, 'resource_type', '')} {getattr(details, 'resource_name', '')!r}"
