"""The pytest plugin: scopes of its fixtures, topics of a test's own, isolation, pytest-xdist and asyncio."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import textwrap
from fnmatch import fnmatch

import pytest

import klamm
from klamm import pytest_plugin

pytestmark = pytest.mark.process

pytest_plugins = ["pytester"]

MAX_RATIO = 5
"""Processor time of a test with a fresh broker, relative to an interpreter that imports what any server needs.

It was 3 to 4, also beside other tests.
"""
REFERENCE = "import asyncio, json, logging, sqlite3, ssl"


def test_fixtures_have_three_scopes_and_leave_no_faults(pytester: pytest.Pytester) -> None:
    # given
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def klamm_broker_options():
            return {"config": {"num.partitions": 7}}

        seen = {}

        @pytest.fixture
        def same_broker(request):
            def check(name):
                broker = request.getfixturevalue(name)
                return seen.setdefault(name, broker) is broker
            return check
        """
    )
    first = """
        import pytest

        def test_first(same_broker, klamm_module_broker, klamm_session_broker):
            assert {condition}
            klamm_session_broker.inject(error="NOT_COORDINATOR", times=None)
            klamm_session_broker.pause()
    """
    others = """
        def test_second(same_broker, klamm_session_broker, klamm_broker):
            assert same_broker("klamm_session_broker")
            fault = klamm_session_broker.inject("Produce", no_answer=True)
            assert fault._number == 1 or fault.count == 0
            klamm_broker.create_topic("orders")
            assert klamm_broker.records("orders", partition=0) == []

        def test_third(same_broker, klamm_broker, make_klamm_broker):
            assert not klamm_broker.requests()
            with pytest.raises(LookupError):
                klamm_broker.records("orders")
            assert not make_klamm_broker(brokers=2).has_topic("orders")
    """
    same, other = 'same_broker("klamm_module_broker")', 'not same_broker("klamm_module_broker")'
    pytester.makepyfile(
        test_one=textwrap.dedent(first.format(condition=same)) + textwrap.dedent(others),
        test_two=first.format(condition=f'{other} and same_broker("klamm_session_broker")'),
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=4)


