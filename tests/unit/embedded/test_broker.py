"""klamm.Broker: a broker in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from klamm.protocol.errors import PolicyViolationError
from tests.support.long_tests import long_only
from tests.support.processes import free_port, has_ended, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.process

pytest_plugins = ["pytester"]


def topics(broker: klamm.Broker) -> set[str]:
    with AdminClient(broker.bootstrap_servers) as admin:
        return set(admin.list_topics().result())


def create_topic(broker: klamm.Broker, name: str) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=1)]).all().result()


def test_two_brokers_run_side_by_side_on_free_ports_and_leave_no_files_or_process() -> None:
    # given
    with klamm.Broker() as broker, klamm.Broker() as other:
        # when
        create_topic(broker, "orders")
        # then
        assert topics(broker) == {"orders"}
        assert topics(other) == set()
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
        directory, pid = broker.data_dir, broker.pid
        assert pid is not None
    assert not directory.exists()
    assert has_ended(pid)


def test_existing_data_directory_is_kept_and_reused(tmp_path: Path) -> None:
    # given
    with klamm.Broker(data_dir=tmp_path / "data") as broker:
        create_topic(broker, "kept")
    # when
    with klamm.Broker(data_dir=tmp_path / "data") as broker:
        # then
        assert topics(broker) == {"kept"}


@pytest.mark.parametrize("brokers", [3, *long_only(1)])
def test_every_broker_id_has_an_address_and_a_restart_keeps_ports_and_data(brokers: int) -> None:
    with klamm.Broker(brokers=brokers) as broker:
        with AdminClient(broker.bootstrap_servers) as admin:
            nodes = admin.describe_cluster().result().nodes
        assert ",".join(f"{node.host}:{node.port}" for node in nodes) == broker.bootstrap_servers
        assert len(nodes) == brokers
        create_topic(broker, "kept")
        before, pid = broker.bootstrap_servers, broker.pid
        # when
        broker.restart()
        # then
        assert (broker.bootstrap_servers, topics(broker)) == (before, {"kept"})
        assert broker.pid != pid


@pytest.mark.long
def test_restart_in_another_working_directory_keeps_data_and_relative_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    policy = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": "rules.yaml"}
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with klamm.Broker(data_dir="data", config=policy) as broker:
        create_topic(broker, "kept")
        # when
        monkeypatch.chdir(tmp_path / "elsewhere")
        broker.restart()
        # then
        assert topics(broker) == {"kept"}
        assert broker.data_dir == tmp_path / "data"


@pytest.mark.long
def test_broker_restarts_after_removal_of_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with klamm.Broker() as broker:
        create_topic(broker, "kept")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "gone").rmdir()
        broker.restart()
        assert topics(broker) == {"kept"}


@pytest.mark.long
def test_broker_is_created_in_removed_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    broker = klamm.Broker(data_dir=tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    with broker:
        assert broker.data_dir == tmp_path / "data"


def test_killed_broker_restarts_with_acknowledged_data() -> None:
    with klamm.Broker() as broker:
        create_topic(broker, "kept")
        broker.kill()
        assert not broker.is_running
        # when
        broker.start()
        # then
        assert topics(broker) == {"kept"}


def test_failed_restart_keeps_the_data() -> None:
    with klamm.Broker() as broker:
        # given
        create_topic(broker, "kept")
        broker.kill()
        host, port = broker.bootstrap_servers.split(":")
        with socket.create_server((host, int(port))), pytest.raises(klamm.BrokerStartError):
            broker.start()
        # when
        broker.start()
        # then
        assert topics(broker) == {"kept"}
        directory = broker.data_dir
    assert not directory.exists()


def rebalance_delay_ms(admin: AdminClient) -> str | None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    return admin.describe_configs([resource]).all().result()[resource]["group.initial.rebalance.delay.ms"].value


def test_settings_have_kafkas_names_and_python_values() -> None:
    config = {"num.partitions": 7, "auto.create.topics.enable": False, "group.initial.rebalance.delay.ms": 50}
    with klamm.Broker(config=config) as broker, AdminClient(broker.bootstrap_servers) as admin:
        created = admin.create_topics([NewTopic(name="orders")]).all().result()["orders"]
        assert created.num_partitions == 7
        assert rebalance_delay_ms(admin) == "50"


def test_initial_rebalance_delay_is_zero_by_default(klamm_session_broker: klamm.Broker) -> None:
    with AdminClient(klamm_session_broker.bootstrap_servers) as admin:
        assert rebalance_delay_ms(admin) == "0"


def test_port_in_use_fails_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(klamm.BrokerStartError, match=f"cannot listen on {address}"):
            klamm.Broker(listen=address).start()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])  # the latter is kept for documentation
def test_foreign_host_fails_start_at_the_first_port(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = 0

    class Counting(socket.socket):
        def bind(self, address: object) -> None:
            nonlocal lookups
            lookups += 1
            super().bind(address)  # type: ignore[arg-type]

    patched = SimpleNamespace(**{**vars(socket), "socket": Counting})  # clients of other tests may still connect
    monkeypatch.setattr("klamm.embedded.broker.socket", patched)
    with pytest.raises(klamm.BrokerStartError, match=rf"cannot listen on {host}: \["):
        klamm.Broker(listen=f"{host}:0").start()
    assert lookups == 1


@pytest.mark.parametrize(
    "config",
    [
        {
            "listeners": "PLAINTEXT://127.0.0.1:{port},B://127.0.0.1:{port}",
            "listener.security.protocol.map": "B:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        },
        {"listeners": "PLAINTEXT://127.0.0.1:{port}", "metrics.listen": "127.0.0.1:{port}"},
    ],
)
def test_duplicate_port_fails_start(config: dict[str, str]) -> None:
    port = free_port()
    broker = klamm.Broker(config={name: value.format(port=port) for name, value in config.items()})
    with pytest.raises(klamm.BrokerStartError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        broker.start()


def test_several_listeners_keep_their_free_ports_over_a_restart() -> None:
    config = {
        "listeners": "INSIDE://localhost:0, B://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,B:PLAINTEXT",
    }
    with klamm.Broker(brokers=2, config=config) as broker:
        before = broker.listeners
        assert list(before) == ["INSIDE", "B"]
        assert before["INSIDE"] == broker.bootstrap_servers
        assert len({address for servers in before.values() for address in servers.split(",")}) == 4
        broker.restart()
        assert broker.listeners == before
        for servers in before.values():
            with AdminClient(servers) as admin:
                assert (
                    ",".join(f"{node.host}:{node.port}" for node in admin.describe_cluster().result().nodes) == servers
                )


def test_broker_that_never_started_has_no_listeners() -> None:
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = klamm.Broker().listeners


def test_advertised_host_is_the_configured_one() -> None:
    with klamm.Broker(listen="localhost:0") as broker, AdminClient(broker.bootstrap_servers) as admin:
        assert broker.bootstrap_servers.startswith("localhost:")
        (node,) = admin.describe_cluster().result().nodes
        assert f"{node.host}:{node.port}" == broker.bootstrap_servers


def test_wildcard_address_without_advertised_listeners_is_warned_about() -> None:
    with klamm.Broker(listen="0.0.0.0:0") as broker:
        assert "set advertised.listeners" in broker.log_text()


def test_zero_brokers_are_rejected() -> None:
    with pytest.raises(ValueError, match="brokers=0: must be at least 1"):
        klamm.Broker(brokers=0)


def test_invalid_setting_fails_start_with_name_and_value_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # when
    with pytest.raises(klamm.BrokerStartError, match=r"(?s)exit code 2.*many.*num\.partitions"):
        klamm.Broker(config={"num.partitions": "many"}).start()
    # then
    assert list(tmp_path.iterdir()) == []


def test_broker_that_never_started_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = klamm.Broker().bootstrap_servers


def test_broker_outlives_the_thread_that_started_it() -> None:
    # given
    broker = klamm.Broker()
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    # when
    time.sleep(0.2)
    # then
    try:
        assert topics(broker) == set()
    finally:
        broker.stop()


PARENT = """
import os, resource, sys, time, klamm
if "many files" in sys.argv:  # more than select() knows
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
broker = klamm.Broker(control=True).start()
if "paused" in sys.argv[1]:
    broker.pause()
