"""Monitoring of a running mirror: HTTP pages, and periodic comparison of topic configs on both clusters.

The HTTP server has ``/metrics`` for Prometheus, ``/`` for browsers, ``/status.json`` for programs, ``/health`` for
probes, and ``/commands`` for ``klamm mirror pause`` and the like.

All clients that reach the listener may read. Commands are accepted on a loopback address only, so from users of this
machine, unless ``klamm.metrics.allow.commands=true``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import threading
import time
from dataclasses import asdict, fields, replace
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.admin import KafkaApiError
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.cluster_admin import admin_client, topic_configs
from klamm.mirror.operations.commands import MirrorCommandError
from klamm.mirror.progress.flow_progress import FlowState
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.replica.placement import led_by_brokers
from klamm.mirror.settings.definitions import SYNC_TOPIC_CONFIGS, IncrementalAlterConfigs
from klamm.mirror.settings.mirror import ALLOW_COMMANDS
from klamm.mirror.status.metrics import metrics_page
from klamm.mirror.status.page import flow_values, render
from klamm.mirror.topics.plans import config_differences
from klamm.monitoring.exposition import CONTENT_TYPE
from klamm.monitoring.http import HttpListener
from klamm.page.plot import SAMPLE_EVERY_S
from klamm.page.views import HTML
from klamm.retries import LoggedReasons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from klamm.admin import AdminClient
    from klamm.mirror.operations.commands import MirrorCommands
    from klamm.mirror.progress.flow_progress import (
        ConfigDifference,
        FlowProgress,
        GroupStatus,
        MirrorStatus,
        PartitionStatus,
    )
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.monitoring.http import Action, View
    from klamm.page.html import Query
    from klamm.page.plot import Samples

logger = logging.getLogger(__name__)

_HEALTH: Final = "/health"
COMMANDS: Final = "/commands"
_STOP_S: Final = 5.0
_END_S: Final = 1.0


class WatchServer:
    """HTTP server that runs in a separate thread while its context is entered.

    Args:
        host: Address to listen on.
        port: Port to listen on. 0 means any free port; see ``address``.
        pages: Function that returns content type and text, by path. Called in the server's thread.
        views: Coroutine function that returns content type and text for the query of the request, by path.
        checks: Function that returns why a check fails, by path; see ``HttpListener``.
        remarks: Function that returns a warning for a check that succeeds, by path.
        actions: Coroutine function for POST, by path; see ``HttpListener``.

    Raises:
        OSError: This process cannot listen on the address.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[str, Callable[[], tuple[str, str]]],
        views: Mapping[str, View] = MappingProxyType({}),
        *,
        checks: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        remarks: Mapping[str, Callable[[], str | None]] = MappingProxyType({}),
        actions: Mapping[str, Action] = MappingProxyType({}),
    ) -> None:
        self._listener = HttpListener(pages, views, checks, remarks, actions=actions, has_scripts=True)
        self._socket = socket.create_server((host, port), family=_family(host))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """Host and port the server is bound to."""
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror-watch", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread and wait until the server listens."""
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listener.listen(self._socket))
            self._loop.call_soon(self._listening.set)
            self._loop.run_forever()
            self._loop.run_until_complete(self._listener.close())
            self._loop.run_until_complete(_end_all())
        finally:
            self._loop.close()


async def _end_all() -> None:
    """Wait up to one second for open connections to end. Browsers open connections in advance."""
    if waiting := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(waiting, timeout=_END_S)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


NOT_SYNCED: Final = f"not synced ({SYNC_TOPIC_CONFIGS.enabled.key})"
_COMPARE_EVERY_S: Final = 30.0
_FIRST_COMPARISON_S: Final = 3.0
_PAUSE_IN_PROPORTION: Final = 50
"""Minimum pause between comparisons, as a multiple of the duration of the latest one."""
_JOIN_S: Final = 5.0


