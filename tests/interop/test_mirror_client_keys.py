"""Precedence of client properties in ``mm2.properties``, compared with MirrorMaker's own classes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from klamm.dataframes.options import KAFKA_PROPERTIES
from klamm.mirror.settings.mirror import parse_settings
from tests.support.client_keys import (
    ALIASES,
    FILE,
    OF_SECURITY,
    ORDER_OF_RECORDS,
    OTHER,
    WORKERS_ORDER,
    mirrormakers_order,
    strongest_first,
)
from tests.support.mirrormaker import java_virtual_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.long

PACKAGE = "org.apache.kafka.connect."
ROLES = ("producer", "consumer", "admin")
PLACES = ("", "A.", "A->B.", "A.consumer.", "A->B.source.cluster.", "A->B.producer.override.")
QUICK = {"plugin.discovery": "service_load"}
"""Scanning the class path for plugins takes seconds."""


class Oracle:
    """What MirrorMaker makes of a file."""

    def __init__(self, jvm: Any) -> None:
        self._connect = jvm.org.apache.kafka.connect
        self._java = jvm.java
        self._plugins = self._connect.runtime.isolation.Plugins({**QUICK})
        self._pair = self._connect.mirror.SourceAndTarget("A", "B")
        self._connector = self._java.lang.Class.forName(f"{PACKAGE}mirror.MirrorSourceConnector")

    def of_connector(self, client: str, key: str, file: Mapping[str, str]) -> str | None:
        """Return a property of a client that the connector itself starts."""
        settings = self._connect.mirror.MirrorSourceConfig(self._base(file))
        side, role = client.split(".")
        found = self._call("mirror.MirrorConnectorConfig", f"{side}{role.title()}Config", settings, "role")
        return _text(found.get(key))

    def of_records(self, key: str, file: Mapping[str, str]) -> str | None:
        """Return a property of the producer of records."""
        config = self._connect.mirror.MirrorMakerConfig({**file, **QUICK})
        worker = self._connect.runtime.distributed.DistributedConfig(config.workerConfig(self._pair))
        connector = self._connect.runtime.ConnectorConfig(self._plugins, self._base(file))
        policy = self._connect.connector.policy.AllConnectorClientConfigOverridePolicy()
        arguments = ("name", "id", worker, connector, self._connector, policy, "cluster")
        return _text(self._call("runtime.Worker", "baseProducerConfigs", None, *arguments).get(key))

    def of_worker(self, key: str, file: Mapping[str, str]) -> str | None:
        """Return a property of Connect's worker, None for what it would be without the file."""
        ours = self._connect.mirror.MirrorMakerConfig({**file, **QUICK}).workerConfig(self._pair).get(key)
        return ours if ours in file.values() else None

    def names(self) -> set[str]:
        """Return the names of the configs of MirrorMaker, Connect's worker and the connector."""
        mirror = self._connect.mirror
        of_all = mirror.MirrorMakerConfig({**FILE, **QUICK})
        worker = self._connect.runtime.distributed.DistributedConfig(of_all.workerConfig(self._pair))
        configs = (of_all, worker, mirror.MirrorSourceConfig(self._base(FILE)))
        return {name for config in configs for name in config.values()}

    def _base(self, file: Mapping[str, str]) -> Any:
        config = self._connect.mirror.MirrorMakerConfig({**file, **QUICK})
        return config.connectorBaseConfig(self._pair, self._connector)

    def _call(self, class_name: str, name: str, of: Any, *arguments: Any) -> Any:
        """Call a method that only its package may call; of several the one that takes a text first."""
        declared = self._java.lang.Class.forName(PACKAGE + class_name).getDeclaredMethods()
        (method,) = [
            each
            for each in declared
            if each.getName() == name and each.getParameterTypes()[0].getSimpleName() == "String"
        ]
        method.setAccessible(True)
        given = self._java.util.ArrayList()
        for argument in arguments:
            given.add(argument)
        return method.invoke(of, given.toArray())


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def test_client_properties_have_mirrormaker_precedence(java: None) -> None:
    """K894-27: the order that the unit tests hold klamm to. No security property of Kafka is taken for misspelt."""
    with java_virtual_machine() as jvm:
        oracle = Oracle(jvm)
        for key in (OF_SECURITY, OTHER):
            for client in (f"{side}.{role}" for side in ALIASES for role in ROLES):
                order = strongest_first(client, key, partial(oracle.of_connector, client, key))
                assert order == mirrormakers_order(client, key), (client, key)
            order = strongest_first("target.producer", key, partial(oracle.of_records, key))
            assert order == ORDER_OF_RECORDS[key], key
        for key, expected in WORKERS_ORDER.items():
            assert strongest_first("target.consumer", key, partial(oracle.of_worker, key)) == expected, key
        clients = jvm.org.apache.kafka.clients
        names = {*clients.consumer.ConsumerConfig.configNames(), *clients.producer.ProducerConfig.configNames()}
        assert {name for name in names if not name.startswith("internal.")} <= KAFKA_PROPERTIES
        names |= {*clients.admin.AdminClientConfig.configNames(), *oracle.names()}
        names |= set(jvm.org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF.names())
    secured = [name for name in names if name.startswith(("ssl.", "sasl.", "security."))]
    assert len(secured) > 70
    for place in PLACES:
        parsed = parse_settings({**FILE, **{place + name: "PLAINTEXT" for name in secured}})
        assert parsed.misspelt == (), place
