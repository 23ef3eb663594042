"""Real Apache Kafka in KRaft mode, as an oracle: started, killed and restarted by tests and benchmarks."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Self

from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.class_archives import CACHE
from tests.support.java import (
    KAFKA_RELEASE,
    QUICK_TO_START,
    JavaUnavailableError,
    broker_class_path,
    java_command,
    java_tool,
    kafka_archive,
    start_java,
)
from tests.support.probe import broker_count_of
from tests.support.processes import LoggedProcess, free_port, stop_process, wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["JavaUnavailableError", "KafkaCluster", "KafkaNode", "java_tool", "start_java"]

_START_TIMEOUT_S = 180.0
_CONTROLLER: Final = 100
"""Id of a node that is a controller alone."""
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class KafkaNode(LoggedProcess):
    """One broker and controller in one JVM. Not thread-safe; start it from the main thread."""

    def __init__(
        self,
        *,
        node_id: int,
        directory: Path,
        host_port: tuple[str, int],
        heap: str,
        jvm_options: Sequence[str] | None,
        release: str,
    ) -> None:
        super().__init__(f"Kafka node {node_id}", directory / "server.log")
        self.node_id = node_id
        self.release = release
        self.host, self.port = host_port
        self.directory = directory
        self._heap = heap
        self._jvm_options = jvm_options

    def command(self) -> Sequence[str | Path]:
        """Return the command line of the JVM."""
        return java_command(
            "kafka.Kafka",
            str(self.directory / "server.properties"),
            heap=self._heap,
            jvm_options=self._jvm_options,
            jars=broker_class_path(self.release),
        )

    def wait_ready(self, *, expected_nodes: int = 1, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Wait until this node answers Metadata with at least ``expected_nodes`` brokers.

        Raises:
            RuntimeError: The JVM ended; the message ends with its log.
            TimeoutError: The brokers were not complete in time.
        """
        wait_until(
            lambda: broker_count_of(self.host, self.port) >= expected_nodes,
            timeout_s=timeout_s,
            what=f"Kafka node {self.node_id}, see {self.log_path}",
            interval_s=0.05,
            alive=self.check_alive,
        )

    def stop(self) -> None:
        """Shut the node down in an orderly way."""
        if self._process is not None:
            stop_process(self._process)

    def start(self, *, expected_nodes: int = 1) -> None:
        """Start the node again on its old port and directory and wait until it answers."""
        self.launch()
        self.wait_ready(expected_nodes=expected_nodes)