if "fork" in sys.argv[1] and os.fork() == 0:
    time.sleep(60)
print(broker.pid, broker.data_dir, os.getpid(), flush=True)
time.sleep(60)
"""


WITHOUT_STREAMS = """
import os, klamm
for fd in range(3):
    os.close(fd)
with klamm.Broker(control=True) as broker:
    broker.create_topic("orders")
"""


def test_broker_starts_from_a_program_without_standard_streams() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT_STREAMS], timeout=60, check=False).returncode == 0


FORKED = """
import os, sys, klamm
with klamm.Broker(control=True) as broker, broker.inject("Produce", error="UNKNOWN_SERVER_ERROR") as fault:
    if (child := os.fork()) == 0:
        assert broker.is_running
        for call in (broker.kill, broker.restart, lambda: broker.create_topic("orders")):
            try:
                call()
            except RuntimeError as error:
                assert "belongs to process" in str(error), error
            else:
                raise AssertionError(f"{call} was not rejected")
        broker.stop()
        sys.exit(7)  # leaves the with statement
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert broker.data_dir.exists()
    broker.create_topic("orders")
    broker.kill()
    if (child := os.fork()) == 0:
        assert not broker.is_running
        sys.exit(7)
    os.waitpid(child, 0)
    broker.start().delete_topic("orders")
