"""Control loop of a flow: syncs topics, partitions, configs and ACLs to the target, and publishes the assignment.

Each turn does the steps that are due, in this order:

======================  =======================================  ================================================
step                    when                                     effect
======================  =======================================  ================================================
check the states        after each failed turn                   as below, so that a stop or a pause takes effect
                                                                 although a cluster is unavailable
check both clusters     first turn, and after each failed turn   fail fast if a cluster is unavailable, or both
                                                                 are one and topics would be copied endlessly
check the claim         every turn                               without it, leave out all other steps; publish an
                                                                 empty assignment if another process took the flow
                                                                 (see ``claims``)
create internal topics  once                                     source offsets; then migrate source offsets
                                                                 (``worker_offsets``) and read the requested
                                                                 states (see ``states``)
check the states        every turn                               a flow that an operator stopped publishes an empty
                                                                 assignment, and leaves out the steps below; changed
                                                                 states of topics are published
create other topics     once                                     offset syncs, heartbeats
refresh topics          first turn, then every                   select source topics, create and grow
                        ``refresh.topics.interval.seconds``      remote topics, publish the assignment, delete
                                                                 remote topics (see ``deletions``)
sync configs            first turn, then every                   see ``config_sync``
                        ``sync.topic.configs.interval.seconds``
sync ACLs               first turn, then every                   see ``acl_sync``
                        ``sync.topic.acls.interval.seconds``
======================  =======================================  ================================================

With ``refresh.topics.enabled=false``, topics are refreshed only once. ``sync.topic.configs.enabled`` and
``sync.topic.acls.enabled`` switch the last two steps off.

A step that fails stays due, so the next turn repeats it. The steps after it wait. The assignment last published stays
valid: the tasks keep copying while an admin call fails. Topics that exist are copied although others cannot be created
now, for example because a controller is unavailable: no step waits for the offset syncs and heartbeats topics, and a
refresh that cannot create or grow remote topics publishes those that exist. The same holds for a remote topic that
exists, but that the target does not list yet.

A stopped topic is left out of the assignment and of the syncs of configs and ACLs. Paused topics stay in both: only
their records are not fetched. Promoted topics stay in the assignment, so that a task hands them over, also while the
source is unavailable. Nothing else happens to them: they are not created, grown, deleted or synced. The same holds for
topics that brokers lead although they are not promoted, until a task has taken them back (``klamm mirror demote``).

Remote topics that klamm leads as a broker stay in the assignment without their source topic, too, and PAUSED if the
flow no longer selects it. Only klamm can serve and promote them. If a task reports that one was deleted, the topics are
refreshed at once: until then, klamm accepts partitions of all topics.

The outcome of a turn determines the state of the flow:

- RUNNING: the turn succeeded. The next one starts after 0.2 s.
- PAUSED: as RUNNING, but an operator paused the flow, so no record is fetched.
- STANDBY: another process mirrors the flow. The next turn starts as soon as this process holds the claim.
- WAITING: a cluster is unavailable, rejects a call, or lacks an API. The next turn starts after 0.2 s, then 0.4 s and
  so on up to 10 s. The same after an unexpected error, such as one of a custom filter that worked before.
- FAILED: a retry would not help, or an unexpected error occurred before any partition was copied. The loop publishes
  an empty assignment and ends. The driver starts it again when an operator requests it.
- STOPPED: an operator stopped the flow, or the mirror ends.

A topic that the target rejects does not affect the other topics. If its creation is rejected, it stays out of the
assignment. If new partitions are rejected, its existing partitions are copied. Each refresh tries again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import KafkaApiError
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError, error_text
from klamm.kraft.image import NO_LEADER
from klamm.mirror.cluster_admin import (
    check_reachable,
    denied_topics,
    missing_topics,
    partition_counts,
    shared_topics,
    topic_configs,
)
from klamm.mirror.naming import is_heartbeats_topic
from klamm.mirror.progress.flow_progress import FlowFailedError, FlowState
from klamm.mirror.progress.partition_progress import NO_REMOTE_TOPIC
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.worker_offsets import copy_worker_offsets, forget_topics
from klamm.mirror.settings.definitions import TopicDeletions
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.config_sync import AclSync, ConfigSync, log_rejection
from klamm.mirror.topics.deletions import TopicDeletion, log_gone
from klamm.mirror.topics.internal_topics import create_offsets_topic, create_other_topics
from klamm.mirror.topics.plans import (
    check_loops,
    conflicts,
    plan_new_topic,
    plan_topics,
    selected_topics,
    unselected_topics,
)
from klamm.mirror.topics.remote_topics import NoPartitionsYetError, RemoteTopics, with_remedy
from klamm.mirror.topics.states import FlowStates
from klamm.protocol.errors import InvalidConfigError, InvalidPartitionsError, TopicAlreadyExistsError
from klamm.retries import Backoff, LoggedReasons

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, NewTopic
    from klamm.mirror.progress.flow_progress import MirrorStatus
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.groups import HeartbeatSettings

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.2
_LAST_BACKOFF_S: Final = 10.0
_TURN_S: Final = 0.2
_COMMANDS: Final = {RequestedState.PAUSED: "pause", RequestedState.STOPPED: "stop"}

Assignment = tuple[tuple[str, str, int], ...]
"""Tuples of source topic, remote topic and number of partitions to copy."""


class FlowControl:
    """Control loop of one flow. It runs in its own thread, and ``publish`` is called in that thread."""

    def __init__(
        self,
        settings: FlowSettings,
        source: AdminClient,
        target: AdminClient,
        *,
        status: MirrorStatus,
        publish: Callable[[Assignment], None],
        heartbeats: HeartbeatSettings | None = None,
        claim: FlowClaim | None = None,
        states: FlowStates | None = None,
        request: Callable[[Mapping[str, RequestedState]], None] = lambda _states: None,
        clock: Callable[[], float] = time.monotonic,
        carry: Callable[[FlowSettings], None] = copy_worker_offsets,
        forget: Callable[[FlowSettings, Collection[str]], None] = forget_topics,
        deletion: TopicDeletion | None = None,
        remote_topics: RemoteTopics | None = None,
    ) -> None:
        """Prepare the loop.

        Args:
            settings: Settings of the flow.
            source: Admin client of the source cluster.
            target: Admin client of the target cluster.
            status: Receiver of the flow's state and of rejected remote topics.
            publish: Receiver of each new assignment.
            heartbeats: Settings of the heartbeats that this mirror writes to the source. None: it writes none
                there.
            claim: Claim of the flow. None: always held.
            states: Requested states of the flow and its topics. None: all are RUNNING.
            request: Receiver of the source topics that an operator paused, stopped, promoted or demoted, with their
                states, before each new assignment.
            clock: Monotonic time in seconds.
            carry: Function that copies source offsets from the Connect worker's topic into the flow's topic
                before any record is copied. See ``copy_worker_offsets``.
            forget: Deletes the source offsets and topic ids of topics.
            deletion: Step that deletes remote topics. None: that of the settings.
            remote_topics: Creation of remote topics. None: the target chooses their brokers.
        """
        self._settings = settings
        self._heartbeats = heartbeats
        self._source = source
        self._target = target
        self._status = status
        self._publish = publish
        self._claim = claim or FlowClaim.always()
        self._states = states or FlowStates()
        self._published_states = RequestedStates()
        self._request = request
        self._times_taken = self._claim.times_taken
        self._clock = clock
        self._carry = carry
        self._forget = forget
        self._remote_topics = remote_topics or RemoteTopics(target)
        self._deletion = deletion or TopicDeletion(settings, source, target)
        self._configs = ConfigSync(settings, source, target)
        self._acls = AclSync(settings, source, target)
        self._are_reachable = False
        self._has_internal_topics = False
        self._has_other_topics = False
        self._refresh_due = 0.0
        self._is_published = False
        self._sync_due = 0.0
        self._acl_sync_due = 0.0
        self._assignment: Assignment = ()
        self._published: Assignment = ()
        """Rows last published, also of stopped topics. klamm as a broker gets those of topics that do not exist yet."""
        self._kept: Assignment = ()
        """Rows of remote topics that klamm leads or hands over, and whose source topics are not selected now."""
        self._missing: frozenset[str] = frozenset()
        """Source topics whose remote topics were deleted, as tasks report."""
        self._is_none_selected = False
        self._conflicts: tuple[str, ...] = ()
        """Conflicts with other flows in the latest refresh."""
        self._rejected: dict[str, str] = {}
        """Remote topics that the target rejected in the latest refresh, with the reason."""
        self._logged: dict[str, str] = {}
        """Rejected remote topics of the refresh before, with the reason. Used to log each reason once."""

    def run(self, stop: threading.Event) -> None:
        """Run turns until ``stop`` is set or the flow has failed."""
        backoff = Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        logged = LoggedReasons()
        while not stop.is_set():
            try:
                self.turn()
            except FlowFailedError as error:
                logger.error("%s failed: %s", self._settings.name, error)  # noqa: TRY400 - the message is complete
                self._status.set_state(self._settings.name, FlowState.FAILED, str(error))
                self._publish(())
                return
            except CLUSTER_ERRORS as error:
                reason = error_text(error)
                if logged.is_new(reason):
                    logger.warning("%s waits: %s", self._settings.name, reason)
                self._wait(reason, stop, backoff)
            except Exception as error:
                if not self._is_published:
                    raise
                reason = f"unexpected error: {type(error).__name__}: {error}"
                if logged.is_new(reason):
                    logger.exception("%s waits: %s", self._settings.name, reason)
                self._wait(reason, stop, backoff)
            else:
                backoff.reset()
                logged.clear()
                self.report_progress()
                if self._claim.is_held:
                    stop.wait(_TURN_S)
                else:
                    self._claim.wait_held(_TURN_S)
        self._status.set_state(self._settings.name, FlowState.STOPPED, _reason(self._states.current.flow))

    def _wait(self, reason: str, stop: threading.Event, backoff: Backoff) -> None:
        """Wait before the next turn, after one that failed."""
        self._status.set_state(self._settings.name, FlowState.WAITING, reason)
        self._are_reachable = False
        stop.wait(backoff.next_s())

    def report_progress(self) -> None:
        """Set the state after a turn that succeeded."""
        claim, requested = self._claim, self._states.current.flow
        if claim.is_held:
            self._status.set_state(self._settings.name, FlowState(requested.value), _reason(requested))
        elif claim.holder:
            self._status.set_state(self._settings.name, FlowState.STANDBY, f"{claim.holder} mirrors this flow")
        elif claim.problem:
            self._status.set_state(self._settings.name, FlowState.WAITING, claim.problem)

    def turn(self) -> None:
        """Do the steps that are due now.

        Raises:
            FlowFailedError: The flow cannot continue.
            ConnectionError, TimeoutError, ProtocolError: A cluster is unavailable. The next turn retries.
            KafkaApiError: A cluster rejects a call that the flow needs. The next turn retries.
        """
        now = self._clock()
        if self._claim.holder or self._claim.times_taken != self._times_taken:
            self._withdraw()
        if not self._are_reachable:
            # A flow that is a broker follows the states in _lead_without_source.
            is_known = self._has_internal_topics and self._claim.is_held and self._settings.replica is None
            if is_known and not self._follow_states():
                return
            self._check_clusters()
            self._are_reachable = True
        if not self._claim.is_held:
            return
        if not self._has_internal_topics:
            create_offsets_topic(self._target, self._settings, self._remote_topics.place)
            self._carry(self._settings)
            self._states.load()
            self._has_internal_topics = True
        if not self._follow_states():
            return
        failure = None
        if not self._has_other_topics:
            place = self._remote_topics.place
            failure = create_other_topics(self._source, self._target, self._settings, place, self._heartbeats)
            self._has_other_topics = failure is None
        self._note_missing()
        if now >= self._refresh_due:
            self._refresh_topics()
            refresh = self._settings.refresh_topics_interval.total_seconds()
            self._refresh_due = now + refresh if self._settings.refresh_topics_enabled else float("inf")
        self._sync(now)
        if failure is not None:
            raise failure

    def _sync(self, now: float) -> None:
        """Sync configs and ACLs if that is due."""
        if now >= self._sync_due and self._settings.sync_topic_configs_enabled:
            self._configs.run(self._mirrored_topics())
            self._sync_due = now + self._settings.sync_topic_configs_interval.total_seconds()
        if now >= self._acl_sync_due and self._settings.sync_topic_acls_enabled:
            self._acls.run(self._unsynced_topics())
            self._acl_sync_due = now + self._settings.sync_topic_acls_interval.total_seconds()

    def _follow_states(self) -> bool:
        """Publish the requested states if they changed. Return False if the flow is STOPPED and therefore released."""
        self._states.read_back()
        states = self._states.current
        if states.flow is RequestedState.STOPPED:
            self._release()
            return False
        # In every turn: the topic may be reset and resumed before the next refresh.
        stopped = {topic for topic, own in states.topics.items() if own is RequestedState.STOPPED}
        self._deletion.keep_source_offsets(stopped)
        self._note_demoted(states)
        if self._is_published and states != self._published_states:
            self._publish_assignment()  # before the refresh, so that a pause counts although a refresh fails
        return True

    def _check_clusters(self) -> None:
        try:
            check_reachable(self._source, self._settings.source.alias)
        except CLUSTER_ERRORS:
            self._lead_without_source()
            raise
        check_reachable(self._target, self._settings.target.alias)
        check_loops(self._settings, shared_topics(self._source, self._target))
        self._remote_topics.check_supported()

    def _lead_without_source(self) -> None:
        """Let klamm lead its remote topics while the source is unavailable: they can be read and promoted."""
        if self._settings.replica is None or not self._claim.is_held:
            return
        if not self._is_published:
            self._remote_topics.check_supported()
            self._states.load()
        self._states.read_back()
        states = self._states.current
        if states.flow is RequestedState.STOPPED:
            self._release()
            return
        self._note_demoted(states)
        rows = self._published or sorted({*self._remote_topics.led(), *self._promoted(states)})
        if rows and not (self._is_published and states == self._published_states):
            self._publish_rows(rows, states)
            self._spread([name for _, name, _ in rows])
            self._published_states = states

    def _note_demoted(self, states: RequestedStates) -> None:
        """Refresh the topics in this turn if one is no longer promoted: its remote topic may have to be created."""
        before = self._published_states.topics
        if any(own.is_promoted and not states.of(topic).is_promoted for topic, own in before.items()):
            self._refresh_due = 0.0

    def _note_missing(self) -> None:
        """Refresh the topics in this turn if another remote topic was deleted."""
        if self._settings.replica is None:
            return
        missing = self._status.topics_that_wait(self._settings.name, NO_REMOTE_TOPIC)
        if missing - self._missing:
            self._refresh_due = 0.0
        self._missing = missing

    def _promoted(self, states: RequestedStates) -> Assignment:
        """Return the promoted topics whose remote topics exist: a promotion that was interrupted is finished."""
        names = {topic: self._settings.remote_topic(topic) for topic, own in states.topics.items() if own.is_promoted}
        counts = partition_counts(self._target) if names else {}
        return tuple((topic, name, counts[name]) for topic, name in names.items() if name in counts)

    def _withdraw(self) -> None:
        """Release the flow, because another process mirrors it. That process may change the requested states."""
        self._times_taken = self._claim.times_taken
        self._release()
        # In each turn, because tasks may report progress until they have ended.
        self._status.release(self._settings.name, is_taken=True)
        self._has_internal_topics = self._has_other_topics = False

    def _release(self) -> None:
        """Publish an empty assignment, and let all later steps be due when the flow continues."""
        if self._is_published:
            self._is_published = False
            self._publish(())
            self._status.set_topic_states(self._settings.name, {})
        self._assignment = self._published = self._kept = ()
        self._published_states = RequestedStates()
        self._refresh_due = self._sync_due = self._acl_sync_due = 0.0
        self._deletion.start_again()

    def _refresh_topics(self) -> None:
        self._logged, self._rejected = self._rejected, {}
        check_loops(self._settings, shared_topics(self._source, self._target))
        here = partition_counts(self._source)
        selected = self._deletion.mirrorable(selected_topics(here, self._settings.selection))
        self._warn_if_none(here, selected)
        self._warn_of_conflicts(selected)
        counts = partition_counts(self._target)
        states = self._states.current
        mirrored = {topic: count for topic, count in selected.items() if not states.of(topic).is_promoted}
        self._kept = self._rows_without_source(selected, states)
        plan = plan_topics(mirrored, counts, self._settings.remote_topic)
        if self._settings.replica is not None and (plan.create or plan.grow):
            self._await_broker(selected)
        gone = {topic: remote_topic for topic, remote_topic, _ in self._assignment if topic not in selected}
        try:
            counts |= self._create(plan.create, selected)
            counts |= self._grow(plan.grow)
            remote_topics = [*map(self._settings.remote_topic, selected), *(name for _, name, _ in self._kept)]
            self._spread([name for name in remote_topics if name in counts])
            self._check_listed(map(self._settings.remote_topic, plan.create), counts)
        except NoPartitionsYetError:
            raise
        except CLUSTER_ERRORS:
            self._assign_existing(selected, counts)
            log_gone(self._settings, self._source, gone)
            raise
        self._note_misplaced([name for name in remote_topics if name in counts])
        self._rejected |= unselected_topics(self._settings, counts, states, (topic for topic, _, _ in self._kept))
        # Tasks report why a topic is not taken back yet.
        others = [topic for topic in mirrored if states.of(topic) is not RequestedState.DEMOTED]
        self._note_handed_over([name for name in map(self._settings.remote_topic, others) if name in counts])
        self._status.set_rejected(self._settings.name, self._rejected)
        self._assign(selected, counts)
        handled = self._delete(here, counts)
        kept = {topic: remote_topic for topic, remote_topic in gone.items() if topic not in handled}
        log_gone(self._settings, self._source, kept)

    def _delete(self, here: Mapping[str, int], counts: Mapping[str, int]) -> Collection[str]:
        """Run the step that deletes remote topics. If it fails, the next refresh tries again; all else continues."""
        if self._settings.deletions.mode is TopicDeletions.OFF:
            return ()
        try:
            handed_over = self._remote_topics.led_by_brokers(counts)
            counts = {name: count for name, count in counts.items() if name not in handed_over}
            promoted = {topic for topic, state in self._states.current.topics.items() if state.is_promoted}
            return self._deletion.run(here, counts, self._clock(), kept=promoted)
        except CLUSTER_ERRORS as error:
            logger.warning("%s: remote topics cannot be deleted now: %s", self._settings.name, error_text(error))
            return ()

    def _await_broker(self, selected: Mapping[str, int]) -> None:
        """Let a task join the target as a broker, for partitions that are not there yet, and check that it did.

        Raises:
            ConnectionLostError: It is not a broker of the target yet.
        """
        rows = [(name, self._settings.remote_topic(name), count) for name, count in selected.items()]
        self._publish_rows([*rows, *self._kept], self._states.current)
        self._remote_topics.check_joined()

    def _spread(self, topics: Collection[str]) -> None:
        """Let brokers with storage replicate remote topics. The next refresh tries again."""
        changing = {
            self._settings.remote_topic(topic)
            for topic, own in self._states.current.topics.items()
            if own.is_promoted or own is RequestedState.DEMOTED
        }
        for partition, rejected in self._remote_topics.spread(topics, changing).items():
            action = f"let brokers of cluster {self._settings.target.alias} replicate {partition.topic}"
            self._note_rejection(partition.topic, with_remedy(self._settings, rejected), action)

    def _rows_without_source(self, selected: Collection[str], states: RequestedStates) -> Assignment:
        """Return the remote topics that klamm leads or hands over, and whose source topics are not selected.

        If they cannot be listed now, those of before stay.
        """
        if self._settings.replica is None:
            return ()
        rows: Collection[tuple[str, str, int]] = self._published
        try:
            rows = {*self._remote_topics.led(), *self._promoted(states)}
        except CLUSTER_ERRORS as error:
            reason = error_text(error)
            logger.warning("%s: the topics that klamm leads cannot be listed now: %s", self._settings.name, reason)
        return tuple(sorted(row for row in rows if row[0] not in selected))

    def _note_handed_over(self, remote_topics: Collection[str]) -> None:
        """Record the topics that brokers or other flows lead although no operator promotes them."""
        alias, handed_over = self._settings.target.alias, self._remote_topics.led_by_brokers(remote_topics)
        of_other_flows = self._remote_topics.led_by_other_flows(handed_over)
        for name in sorted(handed_over):
            reason = (
                f"brokers of cluster {alias} lead it, because it was handed over or klamm did not create it: it is not "
                "mirrored. It can be mirrored again after its deletion, which also deletes all records written since"
            )
            node_id = of_other_flows.get(name)
            if node_id == NO_LEADER:
                reason = (
                    f"a partition of it has no leader on cluster {alias}: it is not mirrored before it has one. "
                    "Expected its broker, or the klamm of another flow, to run"
                )
            elif node_id is not None:
                reason = (
                    f"another flow of klamm, broker {node_id} of cluster {alias}, mirrors a topic to it: it is not "
                    "mirrored by this one. Expected flows with different topics, or a replication.policy.class that "
                    "names their remote topics differently"
                )
            self._note_rejection(name, InvalidPartitionsError(reason), f"mirror to topic {name} on cluster {alias}")

    def _note_misplaced(self, remote_topics: Collection[str]) -> None:
        """Record the topics of others that the target has placed on klamm. Log each when it is new.

        If they cannot be looked for, the next refresh tries again; all else continues.
        """
        try:
            misplaced = self._remote_topics.misplaced(remote_topics)
        except CLUSTER_ERRORS as error:
            logger.warning("%s: topics on klamm cannot be listed now: %s", self._settings.name, error_text(error))
            return
        for topic, reason in misplaced.items():
            self._rejected[topic] = reason
            if self._logged.get(topic) != reason:
                logger.warning("%s: %s: %s", self._settings.name, topic, reason)

    def _create(self, names: Sequence[str], selected: Mapping[str, int]) -> dict[str, int]:
        """Create remote topics. Return the partition counts of those that now exist.

        A topic list requested right after the creation need not contain them yet.
        """
        new = []
        for name, entries in topic_configs(self._source, names).items():
            if isinstance(entries, KafkaApiError):
                action = f"describe the configs of topic {name} on cluster {self._settings.source.alias}"
                self._note_rejection(self._settings.remote_topic(name), entries, action)
                continue
            new.append(
                plan_new_topic(
                    self._settings.remote_topic(name),
                    selected[name],
                    entries.values(),
                    replication_factor=self._settings.replication_factor,
                    config_filter=self._settings.config_filter,
                )
            )
        if self._settings.replica is not None:
            self._forget_deleted(names)
        outcomes = self._remote_topics.create(new)
        outcomes |= self._create_without_unknown_configs(
            [topic for topic in new if isinstance(outcomes[topic.name], InvalidConfigError)]
        )
        alias = self._settings.target.alias
        copied = {remote_name: count for _, remote_name, count in self._assignment}
        for name, rejected in outcomes.items():
            if rejected is None and name in copied:
                again = "" if self._settings.preserves_offsets else " not"
                logger.warning(
                    "%s: topic %s was gone on cluster %s and is created again: records mirrored to it before are%s "
                    "mirrored again", self._settings.name, name, alias, again,
                )  # fmt: skip
            elif rejected is None:
                logger.info("%s: created topic %s", self._settings.name, name)
            elif not isinstance(rejected, TopicAlreadyExistsError):
                self._note_rejection(
                    name, with_remedy(self._settings, rejected), f"create topic {name} on cluster {alias}"
                )
        counts = {topic.name: topic.num_partitions for topic in new if outcomes.get(topic.name) is None}
        # After the creation of thousands of topics, a broker may omit some of them from its topic list for a while.
        unlisted = {name for name, rejected in outcomes.items() if isinstance(rejected, TopicAlreadyExistsError)}
        return counts | {name: copied[name] for name in unlisted & copied.keys()}

    def _check_listed(self, created: Iterable[str], counts: Mapping[str, int]) -> None:
        """Check that the target lists the remote topics that it did not create because they exist.

        A broker may omit a topic that another flow, or this one before a restart, has just created.

        Args:
            created: Remote topics that the target did not list, after the attempt to create them.
            counts: Partition counts of the topics that are listed or were created.

        Raises:
            ConnectionLostError: The target does not list one of them yet.
        """
        # The creation of all others is recorded: in the counts, or as rejected.
        unlisted = {name for name in created if name not in counts and name not in self._rejected}
        alias = self._settings.target.alias
        for name, denied in denied_topics(self._target, unlisted).items():
            self._note_rejection(name, denied, f"describe topic {name} on cluster {alias}")
        if awaited := sorted(unlisted.difference(self._rejected)):
            raise ConnectionLostError(f"topic {awaited[0]} exists on cluster {alias}, but is not listed yet")

    def _forget_deleted(self, names: Collection[str]) -> None:
        """Forget the topic ids of source topics without a remote topic: a new one may be of another source topic."""
        missing = missing_topics(self._target, [self._settings.remote_topic(name) for name in names])
        if gone := [name for name in names if self._settings.remote_topic(name) in missing]:
            self._forget(self._settings, gone)

    def _create_without_unknown_configs(self, topics: Sequence[NewTopic]) -> dict[str, KafkaApiError | None]:
        """Retry the creation without configs that the target does not know, for example those of another vendor."""
        if not topics:
            return {}
        # DescribeConfigs of any topic returns all config names that the target knows. This topic exists.
        supported = topic_configs(self._target, [self._settings.source_offsets_topic])[
            self._settings.source_offsets_topic
        ]
        if isinstance(supported, KafkaApiError):
            return {}
        fewer = []
        for topic in topics:
            unknown = sorted(topic.configs.keys() - supported.keys())
            if unknown:
                alias, names = self._settings.target.alias, ", ".join(unknown)
                logger.warning(
                    "%s: topic %s: skipping configs that cluster %s does not know: %s",
                    self._settings.name, topic.name, alias, names,
                )  # fmt: skip
                configs = {name: value for name, value in topic.configs.items() if name in supported}
                fewer.append(replace(topic, configs=configs))
        return self._remote_topics.create(fewer)

    def _grow(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Add partitions to remote topics. Return the partition counts of the topics that grew."""
        grown = {}
        for name, rejected in self._remote_topics.grow(counts).items():
            if rejected is None:
                logger.info("%s: topic %s has %d partitions now", self._settings.name, name, counts[name])
                grown[name] = counts[name]
            else:
                action = f"grow topic {name} to {counts[name]} partitions on cluster {self._settings.target.alias}"
                self._note_rejection(name, rejected, action)
        return grown

    def _note_rejection(self, remote_topic: str, rejected: KafkaApiError, operation: str) -> None:
        """Record why a topic is not mirrored, or only in part. Log the reason when it is new."""
        self._rejected[remote_topic] = error_text(rejected)
        if self._logged.get(remote_topic) != error_text(rejected):
            log_rejection(rejected, operation)

    def _warn_if_none(self, here: Collection[str], selected: Collection[str]) -> None:
        """Log a warning when the flow starts to select no topic of the source. A pattern may be misspelled."""
        policy = self._settings.policy
        is_none = all(is_heartbeats_topic(policy, name) for name in selected)
        if is_none and not self._is_none_selected:
            logger.warning(
                "%s: no topic is mirrored: topics and topics.exclude select none of the %d topics of cluster %s",
                self._settings.name, sum(not policy.is_internal_topic(name) for name in here),
                self._settings.source.alias,
            )  # fmt: skip
        self._is_none_selected = is_none

    def _warn_of_conflicts(self, selected: Collection[str]) -> None:
        """Log each new conflict with another flow about remote topics."""
        before, self._conflicts = self._conflicts, tuple(conflicts(self._settings, selected))
        for conflict in self._conflicts:
            if conflict not in before:
                logger.warning("%s: %s", self._settings.name, conflict)

    def _assign(self, selected: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Publish the partitions that exist on both clusters, if they changed. The first refresh always publishes."""
        rows = ((topic, self._settings.remote_topic(topic), count) for topic, count in selected.items())
        assignment = tuple((topic, name, min(count, counts[name])) for topic, name, count in rows if name in counts)
        is_published = self._published == (*assignment, *self._kept) and assignment == self._assignment
        if not is_published or not self._refresh_due:
            self._assignment = assignment
            self._publish_assignment()

    def _assign_existing(self, selected: Mapping[str, int], counts: Mapping[str, int]) -> None:
        """Publish the partitions that exist although others cannot be created now. The next refresh publishes again.

        Args:
            selected: Partition counts of the selected source topics. All of them are expected to be copied, so a run
                until everything is copied does not end before the others are created.
            counts: Partition counts of the topics on the target. klamm as a broker accepts the partitions of all topics
                until it gets them. Otherwise a broker may omit topics that the tasks are copying.
        """
        if self._settings.replica is None:
            counts = {name: count for _, name, count in self._assignment} | dict(counts)
            if not any(self._settings.remote_topic(name) in counts for name in selected):
                return
        self._assign(selected, counts)
        self._refresh_due = 0.0
        every = [(name, number) for name, count in selected.items() for number in range(count)]
        self._status.expect(self._settings.name, every)

    def _publish_assignment(self) -> None:
        """Publish the partitions of all topics that are not stopped, after the states of the topics."""
        states = self._published_states = self._states.current
        self._status.set_topic_states(self._settings.name, states.topics)
        self._publish_rows([*self._assignment, *self._kept], states)

    def _publish_rows(self, rows: Sequence[tuple[str, str, int]], states: RequestedStates) -> None:
        selected = {topic for topic, _, _ in self._assignment}
        by_topic = {topic: self._state_of(topic, states, selected) for topic, _, _ in rows}
        # Stopped topics too: a topic that was paused before must not be fetched while its lease ends.
        self._request({topic: state for topic, state in by_topic.items() if state is not RequestedState.RUNNING})
        self._is_published = True
        self._published = tuple(rows)
        copied = tuple(row for row in rows if by_topic[row[0]] is not RequestedState.STOPPED)
        self._publish(copied)
        if not copied:  # published like the release of the flow, but here nothing is left to copy
            self._status.expect(self._settings.name, ())

    def _state_of(self, topic: str, states: RequestedStates, selected: Collection[str]) -> RequestedState:
        """Return the state of a source topic. One that is not selected is only kept: klamm leads its remote topic.

        Args:
            topic: Source topic.
            states: Requested states.
            selected: Topics that the latest refresh selected. The topic filter, which may fail, is not called for them.
        """
        state = states.of(topic)
        is_kept = state.is_mirrored and topic not in selected and not self._settings.selection.includes(topic)
        return RequestedState.PAUSED if is_kept else state

    def _mirrored_topics(self) -> list[str]:
        """Return the source topics to sync: all of the assignment that are neither stopped nor promoted."""
        states = self._published_states
        rows = [(topic, name) for topic, name, _ in self._assignment if states.of(topic).is_synced]
        handed_over = self._remote_topics.led_by_brokers([name for _, name in rows])
        return [topic for topic, name in rows if name not in handed_over]

    def _unsynced_topics(self) -> frozenset[str]:
        """Return the source topics that the flow selects but does not sync: they are stopped or handed over."""
        held = {topic for topic, state in self._published_states.topics.items() if not state.is_synced}
        return frozenset(held.union(topic for topic, _, _ in self._assignment)).difference(self._mirrored_topics())


def _reason(requested: RequestedState) -> str:
    """Return the reason of a flow's state that an operator requested. Empty: none did."""
    return "" if requested is RequestedState.RUNNING else f"requested by klamm mirror {_COMMANDS[requested]}"