def status_server(
    address: tuple[str, int],
    status: MirrorStatus,
    groups: GroupStatus,
    samples: Samples,
    commands: MirrorCommands | None = None,
    *,
    allow_commands: bool = False,
) -> WatchServer:
    """Return the server of ``/``, ``/metrics``, ``/status.json``, ``/health`` and ``/commands``, bound to its address.

    The server runs in a thread of the driver and makes each page from a snapshot, without a lock. Other processes
    copy the records. The driver's other threads still get their turns, because the interpreter switches threads
    every few milliseconds.

    Args:
        address: Host and port to listen on.
        status: Status of the flows.
        groups: Status of the consumer groups.
        samples: Samples for the plots.
        commands: Receiver of commands. None: none are accepted.
        allow_commands: Whether commands are accepted although the address is not a loopback address.

    Raises:
        OSError: The mirror cannot listen on this address.
    """

    async def view(query: Query) -> tuple[str, str]:
        snapshots = status.snapshot(), status.drift(), groups.snapshot(), samples.by_name()
        return HTML, render(*snapshots, at_s=time.time(), wanted=query.get("q", ""))

    async def command(commands: MirrorCommands, document: Mapping[str, Any]) -> tuple[HTTPStatus, object]:
        host = server.address[0]
        if not (allow_commands or ipaddress.ip_address(host.partition("%")[0]).is_loopback):
            return HTTPStatus.FORBIDDEN, {
                "error": f"commands are not accepted, because the mirror listens on {host}, which other machines may "
                f"reach, and there is no login: listen on 127.0.0.1, or set {ALLOW_COMMANDS}=true"
            }
        return await _in_thread(lambda: _run(commands, document))

    server = WatchServer(
        *address,
        {
            "/metrics": lambda: (
                CONTENT_TYPE,
                metrics_page(status.snapshot(), status.drift(), groups.snapshot()).text(),
            ),
            "/status.json": lambda: ("application/json", _as_json(status, groups)),
        },
        {"/": view},
        checks={_HEALTH: lambda: _flows_in(status, FlowState.FAILED, FlowState.WAITING)},
        remarks={_HEALTH: lambda: _flows_in(status, FlowState.STANDBY, FlowState.PAUSED, FlowState.STOPPED)},
        actions={} if commands is None else {COMMANDS: partial(command, commands)},
    )
    return server


def _run(commands: MirrorCommands, document: Mapping[str, Any]) -> tuple[HTTPStatus, object]:
    """Run a command and return status and document of its response."""
    try:
        return HTTPStatus.OK, commands.run(document)
    except MirrorCommandError as error:
        return HTTPStatus(error.status), {"error": str(error)}
    except Exception as error:
        logger.exception("A command failed: %s", document)
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"the command failed: {type(error).__name__}: {error}"}


async def _in_thread(work: Callable[[], tuple[HTTPStatus, object]]) -> tuple[HTTPStatus, object]:
    """Run blocking work in a daemon thread, which does not keep the mirror from ending, and return its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[HTTPStatus, object]] = loop.create_future()

    def run() -> None:
        result = work()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if done.cancelled() else done.set_result(result))

    threading.Thread(target=run, name="command", daemon=True).start()
    return await done


def _flows_in(status: MirrorStatus, *states: FlowState) -> str | None:
    """Return the flows that are in one of these states, with the reasons. None: there is none."""
    flows = [flow for flow in status.snapshot() if flow.state in states]
    return "; ".join(f"{flow.flow} {flow.state.value}: {flow.reason}" for flow in flows) or None


@contextlib.contextmanager
def watch(server: WatchServer, flows: Sequence[FlowSettings], status: MirrorStatus, samples: Samples) -> Iterator[None]:
    """Serve the pages, compare the configs of the flows' topics and take samples periodically, until the block ends."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_compare, args=(flow, status, ended), name=f"{flow.name} drift", daemon=True)
        for flow in flows
    ]
    threads.append(threading.Thread(target=_sample, args=(status, samples, ended), name="samples", daemon=True))
    with server:
        host, port = server.address
        logger.info("Status on http://%s:%d/, metrics on http://%s:%d/metrics", host, port, host, port)
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(_JOIN_S)


def _sample(status: MirrorStatus, samples: Samples, ended: threading.Event) -> None:
    """Take a sample of each flow periodically until ``ended``."""
    while True:
        samples.add(time.time(), {flow.flow: flow_values(flow) for flow in status.snapshot()})
        if ended.wait(SAMPLE_EVERY_S):
            return


