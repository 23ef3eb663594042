"""Assembly of a broker: the order in which its parts are opened and closed, and what a program may replace."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final

from klamm.broker.client_configs import ClientConfigService
from klamm.broker.client_metrics import open_client_metrics
from klamm.broker.cluster import AdvertisedBroker, ClusterInfo
from klamm.broker.configs.guard import alter_config_guard
from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.broker.configs.loggers import PythonLoggers
from klamm.broker.configs.policy_settings import PolicySettings, allowed_client_configs, by_broker
from klamm.broker.configs.service import ConfigService
from klamm.broker.context import RequestContext, Services
from klamm.broker.data_directory import open_metadata
from klamm.broker.fetch.sessions import FetchSessions
from klamm.broker.groups.coordinator import GroupCoordinator
from klamm.broker.internal_records import InternalRecords
from klamm.broker.producer_ids import ProducerIdAllocator
from klamm.broker.quotas import MutationQuotas, QuotaService
from klamm.broker.routes import ROUTES
from klamm.broker.security.authorizer import open_authorizer
from klamm.broker.security.credentials import ScramCredentials
from klamm.broker.settings import start_configs
from klamm.broker.topics.catalog import TopicCatalog
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.client_config_runtime.enforcement import EnforcementService
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.definitions import BrokerLimits, Switch
from klamm.client_configs.registrations import TOPIC as REGISTRATIONS_TOPIC
from klamm.client_configs.registrations import TOPIC_CONFIGS as REGISTRATIONS_TOPIC_CONFIGS
from klamm.clock import wall_clock_ms
from klamm.configs.definitions import ALLOWED_CLIENT_CONFIGS, CLIENT_CONFIG_ENFORCEMENT
from klamm.configs.values import format_value
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError
from klamm.protocol.api import ApiKey
from klamm.protocol.types import ResourceType
from klamm.server.client_registry import ClientRegistry
from klamm.server.connection import Traffic
from klamm.server.connection_limits import ConnectionLimits
from klamm.server.quotas.throttles import Throttles
from klamm.server.security.endpoints import open_endpoint
from klamm.server.server import Server
from klamm.server.signals import unless_stopped
from klamm.server.sockets import fastest_event_loop
from klamm.storage.descriptors import SPARE, DescriptorShares, raise_limit
from klamm.storage.lock import DataDirectoryLock
from klamm.storage.log import HousekeepingSettings, LogManager
from klamm.storage.log.files import FilePool
from klamm.storage.metadata.identity import LOGS_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from klamm.broker.client_metrics import ClientMetricsService
    from klamm.broker.configs.guard import AlterConfigGuard
    from klamm.broker.metrics import Metrics
    from klamm.broker.security.tls_renewal import TlsRenewal
    from klamm.broker.settings import BrokerSettings
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact
    from klamm.policy_runtime import PolicyRuntime
    from klamm.protocol.api import Api
    from klamm.protocol.errors import StorageError
    from klamm.server.route import Route
    from klamm.server.security.endpoints import Endpoint
    from klamm.storage.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


def _ignore(_services: Services) -> None:
    pass


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEnvironment:
    """Parts of a broker process that the program around it may replace: clock, event loop, handlers.

    The defaults are those of ``klamm broker``.
    """

    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = fastest_event_loop
    now_ms: Callable[[], int] = wall_clock_ms
    """Wall clock, in milliseconds since the epoch."""
    routes: Mapping[int, Route] = field(default_factory=lambda: ROUTES)
    """Handlers by API key."""
    on_ready: Callable[[Services], None] = _ignore
    """Called when the broker listens, before it reports that it is ready."""
    on_stop: Callable[[], Awaitable[None]] = _nothing
    """Called before the broker stops."""


DEFAULT_ENVIRONMENT = BrokerEnvironment()
"""Environment of ``klamm broker``."""

GRACE_S: Final = 5.0
"""Seconds that requests in progress may take when the broker stops."""


class BrokerApp:
    """Broker with all its parts. Used on the event loop only.

    Parts are opened in this order and closed in reverse: lock of the data directory, metadata, logs, services, sockets.

    Services change their state in memory first and then commit it to the metadata store. When a commit fails, for
    example because the disk is full, ``_on_failed_commit`` reloads every service from the stored metadata, and the
    broker stays up. Requests that waited for the commit get a storage error. If the stored metadata cannot be read, the
    process ends, as Kafka's controller does, because changes in memory may not be stored. A broker that is stopping
    reloads nothing after its connections are closed.
    """

    def __init__(
        self,
        *,
        lock: DataDirectoryLock,
        store: MetadataStore,
        services: Services,
        registrations: RegistrationLog,
        endpoints: Mapping[str, Endpoint],
        tls: TlsRenewal | None = None,
        metrics: Metrics | None = None,
        routes: Mapping[int, Route],
        shares: DescriptorShares,
    ) -> None:
        self._metrics = metrics
        traffic, client_registry = Traffic(), ClientRegistry(now_ms=services.now_ms)
        self._endpoints = endpoints
        self._tls = tls
        self._lock = lock
        self.store = store
        self._services = services
        self._registrations = registrations
        self._policies: PolicyRuntime | None = None
        self._has_closed = False
        """Whether all connections are closed because the broker stops."""
        store.on_failure = self._on_failed_commit
        client_registry.on_left = services.client_metrics.forget_session
        configs = services.configs
        throttles = Throttles(services.quotas, configs.broker_value)
        self._server = Server(
            new_context=partial(RequestContext, services=services, throttles=throttles),
            routes=routes if metrics is None else metrics.routes,
            traffic=traffic,
            limits=ConnectionLimits(configs.broker_value, most=shares.connections),
            throttles=throttles,
            client_registry=client_registry,
            max_idle_ms=lambda: configs.int_value("connections.max.idle.ms"),
            max_frame_bytes=configs.int_value("socket.request.max.bytes"),
        )
        if metrics is not None:
            metrics.watch(services, traffic=traffic, connections=lambda: self._server.connection_count)
            from klamm.broker.page import BrokerPage  # noqa: PLC0415  # not needed without metrics

            metrics.add_views(BrokerPage(services, client_registry, metrics.activity).views)

    @classmethod
    async def start(
        cls,
        settings: BrokerSettings,
        nodes: Mapping[str, tuple[AdvertisedBroker, ...]],
        environment: BrokerEnvironment = DEFAULT_ENVIRONMENT,
        *,
        stop: asyncio.Event | None = None,
    ) -> BrokerApp:
        """Open the data directory and recover its contents.

        Args:
            settings: Settings of the process.
            nodes: Advertised brokers by listener name.
            environment: Surroundings that tests replace.
            stop: Set when the process is to stop. Policies, whose creation may take any time, are then not waited for.

        Raises:
            StartStoppedError: ``stop`` was set while a policy was being created.
            DataDirectoryError: The directory is in use, has a newer format, or cannot be read.
            SettingsError: A setting of a listener or of the authorizer is not allowed.
            PolicyLoadError: A policy that the properties name cannot be created.
        """
        async with AsyncExitStack() as opened:
            lock = DataDirectoryLock(settings.data_dir)
            opened.callback(lock.release)
            store, cluster_id, leader_epoch = await open_metadata(settings)
            opened.push_async_callback(store.close)
            cluster = ClusterInfo(
                cluster_id=cluster_id,
                nodes=nodes[settings.listeners[0].name],
                by_listener=nodes,
                leader_epoch=leader_epoch,
            )
            dynamic = by_broker(store.load_configs())
            loading = PolicySettings.load(settings.static_configs, dynamic, node_id=cluster.node_ids[0])
            policies = await (loading if stop is None else unless_stopped(stop, loading))
            opened.push_async_callback(policies.runtime.policies.close)
            app = await cls._assemble(
                settings, environment, lock=lock, store=store, cluster=cluster, policies=policies, dynamic=dynamic
            )
            opened.pop_all()
        app._policies = policies.runtime
        policies.runtime.start()
        return app

    @classmethod
    async def _assemble(
        cls,
        settings: BrokerSettings,
        environment: BrokerEnvironment,
        *,
        lock: DataDirectoryLock,
        store: MetadataStore,
        cluster: ClusterInfo,
        policies: PolicySettings,
        dynamic: Mapping[str, Mapping[str, str]],
    ) -> BrokerApp:
        now_ms = environment.now_ms
        authorizer = open_authorizer(store, settings.static_configs)
        credentials = ScramCredentials(store, now_ms=now_ms)
        tls = _tls_renewal(settings, dynamic, cluster.node_ids)
        endpoints = _open_endpoints(settings, dynamic, credentials, tls, cluster.node_ids[0])
        configs = ConfigService(
            store=store,
            static=settings.static_configs,
            started_with=start_configs(settings, cluster),
            now_ms=now_ms,
            loggers=PythonLoggers(),
            guards=_guards(policies, tls, lambda name: topics.replication_factor(name)),  # noqa: PLW0108 -- created below
            topic=lambda name: topics.get(name),  # noqa: PLW0108 -- created below
        )
        shares = _share_descriptors(settings)
        logs = _open_logs(settings, configs, FilePool(shares.log_files), cluster.leader_epoch, now_ms)
        topics = TopicCatalog(store=store, configs=configs, logs=logs)
        await logs.start()
        _follow_configs(configs, policies, tls, topics=topics, logs=logs)
        registrations = _open_registrations(topics, logs, cluster, now_ms)
        groups = await _start_groups(store, configs, topics, now_ms)
        producer_ids, quotas = ProducerIdAllocator(store), QuotaService(store, now_ms=now_ms)
        client_configs = _open_client_configs(store, configs, registrations, now_ms)
        client_metrics = open_client_metrics(settings, configs, now_ms=now_ms)
        services = Services(
            apis=_apis(environment.routes, client_metrics),
            now_ms=now_ms,
            cluster=cluster,
            topics=topics,
            configs=configs,
            client_configs=client_configs,
            enforcement=_open_enforcement(client_configs, configs),
            client_metrics=client_metrics,
            logs=logs,
            fetch_sessions=_fetch_sessions(configs, now_ms),
            groups=groups,
            producer_ids=producer_ids,
            transactions=await _start_transactions(
                store, configs, producer_ids, logs=logs, groups=groups, now_ms=now_ms
            ),
            quotas=quotas,
            mutation_quotas=MutationQuotas(quotas),
            policies=policies.runtime.policies,
            authorizer=authorizer,
            credentials=credentials,
        )
        services.policies.predict_impact = partial(_predict_impact, services)
        return cls(
            lock=lock,
            store=store,
            services=services,
            registrations=registrations,
            endpoints=endpoints,
            tls=tls,
            metrics=_metrics(settings, environment.routes),
            routes=environment.routes,
            shares=shares,
        )

    @property
    def services(self) -> Services:
        """Services of the broker."""
        return self._services

    def listen(self, listener: str, sockets: Mapping[int, socket.socket]) -> None:
        """Start to serve a listener, on a bound socket for each broker id."""
        endpoint = self._endpoints[listener]
        send_buffer_bytes = self._services.configs.int_value("socket.send.buffer.bytes")
        for node_id, sock in sockets.items():
            if send_buffer_bytes > 0:  # -1: the operating system decides. Accepted connections inherit the size.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            tls = None if self._tls is None or endpoint.tls is None else self._tls.context(node_id, listener)
            self._server.listen(endpoint, {node_id: sock}, tls)

    async def listen_for_scrapes(self, sock: socket.socket) -> None:
        """Start to serve metrics if ``metrics.listen`` is set."""
        if self._metrics is not None:
            await self._metrics.listen(sock)

    def reload(self) -> None:
        """Reload the policies, as on SIGHUP."""
        if self._policies is not None:
            self._policies.reload()

    async def stop(self) -> None:
        """Stop accepting connections, end requests in progress, and flush all data to disk.

        A part that fails to close does not keep the others open.
        """
        services = self._services
        async with AsyncExitStack() as last_first:
            last_first.callback(SPARE.release)
            last_first.callback(self._lock.release)
            last_first.push_async_callback(services.policies.close)
            if self._policies is not None:
                last_first.push_async_callback(self._policies.stop)
            last_first.push_async_callback(self.store.close)
            last_first.push_async_callback(services.logs.close)
            if self._metrics is not None:
                last_first.push_async_callback(self._metrics.close)
            last_first.push_async_callback(services.client_metrics.close)
            last_first.push_async_callback(self._end_requests)
            last_first.push_async_callback(services.transactions.stop)
            last_first.push_async_callback(services.groups.stop)

    async def _end_requests(self) -> None:
        await self._server.close(grace_s=GRACE_S)
        self._has_closed = True

    def _on_failed_commit(self, error: StorageError) -> None:
        logger.error("Metadata could not be written, the changes are rolled back: %s", error)
        if self._has_closed:
            return  # no request depends on the changes in memory, and the logs may be closed
        try:
            self._reload_metadata()
        except Exception:
            logger.exception(
                "The broker ends at once: the metadata could not be read after a failed commit, and those in memory"
                " contain changes that are not stored. Check the disk, then start the broker again"
            )
            # An orderly stop would serve requests from this state and commit changes that depend on it.
            os._exit(1)

    def _reload_metadata(self) -> None:
        services = self._services
        topic = services.topics.get(REGISTRATIONS_TOPIC)
        services.configs.load()
        services.topics.load()
        # A topic whose deletion is rolled back was unknown during configs.load, so its logs still use outdated configs.
        services.logs.update_configs()
        services.client_configs.load()
        services.quotas.load()
        services.producer_ids.load()
        services.groups.reload()
        services.transactions.reload()
        services.authorizer.load()
        services.credentials.load()
        if services.topics.get(REGISTRATIONS_TOPIC) != topic:  # its deletion or creation was rolled back
            self._registrations.replay()


async def _predict_impact(services: Services, changes: Sequence[Change], timeout_s: float) -> Impact:
    from klamm.broker.impact import predict_impact  # noqa: PLC0415  # rarely needed, so not loaded at start

    return await predict_impact(changes, timeout_s, services)


def _apis(routes: Mapping[int, Route], client_metrics: ClientMetricsService) -> tuple[Api, ...]:
    """Return the APIs to announce. Clients need not fetch subscriptions if nothing receives their metrics."""
    silent = () if client_metrics.has_receiver else (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)
    return tuple(routes[key].api for key in sorted(routes) if key not in silent)


def _guards(
    policies: PolicySettings, tls: TlsRenewal | None, replication_factor: Callable[[str], int | None]
) -> list[AlterConfigGuard]:
    guards = (alter_config_guard(policies.runtime.policies, replication_factor), policies, tls)
    return [guard for guard in guards if guard is not None]


def _fetch_sessions(configs: ConfigService, now_ms: Callable[[], int]) -> FetchSessions:
    return FetchSessions(now_ms=now_ms, max_sessions=configs.int_value("max.incremental.fetch.session.cache.slots"))


def _share_descriptors(settings: BrokerSettings) -> DescriptorShares:
    """Divide the process' file descriptors between logs and connections, and keep some in reserve."""
    shares = DescriptorShares.of(raise_limit(), listeners=len(settings.listeners) * len(settings.node_ids))
    logger.info(
        "%d file descriptors: %d for logs, %d for connections", shares.limit, shares.log_files, shares.connections
    )
    SPARE.keep()
    return shares


