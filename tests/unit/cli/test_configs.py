"""klamm configs on a broker: output, changes and rejections."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

import klamm
from klamm import cli
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.cli.configs.quotas import line as quota_line
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with klamm.Broker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def topic(address: str, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = f"t{abs(hash(request.node.name))}"
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic(name=name, num_partitions=2)]).all().result()
    return name


class Run:
    """Runs commands and keeps what the last one wrote."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capture = capture
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        self._capture.readouterr()
        command, *rest = words
        try:
            code = cli.main([command, *rest, "--bootstrap-server", self._address])
        except SystemExit as error:
            code = int(error.code or 0)
        self.out, self.err = self._capture.readouterr()
        return code


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(address, capsys)


# --- users and clients (KIP-649) ---


def test_user_and_client_configs_are_set_and_described(run: Run) -> None:
    """K649-82: ``--alter --entity-type users --entity-name alice --add-config acks=all`` sets <alice>.

    K649-86: ``--describe`` prints one line per entity: ``Dynamic configs for user-principal 'alice', client-id 'app1'
    are acks=all``.
    """
    # when
    assert (
        run("configs", "--alter", "--entity-type", "users", "--entity-name", "alice", "--add-config", "acks=all") == 0
    )
    # then
    assert run.out == "Completed updating config for user alice.\n"
    # when
    both = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-name", "app1")
    assert run("configs", "--alter", *both, "--add-config", "acks=1,session.timeout.ms=10000") == 0
    # then
    assert run("configs", "--describe", "--user", "alice") == 0
    assert run.out == "Dynamic configs for user-principal 'alice' are acks=all\n"
    assert run("configs", "--describe", *both) == 0
    assert run.out == (
        "Dynamic configs for user-principal 'alice', client-id 'app1' are acks=1, session.timeout.ms=10000\n"
    )


@pytest.mark.parametrize("flags", [("--user-defaults",), ("--entity-type", "users", "--entity-default")])
def test_default_user_has_configs(flags: tuple[str, ...], run: Run) -> None:
    """K649-83: ``--entity-default`` (or ``--user-defaults``, ``--client-defaults``) addresses the default entity; short
    forms ``--user X``, ``--client Y``.
    """
    # when
    assert run("configs", "--alter", *flags, "--add-config", "acks=1") == 0
    # then
    assert run.out == "Completed updating default config for users in the cluster.\n"
    assert run("configs", "--describe", *flags) == 0
    assert run.out == "Dynamic configs for the default user-principal are acks=1\n"


def test_short_flags_equal_long_flags(run: Run) -> None:
    """K649-83: ``--entity-default`` (or ``--user-defaults``, ``--client-defaults``) addresses the default entity; short
    forms ``--user X``, ``--client Y``.
    """
    # when
    assert run("configs", "--alter", "--user", "carol", "--client-defaults", "--add-config", "acks=0") == 0
    # then
    assert run("configs", "--describe", "--user", "carol", "--entity-type", "clients") == 1, "not both ways"
    assert run("configs", "--describe", "--user", "carol", "--client-defaults") == 0
    assert run.out == "Dynamic configs for user-principal 'carol', the default client-id are acks=0\n"


def test_describe_lists_only_requested_entity_types(run: Run) -> None:
    """K649-87: Describe uses strict filters: ``--entity-type users`` lists <user> entities only; ``--entity-type users
    --entity-type clients`` lists <user, client-id>.
    """
    # given
    run("configs", "--alter", "--user", "dave", "--add-config", "acks=1")
    run("configs", "--alter", "--user", "dave", "--client", "app", "--add-config", "acks=0")
    # when
    run("configs", "--describe", "--entity-type", "users")
    # then
    assert "user-principal 'dave' are acks=1" in run.out
    assert "client-id" not in run.out
    # when
    run("configs", "--describe", "--entity-type", "users", "--entity-type", "clients")
    # then
    assert "user-principal 'dave', client-id 'app' are acks=0" in run.out
    assert "'dave' are" not in run.out


def test_describe_of_clients_alone_is_empty(run: Run) -> None:
    """K649-88: what broke describing of client quotas is not copied."""
    assert run("configs", "--describe", "--entity-type", "clients") == 0
    assert run.out == ""


