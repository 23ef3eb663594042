"""Commands for the flows of a running mirror, as its status listener receives them.

=======  ==================================================  =========================================================
action   effect on a flow, or on some of its source topics   response
=======  ==================================================  =========================================================
pause    no record is fetched; the tasks keep the            requested states
         partitions
resume   the flow and its topics, or the topics, continue    requested states
stop     the partitions are released                         requested states
restart  a FAILED flow and STOPPED partitions try again      what is started again
reset    the source offsets of stopped topics change         changes by partition; made only if ``execute`` is true
promote  topics are handed over to brokers of the target     plan by topic; requested only if ``execute`` is true
demote   topics that are not handed over are mirrored        requested states, topics that stay with the brokers
         again; with ``take_back`` others, too
=======  ==================================================  =========================================================

Requested states are stored on the target before they have an effect (see ``topics.states``). Only the process that
mirrors a flow accepts commands for it. A process that stands by names the other one. Commands of one flow are carried
out one after the other.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.lazy_dataclass import dataclass
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.operations.offset_reset import (
    OffsetResetError,
    ResetTo,
    SourceOffsetReset,
    TopicPartitions,
    reset_topics,
)
from klamm.mirror.operations.promotion import (
    MIN_ISR,
    handed_over_topics,
    missing_partitions,
    plan,
    promotions,
    sync_groups,
    topics_at_risk,
    topics_not_mirrored,
    written_topics,
)
from klamm.mirror.progress.flow_progress import FlowState
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.settings.definitions import OFFSETS_BY, OffsetsBy
from klamm.properties import did_you_mean
from klamm.protocol.errors import KafkaApiError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from klamm.mirror.progress.flow_progress import FlowProgress, MirrorStatus
    from klamm.mirror.records.requested_states import RequestedStates
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.topics.claims import FlowClaim
    from klamm.mirror.topics.states import FlowStates

logger = logging.getLogger(__name__)

_POOL_BYTES: Final = 4 * 1024 * 1024
_RELEASED_WITHIN_S: Final = 20.0
"""Seconds that tasks get to release the partitions of stopped topics. It takes them a second, unless a cluster does not
answer.
"""


_STATES: Final = {
    "pause": RequestedState.PAUSED,
    "resume": RequestedState.RUNNING,
    "stop": RequestedState.STOPPED,
}
ACTIONS: Final = (*_STATES, "restart", "reset", "promote", "demote")


class MirrorCommandError(Exception):
    """A command that is rejected. The message is for the operator.

    Args:
        status: Status of the HTTP response.
        message: What is wrong, and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Tasks(Protocol):
    """Tasks of the mirror, as the coordinator controls them."""

    def restart(self, flow: str, topics: Iterable[str]) -> None:
        """Let the running tasks start the STOPPED partitions of these source topics again."""
        ...

    def wait_released(self, flow: str, topics: Collection[str], timeout_s: float) -> bool:
        """Wait until no task has partitions of these source topics. Return False after ``timeout_s`` seconds."""
        ...

    def forget_sessions(self, flow: str) -> None:
        """Let no later lease resume the copiers of a flow."""
        ...