"""


@pytest.mark.long
def test_forked_process_does_not_stop_the_parents_broker() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "how",
    [
        "alone",
        "many files",
        "paused fork",
        *long_only("fork", "paused"),
    ],
)
def test_broker_ends_with_its_killed_parent(how: str) -> None:
    # given
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        broker_pid, directory, _ = parent.stdout.readline().split()
        try:
            # when
            parent.kill()
            parent.wait()
            # then
            wait_until(lambda: has_ended(int(broker_pid)), timeout_s=30, what="the broker to end")
            wait_until(lambda: not Path(directory).exists(), timeout_s=30, what="its directory to go")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


def test_interrupted_stop_leaves_no_directory_and_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by Ctrl-C, which pytest answers with the end of its fixtures, and another Ctrl-C."""
    # given
    broker = klamm.Broker().start()
    assert broker._child is not None
    directory, process, wait = broker.data_dir, broker._child.process, broker._child.process.wait

    def interrupted(timeout: float | None = None) -> int:
        if timeout is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(process, "wait", interrupted)
    # when
    with pytest.raises(KeyboardInterrupt):
        broker.stop()
    # then
    assert not directory.exists()
    assert process.returncode is not None


async def test_broker_is_stopped_if_its_start_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is cancelled again: nobody else would stop it."""
    # given
    calls: list[str] = []
    is_starting, may_start = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def start(broker: klamm.Broker) -> klamm.Broker:
        loop.call_soon_threadsafe(is_starting.set)
        may_start.wait(10)
        calls.append("started")
        return broker

    monkeypatch.setattr(klamm.Broker, "start", start)
    monkeypatch.setattr(klamm.Broker, "stop", lambda _: calls.append("stopped"))
    entering = asyncio.create_task(klamm.Broker().__aenter__())
    await is_starting.wait()
    # when
    for _ in range(2):
        entering.cancel()
        await asyncio.sleep(0)
    may_start.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    # then
    assert calls == ["started", "stopped"]


def test_broker_imports_modules_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    (tmp_path / "my_policies.py").write_text(
        textwrap.dedent("""
            from klamm.policy import PolicyViolationError

            class Nothing:
                def validate(self, request):
                    raise PolicyViolationError(f"no topic {request.topic} here")
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    # when
    policy = {"create.topic.policy.class.name": "my_policies:Nothing"}
    with klamm.Broker(config=policy) as broker, pytest.raises(PolicyViolationError) as rejection:
        create_topic(broker, "orders")
    # then
    assert "no topic orders here" in str(rejection.value)


def test_policy_output_of_any_size_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chatty_policies.py").write_text(
        textwrap.dedent("""
        class Chatty:
            def validate(self, request):
                print(f"{request.topic} " * 20_000)  # more than a pipe holds that nobody reads
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    with klamm.Broker(config={"create.topic.policy.class.name": "chatty_policies:Chatty"}) as broker:
        create_topic(broker, "orders")
        assert "orders orders" in broker.log_text()


def test_failed_test_shows_logs_of_its_brokers(pytester: pytest.Pytester) -> None:
    # given
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def own(make_klamm_broker):
            return make_klamm_broker(config={"log.retention.ms": 77, "create.topic.policy.class.name": "math:nan"})

        def test_passes(klamm_session_broker):
            pass

        def test_fails(klamm_broker):
            assert klamm_broker.log_text() == "nothing"

        def test_its_fixture_fails(own):
            pass
    """)
    # when
    result = pytester.runpytest_inprocess("-q", "-p", "no:randomly")
    # then
    result.assert_outcomes(passed=1, failed=1, errors=1)
    out = result.stdout.str()
    assert out.count("log of <klamm.Broker 127.0.0.1:") == 2, out
    result.stdout.fnmatch_lines(["--*- log of <klamm.Broker 127.0.0.1:*(pid *)> --*"])
    result.stdout.fnmatch_lines(["*create.topic.policy.class.name=math:nan*"])


def test_start_rejects_unknown_config_with_nearest_name() -> None:
    with pytest.raises(klamm.BrokerStartError, match=r"unknown config num\.partitons; did you mean num\.partitions\?"):
        klamm.Broker(config={"num.partitons": 3, "log.retention.ms": 5}).start()


@pytest.mark.parametrize(
    ("new", "argument"),
    [
        (lambda: klamm.Broker(config={"log.dirs": "data"}), "data_dir"),
        (lambda: klamm.Broker(config={"log.dir": "data"}), "data_dir"),
        (lambda: klamm.Broker(listen="127.0.0.1:9092", config={"listeners": "127.0.0.1:9093"}), "listen"),
        (lambda: klamm.Gateway("a:1", config={"upstream.bootstrap.servers": "b:1"}), "upstream"),
        (lambda: klamm.Gateway("a:1", config={"data.dir": "data"}), "data_dir"),
        (lambda: klamm.Gateway("a:1", config={"admin.only": True}), "admin_only"),
        (lambda: klamm.Gateway("a:1", listen="127.0.0.1:1", config={"listeners": "SSL://127.0.0.1:2"}), "listen"),
    ],
)
def test_config_set_by_an_argument_is_rejected(new: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=rf"^config [a-z.]+=.*: use the argument {argument} instead$"):
        new()