def test_delete_removes_config_and_rejects_unset_key(run: Run) -> None:
    """K649-84: ``--delete-config acks,...`` removes; a key not set on that entity -> "Invalid config(s): k", exit 1."""
    # given
    run("configs", "--alter", "--user", "erin", "--add-config", "acks=1,session.timeout.ms=10000")
    # when
    assert run("configs", "--alter", "--user", "erin", "--delete-config", "acks,session.timeout.ms") == 0
    # then
    run("configs", "--describe", "--user", "erin")
    assert run.out == ""
    # when
    assert run("configs", "--alter", "--user", "erin", "--delete-config", "acks") == 1
    # then
    assert run.err == "Invalid config(s): acks\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--client", "app", "--add-config", "acks=1"), "A user must be specified"),
        (("--user", "u", "--add-config", "ack=1"), "Unexpected config names: ack"),
        (("--user", "u", "--delete-config", "ack"), "Unexpected config names: ack"),
        (("--entity-type", "users", "--add-config", "acks=1"), "An entity-name or default entity must be specified"),
        (("--user", "u", "--entity-type", "clients", "--add-config", "acks=1"), "should not be used in conjunction"),
        (
            ("--entity-type", "users", "--entity-type", "clients", "--entity-name", "x", "--add-config", "acks=1"),
            "An entity name must be specified for every entity type",
        ),
        (("--user", "u", "--append-config", "acks=1"), "configs of users and clients are not lists"),
        (("--user", "u", "--add-config", "acks=9"), "Invalid value 9 for configuration acks"),
    ],
)
def test_unsupported_user_config_is_rejected(words: tuple[str, ...], complaint: str, run: Run) -> None:
    """K649-88: ``clients`` without ``users`` with a dynamic key -> error "A user must be specified ...", exit 1.

    K649-89: Unknown key -> exit 1, nothing sent; quota and dynamic keys may be mixed in one call if quotas exist.

    K649-90: ``--alter`` needs a name (or default) for every entity type, else exit 1.
    """
    assert run("configs", "--alter", *words) == 1
    assert complaint in run.err
    assert run.err.count("\n") == 1


def test_describe_lists_registered_client_versions(address: str, run: Run) -> None:
    """K649-91: Compatibility info (versions and supported keys) is shown by describe."""
    # given
    app = DescribeClientConfigsRequest.ComponentData(entity_type="client-id", match_type=0, match="app-91")
    request = DescribeClientConfigsRequest(
        components=[app], supported_configs=["acks", "session.timeout.ms"], resolve_entity=True, strict=False
    )
    with WireClient(address) as client:
        client.ask(request, DescribeClientConfigsResponse, DescribeClientConfigsRequest.VERSIONS[1])
    # when
    assert run("configs", "--describe", "--entity-type", "users", "--entity-type", "clients") == 0
    # then
    line = run.out.partition("user-principal 'ANONYMOUS', client-id 'app-91' are\n")[2].splitlines()[0]
    assert re.fullmatch(r"  registered: \S+/\S+ supports \[acks, session\.timeout\.ms\]", line)


# --- what Kafka's tool does not have ---


def test_validate_only_reports_outcome_and_changes_nothing(run: Run, topic: str) -> None:
    # when
    assert run("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=1", "--validate-only") == 0
    # then
    assert run.out == f"Valid: config for topic {topic}.\n"
    run("configs", "--describe", "--topic", topic)
    assert run.out == f"Dynamic configs for topic {topic} are:\n"
    # when
    assert run("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=x", "--validate-only") == 1
    # then
    assert "retention.ms" in run.err


