"""Steps of the demo in order, with the claims that they check."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.demo.clusters import PARTITIONS, POLICY, SOURCE_TOPIC, TARGET_TOPIC, DemoCluster, MirrorProcess
from examples.demo.comparison import Side, compare
from examples.demo.display import Claim, Display
from examples.demo.files import show_files
from examples.demo.flights import COUNT, WITHOUT_KEY, FlightsNotFoundError, flights_file, read_flights
from examples.demo.gateway import show_gateway
from examples.demo.traffic import DemoTraffic
from examples.demo.waits import DemoError, Watch
from klamm.admin import (
    AlterConfigOp,
    ClientConfigEntity,
    ClientConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.clients import KafkaProducer
from klamm.java import JavaNotFoundError, require_java
from klamm.protocol.errors import PolicyViolationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.clients import ConfigUpdate

PACED_S: Final = 40.0
"""Seconds in which the second half of the flights is produced."""
START_S: Final = 120.0
"""Time limit for the start of Spark and the mirror, in seconds."""
CATCH_UP_S: Final = 60.0
"""Time limit for the mirror to catch up after the last record is produced, in seconds."""
REPORT_S: Final = 120.0
"""Time limit for the report, in seconds."""

CLIENT_ID: Final = "flight-recorder"
CHANGED: Final = "max.message.bytes"
CHANGED_VALUE: Final = "2097152"
EXCLUDED: Final = "follower.replication.throttled.replicas"
EXCLUDED_VALUE: Final = "0:1,1:2"


def run(*, keep: bool = False) -> int:
    """Run the demo and return the exit code: 0 if every claim was confirmed.

    Args:
        keep: Whether both brokers continue to run with their data. Their addresses are printed.
    """
    display = Display()
    directory = Path(tempfile.mkdtemp(prefix="klamm-demo-"))
    succeeded = False
    try:
        require_java()
        scenario = Scenario(display, directory, keep=keep)
        with display:
            claims = scenario.play(flights_file())
        display.claims(claims)
        succeeded = all(claim.holds for claim in claims)
        scenario.show_kept()
    except (DemoError, FlightsNotFoundError, JavaNotFoundError) as error:
        display.console.print(f"The demo stopped: {error}", markup=False, style="red")
    finally:
        if not succeeded:
            display.fact(f"data and logs are in {directory}")
        elif not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if succeeded else 1


class FollowingClient:
    """A producer that runs with acks=1 until an operator changes it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.acks = "1"
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers,
            client_id=CLIENT_ID,
            acks=1,
            enable_idempotence=False,
            linger_ms=20,
            batch_size=128 * 1024,
            metadata_max_age_ms=1_000,  # also the interval at which it requests its configs
            on_dynamic_config_change=self._follow,
        )

    def _follow(self, update: ConfigUpdate) -> None:
        self.acks = update.effective["acks"]