def _tls_renewal(
    settings: BrokerSettings, dynamic: Mapping[str, Mapping[str, str]], node_ids: Sequence[int]
) -> TlsRenewal | None:
    encrypted = [listener for listener in settings.listeners if listener.protocol.uses_tls]
    if not encrypted:
        return None
    from klamm.broker.security.tls_renewal import TlsRenewal  # noqa: PLC0415  # not needed without TLS

    return TlsRenewal(encrypted, node_ids=node_ids, static=settings.static_configs, dynamic=dynamic)


def _open_endpoints(
    settings: BrokerSettings,
    dynamic: Mapping[str, Mapping[str, str]],
    credentials: ScramCredentials,
    tls: TlsRenewal | None,
    node_id: int,
) -> Mapping[str, Endpoint]:
    """Open the listeners. As in Kafka, dynamic configs of their logins take effect at the start only."""
    static = settings.static_configs
    configs = {**static, **dynamic.get(CLUSTER_DEFAULT, {}), **dynamic.get(str(node_id), {})}
    endpoints = {}
    for listener in settings.listeners:
        own_tls = None if tls is None else tls.current(node_id, listener.name)
        try:
            endpoint = open_endpoint(listener, configs, credentials.find, own_tls)
        except SettingsError as error:
            endpoint = open_endpoint(listener, static, credentials.find, own_tls)
            logger.error("Listener %s starts without its dynamic configs: %s", listener.name, error)  # noqa: TRY400 -- the message is complete
        endpoints[listener.name] = endpoint
    return endpoints