class KafkaCluster:
    """A KRaft cluster of combined nodes with ids 1..n on 127.0.0.1; a context manager that always stops its JVMs.

    Args:
        nodes: How many; each is broker and controller.
        properties: Broker settings on top of (or instead of) those a small cluster needs; ``{node}`` is the node's id.
        heap: ``-Xmx`` per node.
        jvm_options: Compiler and collector. None: those that start fast; benchmarks pass what Kafka ships with.
        release: Release of Apache Kafka on Maven.
        with_logins: Whether each node has a second listener, for logins. The properties configure it.
        login_listener: Name of this listener. The properties name its protocol if that is another one.
        with_controller: Whether one more node, which is no broker, is the controller in the place of the others.
    """

    def __init__(
        self,
        nodes: int = 1,
        properties: Mapping[str, str] = NO_PROPERTIES,
        *,
        with_logins: bool = False,
        login_listener: str = "SASL_PLAINTEXT",
        with_controller: bool = False,
        heap: str = "512m",
        jvm_options: Sequence[str] | None = None,
        release: str = KAFKA_RELEASE,
    ) -> None:
        self._release = release
        self._properties = dict(properties)
        self._jvm_options = jvm_options
        self._login_listener = login_listener
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.directory = Path(tempfile.mkdtemp(prefix="klamm-kafka-"))
        self._heap = heap
        self.nodes: dict[int, KafkaNode] = {node_id: self._node(node_id) for node_id in range(1, nodes + 1)}
        self._controller = self._node(_CONTROLLER) if with_controller else None
        """Node that is a controller alone."""
        self._controller_ports = {
            node_id: free_port() for node_id in ([_CONTROLLER] if with_controller else self.nodes)
        }
        self.login_ports = {node_id: free_port() for node_id in self.nodes} if with_logins else {}
        """Port of the listener for logins by node id."""

    def _node(self, node_id: int) -> KafkaNode:
        return KafkaNode(
            node_id=node_id,
            directory=self.directory / f"node-{node_id}",
            host_port=("127.0.0.1", free_port()),
            heap=self._heap,
            jvm_options=self._jvm_options,
            release=self._release,
        )

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all nodes, comma separated."""
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes.values())

    @property
    def bootstrap_controllers(self) -> str:
        """Addresses of the controllers of all nodes, comma separated."""
        return ",".join(f"127.0.0.1:{port}" for port in self._controller_ports.values())

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the JVMs that live."""
        return tuple(node.pid for node in self.nodes.values() if node.is_running)

    def __enter__(self) -> Self:
        """Format, start and wait for every node."""
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.stop()
            self.keep_logs()
            raise
        return self

    def launch(self) -> None:
        """Format every node and start it without waiting for it."""
        if self._jvm_options is None and self._release == KAFKA_RELEASE:
            write_broker_archive()
            write_tools_archive()
        formatted = _formatted_directory(self._release)
        for node in (*self.nodes.values(), *self._controllers_alone):
            self._format(node, formatted)
            node.launch()

    def wait_ready(self) -> None:
        """Wait until every node knows all others."""
        for node in self.nodes.values():
            node.wait_ready(expected_nodes=len(self.nodes))

    def wait_for_replicas(self, topic: str, count: int) -> None:
        """Wait until every node names this number of replicas of a topic's partitions.

        Each node learns of a change some time after the response to it.
        """
        wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])

        def counts() -> Iterator[int]:
            for address in self.bootstrap_servers.split(","):
                with WireClient(address) as client:
                    (described,) = client.ask(wanted, MetadataResponse, 12).topics
                yield from {len(partition.replica_nodes) for partition in described.partitions} or {0}

        what = f"{count} replicas of {topic} at every node"
        wait_until(lambda: set(counts()) == {count}, timeout_s=60, what=what)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every node; keep the logs when the block failed."""
        self.stop()
        if kind is not None:
            self.keep_logs()
        shutil.rmtree(self.directory, ignore_errors=True)

    def restart(self, node_id: int = 1, *, kill: bool = False) -> None:
        """Stop one node, in order or by SIGKILL, and restart it on the same port and data."""
        node = self.nodes[node_id]
        if kill:
            node.kill()
        else:
            node.stop()
        node.start(expected_nodes=len(self.nodes))

    @contextlib.contextmanager
    def another_broker(self) -> Iterator[KafkaNode]:
        """Prepare a node that is a broker only. The caller starts it, and calls ``remove`` at the latest at the end."""
        node = self._node(max(self.nodes) + 1)
        self._format(node, _formatted_directory(self._release))
        self.nodes[node.node_id] = node
        try:
            yield node
        finally:
            self.remove(node)

    def remove(self, node: KafkaNode) -> None:
        """Kill a broker and unregister it, if it runs. It may have been started again after it was removed."""
        self.nodes.pop(node.node_id, None)
        if not node.is_running:
            return
        node.kill()
        first = next(iter(self.nodes.values()))
        wait_until(
            lambda: _unregister(first, node.node_id), timeout_s=_START_TIMEOUT_S, what="the controller to forget it"
        )

    def unregister(self, node_id: int) -> None:
        """Unregister a broker that does not run, if there is one with this id."""
        _unregister(next(iter(self.nodes.values())), node_id)

    def upgrade(self, node_id: int, release: str) -> None:
        """Stop one node and start it with another release on the same data, whose feature levels stay."""
        node = self.nodes[node_id]
        node.stop()
        node.release = release
        node.start(expected_nodes=len(self.nodes))

    def keep_logs(self) -> Path:
        """Copy the nodes' logs to ``.cache/kafka-logs`` and return where they are."""
        kept = CACHE / "kafka-logs" / self.directory.name
        kept.mkdir(parents=True, exist_ok=True)
        for node in self.nodes.values():
            if node.log_path.is_file():
                shutil.copy(node.log_path, kept / f"node-{node.node_id}.log")
        return kept

    def stop(self) -> None:
        """Stop every node that is running.

        Several nodes are killed: a quorum that loses members one by one would delay the last controlled shutdown.
        """
        running = [node for node in self.nodes.values() if node.is_running]
        for node in running:
            if len(running) == 1:
                node.stop()
            else:
                node.kill()
        for node in self._controllers_alone:
            if node.is_running:
                node.kill()

    @property
    def _controllers_alone(self) -> Sequence[KafkaNode]:
        return () if self._controller is None else (self._controller,)

    def _format(self, node: KafkaNode, formatted: Path) -> None:
        data = node.directory / "data"
        shutil.copytree(formatted, data)
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={self.cluster_id}\nnode.id={node.node_id}\n"
            f"directory.id={base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')}\n"
        )
        lines = [f"{name}={value}" for name, value in self._settings(node, data).items()]
        (node.directory / "server.properties").write_text("\n".join(lines) + "\n")

    def _settings(self, node: KafkaNode, data: Path) -> dict[str, str]:
        replicas = str(min(3, len(self.nodes)))
        listeners = f"PLAINTEXT://{node.host}:{node.port}"
        if node.node_id in self.login_ports:
            listeners += f",{self._login_listener}://{node.host}:{self.login_ports[node.node_id]}"
        roles, all_listeners = "broker", listeners
        if node.node_id in self._controller_ports:
            controller = f"CONTROLLER://127.0.0.1:{self._controller_ports[node.node_id]}"
            roles, all_listeners = "broker,controller", f"{listeners},{controller}"
            if node is self._controller:
                roles, all_listeners = "controller", controller
        return {
            "process.roles": roles,
            "node.id": str(node.node_id),
            "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:{port}" for i, port in self._controller_ports.items()),
            "listeners": all_listeners,
            **({} if node is self._controller else {"advertised.listeners": listeners}),
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
                if self.login_ports
                else "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(data),
            # A cluster that lives for minutes: few partitions in the internal topics, no delay for members that do not
            # join.
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            # After a SIGKILL the controller rejects the same id until this has passed (9 s as shipped).
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "4000",
            # A controller without work would write a record twice a second, for a third of the CPU time of idle nodes.
            "metadata.max.idle.interval.ms": "10000",
            # Tests of compaction should not have to wait 15 s for it.
            "log.cleaner.backoff.ms": "500",
            # A node would fill 128 MB of its heap for it when it starts.
            "log.cleaner.dedupe.buffer.size": "16777216",
            **{name: value.replace("{node}", str(node.node_id)) for name, value in self._properties.items()},
        }


