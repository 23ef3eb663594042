"""Published and random properties files mean the same to klamm and to MirrorMaker's own classes.

klamm rejects some files that MirrorMaker accepts. ``STRICTER`` lists the reasons.
"""

from __future__ import annotations

import base64
import os
import random
import re
from typing import TYPE_CHECKING, Final

import pytest

from klamm.config_providers import resolve
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import SettingsError, parse_properties
from tests.support import mm2_files
from tests.support.kafka_tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings

pytestmark = pytest.mark.long

TOPICS = (
    "orders", "Orders", "orders.eu", "orders-internal", "orders.internal", "payments", "USERS", "users", "a", "b1_v1",
    "A.orders", "B.orders", "A_orders", "B__orders", "A.B.orders", "B.A.orders", "C.orders", "Borders", "orders.", ".x",
    "__consumer_offsets", "heartbeats", "A.heartbeats", "B.heartbeats", "A_heartbeats", "my-heartbeats", "x.replica",
    "mm2-offsets.A.internal", "mm2-offset-syncs.B.internal", "mm2_internal", "mm2internal", "A.checkpoints.internal",
    "A_checkpoints_internal", "checkpointsinternal", "internal", "eu.orders", "us.orders",
)  # fmt: skip
GROUPS = ("billing", "app-1", "app-test1", "connect-a", "console-consumer-1", "__g", "Billing")
BASE = {
    "clusters": ["A,B", "A, B", "B,A,A"],
    "A.bootstrap.servers": ["a:9092"],
    "B.bootstrap.servers": ["b:9092", "b:1, c:2"],
    "A->B.enabled": ["true", "True"],
    "enabled": ["true", "True", "false"],
}
LISTS = [".*", "orders", "orders.*, payments", "orders|users", "(?i)orders, users", r"[\w-.]+", "", "a,,b1_v1", ".*s,",
         r"\p{Lower}+", r"(orders, users)", "a{1,2}", "[a-", r"^o.*$", r"orders\..*", "A.*, B.*", r".*[\-\.]internal",
         r"app-\d, billing", "(?i)B.*"]  # fmt: skip