def _follow_configs(
    configs: ConfigService, policies: PolicySettings, tls: TlsRenewal | None, *, topics: TopicCatalog, logs: LogManager
) -> None:
    """Apply changes of dynamic configs to policies, TLS contexts and logs."""
    broker, dynamic = ResourceType.BROKER, configs.set_on_broker
    configs.subscribe(lambda change: policies.follow(change, dynamic(change.resource_name)), broker)
    if tls is not None:
        configs.subscribe(lambda change: tls.follow(change, dynamic(change.resource_name)), broker)
    configs.subscribe(topics.follow, ResourceType.TOPIC)
    configs.subscribe(lambda _: logs.update_configs(), broker)  # broker configs are the defaults of all topics
    configs.on_settled(logs.check_again)
    logs.topic_configs = configs


def _metrics(settings: BrokerSettings, routes: Mapping[int, Route]) -> Metrics | None:
    if settings.metrics is None:
        return None
    from klamm.broker.metrics import Metrics  # noqa: PLC0415  # not needed without metrics

    return Metrics(routes)


def _open_registrations(
    topics: TopicCatalog, logs: LogManager, cluster: ClusterInfo, now_ms: Callable[[], int]
) -> RegistrationLog:
    registrations = RegistrationLog(
        InternalRecords(
            name=REGISTRATIONS_TOPIC,
            configs=REGISTRATIONS_TOPIC_CONFIGS,
            topics=topics,
            logs=logs,
            cluster=cluster,
            now_ms=now_ms,
        )
    )
    registrations.replay()
    topics.on_deleted(lambda topic: registrations.replay() if topic.name == REGISTRATIONS_TOPIC else None)
    return registrations