class TargetStateStore:
    """Store of a flow's requested states in its offsets topic."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow

    def load(self) -> RequestedStates:
        """Return the stored states.

        Raises:
            ConnectionLostError: They cannot be read now.
        """
        with open_store(self._flow) as store:
            return store.read().requested

    def save(self, states: RequestedStates) -> None:
        """Store the states.

        Raises:
            ConnectionLostError: They were not acknowledged.
        """
        with open_store(self._flow) as store:
            store.write_requested(states)


@contextlib.contextmanager
def open_store(flow: FlowSettings) -> Iterator[SourceOffsetStore]:
    """Connect to the source offsets of a flow for the duration of the context."""
    store = SourceOffsetStore(
        copy_settings(flow).target,
        BufferPool(max_free_bytes=_POOL_BYTES),
        topic=flow.source_offsets_topic,
        source_alias=flow.source_alias,
        connector=flow.connector,
        flow=flow.name,
    )
    with contextlib.closing(store):
        yield store


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCommands:
    """Receiver of commands. Thread-safe; the calls block until the command has been stored or rejected."""

    flows: Mapping[str, FlowSettings]
    states: Mapping[str, FlowStates]
    claims: Mapping[str, FlowClaim]
    status: MirrorStatus
    tasks: Tasks

    def run(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its response.

        Args:
            command: ``action``, ``flow`` and ``topics``: names of source topics, empty for the whole flow. ``reset``
                has ``partitions`` in place of ``topics``, and ``to``, ``value`` and ``execute``.

        Raises:
            MirrorCommandError: The command is rejected.
        """
        name = command.get("flow")
        if (flow := self.flows.get(str(name))) is None:
            names = ", ".join(self.flows) or "none"
            hint = "; put the name in quotes" if str(name).endswith("-") else did_you_mean(str(name), self.flows)
            raise MirrorCommandError(404, f"flow {name}: this mirror has {names}{hint}")
        states = self.states[flow.name]
        with states.command_lock:
            self._check_claim(flow.name)
            before = states.current
            try:
                states.read_back()
                before = states.current
                return self._run(flow, command)
            except CLUSTER_ERRORS as error:
                is_reset = command.get("action") == "reset" and command.get("execute") is True
                is_unchanged = states.is_known and states.current is before and not is_reset
                outcome = "nothing was changed" if is_unchanged else "it is unknown whether the change was stored"
                raise MirrorCommandError(
                    503, f"{flow.name}: {error_text(error)}; {outcome}: repeat the command"
                ) from error
            except OffsetResetError as error:
                raise MirrorCommandError(404, f"{flow.name}: {error}") from error
            except ValueError as error:
                raise MirrorCommandError(400, str(error)) from error

    def _check_claim(self, flow: str) -> None:
        claim = self.claims[flow]
        if claim.holder:
            raise MirrorCommandError(409, f"{flow}: this process stands by; send the command to {claim.holder}")
        if not claim.is_held:
            raise MirrorCommandError(
                503, f"{flow}: it is not known yet whether another process mirrors this flow; retry"
            )

    def _run(self, flow: FlowSettings, command: Mapping[str, Any]) -> dict[str, Any]:
        match command:
            case {"action": ("pause" | "resume" | "stop") as action, "topics": [*topics]}:
                return self._request(_STATES[action], flow.name, _names(topics))
            case {"action": "restart", "topics": [*topics]}:
                return self._restart(flow.name, _names(topics))
            case {"action": "promote", "topics": [*topics]}:
                accepts_loss, execute = command.get("accept_loss") is True, command.get("execute") is True
                return self._promote(flow, _names(topics), accepts_loss=accepts_loss, execute=execute)
            case {"action": "demote", "topics": [*topics]}:
                return self._demote(flow, _names(topics), takes_back=command.get("take_back") is True)
            case {"action": "reset", "partitions": [*parts], "to": str(to), "value": int(value)}:
                chosen = tuple(TopicPartitions.of(part) for part in parts)
                return self._reset(flow, chosen, ResetTo(to), value, execute=command.get("execute") is True)
        raise MirrorCommandError(400, f"expected one of the actions {', '.join(ACTIONS)}, with its fields")

    def _request(self, state: RequestedState, flow: str, topics: Sequence[str]) -> dict[str, Any]:
        if topics:
            self._check_running(flow)
            self._check_topics(flow, topics)
        states = self.states[flow].current
        if promoted := [topic for topic in topics if states.of(topic).is_promoted]:
            raise MirrorCommandError(
                409,
                f"{flow}: topic {promoted[0]} is {states.of(promoted[0])}: {_demote_line(promoted)} mirrors it again",
            )
        demoted = [topic for topic in topics if states.topics.get(topic) is RequestedState.DEMOTED]
        if demoted and (left := topics_not_mirrored(self.flows[flow], demoted)):
            raise MirrorCommandError(
                409,
                f"{flow}: topic {left[0]} is DEMOTED, and klamm does not mirror it yet; the status page names the "
                f"reason. Repeat the command once it is mirrored, or promote it: klamm mirror promote FILE {left[0]}",
            )
        return self._change(flow, topics, state)

    def _change(self, flow: str, topics: Sequence[str], state: RequestedState) -> dict[str, Any]:
        def update(states: RequestedStates) -> RequestedStates:
            return states.with_topics(topics, state) if topics else states.with_flow(state)

        self._check_claim(flow)  # the checks before may have taken long
        self.states[flow].change(update)
        logger.info("%s: %s requested for %s", flow, state, ", ".join(topics) or "the flow")
        return self._requested(flow, topics)

    def _requested(self, flow: str, topics: Sequence[str]) -> dict[str, Any]:
        """Return the requested states of a flow, also of topics that are RUNNING."""
        states = self.states[flow].current
        return {
            "flow": flow,
            "state": states.flow.value,
            "topics": {topic: states.of(topic).value for topic in sorted(states.topics.keys() | set(topics))},
        }

    def _promote(
        self, flow: FlowSettings, topics: Sequence[str], *, accepts_loss: bool, execute: bool
    ) -> dict[str, Any]:
        if flow.replica is None:
            raise MirrorCommandError(
                409, f"{flow.name}: its remote topics need no promotion: expected {OFFSETS_BY.key}={OffsetsBy.REPLICA}"
            )
        progress = self._progress(flow.name)
        if progress.state is FlowState.FAILED:
            raise MirrorCommandError(409, f"{flow.name}: it is FAILED: first {_line('restart', flow.name)}")
        self._check_running(flow.name, topics)
        self._check_topics(flow.name, topics)
        mirrored = sorted(self.status.topics(flow.name) or ())
        names = topics or [topic for topic in mirrored if _is_promoted_by_default(flow, topic)]
        if not names:
            raise MirrorCommandError(503, f"{flow.name}: its topics are not known yet; retry")
        names = self._without_others(flow, names, are_named=bool(topics))
        rows = tuple(row for row in progress.partitions if row.topic in names)
        state = RequestedState.FAILED_OVER if accepts_loss else RequestedState.PROMOTED
        done = {row.topic for row in rows} - {row.topic for row in rows if row.state is not CopyState.PROMOTED}
        pending = [topic for topic in names if topic not in done]
        warning = ""
        if execute:
            new = self._new_promotions(flow, names, pending, state)
            if new and not accepts_loss:
                warning = self._prepare(flow, new)
            if new:
                self._change(flow.name, new, state)
            plans = promotions(flow, names, rows)
        else:
            plans = plan(flow, names, rows, accepts_loss=accepts_loss)
        return {
            "flow": flow.name,
            "executed": execute,
            "topics": [asdict(each) for each in plans],
            "pending": pending,
            "warning": warning,
        }

    def _without_others(self, flow: FlowSettings, names: Sequence[str], *, are_named: bool) -> Sequence[str]:
        """Return the topics without those that brokers or another klamm lead although this flow did not promote them.

        Raises:
            MirrorCommandError: The operator named one of them, or there are no others.
        """
        states = self.states[flow.name].current
        new = [topic for topic in names if not states.of(topic).is_promoted]
        if not new or not (led := handed_over_topics(flow, new)):
            return names
        with open_store(flow) as store:
            stored = store.read().promotions
        others = [topic for topic in led if topic not in stored]
        left = [topic for topic in names if topic not in others]
        if others and (are_named or not left):
            raise MirrorCommandError(
                409,
                f"{flow.name}: brokers or another flow of klamm lead {', '.join(map(flow.remote_topic, others))}, and "
                "this flow did not hand it over: there is nothing to promote",
            )
        return left

    def _new_promotions(
        self, flow: FlowSettings, names: Sequence[str], pending: Collection[str], state: RequestedState
    ) -> list[str]:
        """Return the topics whose promotion is not requested yet.

        Raises:
            MirrorCommandError: Another promotion of one is requested and can be withdrawn, or an operator paused one.
        """
        states = self.states[flow.name].current
        promoted = [topic for topic in names if states.of(topic).is_promoted]
        others = [topic for topic in promoted if topic in pending and states.of(topic) is not state]
        handed_over = handed_over_topics(flow, others) if others else ()
        if others := [topic for topic in others if topic not in handed_over]:
            raise MirrorCommandError(
                409,
                f"{flow.name}: {states.of(others[0])} already, by an earlier command: {', '.join(others)}. The "
                f"status page names what they wait for. To withdraw it: {_demote_line(others)}",
            )
        if paused := [topic for topic in names if states.topics.get(topic) is RequestedState.PAUSED]:
            raise MirrorCommandError(
                409, f"{flow.name}: topic {paused[0]} is PAUSED: first {_line('resume', flow.name, *paused)}"
            )
        return [topic for topic in names if topic not in promoted]

    def _prepare(self, flow: FlowSettings, topics: Sequence[str]) -> str:
        """Check that topics have all partitions, and sync the offsets of groups a last time.

        Return why group offsets may not be complete. An error that a repetition may not mend does not prevent the
        promotion.

        Raises:
            MirrorCommandError: Partitions are missing, or a cluster does not respond.
        """
        if missing := missing_partitions(flow, topics):
            raise MirrorCommandError(409, f"{flow.name}: {next(iter(missing.values()))}; nothing was changed")
        try:
            warning = sync_groups(flow, topics, partial(self.status.partitions, flow.name))
        except (ConnectionError, TimeoutError) as error:
            raise MirrorCommandError(
                503,
                f"{flow.name}: offsets of groups cannot be synced: {error_text(error)}; nothing was changed: repeat "
                "the command, or promote with --accept-loss",
            ) from error
        except (KafkaApiError, ProtocolError) as error:
            warning = f"offsets of groups were not synced again: {error_text(error)}"
        except Exception as error:  # such as an error in a custom GroupFilter
            logger.exception("%s: the offsets of groups were not synced", flow.name)
            warning = f"offsets of groups were not synced again: {type(error).__name__}: {error}"
        if warning:
            logger.warning("%s: %s", flow.name, warning)
        return warning

    def _demote(self, flow: FlowSettings, topics: Sequence[str], *, takes_back: bool) -> dict[str, Any]:
        """Let klamm mirror promoted topics again. Without ``takes_back``, only those that are not handed over yet."""
        states = self.states[flow.name].current
        if takes_back and states.flow is not RequestedState.RUNNING:
            raise MirrorCommandError(409, f"{flow.name}: it is {states.flow}: first {_line('resume', flow.name)}")
        promoted = [topic for topic, state in states.topics.items() if state.is_promoted]
        names = topics or promoted
        if not names:
            raise MirrorCommandError(409, f"{flow.name}: no topic is promoted")
        handed_over = handed_over_topics(flow, names)
        demoted = [topic for topic, state in states.topics.items() if state is RequestedState.DEMOTED]
        known = {*promoted, *handed_over, *demoted}
        unknown = [topic for topic in names if topic not in known]
        if unknown and (mirrored := sorted(set(unknown) - set(topics_not_mirrored(flow, unknown)))):
            state = states.of(mirrored[0])
            raise MirrorCommandError(409, f"{flow.name}: topic {mirrored[0]} is {state}, not promoted")
        _check_selected(flow, [topic for topic in names if takes_back and topic in {*handed_over, *unknown}])
        kept = dict.fromkeys(handed_over, "")
        if takes_back and handed_over:
            with open_store(flow) as store:
                kept = written_topics(flow, handed_over, store.read())
            self._check_safe(flow, [topic for topic in handed_over if topic not in kept])
        left = [topic for topic in names if topic not in kept]
        if not topics and not left:
            reasons = "; ".join(filter(None, kept.values())) or f"{', '.join(kept)} handed over to brokers"
            raise MirrorCommandError(409, f"{flow.name}: no topic can be demoted: {reasons}")
        if left:
            self._change(flow.name, left, RequestedState.DEMOTED)
        if not takes_back and (pending := [topic for topic in left if topic in promoted]):
            # The task may have handed them over in between: it reads no states while it does that.
            late = handed_over_topics(flow, pending)
            for topic in late:
                self._change(flow.name, [topic], states.topics[topic])
            kept |= dict.fromkeys(late, "")
            left = [topic for topic in left if topic not in late]
        rows = self._progress(flow.name).partitions
        return self._requested(flow.name, names) | {
            "demoted": [asdict(each) for each in promotions(flow, left, rows)],
            "handed_over": [
                {
                    "topic": each.topic,
                    "remote_topic": each.remote_topic,
                    "unfinished": "; ".join(each.obstacles),
                    "reason": kept[each.topic],
                }
                for each in promotions(flow, list(kept), rows)
            ],
        }

    def _check_safe(self, flow: FlowSettings, topics: Sequence[str]) -> None:
        if topics and (at_risk := topics_at_risk(flow, topics)):
            remote_topic, alias = flow.remote_topic(at_risk[0]), flow.target.alias
            raise MirrorCommandError(
                409,
                f"{flow.name}: {remote_topic} has {MIN_ISR} above 1, so cluster {alias} could elect a broker with "
                f"fewer records if klamm died (KIP-966): set {MIN_ISR}=1 for it until it is promoted again. Nothing "
                "was changed",
            )

    def _progress(self, flow: str) -> FlowProgress:
        return next(progress for progress in self.status.snapshot() if progress.flow == flow)

    def _check_running(self, flow: str, topics: Collection[str] = ()) -> None:
        """Reject a command for topics that an operator stopped, or that has no effect while the flow is stopped."""
        states = self.states[flow].current
        stopped = [topic for topic in topics if states.of(topic) is RequestedState.STOPPED]
        if states.flow is RequestedState.STOPPED:
            raise MirrorCommandError(409, f"{flow}: it and its topics are STOPPED: first {_line('resume', flow)}")
        if stopped:
            raise MirrorCommandError(
                409, f"{flow}: topic {stopped[0]} is STOPPED: first {_line('resume', flow, *stopped)}"
            )

    def _check_topics(self, flow: str, topics: Collection[str]) -> None:
        """Reject topics that the flow neither mirrors nor has a requested state for."""
        mirrored = self.status.topics(flow)
        flow_topics = (mirrored or frozenset()) | self.states[flow].current.topics.keys()
        unknown = [topic for topic in topics if topic not in flow_topics]
        if not unknown:
            return
        state = self._progress(flow).state
        if state is FlowState.FAILED:
            raise MirrorCommandError(409, f"{flow}: it is FAILED: first {_line('restart', flow)}")
        if mirrored is None:
            raise MirrorCommandError(503, f"{flow}: its topics are not known yet ({state}); retry")
        hint = did_you_mean(unknown[0], flow_topics)
        raise MirrorCommandError(404, f"{flow}: topic {unknown[0]} is not mirrored{hint}; name topics as on the source")

    def _restart(self, flow: str, topics: Sequence[str]) -> dict[str, Any]:
        progress = self._progress(flow)
        if progress.state is FlowState.FAILED:
            self.states[flow].restart()
            return {"flow": flow, "restarted_flow": True, "restarted": []}
        self._check_running(flow, topics)
        self._check_topics(flow, topics)
        stopped = [each for each in progress.partitions if each.state is CopyState.STOPPED]
        chosen = [each for each in stopped if not topics or each.topic in topics]
        self.tasks.restart(flow, sorted({each.topic for each in chosen}))
        partitions = [{"topic": each.topic, "partition": each.partition} for each in chosen]
        return {"flow": flow, "restarted_flow": False, "restarted": partitions}

    def _reset(
        self, flow: FlowSettings, parts: tuple[TopicPartitions, ...], to: ResetTo, value: int, *, execute: bool
    ) -> dict[str, Any]:
        if flow.preserves_offsets:
            raise MirrorCommandError(
                409,
                f"{flow.name}: klamm.offsets=preserve: offsets could not stay equal after a reset, because a partition "
                "continues at the log end of its remote partition",
            )
        names = {part.topic for part in parts}
        states = self.states[flow.name]
        states.load()  # another process may have changed them before this one took over
        _check_stopped(flow.name, states.current, names)
        with open_store(flow) as store:
            names = names or reset_topics(flow, store.read())
            if not self.tasks.wait_released(flow.name, names, _RELEASED_WITHIN_S):
                raise MirrorCommandError(503, f"{flow.name}: tasks still copy these topics; retry")
            # Read again: until their end, tasks have written source offsets.
            reset = SourceOffsetReset(flow, store.read())
            changes = reset.plan(parts, to, value)
            if execute:
                self._check_claim(flow.name)
                self.tasks.forget_sessions(flow.name)  # their copiers would go on where they were
                reset.execute(store, changes)
                logger.info("%s: %d source offsets were reset", flow.name, len(changes))
        rows = [asdict(change) | {"effect": change.effect} for change in changes]
        return {"flow": flow.name, "executed": execute, "partitions": rows, "absent": list(reset.absent)}