def _unregister(node: KafkaNode, node_id: int) -> bool:
    """Unregister a broker that does not run; return whether the controller agrees."""
    body = b"\0" + node_id.to_bytes(4) + b"\0"
    header = (64).to_bytes(2) + bytes(2) + bytes(4) + b"\xff\xff"
    with (
        socket.create_connection((node.host, node.port), timeout=30) as connection,
        connection.makefile("rb") as stream,
    ):
        connection.sendall((len(header) + len(body)).to_bytes(4) + header + body)
        answer = stream.read(int.from_bytes(stream.read(4)))
    return answer[9:11] == bytes(2)  # behind the correlation id, a tag section and the throttle time


def write_broker_archive() -> None:
    """Write the archive of the classes of Kafka's broker, unless it exists."""
    kafka_archive(broker_class_path()).write(_run_once)


def write_tools_archive() -> None:
    """Write the archive of the classes of Kafka's tools, unless it exists."""
    kafka_archive().write(_use_a_tool)


def _run_once(jvm_options: Sequence[str]) -> None:
    """Start one node, use it and stop it."""
    from tests.support.kafka_training import send_usual_requests  # noqa: PLC0415 - clients, once in a checkout

    with KafkaCluster(jvm_options=(*QUICK_TO_START, *jvm_options)) as cluster:
        send_usual_requests(cluster.bootstrap_servers)


def _use_a_tool(jvm_options: Sequence[str]) -> None:
    """Run a tool that finds no broker."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write("default.api.timeout.ms=500\nrequest.timeout.ms=400\n")
        settings.flush()
        tool = "org.apache.kafka.tools.TopicCommand"
        words = ("--bootstrap-server", "127.0.0.1:1", "--list", "--command-config", settings.name)
        with contextlib.suppress(subprocess.CalledProcessError):
            java_tool(tool, *words, jvm_options=(*QUICK_TO_START, *jvm_options))


@contextlib.contextmanager
def started(*clusters: KafkaCluster) -> Iterator[None]:
    """Start clusters at the same time, and stop them at the end."""
    with contextlib.ExitStack() as stack:
        for cluster in clusters:
            stack.push(cluster)
            cluster.launch()
        for cluster in clusters:
            cluster.wait_ready()
        yield


def _formatted_directory(release: str) -> Path:
    """Return a directory as Kafka's StorageTool formats it, with the feature levels of a release.

    The tool runs once; every node gets a copy with ids of its own.
    """
    template = CACHE / "java" / f"formatted-{release}"
    if template.is_dir():
        return template
    with tempfile.TemporaryDirectory(prefix="klamm-format-") as scratch:
        settings = Path(scratch) / "server.properties"
        settings.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"
            "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
            f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={scratch}/data\n"
        )
        words = ("format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(settings))
        java_tool("kafka.tools.StorageTool", *words, jars=broker_class_path(release))
        fresh = template.with_name(f"{template.name}-{os.getpid()}")
        shutil.copytree(Path(scratch) / "data", fresh)
        with contextlib.suppress(OSError):  # another process was faster
            fresh.rename(template)
        shutil.rmtree(fresh, ignore_errors=True)
    return template
