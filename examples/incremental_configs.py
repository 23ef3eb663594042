"""Incremental config changes (KIP-339): keys that a change does not name keep their values."""

from __future__ import annotations

import klamm
from klamm.admin import AdminClient, NewTopic

SHOWN = ("cleanup.policy", "retention.ms")


def show(admin: AdminClient) -> None:
    """Print the values in force."""
    configs = admin.topic_configs("orders").result()
    print({name: configs[name].value for name in SHOWN})


with klamm.Broker() as broker, AdminClient(broker.bootstrap_servers) as admin:
    topic = NewTopic(name="orders", num_partitions=1, configs={"retention.ms": "60000"})
    admin.create_topics([topic]).result()
    show(admin)

    # Add to a list. retention.ms is not named and stays.
    admin.alter_topic_configs("orders", append={"cleanup.policy": "compact"}).result()
    show(admin)

    # Check a change without making it.
    wrong = admin.alter_topic_configs("orders", set={"retention.ms": "a while"}, validate_only=True)
    print("rejected:", wrong.exception())

    # Reset to the default.
    admin.alter_topic_configs("orders", delete=["retention.ms"]).result()
    show(admin)
