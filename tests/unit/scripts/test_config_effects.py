"""docs/configs.md compared with the source: exactly the configs with an effect are read."""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from pathlib import Path

import klamm
from klamm.configs import definitions
from klamm.configs.definitions import (
    broker_configs,
    group_configs,
    own_broker_configs,
    topic_configs,
    topic_synonyms,
)
from klamm.protocol.types import UpdateMode
from klamm.storage.log.config import LogConfig
from scripts.config_table import EFFECTS, effect_of, read_effects

SOURCE = Path(klamm.__file__).parent
READERS = ("broker", "client_configs", "policy", "policy_runtime", "security", "server", "storage")
"""The packages that read configs. ``configs`` itself knows all of them, whether they have an effect or not."""

COMPOSED = {
    *(f"{kind}.policy.{suffix}" for kind in ("create.topic", "alter.config") for suffix in ("class.name", "mode")),
    *(f"{kind}.policy.{suffix}" for kind in ("create.partitions", "delete.topic") for suffix in ("class.name", "mode")),
    *(f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")),
    *(f"ssl.{store}.{suffix}" for store in ("keystore", "truststore") for suffix in ("location", "password", "type")),
}
"""Names that the source puts together from parts."""
ELSEWHERE = {
    **{
        f"group.consumer.{bound}{suffix}": "the default or a bound of a group config"
        for bound in ("", "min.", "max.")
        for suffix in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
    },
    "local.retention.bytes": "a limit that rules of policies know",
    "local.retention.ms": "a limit that rules of policies know",
    "remote.storage.enable": "rejected by configs/topics.py",
    "ssl.endpoint.identification.algorithm": "read by clients",
    "unclean.leader.election.enable": "set on an internal topic, as by Kafka",
    "process.roles": "described by start_configs.py, never asked",
}
"""Names that are mentioned in the source, or not, without what the page says being wrong."""


@cache
def words_of_the_source() -> frozenset[str]:
    """Return every string constant in the packages that read configs."""
    words = {field.name.replace("_", ".") for field in dataclasses.fields(LogConfig)}
    paths = [path for package in READERS for path in (SOURCE / package).rglob("*.py")]
    for path in (*paths, SOURCE / "tls.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        words.update(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        # Names of some configs are constants that several modules share.
        names = {node.id for node in nodes if isinstance(node, ast.Name) and node.id.isupper()}
        words.update(str(getattr(definitions, name)) for name in names if hasattr(definitions, name))
    return frozenset(words)


def claims() -> dict[tuple[str, str], str]:
    """Return the statements of the page, by section and config."""
    effects = read_effects(EFFECTS.read_text(encoding="utf-8"))
    own, synonyms = own_broker_configs(), topic_synonyms()
    defaults = {synonym.name: topic for topic, names in synonyms.items() for synonym in names}
    effects_by_config = {("topic", name): effect_of(name, effects["topic"], {}) for name in topic_configs()}
    effects_by_config |= {("group", name): effect_of(name, effects["group"], {}) for name in group_configs()}
    for name, definition in broker_configs().items():
        section = "start" if definition.update_mode is UpdateMode.READ_ONLY else "broker"
        if name in own:
            effects_by_config["own", name] = effect_of(name, effects["own"], {})
        elif definition.is_listed:
            effects_by_config[section, name] = effect_of(name, effects[section], defaults)
    return effects_by_config


CLAIMS = claims()


def fault_of(name: str, claim: str) -> str | None:
    """Return what is wrong with the statement on a config; None if it is right."""
    if name in ELSEWHERE:
        return None
    if claim.startswith("Yes: the default of the topics'"):
        topic = claim.split("`")[1]
        is_default = name in {synonym.name for synonym in topic_synonyms()[topic]}
        return None if is_default else f"it is no default of {topic}"
    is_read = name in words_of_the_source() or name in COMPOSED
    if is_read == claim.startswith("No"):
        return f"it is {'read' if is_read else 'read nowhere'}, and the page says: {claim}"
    return None


def test_page_matches_use_of_each_config() -> None:
    faults = {config: fault_of(config[1], claim) for config, claim in CLAIMS.items()}
    assert len(faults) > 400
    assert {config: fault for config, fault in faults.items() if fault is not None} == {}


def test_every_config_is_on_the_page() -> None:
    unlisted = {name for name, definition in broker_configs().items() if not definition.is_listed}
    assert {name for section, name in CLAIMS if section not in {"topic", "group"}} == set(broker_configs()) - unlisted
