"""Failed starts of Spark: one line instead of the stack traces of Python and the JVM."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError

from klamm.mirror.progress.flow_progress import SparkFailedError
from klamm.mirror.spark import session
from klamm.properties import SettingsError

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


def test_directory_in_which_no_program_can_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with /tmp that is mounted with noexec: Spark's launcher is written there."""

    def deny(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "spark-submit"))

    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(session, "require_java", lambda: tmp_path)
    monkeypatch.setattr(session, "quick_start", contextlib.nullcontext)
    monkeypatch.setattr(session, "launch_gateway", deny)
    with pytest.raises(SparkFailedError) as failure:
        session.start_session({}, tmp_path)
    assert str(failure.value) == (
        f"Spark does not start in {tmp_path}: Permission denied. Set TMPDIR to a directory that has space and in which "
        "programs can run (no mount option noexec)"
    )


@pytest.mark.parametrize("value", ["true", "True", " TRUE "])
def test_session_with_speculation_is_rejected_in_any_case(value: str) -> None:
    conf = SparkConf(loadDefaults=False, _jvm=None).set("spark.speculation", value)
    with pytest.raises(SettingsError, match=r"spark\.speculation=true: expected false"):
        session.check_session(Mock(sparkContext=Mock(getConf=lambda: conf)))


def test_session_without_speculation_is_accepted() -> None:
    session.check_session(Mock(sparkContext=Mock(getConf=lambda: SparkConf(loadDefaults=False, _jvm=None))))


def test_secrets_reach_the_session_but_no_process_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    secrets = {
        "spark.authenticate.secret": "s",
        "spark.hadoop.fs.s3a.access.key": "s",
        "spark.kubernetes.authenticate.oauthToken": "s",
        "spark.ssl.keyStorePassword": "s",
    }
    properties = {"spark.master": "spark://host:7077", "spark.authenticate": "true", **secrets}
    launch = Mock()
    builder = Mock()
    builder.config.return_value = builder
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr(session, "quick_start", contextlib.nullcontext)
    monkeypatch.setattr(session, "require_java", lambda: tmp_path)
    monkeypatch.setattr(session, "SparkSession", Mock(builder=builder))
    # when
    session.own_session(properties, tmp_path, session.JvmOutput(passes_all=False))
    # then
    arguments = dict(launch.call_args.args[0].getAll())
    assert arguments.items() >= (properties.items() - secrets.items())
    assert not arguments.keys() & secrets.keys()
    assert dict(call.args for call in builder.config.call_args_list).items() >= properties.items()