def _as_json(status: MirrorStatus, groups: GroupStatus) -> str:
    drift = {flow: [asdict(row) for row in rows] for flow, rows in status.drift().items()}
    group_documents = {flow: asdict(each) for flow, each in groups.snapshot().items()}
    flows = [
        {
            **_fields(flow),
            "partitions": [
                _fields(partition, without="flow") | (_ends(partition) if flow.preserves_offsets else {})
                for partition in flow.partitions
            ],
            "lag": flow.lag,
        }
        for flow in status.snapshot()
    ]
    # No indentation, and no asdict() for the partitions: with ten thousand of them it would take almost a second.
    return json.dumps({"flows": flows, "config_differences": drift, "groups": group_documents})


def _fields(row: FlowProgress | PartitionStatus, *, without: str = "") -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != without}


def _ends(partition: PartitionStatus) -> dict[str, Any]:
    """Return both log ends of a partition whose records keep their offsets. None: not known yet."""
    source_end, target_end = partition.ends or (None, None)
    return {"source_end": source_end, "target_end": target_end, "ends_are_equal": partition.ends_are_equal}


def _compare(flow: FlowSettings, status: MirrorStatus, ended: threading.Event) -> None:
    """Compare the configs of a flow's topics periodically until ``ended``. Retry after any error."""
    source, target = admin_client(flow, "source"), admin_client(flow, "target")
    logged = LoggedReasons()
    try:
        pause_s = _FIRST_COMPARISON_S
        while not ended.wait(pause_s):
            topics = _topics(flow.name, status)
            began = time.monotonic()
            try:
                differences = differences_of(flow, source, target, topics)
            except CLUSTER_ERRORS as error:
                logger.debug("%s: configs could not be compared: %s", flow.name, error_text(error))
            except Exception as error:  # custom filters and replication policies may raise anything
                if logged.is_new(f"{type(error).__name__}: {error}"):
                    logger.exception("%s: configs could not be compared", flow.name)
            else:
                logged.clear()
                status.set_drift(flow.name, differences)
            pause_s = pause_after(time.monotonic() - began) if topics else _FIRST_COMPARISON_S
    finally:
        source.close()
        target.close()


def pause_after(took_s: float) -> float:
    """Return the seconds until the next comparison. They grow with its duration, to limit the driver's load."""
    return max(_COMPARE_EVERY_S, _PAUSE_IN_PROPORTION * took_s)


def _topics(flow: str, status: MirrorStatus) -> list[str]:
    """Return the source topics of a flow for which tasks have reported progress, without stopped and promoted ones."""
    progress = next(progress for progress in status.snapshot() if progress.flow == flow)
    if progress.state is FlowState.STOPPED:
        return []
    unsynced = {topic for topic, state in progress.topic_states if not RequestedState(state).is_synced}
    return sorted({partition.topic for partition in progress.partitions} - unsynced)


def differences_of(
    flow: FlowSettings, source: AdminClient, target: AdminClient, topics: Sequence[str]
) -> tuple[ConfigDifference, ...]:
    """Return the config differences of all topics whose configs can be described on both clusters.

    Topics that were handed over to brokers are left out: their configs are not synced.

    Raises:
        ConnectionError, TimeoutError: A cluster is unavailable.
        KafkaApiError: The target does not describe a topic, if klamm is a broker of it.
    """
    if flow.replica is not None:
        handed_over = led_by_brokers(target, [flow.remote_topic(topic) for topic in topics], flow.replica.node_id)
        topics = [topic for topic in topics if flow.remote_topic(topic) not in handed_over]
    if not topics:
        return ()
    replaces = flow.use_incremental_alter_configs is IncrementalAlterConfigs.NEVER
    there = topic_configs(target, map(flow.remote_topic, topics))
    out: list[ConfigDifference] = []
    for topic, entries in topic_configs(source, topics).items():
        remote_topic = flow.remote_topic(topic)
        others = there[remote_topic]
        if isinstance(others, KafkaApiError) or isinstance(entries, KafkaApiError):
            continue
        configs = entries.values(), others.values()
        out += config_differences(remote_topic, *configs, flow.config_filter, replaces=replaces)
    if not flow.sync_topic_configs_enabled:
        out = [replace(row, rule=NOT_SYNCED, is_drift=False) if row.is_drift else row for row in out]
    return tuple(out)
