"""Failed starts of Spark: one line instead of the stack traces of Python and the JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError

from klamm.mirror.progress.flow_progress import SparkFailedError
from klamm.mirror.spark import session

if TYPE_CHECKING:
    from pathlib import Path


def test_unknown_spark_master_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> None:
        raise PySparkRuntimeError("The JVM ended.\n  at org.apache.spark.SparkContext\n", messageParameters={})

    # Another test may have left a JVM in this process. start_session would use it and not launch one.
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(session, "own_session", reject)
    with pytest.raises(SparkFailedError, match=r"^Spark does not start with spark\.master=foo: .*The JVM ended\.$"):
        session.start_session({"spark.master": "foo", "spark.app.name": "x"}, tmp_path)