def test_list_values_are_appended_and_subtracted(run: Run, topic: str) -> None:
    # when
    assert run("configs", "--alter", "--topic", topic, "--append-config", "cleanup.policy=compact") == 0
    # then
    run("configs", "--describe", "--topic", topic)
    assert "cleanup.policy=delete,compact " in run.out
    # when
    assert run("configs", "--alter", "--topic", topic, "--subtract-config", "cleanup.policy=[delete]") == 0
    # then
    run("configs", "--describe", "--topic", topic)
    assert "cleanup.policy=compact " in run.out


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_results_are_printed_as_documents(form: str, read: object, run: Run, topic: str) -> None:
    assert callable(read)
    # when
    run("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=7", "-o", form)
    # then
    assert read(run.out) == {
        "entity": {"topics": topic},
        "changes": [{"name": "retention.ms", "operation": "set", "value": "7"}],
        "validate_only": False,
        "override": None,
    }
    # when
    run("configs", "--describe", "--topic", topic, "-o", form)
    # then
    (described,) = read(run.out)
    (config,) = described["configs"]
    assert (config["name"], config["value"], config["source"]) == ("retention.ms", "7", "DYNAMIC_TOPIC_CONFIG")


def test_unavailable_cluster_is_reported_in_one_line(tmp_path: Path) -> None:
    # given
    file = tmp_path / "client.properties"
    file.write_text("default.api.timeout.ms=300\n")
    # when
    flags = ("--bootstrap-server", "127.0.0.1:1", "--command-config", file, "--describe", "--topic", "t")
    done = subprocess.run(
        [sys.executable, "-m", "klamm.cli", "configs", *flags], capture_output=True, text=True, check=False, timeout=30
    )
    # then
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--describe", "--topic", "a", "--topic", "b"),
        ("--describe", "--topic", "a", "stray"),
        ("--desc", "--topic", "a"),
        ("--describe", "--topic", "a", "--validate-only"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(words: tuple[str, ...], run: Run) -> None:
    assert run("configs", *words) == 2
    assert run.err.count("\n") == 1


def test_commands_import_only_needed_modules() -> None:
    # when
    code = (
        "import sys, klamm.cli\n"
        "try: klamm.cli.main(['configs', '--help'])\n"
        "except SystemExit: pass\n"
        "try: klamm.cli.main(['topics', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'kafka', 'pyspark', 'rich', 'yaml', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # then
    assert done.stdout.splitlines()[-1] == "[]"


# --- files ---

FILE = """
topics:
  {topic}:
    partitions: 3
    configs:
      retention.ms: 1000
  {topic}-new:
    partitions: 2
    configs: {{cleanup.policy: [compact, delete]}}
"""


def test_plan_shows_difference_and_apply_makes_changes(run: Run, topic: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "topics.yaml"
    file.write_text(FILE.format(topic=topic))
    run("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=5,segment.ms=6")
    # when
    assert run("configs", "plan", str(file), "--check") == 3
    # then
    expected = (
        f"~ topic {topic}\n"
        "    ~ partitions: 2 (cluster) -> 3 (file)\n"
        "    ~ retention.ms: 5 (topic) -> 1000 (1 s, file)\n"
        f"+ topic {topic}-new\n"
        "    + partitions: 2 (file)\n"
        "    + cleanup.policy: compact,delete (file)\n"
    )
    assert run.out == expected + "Topics: 1 to create, 1 to change, 0 in line, 0 rejected.\n"
    # when
    assert run("configs", "apply", str(file)) == 0
    # then
    assert run.out == expected + "Topics: 1 created, 1 changed, 0 in line, 0 failed.\n"
    assert run("configs", "plan", str(file), "--check") == 0
    assert run.out == "Topics: 0 to create, 0 to change, 2 in line, 0 rejected.\n"
    run("configs", "--describe", "--topic", topic)
    assert "segment.ms=6 " in run.out, "what the file does not name stays"
    # when
    assert run("configs", "apply", str(file), "--prune-configs") == 0
    # then
    assert "    - segment.ms: 6 (topic) -> the inherited value\n" in run.out
    run("configs", "--describe", "--topic", topic)
    assert "segment.ms" not in run.out


def test_rejected_topic_does_not_stop_others(run: Run, topic: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "topics.yaml"
    file.write_text(
        f"topics:\n  {topic}: {{configs: {{retention.ms: soon}}}}\n"
        f"  {topic}-b: {{replication_factor: 5}}\n  {topic}-c: {{configs: {{flush.ms: 7}}}}\n"
    )
    # when
    assert run("configs", "plan", str(file)) == 1
    # then
    assert run.out.splitlines()[-1] == "Topics: 1 to create, 0 to change, 0 in line, 2 rejected."
    # when
    assert run("configs", "apply", str(file), "-o", "json") == 1
    # then
    document = json.loads(run.out)
    assert document["summary"] == {"created": 1, "changed": 0, "in_line": 0, "failed": 2}
    assert [bool(resource["error"]) for resource in document["resources"]] == [True, True, False]
    assert "retention.ms" in run.err
    assert "replication factor" in run.err
    assert run("topics", "--list", "--topic", f"{topic}-c") == 0
    assert run.out == f"{topic}-c\n"


def test_apply_changes_no_part_of_rejected_topic(run: Run, topic: str, tmp_path: Path) -> None:
    # given
    file = tmp_path / "topics.yaml"
    file.write_text(f"topics:\n  {topic}: {{partitions: 8, configs: {{retension.ms: 1}}}}\n")
    # when
    assert run("configs", "apply", str(file)) == 1
    # then
    reason = "Unknown topic config name: retension.ms; did you mean retention.ms?"
    assert run.out.startswith(f"! topic {topic}: {file}: topics.{topic}: {reason}\n")
    run("topics", "--describe", "--topic", topic)
    assert "PartitionCount: 2\t" in run.out


def test_plan_changes_nothing(run: Run, tmp_path: Path) -> None:
    # given
    file = tmp_path / "topics.yaml"
    file.write_text("topics: {never-made: {partitions: 1}}\n")
    # when
    assert run("configs", "plan", str(file)) == 0
    planned = run.out
    assert run("configs", "apply", str(file), "--validate-only") == 0
    # then
    assert run.out == planned
    run("topics", "--list", "--topic", "never-made")
    assert run.out == "\n"


def test_invalid_file_is_rejected_by_name(run: Run, tmp_path: Path) -> None:
    # given
    file = tmp_path / "topics.yaml"
    file.write_text("topics: {t: {partitions: many}}\n")
    # when
    assert run("configs", "plan", str(file)) == 1
    # then
    assert run.err == (
        f"klamm configs plan: {file}: topics.t.partitions: 'many': expected a whole number from 1 to 2147483647, or"
        " -1 for the broker's default\n"
    )
    assert run("configs", "apply", str(tmp_path / "absent.yaml")) == 1
    assert "absent.yaml: cannot be read" in run.err


# --- texts that others chose ---


def test_values_are_escaped_in_text_and_exact_in_documents(run: Run, address: str) -> None:
    # given
    value = "a\x1b[2J\r\nb"
    resource = ConfigResource(ResourceType.CLIENT_METRICS, "escaped")
    with AdminClient(address) as admin:
        operation = AlterConfigOp(ConfigEntry("metrics", value), OpType.SET)
        admin.incremental_alter_configs({resource: [operation]}).all().result()
    metrics = ("configs", "--describe", "--entity-type", "client-metrics", "--entity-name", "escaped")
    # when
    assert run(*metrics) == 0
    # then
    _, line = run.out.splitlines()
    assert line.startswith("  metrics=a\\x1b[2J\\r\\nb sensitive=false")
    assert "\x1b" not in run.out
    # and
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert run(*metrics, "-o", output) == 0
        assert read(run.out)[0]["configs"][0]["value"] == value


def test_user_names_are_escaped_in_text_and_exact_in_documents(run: Run) -> None:
    user = "red\x1b[31m"
    assert run("configs", "--alter", "--user", user, "--add-config", "producer_byte_rate=5,acks=all") == 0
    assert run("configs", "--describe", "--user", user) == 0
    assert run.out.count("user-principal 'red\\x1b[31m' are") == 2
    assert run("configs", "--describe", "--user", user, "-o", "json") == 0
    assert json.loads(run.out)[0]["entity"] == {"user": user}


SECRET = "s3cret"  # noqa: S105  # of nobody


class Command:
    """Runs ``klamm configs`` and returns exit code, stdout and stderr."""

    def __init__(self, address: str, capture: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capture = capture

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        try:
            code = cli.main(["configs", *words, "--bootstrap-server", self._address])
        except SystemExit as error:
            code = int(error.code or 0)
        return code, *self._capture.readouterr()


@pytest.fixture
def configs(address: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(address, capsys)


def test_both_credentials_of_a_user_are_set_by_one_command(configs: Command) -> None:
    # given
    user = ("--user", "nina")
    passwords = f"SCRAM-SHA-256=[password={SECRET}],SCRAM-SHA-512=[password={SECRET}]"
    # when
    status = configs("--alter", *user, "--add-config", passwords)[0]
    (document,) = json.loads(configs("--describe", *user, "-o", "json")[1])
    # then
    assert (status, sorted(document["credentials"])) == (0, ["SCRAM-SHA-256", "SCRAM-SHA-512"])


def test_user_document_has_quotas_credentials_and_configs(configs: Command) -> None:
    # given
    user = ("--user", "una")
    assert configs("--alter", *user, "--add-config", "producer_byte_rate=1e3d,acks=all")[0] == 0
    assert configs("--alter", *user, "--add-config", f"SCRAM-SHA-512=[password={SECRET}]")[0] == 0
    # when
    lines = configs("--describe", *user)[1].splitlines()
    (document,) = json.loads(configs("--describe", *user, "-o", "json")[1])
    # then
    assert lines == [
        "Quota configs for user-principal 'una' are producer_byte_rate=1000.0",
        "SCRAM credential configs for user-principal 'una' are SCRAM-SHA-512=iterations=4096",
        "Dynamic configs for user-principal 'una' are acks=all",
    ]
    assert document == {
        "entity": {"user": "una"},
        "quotas": {"producer_byte_rate": 1000.0},
        "credentials": {"SCRAM-SHA-512": {"iterations": 4096}},
        "configs": {"acks": "all"},
        "registered": [],
    }


def test_removed_credential_is_a_disruption(configs: Command) -> None:
    words = ("--alter", "--user", "iris", "--delete-config", "SCRAM-SHA-256", "--max-impact", "notice")
    code, out, _ = configs(*words)
    assert (code, out.splitlines()) == (
        4,
        ["Impact: disruption", "  DISRUPTION: user iris: can no longer log in with SCRAM-SHA-256."],
    )


def test_removed_acks_all_is_a_disruption(configs: Command) -> None:
    assert configs("--alter", "--user", "ivo", "--add-config", "acks=all")[0] == 0
    code, out, _ = configs("--alter", "--user", "ivo", "--delete-config", "acks", "--max-impact", "notice")
    assert (code, out.splitlines()[0]) == (4, "Impact: disruption")


def test_one_invalid_kind_changes_nothing(configs: Command) -> None:
    # when: the quotas alone would be fine
    code, _, complaint = configs("--alter", "--user", "both", "--add-config", "producer_byte_rate=1,acks=9")
    # then
    assert (code, configs("--describe", "--user", "both")[1]) == (1, "")
    assert "Invalid value 9 for configuration acks" in complaint
    # when: the dynamic configs alone would be
    code, _, complaint = configs("--alter", "--user", "both", "--add-config", "producer_byte_rate=-1,acks=1")
    # then
    assert (code, configs("--describe", "--user", "both")[1]) == (1, "")
    assert "must be greater than 0" in complaint


@pytest.mark.parametrize(
    "second",
    [
        f"iterations=20000,password={SECRET}",
        "iterations=8192,password=",
        "password=",
        pytest.param(f"password={SECRET}\udcff", id="bytes that are not text"),
    ],
)
def test_invalid_credential_rejects_whole_command(configs: Command, second: str) -> None:
    # given
    user = ("--user", "olga")
    passwords = f"SCRAM-SHA-256=[password={SECRET}],SCRAM-SHA-512=[{second}]"
    # when
    status, _, complaint = configs("--alter", *user, "--add-config", passwords)
    # then
    assert (status, configs("--describe", *user)[1]) == (1, "")
    assert "SCRAM-SHA-512" in complaint
    assert SECRET not in complaint


def test_failed_deletion_of_a_credential_names_the_one_that_was_set(configs: Command) -> None:
    # given
    password = f"SCRAM-SHA-256=[password={SECRET}]"
    # when
    words = ("--alter", "--user", "pia", "--add-config", password, "--delete-config", "SCRAM-SHA-512")
    status, _, complaint = configs(*words)
    # then
    assert (status, complaint.count("\n")) == (1, 1)
    assert "SCRAM-SHA-512: Attempt to delete" in complaint
    assert complaint.endswith("; SCRAM-SHA-256 is already changed\n")


def test_validate_only_sends_request_and_changes_nothing(configs: Command) -> None:
    assert configs("--alter", "--ip", "10.1.1.1", "--add-config", "connection_creation_rate=5", "--validate-only") == (
        0,
        "Valid: config for ip 10.1.1.1.\n",
        "",
    )
    assert configs("--describe", "--ip", "10.1.1.1") == (0, "", "")
    assert configs("--alter", "--ip-defaults", "--add-config", "connection_creation_rate=-5", "--validate-only")[0] == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--client", "c", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]"), "Unexpected config names: SCRAM"),
        (("--user", "u", "--add-config", "retention.ms=1"), "Unexpected config names: retention.ms"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-1=[password={SECRET}]"), "Unexpected config names: SCRAM-SHA-1"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256={SECRET}"), "Invalid credential property SCRAM-SHA-256: exp"),
        (
            ("--user", "u", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]", "--delete-config", "SCRAM-SHA-256"),
            "cannot set and delete the same credential",
        ),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=,password={SECRET}]"), "Invalid credential"),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=9,password={SECRET}]"), "less than the minimum"),
        (
            ("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=99999,password={SECRET}]"),
            "more than the maximum",
        ),
        (("--user", "u", "--add-config", f"SCRAM-SHA-256=[password={SECRET}]", "--validate-only"), "no way to check"),
        (
            ("--user", "u", "--add-config", f"SCRAM-SHA-256=[iterations=8192, password={SECRET}"),
            "Invalid entity config",
        ),
        (("--user", "u", "--add-config", "request_percentage=1,acks=1", "--percent", "5"), "--percent is for dynamic"),
        (("--user", "u", "--add-config", "producer_byte_rate=1_000"), "Cannot parse quota configuration value"),
        (("--user", "u", "--append-config", "producer_byte_rate=1"), "are for lists"),
    ],
)
def test_rejection_is_one_line_without_password(
    words: tuple[str, ...], complaint: str, configs: Command, caplog: pytest.LogCaptureFixture
) -> None:
    # when
    with caplog.at_level(logging.DEBUG):
        code, out, err = configs("--alter", *words)
    # then
    assert code == 1
    assert complaint in err
    assert err.count("\n") == 1
    assert SECRET not in out + err + caplog.text