async def _start_groups(
    store: MetadataStore, configs: ConfigService, topics: TopicCatalog, now_ms: Callable[[], int]
) -> GroupCoordinator:
    groups = GroupCoordinator(
        store,
        configs.broker_value,
        topics,
        group_config=configs.group_config,
        now=asyncio.get_running_loop().time,
        wall_ms=now_ms,
    )
    await groups.start()
    topics.on_deleted(lambda topic: groups.forget_topic(topic.topic_id))
    return groups


async def _start_transactions(
    store: MetadataStore,
    configs: ConfigService,
    producer_ids: ProducerIdAllocator,
    *,
    logs: LogManager,
    groups: GroupCoordinator,
    now_ms: Callable[[], int],
) -> TransactionCoordinator:
    transactions = TransactionCoordinator(
        store, configs.broker_value, producer_ids=producer_ids, logs=logs, offsets=groups.offsets, now_ms=now_ms
    )
    await transactions.start()
    return transactions


def _open_logs(
    settings: BrokerSettings, configs: ConfigService, pool: FilePool, leader_epoch: int, now_ms: Callable[[], int]
) -> LogManager:
    return LogManager(
        settings.data_dir / LOGS_DIRECTORY,
        configs_of=lambda topic: _in_force(configs, topic),
        now_ms=now_ms,
        pool=pool,
        settings=lambda: _housekeeping(configs),
        leader_epoch=leader_epoch,
    )