SECONDS = ["1", "600", "-1", "-7", " 5 ", "+5", "0", "x", "9223372036", "9223372036854775807"]
BOOLEANS = ["true", "false", "TRUE", " false", "yes"]
KEYS = {
    **dict.fromkeys(("topics", "topics.exclude", "groups", "groups.exclude", "config.properties.exclude"), LISTS),
    **dict.fromkeys(
        [f"{name}.interval.seconds" for name in ("refresh.topics", "sync.topic.configs", "sync.topic.acls",
         "refresh.groups", "emit.checkpoints", "sync.group.offsets", "emit.heartbeats")], SECONDS),
    **dict.fromkeys(
        [f"{name}.enabled" for name in ("refresh.topics", "sync.topic.configs", "sync.topic.acls", "refresh.groups",
         "emit.checkpoints", "sync.group.offsets", "emit.heartbeats", "heartbeats.replication")], BOOLEANS),
    "replication.policy.separator": ["", ".", "_", "__", "-", "a"],
    "replication.policy.class": [
        "org.apache.kafka.connect.mirror.DefaultReplicationPolicy",
        "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    ],
    "replication.policy.internal.topic.separator.enabled": BOOLEANS,
    "source.cluster.alias": ["", "eu", "A", "B"],
    "target.cluster.alias": ["", "us", "A"],
    "replication.factor": ["1", "3", "-1", "0", "40000"],
    "offset.lag.max": ["0", "-1", "100", "9223372036854775807", "9223372036854775808"],
    "offset-syncs.topic.location": ["source", "target", "Source"],
    "offset-syncs.topic.replication.factor": ["1", "-1", "x"],
}  # fmt: skip
PLACES = ("", "", "A->B.", "A->B.", "A.", "B.")
STRICTER: Final = re.compile(
    r"interval\.seconds=0: expected a whole number from 1, or -1"  # MirrorMaker's scheduler fails
    r"|replication\.factor=(0|40000): expected"  # no broker accepts it
    r"|enabled=yes: expected true or false"  # MirrorMaker reads enabled=yes of a pair as false
    r"|seconds=9223372036854775807"  # MirrorMaker fails when it converts the value to milliseconds
    r"|emit\.checkpoints\.enabled=true: expected false"
    r"|for their offset syncs, so that groups would skip records"  # MirrorMaker mixes those of both flows
)
OTHERS: Final = {
    # These name classes that are not in MirrorMaker's jars.
    "own_filter_in_java", "msk_iam", "msk_migration", "strimzi_identity", "secrets_in_a_vault",
    # klamm reads these in another way, see tests/unit/mirror/settings/test_public_files.py.
    "blacklist_of_2_4", "masking_transform", "blanks_in_a_key", "secrets_in_the_environment",
}  # fmt: skip
LOOSER: Final = "values must not be empty"  # MirrorMaker since 4.2, for an empty element of a list
LONGEST_S: Final = 10**9


def random_file(draw: random.Random) -> str:
    chosen = {key: draw.choice(values) for key, values in BASE.items()}
    for key in draw.sample([*KEYS], draw.randint(1, 8)):
        chosen[draw.choice(PLACES) + key] = draw.choice(KEYS[key])
    return "".join(f"{key} = {value.replace(chr(92), chr(92) * 2)}\n" for key, value in chosen.items())


def of_mirrormaker(texts: Sequence[str]) -> list[list[dict[str, str]]]:
    """Return the decisions of MirrorMaker for the flows of each file. A file that it rejects has only ``error``."""
    stdin = "\n".join(base64.b64encode(text.encode()).decode() for text in texts)
    out = run_tool("MirrorDecisions", ",".join(TOPICS), ",".join(GROUPS), stdin=stdin)
    files: list[list[dict[str, str]]] = [[]]
    for line in out.split("\n"):
        if line == ".":
            files.append([])
        elif line.startswith(("aliases=", "error=")):
            files[-1].append(dict(item.split("=", 1) for item in line.split("\t")))
    return files[:-1]


def interval(duration: timedelta, *, is_on: bool = True) -> str:
    return str(int(duration.total_seconds())) if is_on else "off"


def of_klamm(settings: MirrorSettings, flow: FlowSettings) -> dict[str, str]:
    beat = next((pair for pair in settings.heartbeats if pair.name == flow.name), None)
    out = {
        "flow": flow.name,
        "aliases": f"{flow.source_alias}>{flow.target_alias}",
        "offsetsTopic": flow.source_offsets_topic,
        "checkpointsTopic": flow.policy.checkpoints_topic(flow.source_alias),
        "replicationFactor": str(flow.replication_factor),
        "maxOffsetLag": str(flow.offset_lag_max),
        "refreshTopicsInterval": interval(flow.refresh_topics_interval, is_on=flow.refresh_topics_enabled),
        "syncTopicConfigsInterval": interval(flow.sync_topic_configs_interval, is_on=flow.sync_topic_configs_enabled),
        "syncTopicAclsInterval": interval(flow.sync_topic_acls_interval, is_on=flow.sync_topic_acls_enabled),
        "emitHeartbeatsInterval": "off" if beat is None else interval(beat.interval),
        "topics": " ".join(f"{name}>{flow.remote_topic(name)}" for name in TOPICS if flow.selection.includes(name)),
    }
    if flow.syncs_topic is not None:
        out["offsetSyncsTopic"] = flow.syncs_topic
    if (groups := flow.groups) is not None:
        out |= {
            "groups": " ".join(filter(groups.group_filter.should_replicate_group, GROUPS)),
            "emitCheckpointsInterval": interval(groups.checkpoints_interval),
            "refreshGroupsInterval": interval(groups.refresh_interval, is_on=groups.refresh_enabled),
            "syncGroupOffsetsInterval": interval(groups.sync_interval, is_on=groups.sync_enabled),
        }
    return out


def as_here(key: str, value: str) -> str:
    """Return a value of MirrorMaker as klamm has it: intervals within limits, no negative lag."""
    if key == "maxOffsetLag":
        return str(max(0, int(value)))
    if key.endswith("Interval") and value != "off":
        least = 1 if key.startswith("emit") else 0
        return str(min(max(int(value), least), LONGEST_S))
    return value


def difference(text: str, expected: list[dict[str, str]]) -> object:
    """Return how the decisions about a file differ. None: they do not."""
    is_rejected = bool(expected) and "error" in expected[-1]
    try:
        settings = parse_settings(resolve(parse_properties(text)))
    except SettingsError as error:
        return None if is_rejected or STRICTER.search(str(error)) else str(error)
    if is_rejected:
        return None if LOOSER in expected[-1]["error"] else expected[-1]
    decisions = {flow.name: of_klamm(settings, flow) for flow in settings.flows}
    if {each["flow"] for each in expected} != decisions.keys():
        return decisions.keys()
    differing = {
        (flow["flow"], key): (flow[key], value)
        for flow in expected
        for key, value in decisions[flow["flow"]].items()
        if as_here(key, flow[key]) != value and flow[key] != "?"
    }
    return differing or None


def test_settings_match_mirrormaker(java: None, tmp_path: Path) -> None:
    draw = random.Random(894)
    texts = [mm2_files.text_of(name, tmp_path) for name in mm2_files.NAMES if name not in OTHERS]
    texts += [random_file(draw) for _ in range(5_000 if os.environ.get("KLAMM_SOAK") else 300)]
    decisions = of_mirrormaker(texts)
    differing = {text: how for text, each in zip(texts, decisions, strict=True) if (how := difference(text, each))}
    assert differing == {}
    assert sum("error" not in each[-1] for each in decisions if each) > len(texts) / 3


def test_no_key_of_mirrormaker_is_unknown(java: None) -> None:
    keys = run_tool("MirrorKeys").split()
    assert len(keys) > 500
    base = {"clusters": "A,B", "A.bootstrap.servers": "a:9092", "B.bootstrap.servers": "b:9092", "A->B.enabled": "true"}
    unknown = []
    for key in keys:
        try:
            settings = parse_settings({**base, key: "1"})
        except SettingsError:  # the key is read
            continue
        unknown += [each for each in (*settings.unused, *settings.misspelt) if "unknown" in each or "exist" in each]
    assert unknown == []