def test_password_is_never_printed_or_logged(
    configs: Command, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # given
    file = tmp_path / "user.properties"
    file.write_text(f"SCRAM-SHA-256=iterations=8192,password={SECRET}\n")
    with caplog.at_level(logging.DEBUG):
        # when
        outcomes = [
            configs("--alter", "--user", "eve", "--add-config-file", str(file), "-o", "json"),
            configs("--describe", "--user", "eve", "-o", "yaml"),
            configs("--alter", "--user", "eve", "--add-config", "SCRAM-SHA-256=[iterations=1,", f"password={SECRET}]"),
        ]
    # then
    assert [code for code, _, _ in outcomes] == [0, 0, 2]
    assert json.loads(outcomes[0][1])["changes"] == [{"name": "SCRAM-SHA-256", "operation": "set", "value": None}]
    assert SECRET not in str(outcomes) + caplog.text
    assert "password=(hidden)" in outcomes[2][2]


def test_unresolvable_ip_entity_is_rejected(configs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    def fail(*_: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    # when
    code, _, err = configs("--describe", "--ip", "no.such.host")
    # then
    assert (code, err) == (
        1,
        "The entity name for ips must be a valid IP or resolvable host, but it is: no.such.host\n",
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1024.0, "1024.0"),
        (12.5, "12.5"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123_456_789.5, "1.234567895E8"),
        (1e16, "1.0E16"),
        (9.223372036854775e18, "9.223372036854775E18"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (1.5e-5, "1.5E-5"),
        (-2e7, "-2.0E7"),
        (0.0, "0.0"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles_are_formatted_like_java(value: float, text: str) -> None:
    assert quota_line("user-principal 'u'", {"request_percentage": value}).endswith(f" request_percentage={text}")
