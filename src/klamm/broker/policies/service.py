"""The policies of a broker, and what their verdicts mean to a client."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.policies.guard import PolicyGuard
from klamm.broker.policies.refusals import LogLimit, RefusedCreations
from klamm.configs.definitions import POLICY_TIMEOUT_MS
from klamm.policy.errors import PolicyFailedError, PolicyTimeoutError
from klamm.policy.kinds import PolicyKind, PolicyMode, read_milliseconds, read_modes, read_specs
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.policy.details import Details

logger = logging.getLogger(__name__)

_PAST: Final = {"refuse": "refused", "fail": "failed on", "timeout": "did not decide in time on"}
"""What an enforced policy did, by the action that decisions are counted by."""


class Decided(NamedTuple):
    """What decisions are counted by."""

    policy: str
    """The stem of the kind: ``create.topic``."""
    mode: str
    action: str
    """``allow``, ``refuse``, ``fail`` (it raised something else) or ``timeout``."""


class Policies:
    """The policies that the properties name. Loop-confined.

    Args:
        guards: One for each class.
        modes: By kind; what is missing is enforced.
    """

    def __init__(
        self, guards: Sequence[PolicyGuard] = (), modes: Mapping[PolicyKind, PolicyMode] | None = None
    ) -> None:
        self._guards = tuple(guards)
        self._by_kind = {kind: guard for guard in guards for kind in guard.spec.keys}
        self._modes = dict(modes or {})
        self.decisions: Counter[Decided] = Counter()
        """How many decisions there were since the broker started."""
        self.refused_creations: Final = RefusedCreations()
        """Topics that clients ask for again and again."""
        self._log_limit = LogLimit()

    @classmethod
    async def load(cls, properties: Mapping[str, str]) -> Policies:
        """Make the policies that a broker's properties name.

        Raises:
            PolicyLoadError: One cannot be had; the broker must not start.
        """
        modes, specs = read_modes(properties), read_specs(properties)
        timeout_s = read_milliseconds(properties, POLICY_TIMEOUT_MS) / 1000
        guards: list[PolicyGuard] = []
        try:
            for spec in specs:
                guards.append(await PolicyGuard.load(spec, properties=properties, timeout_s=timeout_s))  # noqa: PERF401
        except BaseException:
            for guard in guards:
                await guard.close()
            raise
        return cls(guards, modes)

    def follow(self, properties: Mapping[str, str]) -> None:
        """Apply the modes and the time limit of changed properties; the instances of the policies stay.

        Raises:
            PolicyLoadError: A value is not allowed. The config table checks values before this is called.
        """
        self._modes = read_modes(properties)
        self.refused_creations.clear()
        timeout_s = read_milliseconds(properties, POLICY_TIMEOUT_MS) / 1000
        for guard in self._guards:
            guard.follow(properties, timeout_s=timeout_s)

    @property
    def guards(self) -> tuple[PolicyGuard, ...]:
        """One for each class."""
        return self._guards

    def guards_kind(self, kind: PolicyKind) -> bool:
        """Tell whether there is a policy on a kind of request."""
        return kind in self._by_kind

    def turn(self, kind: PolicyKind) -> AbstractAsyncContextManager[object]:
        """Return what is held from before the decision that a policy is asked about until it is applied.

        Without a policy nothing is held and nothing is waited for.
        """
        guard = self._by_kind.get(kind)
        return contextlib.nullcontext() if guard is None else guard.turn

    async def check(self, kind: PolicyKind, details: Details) -> bool:
        """Ask the policy about something that has passed every other check; by who has the turn.

        Returns:
            Whether others were served meanwhile. Then what was decided before may be void: deletions do not take turns
            with creations.

        Raises:
            KafkaApiError: The policy refuses; code and message are those of what it raised.
            PolicyFailedError: The policy broke. Only this resource fails.
            PolicyTimeoutError: The policy did not decide in time. Only this resource fails.
        """
        guard = self._by_kind.get(kind)
        if guard is None:
            return False
        refusal: KafkaApiError | None = None
        failure: BaseException | None = None
        action, has_waited = "allow", True
        try:
            error, has_waited = await guard.ask(kind, details)
        except PolicyTimeoutError as timeout:
            refusal, action = timeout, "timeout"
        else:
            if isinstance(error, KafkaApiError):
                refusal, action = _readable(error), "refuse"
            elif error is not None:
                refusal, action = PolicyFailedError(), "fail"
                failure = error
        self._conclude(kind, details, action, refusal, failure)
        return has_waited

    def _conclude(
        self,
        kind: PolicyKind,
        details: Details,
        action: str,
        refusal: KafkaApiError | None,
        failure: BaseException | None,
    ) -> None:
        mode = self._modes.get(kind, PolicyMode.ENFORCE)
        self.decisions[Decided(kind.stem, mode.value, action)] += 1
        if refusal is None:
            return
        text = refusal.error_message if failure is None else f"it raised {type(failure).__name__}"
        self._log(kind, details, action, text, failure)
        if mode is PolicyMode.ENFORCE:
            raise refusal.with_traceback(None)  # a policy may raise one object again and again

    def _log(
        self, kind: PolicyKind, details: Details, action: str, text: str | None, failure: BaseException | None
    ) -> None:
        """Log a refusal, unless the same one was logged a moment ago."""
        is_enforced = self._modes.get(kind, PolicyMode.ENFORCE) is PolicyMode.ENFORCE
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
            f" ({left_out} more refusals were not logged)" if left_out else "",
            exc_info=failure,
        )

    async def close(self) -> None:
        """Close the policies; one that fails is reported and left."""
        for guard in self._guards:
            await guard.close()


def _readable(refusal: KafkaApiError) -> KafkaApiError:
    """Make a message that can be told of whatever a policy has put into it; a subclass may even have left it out."""
    try:
        message = refusal.error_message
    except AttributeError:
        message = " ".join(str(part) for part in refusal.args) or None
    if message is not None:
        # Half a character pair, as a lenient reader of files may leave it, goes over no wire.
        message = str(message).encode(errors="backslashreplace").decode()
    refusal.error_message = message
    return refusal


def _subject(details: Details) -> str:
    topic = getattr(details, "topic", None)
    if topic is not None:
        return repr(topic)
    return f"{getattr(details, 'resource_type', '')} {getattr(details, 'resource_name', '')!r}"
