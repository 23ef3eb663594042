"""The mirror's properties file of the README, run between two brokers of one node each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.admin import AdminClient
from klamm.mirror.spark import start
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, produce, read
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = Path(__file__).resolve().parents[2] / "README.md"


def test_readme_file_mirrors_between_two_brokers(spark: SparkSession, tmp_path: Path) -> None:
    # given
    match = re.search(r"^```\n(# mm2\.properties\n.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert match is not None
    with KlammBroker() as source, KlammBroker() as target:
        text = match[1]
        for example, broker in (("a.example.org:9092", source), ("b.example.org:9092", target)):
            assert example in text
            text = text.replace(example, broker.bootstrap_servers)
        for topic in ("orders", "payments.eu", "other"):
            create_topic(source.bootstrap_servers, topic, 1)
        produce(source.bootstrap_servers, "orders", [(0, Seen(b"k", b"v", (), RECENT_MS))])
        file = tmp_path / "mm2.properties"
        file.write_text(text)
        # when
        query = start(spark, file)
        try:
            (copied,) = read(target.bootstrap_servers, "A.orders", {0: 1}, timeout_s=120)[0]
        finally:
            query.stop()
        # then
        assert query.exception() is None
        assert copied.value == b"v"
        with AdminClient(target.bootstrap_servers) as admin:
            assert {name for name in admin.list_topics().result() if name.startswith("A.")} >= {
                "A.orders",
                "A.payments.eu",
            }
