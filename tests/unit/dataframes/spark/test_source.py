"""Schemas that a reader of ``klamm-kafka`` accepts. No session is started."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from klamm.dataframes.spark.source import SCHEMA, KafkaSource
from klamm.properties import SettingsError

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
PARTITION = StructField("partition", IntegerType(), nullable=False)
VALUE = StructField("value", BinaryType())


@pytest.mark.parametrize("schema", [SCHEMA, StructType([VALUE]), StructType([PARTITION, VALUE])])
def test_a_schema_selects_columns(schema: StructType) -> None:
    source = KafkaSource(OPTIONS)
    source.reader(schema)
    source.streamReader(schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType([]), "it has no columns"),
        (StructType([VALUE, VALUE]), "value: expected each column once"),
        (StructType([StructField("value", BinaryType(), nullable=False)]), "value NOT NULL: some records have none"),
        (StructType([StructField("offset", IntegerType())]), "offset int: expected some of"),
        (StructType([VALUE, StructField("topics", StringType())]), "topics string: expected some of"),
        (StructType([StructField("Offset", LongType())]), "Offset bigint: expected some of"),
    ],
)
def test_a_schema_that_would_be_read_wrongly_is_refused(schema: StructType, said: str) -> None:
    source = KafkaSource(OPTIONS)
    with pytest.raises(SettingsError, match=said):
        source.reader(schema)
    with pytest.raises(SettingsError, match=said):
        source.streamReader(schema)
