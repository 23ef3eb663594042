"""The page docs/configs.md: what each config that can be set at run time does in klamm.

``python scripts/config_table.py``          says whether the page is current; exit 1 when it is not
``python scripts/config_table.py --write``  writes it from the definitions and ``config_effects.txt``

Every config of topics, brokers and groups needs a line in ``config_effects.txt``; a broker config that is a topic's
default needs none, and a name that ends in ``.*`` speaks for all that have no line of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import (
    broker_configs,
    group_configs,
    own_broker_configs,
    topic_configs,
    topic_synonyms,
)
from klamm.protocol.types import UpdateMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.configs.definitions import ConfigDefinition

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "configs.md"
EFFECTS: Final = ROOT / "scripts" / "config_effects.txt"
HEAD: Final = """# What each config does

Written by `scripts/config_table.py`; do not edit. "Yes" means that the config has Kafka's effect, and that a change
takes effect at once while the broker runs, unless the text says otherwise. "No" means that klamm stores the config and
returns it in DescribeConfigs, without another effect: it has no meaning in a single process, or belongs to a feature
that klamm lacks.

`klamm configs`, `klamm rollout`, `klamm topics --create` and files of topics and of policy rules accept a value in
milliseconds with a unit (`500ms`, `30s`, `5min`, `12h`, `7d`, `2w`) and one in bytes with `B`, `kB`, `MB`, `GB`, `TB`
(powers of 1000), `KiB`, `MiB`, `GiB` or `TiB` (powers of 1024). They send the number that Kafka knows. Requests, the
properties files of brokers and `klamm.Broker(config=...)` have Kafka's numbers only.
"""
SECTIONS: Final = {
    "topic": "## Topics\n\nA topic that does not set a config uses the broker config in parentheses.\n",
    "broker": """## Brokers, while they run

With `--brokers N` all broker ids are one process. Configs of the process as a whole are read from the first id.
""",
    "start": """## Brokers, read at the start

A change of these while the broker runs is rejected. Those with "No" are accepted in a properties file, without effect.
""",
    "own": """## klamm's own broker configs

Those that change while the broker runs can be set as the cluster default, or on the first broker id of a process: all
ids of `--brokers N` share them. The others are rejected while the broker runs.
""",
    "group": "## Groups\n",
}
LOGGERS: Final = """## Loggers and client metrics

A changed logger level takes effect at once and lasts until the process ends, as in Kafka. Subscriptions to client
metrics take effect with the next push of each client ([client metrics](client-metrics.md)).
"""


def read_effects(text: str) -> dict[str, dict[str, str]]:
    """Return the sentences by section and name.

    Raises:
        ValueError: A line is neither a section nor ``name = sentence``, or a name stands twice.
    """
    effects: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            section = effects.setdefault(line.strip("[]"), {})
            continue
        name, separator, sentence = line.partition(" = ")
        if not separator or name in section:
            raise ValueError(f"Cannot read {line!r}")
        section[name] = sentence
    return effects


def effect_of(name: str, effects: Mapping[str, str], defaults: Mapping[str, str]) -> str:
    """Return the sentence for a config.

    Raises:
        KeyError: There is none.
    """
    if name in effects:
        return effects[name]
    if name in defaults:
        return f"Yes: the default of the topics' `{defaults[name]}`."
    words = name.split(".")
    families = (".".join(words[:count]) + ".*" for count in range(len(words) - 1, 0, -1))
    return next((effects[family] for family in families if family in effects), None) or effects[name]


def _is_family_of(name: str, names: Iterable[str]) -> bool:
    return name.endswith(".*") and any(each.startswith(name.removesuffix("*")) for each in names)


def build_page(text: str) -> str:
    """Return the page.

    Args:
        text: What ``config_effects.txt`` holds.

    Raises:
        KeyError: A config has no sentence.
        ValueError: A sentence has no config, or the text cannot be read.
    """
    effects = read_effects(text)
    synonyms = topic_synonyms()
    defaults = {synonym.name: topic for topic, found in synonyms.items() for synonym in found}
    own = own_broker_configs()
    dynamic = [
        d
        for d in broker_configs().values()
        if d.update_mode is not UpdateMode.READ_ONLY and d.is_listed and d.name not in own
    ]
    kinds: Mapping[str, Iterable[ConfigDefinition]] = {
        "topic": topic_configs().values(),
        "broker": dynamic,
        "start": [d for d in broker_configs().values() if d.update_mode is UpdateMode.READ_ONLY and d.name not in own],
        "own": own.values(),
        "group": group_configs().values(),
    }
    parts = [HEAD]
    for kind, definitions in kinds.items():
        known = sorted(definitions, key=lambda definition: definition.name)
        names = {definition.name for definition in known}
        idle = [name for name in effects[kind] if name not in names and not _is_family_of(name, names)]
        if idle:
            raise ValueError(f"No {kind} config is called {', '.join(idle)}")
        rows = [SECTIONS[kind], "| config | default | effect |", "|---|---|---|"]
        for definition in known:
            default = "" if definition.default is None else f"`{definition.default}`" if definition.default else "empty"
            name = f"`{definition.name}`"
            if kind == "topic" and definition.name in synonyms:
                name += f" (`{synonyms[definition.name][0].name}`)"
            effect = effect_of(definition.name, effects[kind], defaults if kind in {"broker", "start"} else {})
            rows.append(f"| {name} | {default} | {effect} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join([*parts, LOGGERS])


def main() -> int:
    """Write the page or say whether it is current."""
    page = build_page(EFFECTS.read_text(encoding="utf-8"))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    is_current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
    if not is_current:
        print("docs/configs.md is not current: python scripts/config_table.py --write")
    return 0 if is_current else 1


if __name__ == "__main__":
    sys.exit(main())