def _housekeeping(configs: ConfigService) -> HousekeepingSettings:
    number = configs.int_value
    return HousekeepingSettings(
        retention_check_interval_s=number("log.retention.check.interval.ms") / 1000,
        producer_check_interval_s=number("producer.id.expiration.check.interval.ms") / 1000,
        producer_expiration_ms=number("producer.id.expiration.ms"),
        cleaner_is_enabled=bool(configs.broker_value("log.cleaner.enable")),
        cleaner_backoff_s=number("log.cleaner.backoff.ms") / 1000,
        cleaner_bytes_per_s=float(str(configs.broker_value("log.cleaner.io.max.bytes.per.second"))),
        cleaner_map_bytes=number("log.cleaner.dedupe.buffer.size"),
    )


def _in_force(configs: ConfigService, topic: str) -> dict[str, str]:
    in_force = configs.topic_config(topic)
    return {name: format_value(value) for name, value in in_force.items() if value is not None}


def _open_client_configs(
    store: MetadataStore, configs: ConfigService, registrations: RegistrationLog, now_ms: Callable[[], int]
) -> ClientConfigService:
    return ClientConfigService(store=store, registrations=registrations, limits=lambda: _limits(configs), now_ms=now_ms)


def _open_enforcement(client_configs: ClientConfigService, configs: ConfigService) -> EnforcementService:
    enforcement = EnforcementService(
        client_configs,
        is_on=lambda: configs.broker_value(CLIENT_CONFIG_ENFORCEMENT) == Switch.ON,
        limits=lambda: _limits(configs),
    )
    configs.subscribe(lambda _: enforcement.refresh(), ResourceType.BROKER)
    return enforcement


def _limits(configs: ConfigService) -> BrokerLimits:
    return BrokerLimits(
        allowed_keys=allowed_client_configs(configs.broker_value(ALLOWED_CLIENT_CONFIGS)),
        min_session_timeout_ms=configs.int_value("group.min.session.timeout.ms"),
        max_session_timeout_ms=configs.int_value("group.max.session.timeout.ms"),
    )
