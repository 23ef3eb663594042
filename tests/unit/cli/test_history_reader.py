"""Sources of recorded changes for the history commands, and errors if there are none."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from klamm import cli
from klamm.admin import ClusterDescription, ConfigEntry, Node
from klamm.admin.results import PerKeyResult
from klamm.cli.history import command, reader
from klamm.client_configs.entities import ClientConfigEntity
from klamm.gateway.history import log
from klamm.gateway.history.log import CLIENT_CONFIGS_TOPIC, TOPIC
from klamm.history.change import RecordedChange
from klamm.protocol.errors import TopicAuthorizationError, UnknownTopicOrPartitionError, UnsupportedVersionError
from klamm.storage.metadata.identity import LOGS_DIRECTORY, write_cluster_id
from klamm.storage.metadata.store import METADATA_FILE_NAME, MetadataStore

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from klamm.admin import ConfigResource

SERVER = ("--bootstrap-server", "127.0.0.1:19092")
CHANGE = RecordedChange(
    at_ms=0,
    resource="TOPIC:a",
    name="flush.ms",
    old=None,
    new="5",
    principal="User:anna",
    client_id="tool",
    host="10.0.0.7",
    is_confirmed=False,
)


@pytest.fixture
def log_dirs() -> list[str]:
    """The ``log.dirs`` of the broker; empty if the principal may not describe its configs."""
    return []


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch, log_dirs: list[str]) -> dict[str, Exception | None]:
    """Topics that the cluster has, each with the error of its description."""
    errors: dict[str, Exception | None] = {}

    class Admin:
        def describe_topics(self, names: Collection[str]) -> PerKeyResult[str, Any]:
            result: PerKeyResult[str, Any] = PerKeyResult(names)
            for name in names:
                error = errors.get(name, UnknownTopicOrPartitionError("no such topic"))
                if error is None:
                    result.succeed(name, None)
                else:
                    result.fail(name, error)
            return result

        def describe_configs(self, resources: Collection[ConfigResource]) -> PerKeyResult[ConfigResource, Any]:
            result: PerKeyResult[ConfigResource, Any] = PerKeyResult(resources)
            if log_dirs:
                for resource in resources:
                    result.succeed(resource, {"log.dirs": ConfigEntry("log.dirs", log_dirs[0])})
            result.fail_open(TopicAuthorizationError("no right"))
            return result

        def describe_cluster(self) -> SimpleNamespace:
            node = Node(id=1, host="elsewhere", port=9092)
            cluster = ClusterDescription(cluster_id="remote-id", controller_id=1, nodes=(node,))
            return SimpleNamespace(result=lambda: cluster)

    for module in (reader, command):
        monkeypatch.setattr(module, "connect", lambda _: contextlib.nullcontext(Admin()))
    return errors


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Topics and resource of each read."""
    calls: list[Any] = []

    def read_change_history(
        _: Any, topics: Collection[str], *, resource: str | None, limit: int
    ) -> list[RecordedChange]:
        calls.append((list(topics), resource))
        return [CHANGE][:limit]

    monkeypatch.setattr(log, "read_change_history", read_change_history)
    return calls


