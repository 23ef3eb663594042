"""Command ``klamm schema rules|resources``: JSON Schemas, with which editors complete and check the files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from klamm.cli import EXIT_OK
from klamm.cli.arguments import ToolParser
from klamm.cli.output import print_line

if TYPE_CHECKING:
    from collections.abc import Sequence


def schema_main(arguments: Sequence[str]) -> int:
    """Print a schema and return 0; an unknown one exits with 2 (SystemExit)."""
    parser = ToolParser(
        prog="klamm schema",
        description="Print the JSON Schema of the rules file of policies, or of the files of klamm plan and apply.",
        epilog="For editors, a file begins with:\n  # yaml-language-server: $schema=./resources.schema.json",
    )
    parser.add_argument("file", choices=("rules", "resources"))
    chosen = parser.parse_args(list(arguments)).file
    from klamm.resources.schemas import resources_schema, rules_schema  # noqa: PLC0415  # --help needs none of it

    print_line(json.dumps(rules_schema() if chosen == "rules" else resources_schema(), indent=2))
    return EXIT_OK
