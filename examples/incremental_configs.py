"""Configs that are changed one by one (KIP-339): what is not named keeps its value."""

from __future__ import annotations

import klamm
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    AlterConfigsOptions,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OpType,
    ResourceType,
)

ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
SHOWN = ("cleanup.policy", "retention.ms")


def show(admin: AdminClient) -> None:
    """Print what is in force."""
    configs = admin.describe_configs([ORDERS]).values()[ORDERS].result()
    print({name: configs[name].value for name in SHOWN})


with klamm.Broker() as broker, AdminClient(broker.bootstrap_servers) as admin:
    topic = NewTopic(name="orders", num_partitions=1, configs={"retention.ms": "60000"})
    admin.create_topics([topic]).all().result()
    show(admin)

    # Add to a list: retention.ms is not named and stays.
    append = AlterConfigOp(ConfigEntry("cleanup.policy", "compact"), OpType.APPEND)
    admin.incremental_alter_configs({ORDERS: [append]}).all().result()
    show(admin)

    # Ask first: a value that cannot be is refused, and nothing is changed either way.
    wrong = AlterConfigOp(ConfigEntry("retention.ms", "a while"), OpType.SET)
    asked = admin.incremental_alter_configs({ORDERS: [wrong]}, AlterConfigsOptions(validate_only=True))
    print("refused:", asked.values()[ORDERS].exception())

    # Back to the default.
    delete = AlterConfigOp(ConfigEntry("retention.ms", None), OpType.DELETE)
    admin.incremental_alter_configs({ORDERS: [delete]}).all().result()
    show(admin)