def _check_stopped(flow: str, states: RequestedStates, names: Collection[str]) -> None:
    """Reject a reset of topics, or of the flow, that are not STOPPED in the stored states."""
    running = sorted(name for name in names if states.of(name) is not RequestedState.STOPPED)
    if running or (not names and states.flow is not RequestedState.STOPPED):
        which = f"topic {running[0]} is" if running else "it is"
        state = states.of(running[0] if running else "")
        raise MirrorCommandError(409, f"{flow}: {which} {state}: first {_line('stop', flow, *running)}")


def _check_selected(flow: FlowSettings, topics: Sequence[str]) -> None:
    """Reject to take back topics of which nothing would be mirrored afterwards."""
    if unselected := [topic for topic in topics if not flow.selection.includes(topic)]:
        raise MirrorCommandError(
            409,
            f"{flow.name}: topics and topics.exclude do not select {', '.join(unselected)}: select it first and "
            "restart the mirror, or name the topics to demote without it. Nothing was changed",
        )


def _is_promoted_by_default(flow: FlowSettings, topic: str) -> bool:
    return flow.selection.includes(topic) and not is_heartbeats_topic(flow.policy, topic)


def _line(action: str, flow: str, *topics: str) -> str:
    """Return the command line of an action."""
    return " ".join(["klamm mirror", action, f"'{flow}'", *topics])


def _demote_line(topics: Sequence[str]) -> str:
    return " ".join(["klamm mirror demote FILE", *topics])


def _names(topics: Sequence[object]) -> list[str]:
    """Return the topics if all are strings.

    Raises:
        ValueError: They are not.
    """
    names = [topic for topic in topics if isinstance(topic, str)]
    if len(names) < len(topics):
        raise ValueError("topics: expected names of source topics")
    return names