def test_marker_changes_the_broker_and_a_failure_shows_faults_and_requests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.klamm(config={"num.partitions": 7}, topics=["everywhere", "orders"])

        @pytest.mark.klamm(topics={"orders": 3}, config={"log.retention.hours": 1}, brokers=2)
        def test_markers_add_up(klamm_broker):
            assert klamm_broker.partition_count("orders") == 3
            assert klamm_broker.has_topic("everywhere")
            assert len(klamm_broker.bootstrap_servers.split(",")) == 2
            assert klamm_broker._config["num.partitions"] == "7"

        def test_fails(klamm_broker):
            klamm_broker.inject("Produce", error="NOT_COORDINATOR", topic="orders")
            raise RuntimeError
        """,
        test_shared="""
        import pytest

        @pytest.mark.klamm(topics=["orders"])
        def test_topic_is_created_on_a_shared_broker(klamm_module_broker):
            assert klamm_module_broker.has_topic("orders")

        @pytest.mark.klamm(config={"num.partitions": 7})
        def test_config_of_a_shared_broker_cannot_change(klamm_module_broker):
            pass
        """,
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly", "--strict-markers")

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        ["*injected faults of*", "*Produce: error='NOT_COORDINATOR', topic='orders' (0 requests)*"]
    )
    result.stdout.fnmatch_lines(["*a shared broker takes topics only*"])


def test_topics_of_a_marker_are_added_to_those_of_the_options(pytester: pytest.Pytester) -> None:
    # given
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def klamm_broker_options():
            return {"topics": ["everywhere", "orders"]}
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.klamm(topics={"orders": 3, "payments": 1})
        def test_topics_add_up(klamm_broker):
            assert klamm_broker.has_topic("everywhere") and klamm_broker.has_topic("payments")
            assert klamm_broker.partition_count("orders") == 3

        @pytest.mark.klamm(topics=[])
        def test_marker_without_topics_keeps_them(klamm_broker):
            assert klamm_broker.has_topic("everywhere")
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=2)


def test_failed_command_or_assertion_shows_only_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        """
        import pytest
        from klamm.testing import assert_topic_contains

        @pytest.mark.parametrize("call", [
            lambda broker: broker.inject("Produce", error="NO_ERROR_OF_KAFKA"),
            lambda broker: broker.records("orders", isolation_level="all"),
            lambda broker: broker.delete_topic("orders"),
            lambda broker: broker.advance_clock(-1),
            lambda broker: assert_topic_contains(broker, "orders", b"1", within_s=0),
        ])
        def test_fails(klamm_session_broker, call):
            call(klamm_session_broker)

        def test_start_fails(make_klamm_broker):
            make_klamm_broker(config={"unclean.leader.election.enable": "maybe"})
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly", "--tb=short")
    # then
    result.assert_outcomes(failed=6)
    places = {line.split(":")[0] for line in result.outlines if re.match(r"[^ :]+[.]py:[0-9]+: ", line)}
    assert places == {next(pytester.path.glob("test_*.py")).name}
    result.stdout.fnmatch_lines(["E*NO_ERROR_OF_KAFKA*", "E*isolation_level='all'*", "E*lacks b'1'*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("topic=['orders']", "topic=...: there is no such argument; did you mean topics? (allowed: brokers, topics, *"),
        ("['orders']", "*'orders'*: takes named arguments only (allowed: brokers, topics, *"),
        ("config=['a']", "config=*'a'*: expected a mapping"),
        ("topics=3", "topics=3: expected a list of names or a mapping, got int"),
        (
            "topics={'orders': {'replicas': 2}}",
            "topics: orders has the unknown argument 'replicas', expected some of partitions, replication_factor, *",
        ),
    ],
)
def test_wrong_argument_of_the_marker_is_named(arguments: str, message: str, pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.klamm({arguments})
        def test_is_not_run(klamm_broker):
            assert False, "the test was run"
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.stdout.fnmatch_lines([f"@pytest.mark.klamm: {message}"])
    for unwanted in ("*Traceback*", "*traceback entries are hidden*", "*another exception*"):
        result.stdout.no_fnmatch_line(unwanted)


@pytest.mark.parametrize(
    ("options", "message", "fixtures"),
    [
        (
            "{'config': {'num.partition': 3}}",
            "*unknown config num.partition; did you mean num.partitions?",
            ["klamm_session_broker"],
        ),
        (
            "{'broker': 2}",
            "*unexpected keyword argument 'broker'",
            ["klamm_broker", "klamm_module_broker", "klamm_session_broker"],
        ),
        (
            "{'topics': {'a': {'replication_factor': 2}}}",
            "topics: a: replication_factor=2: must be *",
            ["klamm_broker"],
        ),
    ],
)
def test_fixture_with_wrong_options_shows_the_reason_alone(
    options: str, message: str, fixtures: list[str], pytester: pytest.Pytester
) -> None:
    # given
    pytester.makeconftest(
        f"""
        import pytest

        @pytest.fixture(scope="session")
        def klamm_broker_options():
            return {options}
        """
    )
    pytester.makepyfile("\n".join(f"def test_{name}({name}): raise AssertionError('was run')" for name in fixtures))
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(errors=len(fixtures))
    _, *reports = re.split(r"^_+ ERROR at .*\n|^=+ short test", result.stdout.str(), flags=re.MULTILINE)
    for fixture, report in zip(fixtures, reports, strict=False):
        # Clients of other tests in this process may still write to stderr, which pytest appends.
        reason, *_ = re.split("^-+ Captured", report, flags=re.MULTILINE)
        assert fnmatch(" ".join(reason.split()), f"{fixture}: klamm.Broker: *{message}")
    result.stdout.no_fnmatch_line("*was run*")
    result.stdout.no_fnmatch_line("*TypeError*")


@pytest.mark.long
def test_report_folds_equal_requests_in_a_row(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        """
        from tests.support.wire import WireClient
        from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
        from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

        def test_fails(klamm_broker):
            klamm_broker.inject(delay=0.0001)
            with WireClient(klamm_broker.bootstrap_servers, client_id="c") as wire:
                for _ in range(1200):
                    wire.ask(MetadataRequest(topics=[]), MetadataResponse, 12)
                wire.ask(FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 2)
            raise RuntimeError
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.stdout.fnmatch_lines(["1,199 x Metadata v12 from c to broker *", "FindCoordinator v2 from c to broker *"])
    result.stdout.fnmatch_lines(["*delay*(1 request)"])


@pytest.mark.long
def test_interrupted_command_fails_only_its_own_test(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        """
        import os, signal

        def test_first(klamm_session_broker, klamm_topic):
            def end(*_):
                raise KeyError("too late")

            signal.signal(signal.SIGALRM, end)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            os.kill(klamm_session_broker.pid, signal.SIGSTOP)
            try:
                klamm_session_broker.requests()
            finally:
                os.kill(klamm_session_broker.pid, signal.SIGCONT)

        def test_second(klamm_session_broker, klamm_topic):
            assert klamm_session_broker.records(klamm_topic) == []

        def test_third():
            pass
        """
    )
    # when
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(failed=1, passed=2)


@pytest.mark.long
def test_shared_broker_serves_the_next_test_after_a_late_request_or_a_kill(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        """
        def test_first(request):
            broker = request.getfixturevalue("klamm_session_broker")
            broker.inject(error="NOT_COORDINATOR", times=None)

        def test_second(klamm_session_broker):
            assert klamm_session_broker.faults() == []
            klamm_session_broker.create_topic("kept")
            klamm_session_broker.kill()

        def test_third(klamm_session_broker):
            assert klamm_session_broker.has_topic("kept")
            klamm_session_broker.stop()

        def test_fourth(klamm_session_broker, klamm_topic):
            assert klamm_session_broker.has_topic(klamm_topic)
        """
    )
    # when
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=4)


@pytest.mark.parametrize("is_running", [False, True])
def test_forked_test_leaves_the_shared_broker_to_its_parent(is_running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with pytest-forked: only the process that started the broker can control it or start it again."""
    # given
    broker = klamm.Broker(control=True)
    monkeypatch.setattr(broker, "_starter", os.getppid())
    monkeypatch.setattr(klamm.Broker, "is_running", property(lambda _: is_running))
    # when
    pytest_plugin._remove_faults(broker)
    # then
    with pytest.raises(RuntimeError, match="belongs to process"):
        broker.resume()


def test_shared_broker_without_control_runs_on_after_a_test(pytester: pytest.Pytester) -> None:
    # given
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def klamm_broker_options():
            return {"control": False}
        """
    )
    pytester.makepyfile(
        """
        pids = []

        def test_first(klamm_session_broker):
            pids.append(klamm_session_broker.pid)

        def test_second(klamm_session_broker):
            assert [klamm_session_broker.pid] == pids
            klamm_session_broker.kill()

        def test_third(klamm_session_broker):
            assert klamm_session_broker.is_running
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=3)


@pytest.mark.long
def test_xdist_workers_and_tests_are_isolated(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile(
        """
        import os, pathlib, pytest, time
        from klamm.admin import AdminClient

        @pytest.mark.parametrize("number", range(6))
        def test_own_topic(number, klamm_topic, make_klamm_topic, klamm_session_broker):
            other = make_klamm_topic(partitions=2, configs={"retention.ms": 1000})
            assert klamm_topic != other and klamm_topic.startswith(f"test_own_topic-{number}-")
            assert klamm_session_broker.records(klamm_topic) == klamm_session_broker.records(other) == []
            assert not any(klamm_session_broker.requests(topic=klamm_topic))
            klamm_session_broker.inject("ListOffsets", error="NOT_LEADER_OR_FOLLOWER", topic=klamm_topic, times=None)
            with AdminClient(klamm_session_broker.bootstrap_servers) as admin:
                known = set(admin.list_topics().result())
            assert known == {klamm_topic, other}, "the topics of the tests before are gone"
            path = pathlib.Path(os.environ["BROKERS"]) / os.environ["PYTEST_XDIST_WORKER"]
            path.write_text(klamm_session_broker.bootstrap_servers)
            deadline = time.monotonic() + 20
            while len(list(path.parent.iterdir())) < 2:  # both workers take part
                assert time.monotonic() < deadline
                time.sleep(0.01)
        """
    )
    brokers = pytester.mkdir("brokers")
    pytester._monkeypatch.setenv("BROKERS", str(brokers))
    # when
    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly", "-n", "2")
    # then
    result.assert_outcomes(passed=6)
    addresses = [path.read_text() for path in brokers.iterdir()]
    assert len(addresses) == len(set(addresses)) == 2


def test_fixtures_work_in_asyncio_tests(pytester: pytest.Pytester) -> None:
    # given
    pytester.makeconftest(
        """
        import asyncio, inspect, pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                names = pyfuncitem._fixtureinfo.argnames
                asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
                return True
        """
    )
    pytester.makepyfile(
        """
        import asyncio
        from aiokafka import AIOKafkaProducer
        from klamm.testing import assert_topic_contains

        async def test_orders(klamm_topic, klamm_session_broker):
            klamm_session_broker.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", topic=klamm_topic, times=2)
            async with AIOKafkaProducer(
                bootstrap_servers=klamm_session_broker.bootstrap_servers, retry_backoff_ms=10
            ) as producer:
                await producer.send(klamm_topic, b"1")
                await asyncio.to_thread(assert_topic_contains, klamm_session_broker, klamm_topic, b"1")
        """
    )
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=1)


def test_kafka_python_adds_no_warnings_to_the_report(pytester: pytest.Pytester) -> None:
    # given
    pytester.makeconftest("import kafka.protocol.metadata")
    pytester.makepyfile("def test_passes(klamm_broker_options): pass")
    # when
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    # then
    result.assert_outcomes(passed=1, warnings=0)


def test_broker_start_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processor time, not the clock: other tests run at the same time, and may slow down this one."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # otherwise each start may compile all of klamm
    costs: list[float] = []
    references: list[float] = []
    while not costs or (min(costs) > MAX_RATIO * min(references) and len(costs) < 10):
        before = _cpu_s()
        with klamm.Broker(control=True) as broker:
            broker.create_topic("orders")
        costs.append(_cpu_s() - before)
        before = _cpu_s()
        subprocess.run([sys.executable, "-c", REFERENCE], check=True)
        references.append(_cpu_s() - before)
    assert min(costs) <= MAX_RATIO * min(references)


def _cpu_s() -> float:
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