class Scenario:
    """One run of the demo."""

    def __init__(self, display: Display, directory: Path, *, keep: bool) -> None:
        self._display = display
        self._directory = directory
        self._keep = keep
        self._claims: list[Claim] = []
        self._clusters: tuple[DemoCluster, ...] = ()
        self._runs_on = False

    def play(self, flights: Path) -> tuple[Claim, ...]:
        """Run all steps and return the claims.

        Raises:
            DemoError: A step timed out, or a process ended.
        """
        with ExitStack() as stack:
            source, target = self._clusters = self._start_clusters(stack)
            self._create_topics(source)
            client = FollowingClient(source.broker.bootstrap_servers)
            stack.callback(client.producer.close)
            traffic = DemoTraffic(client.producer, SOURCE_TOPIC, read_flights(flights))
            self._produce_first_half(traffic)
            self._mirror_the_rest(source, target, traffic, client)
            self._report_and_compare(source, target)
            self._claims += show_files(target.broker.bootstrap_servers, TARGET_TOPIC, self._directory, self._display)
            self._claims += show_gateway(target.broker.bootstrap_servers, self._directory, self._display)
            self._runs_on = self._keep
        return tuple(self._claims)

    def show_kept(self) -> None:
        """Print the addresses of brokers that continue to run, and how to stop them."""
        if not self._runs_on:
            return
        self._display.step("Both brokers run on")
        for cluster in self._clusters:
            self._display.fact(f"{cluster.alias}  {cluster.broker.bootstrap_servers}  (pid {cluster.broker.pid})")
        pids = " ".join(str(cluster.broker.pid) for cluster in self._clusters)
        self._display.fact(f"to end them and remove their data: kill {pids}; rm -r {self._directory}")

    # --- before the mirror --------------------------------------------------------------------------------------------

    def _start_clusters(self, stack: ExitStack) -> tuple[DemoCluster, DemoCluster]:
        self._display.step("Two clusters: A with a topic policy, B with three broker ids")
        begun = time.monotonic()
        source = DemoCluster.start(
            "A", self._directory, brokers=1, config={"create.topic.policy.class.name": POLICY}, keep=self._keep
        )
        stack.callback(self._close, source)
        target = DemoCluster.start("B", self._directory, brokers=3, config={}, keep=self._keep)
        stack.callback(self._close, target)
        took = time.monotonic() - begun
        self._display.fact(f"A {source.broker.bootstrap_servers}  B {target.broker.bootstrap_servers}  ({took:.1f} s)")
        return source, target

    def _close(self, cluster: DemoCluster) -> None:
        cluster.close(stop_broker=not self._runs_on)

    def _create_topics(self, source: DemoCluster) -> None:
        self._display.step("One request creates two topics: the policy denies one of them")
        new_topics = [
            NewTopic(name=SOURCE_TOPIC, num_partitions=PARTITIONS, configs={"retention.ms": "-1"}),
            NewTopic(name="too-many-partitions", num_partitions=500),
        ]
        results = source.admin.create_topics(new_topics).values()
        results[SOURCE_TOPIC].result()
        denial = results["too-many-partitions"].exception()
        self._display.fact(f"too-many-partitions: {denial}")
        self._claim(
            "a policy denies a topic and says why; its neighbour is created",
            holds=isinstance(denial, PolicyViolationError) and "12" in str(denial),
            evidence=str(denial),
        )

    def _produce_first_half(self, traffic: DemoTraffic) -> None:
        self._display.step(f"{COUNT // 2:,} of {COUNT:,} flights of 2013 are produced, each with its real time")
        begun = time.monotonic()
        traffic.send(COUNT // 2)
        took = time.monotonic() - begun
        self._display.fact(f"{traffic.sent:,} records in {took:.1f} s, by {CLIENT_ID} with acks=1")

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _mirror_the_rest(
        self, source: DemoCluster, target: DemoCluster, traffic: DemoTraffic, client: FollowingClient
    ) -> None:
        self._display.step(f"The mirror starts on Spark; the other half is produced over {PACED_S:.0f} s meanwhile")
        before = traffic.sent
        with MirrorProcess(source, target, self._directory) as mirror:
            watch = Watch(target, traffic, mirror, self._display)
            traffic.start_paced(PACED_S, COUNT - before)
            self._change_acks(source, client, watch)
            watch.until(lambda: target.record_count(TARGET_TOPIC) > 0, START_S, "the mirror to copy its first record")
            self._change_configs(source, target, watch)
            watch.until(lambda: not traffic.is_sending, PACED_S + 30, "the producer to send everything")
            watch.until(lambda: target.record_count(TARGET_TOPIC) >= COUNT, CATCH_UP_S, "the mirror to have everything")
            self._check_kept_configs(target)
            code = mirror.stop()
        self._claim(
            "the mirror runs while the source is written to, and stops in order",
            holds=code == 0 and not traffic.errors,
            evidence=f"{before:,} flights before its start, {traffic.sent - before:,} after; exit code {code}",
        )

    def _change_acks(self, source: DemoCluster, client: FollowingClient, watch: Watch) -> None:
        self._display.step(f"The operator sets acks=all for {CLIENT_ID}, which runs with acks=1")
        entity = ClientConfigEntity.of_client("ANONYMOUS", CLIENT_ID)
        source.admin.alter_client_configs({entity: [ClientConfigOp("acks", "all")]}).all().result()
        took = watch.until(lambda: client.acks == "all", 30, "the producer to take acks=all")
        self._display.fact(f"it took acks=all after {took:.1f} s, without a restart")
        self._claim(
            "a running client takes a config that the broker holds for it",
            holds=client.acks == "all",
            evidence=f"acks=1 became acks=all after {took:.1f} s",
        )

    def _change_configs(self, source: DemoCluster, target: DemoCluster, watch: Watch) -> None:
        self._display.step(f"{CHANGED} is changed on A; {EXCLUDED} differs on both sides")
        _alter(target, TARGET_TOPIC, {EXCLUDED: EXCLUDED_VALUE})
        _alter(source, SOURCE_TOPIC, {CHANGED: CHANGED_VALUE, EXCLUDED: "*"})
        took = watch.until(
            lambda: target.configs(TARGET_TOPIC)[CHANGED].value == CHANGED_VALUE, 30, f"{CHANGED} to reach B"
        )
        self._display.fact(f"B has {CHANGED}={CHANGED_VALUE} after {took:.1f} s")
        self._claim(
            "a config changed on the source arrives at the target",
            holds=True,
            evidence=f"{CHANGED}={CHANGED_VALUE} after {took:.1f} s",
        )

    def _check_kept_configs(self, target: DemoCluster) -> None:
        configs = target.configs(TARGET_TOPIC)
        excluded, retention = configs[EXCLUDED], configs["retention.ms"]
        self._claim(
            "a config that is excluded keeps the value that the target gave it",
            holds=excluded.value == EXCLUDED_VALUE,
            evidence=f"{EXCLUDED}={excluded.value} on B, * on A",
        )
        self._claim(
            "the topic was created with its configs, so flights of 2013 are not too old for it",
            holds=retention.value == "-1" and retention.source is ConfigSource.DYNAMIC_TOPIC_CONFIG,
            evidence=f"retention.ms={retention.value} on B",
        )

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _report_and_compare(self, source: DemoCluster, target: DemoCluster) -> None:
        self._display.step("Spark reports which clients support which configs; every record is compared")
        report = _start_report(source)
        comparison = compare(
            Side(bootstrap_servers=source.broker.bootstrap_servers, topic=SOURCE_TOPIC),
            Side(bootstrap_servers=target.broker.bootstrap_servers, topic=TARGET_TOPIC),
            self._directory / "compared",
        )
        there = sum(comparison.target_counts.values())
        self._claim(
            "every record arrived once, in order, byte for byte, with its time",
            holds=comparison.is_same and there == COUNT,
            evidence="; ".join(comparison.differences) or f"{there:,} records in {PARTITIONS} partitions",
        )
        self._claim(
            "flights without a tail number have no key",
            holds=comparison.without_key == WITHOUT_KEY,
            evidence=f"{comparison.without_key:,} records",
        )
        table, errors = report.communicate(timeout=REPORT_S)
        self._display.table(table)
        self._claim(
            "the registrations show which client version supports which config",
            holds=report.returncode == 0 and "acks" in table,
            evidence=errors.strip().splitlines()[-1] if report.returncode else f"{CLIENT_ID} takes acks",
        )

    def _claim(self, text: str, *, holds: bool, evidence: str) -> None:
        self._claims.append(Claim(text=text, holds=holds, evidence=evidence))


def _alter(cluster: DemoCluster, topic: str, values: Mapping[str, str]) -> None:
    """Set some configs of a topic and leave all others alone."""
    operations = [AlterConfigOp(ConfigEntry(name, value), OpType.SET) for name, value in values.items()]
    cluster.admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): operations}).all().result()


def _start_report(cluster: DemoCluster) -> subprocess.Popen[str]:
    """Start ``klamm registrations report``."""
    words = ["registrations", "report", "--bootstrap-server", cluster.broker.bootstrap_servers]
    return subprocess.Popen(
        [sys.executable, "-m", "klamm.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