def test_all_readable_history_topics_are_read(
    topics: dict[str, Exception | None], read: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    topics[TOPIC] = topics[CLIENT_CONFIGS_TOPIC] = None
    assert cli.main(["configs", "history", *SERVER]) == 0
    assert cli.main(["configs", "history", *SERVER, "--topic", "a", "-o", "json"]) == 0
    assert cli.main(["configs", "history", *SERVER, "--resource", "user 'anna'", "-o", "json"]) == 0
    topics[TOPIC] = TopicAuthorizationError("no")
    assert cli.main(["configs", "history", *SERVER, "-o", "json"]) == 0
    assert read == [
        ([TOPIC, CLIENT_CONFIGS_TOPIC], None),
        ([TOPIC], "TOPIC:a"),
        ([CLIENT_CONFIGS_TOPIC], "user 'anna'"),
        ([CLIENT_CONFIGS_TOPIC], None),
    ]
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first == (
        "1970-01-01T00:00:00.000Z  TOPIC:a  flush.ms: unset -> 5  by User:anna (tool) from 10.0.0.7,"
        " but the response was lost or left it in doubt: it may not have been made"
    )
    (line,) = json.loads(rest.partition("]")[0] + "]")
    assert (line["host"], line["is_confirmed"]) == ("10.0.0.7", False)


@pytest.mark.parametrize("resource", ["QUOTA:user=o'brien", "GROUP:it's"])
def test_quote_in_a_name_does_not_make_it_a_client_resource(
    topics: dict[str, Exception | None], read: list[Any], resource: str
) -> None:
    # given
    topics[TOPIC] = topics[CLIENT_CONFIGS_TOPIC] = None
    # when
    code = cli.main(["configs", "history", *SERVER, "--resource", resource, "-o", "json"])
    # then
    assert (code, read) == (0, [([TOPIC], resource)])


@pytest.mark.parametrize(
    "entity",
    [
        ClientConfigEntity.of_user("o'brien"),
        ClientConfigEntity.of_user(None),
        ClientConfigEntity.of_client("a", None),
        ClientConfigEntity.of_client(None, "it's"),
        ClientConfigEntity.of_client(None, None),
    ],
    ids=str,
)
def test_every_client_config_entity_is_a_client_resource(entity: ClientConfigEntity) -> None:
    assert reader.is_client_resource(str(entity))


@pytest.mark.parametrize(
    ("has", "resource", "message"),
    [
        (CLIENT_CONFIGS_TOPIC, "TOPIC:a", f"The history of others is in the topic {TOPIC}"),
        (TOPIC, "user 'anna'", f"The history of client configs is in the topic {CLIENT_CONFIGS_TOPIC}"),
    ],
)
def test_resource_without_recorded_changes_is_rejected(
    topics: dict[str, Exception | None], capsys: pytest.CaptureFixture[str], has: str, resource: str, message: str
) -> None:
    topics[has] = None
    assert cli.main(["configs", "history", *SERVER, "--resource", resource]) == 1
    assert f"{resource}: the gateways of this cluster record no such changes" in (text := capsys.readouterr().err)
    assert message in text


def test_gateway_without_fetch_names_alternative(
    topics: dict[str, Exception | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise UnsupportedVersionError("The broker does not offer FetchRequest (key 1)")

    monkeypatch.setattr(log, "read_change_history", fail)
    topics[TOPIC] = None
    assert cli.main(["configs", "history", *SERVER]) == 1
    assert (
        "127.0.0.1:19092 serves no Fetch, as a gateway with --admin-only: name the brokers" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "is_listed"),
    [
        (("--principal", "anna"), True),
        (("--principal", "User:anna"), True),
        (("--principal", "bob"), False),
        (("--key", "flush.ms"), True),
        (("--key", "flush"), False),
        (("--since", "1970-01-01T00:00:00Z"), True),
        (("--since", "1970-01-01T00:00:01Z"), False),
        (("--key", "flush.ms", "--principal", "bob"), False),
    ],
)
def test_history_lists_only_matching_changes(
    topics: dict[str, Exception | None],
    read: list[Any],
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    is_listed: bool,  # pytest passes it by name
) -> None:
    # given
    topics[TOPIC] = None
    # when
    code = cli.main(["configs", "history", *SERVER, *flags])
    # then
    printed = capsys.readouterr().out
    assert code == 0
    assert ("flush.ms" in printed) == is_listed
    assert ("No change matches --since, --principal and --key." in printed) != is_listed


@pytest.mark.usefixtures("read")
def test_revert_to_a_time_whose_changes_were_removed_is_rejected(
    topics: dict[str, Exception | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics[TOPIC] = None
    monkeypatch.setattr(log, "read_history_start", lambda *_: 2000)
    revert = ["configs", "revert", *SERVER, "--topic", "a", "--to"]
    assert cli.main([*revert, "1970-01-01T00:00:01.999Z"]) == 1
    assert (
        "1970-01-01T00:00:01.999Z: older changes than that of 1970-01-01T00:00:02.000Z were removed"
        in capsys.readouterr().err
    )
    assert cli.main([*revert, "1970-01-01T00:00:02Z"]) == 0


def make_data_directory(directory: Path, cluster_id: str) -> None:
    """Create the data directory of a broker that has made ``CHANGE``."""

    async def make() -> None:
        store = MetadataStore.open(directory / METADATA_FILE_NAME)
        await store.submit([CHANGE])
        await store.close()

    asyncio.run(make())
    (directory / LOGS_DIRECTORY).mkdir()
    write_cluster_id(directory / LOGS_DIRECTORY, cluster_id)


@pytest.mark.usefixtures("topics")
def test_directory_of_another_cluster_with_the_path_of_the_broker_is_not_read(
    tmp_path: Path, log_dirs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    make_data_directory(tmp_path, "local-id")
    log_dirs.append(str(tmp_path))
    for words in (["history"], ["revert", "--topic", "a", "--to", "1970-01-01T00:00:02Z"]):
        # when
        code = cli.main(["configs", *words, *SERVER])
        # then
        assert (code, "No history was found" in capsys.readouterr().err) == (1, True)
    # and for a broker on this machine
    write_cluster_id(tmp_path / LOGS_DIRECTORY, "remote-id")
    assert cli.main(["configs", "history", *SERVER]) == 0
    assert f"Read from {tmp_path}" in capsys.readouterr().err


@pytest.mark.usefixtures("topics")
def test_revert_rejects_data_directory_of_another_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    make_data_directory(tmp_path, "local-id")
    where = [*SERVER, "--data-dir", str(tmp_path), "--topic", "a"]
    # when
    code = cli.main(["configs", "revert", *where, "--to", "1970-01-01T00:00:02Z"])
    # then
    assert code == 1
    assert (
        f"{tmp_path} belongs to the cluster local-id, but {SERVER[1]} to the cluster remote-id"
        in capsys.readouterr().err
    )
    # and what applies nothing reads any directory
    assert cli.main(["configs", "history", *where]) == 0


@pytest.mark.parametrize(
    ("named", "recorded"), [("broker:01", "BROKER:1"), ("BROKER:", "BROKER:"), ("topic:01", "TOPIC:01")]
)
def test_broker_is_looked_up_by_its_id_in_any_spelling(
    named: str, recorded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str | None] = []

    def read_changes(_: object, resource: str | None, *, limit: int) -> list[RecordedChange]:
        assert limit
        read.append(resource)
        return []

    monkeypatch.setattr(command, "read_changes", read_changes)
    assert cli.main(["configs", "history", *SERVER, "--resource", named]) == 0
    assert read == [recorded]
