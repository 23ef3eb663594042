"""Table of all served APIs. The ApiVersions response is derived from it."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.server.route import Route

HANDLERS: Final = (
    "api_000_produce",
    "api_001_fetch",
    "api_002_list_offsets",
    "api_003_metadata",
    "api_008_offset_commit",
    "api_009_offset_fetch",
    "api_010_find_coordinator",
    "api_011_join_group",
    "api_012_heartbeat",
    "api_013_leave_group",
    "api_014_sync_group",
    "api_015_describe_groups",
    "api_016_list_groups",
    "api_018_api_versions",
    "api_019_create_topics",
    "api_020_delete_topics",
    "api_021_delete_records",
    "api_022_init_producer_id",
    "api_023_offset_for_leader_epoch",
    "api_024_add_partitions_to_txn",
    "api_025_add_offsets_to_txn",
    "api_026_end_txn",
    "api_027_write_txn_markers",
    "api_028_txn_offset_commit",
    "api_029_describe_acls",
    "api_030_create_acls",
    "api_031_delete_acls",
    "api_032_describe_configs",
    "api_033_alter_configs",
    "api_035_describe_log_dirs",
    "api_037_create_partitions",
    "api_042_delete_groups",
    "api_043_elect_leaders",
    "api_044_incremental_alter_configs",
    "api_045_alter_partition_reassignments",
    "api_046_list_partition_reassignments",
    "api_047_offset_delete",
    "api_048_describe_client_quotas",
    "api_049_alter_client_quotas",
    "api_050_describe_client_configs",
    "api_051_alter_client_configs",
    "api_060_describe_cluster",
    "api_061_describe_producers",
    "api_065_describe_transactions",
    "api_066_list_transactions",
    "api_068_consumer_group_heartbeat",
    "api_069_consumer_group_describe",
    "api_071_get_telemetry_subscriptions",
    "api_072_push_telemetry",
    "api_074_list_config_resources",
    "api_075_describe_topic_partitions",
)
"""Modules in ``klamm.broker.handlers``. A test compares them with the files."""
LOGIN_HANDLERS: Final = ("api_017_sasl_handshake", "api_036_sasl_authenticate")
"""Modules in ``klamm.server.handlers``."""


def _routes(package: str, handlers: Iterable[str]) -> Iterator[Route]:
    for handler in handlers:
        yield import_module(f"{package}.{handler}").ROUTE


ROUTES: Final[Mapping[int, Route]] = MappingProxyType(
    {
        route.api.key: route
        for route in (*_routes("klamm.broker.handlers", HANDLERS), *_routes("klamm.server.handlers", LOGIN_HANDLERS))
    }
)
"""Served APIs by key."""
