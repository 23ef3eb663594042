"""Schema of the mirror's data source, which has to match the progress that tasks send."""

from __future__ import annotations

import re
from dataclasses import fields

from klamm.mirror.copy.copier import PartitionProgress
from klamm.mirror.record_ages import Ages
from klamm.mirror.spark.source import SCHEMA


def _names(schema: str) -> tuple[str, ...]:
    return tuple(re.findall(r"(?:^|, )(\w+) ", schema))


def test_the_schema_has_the_fields_of_partition_progress_in_their_order() -> None:
    assert _names(re.sub("<[^>]*>", "", SCHEMA)) == tuple(field.name for field in fields(PartitionProgress))


def test_the_structs_of_the_schema_have_the_figures_of_record_ages() -> None:
    structs = re.findall("struct<([^>]*)>", SCHEMA)
    assert [_names(struct) for struct in structs] == [Ages._fields, Ages._fields]
