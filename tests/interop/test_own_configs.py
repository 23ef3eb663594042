"""klamm's own broker configs, changed at run time: effect, rejection and persistence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    AlterConfigsOptions,
    ClientConfigEntity,
    ClientConfigOp,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.configs.definitions import own_broker_configs
from klamm.protocol.errors import InvalidRequestError, PolicyViolationError
from klamm.protocol.types import UpdateMode
from tests.support.klamm import KlammBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES_CLASS = "klamm.policy.rules:RulesPolicy"
AT_MOST = "rules:\n  - name: sizes\n    partitions: {{max: {most}}}\n"
CLUSTER = ""


def set_config(admin: AdminClient, name: str, value: str | None, *, broker: str = CLUSTER, dry: bool = False) -> None:
    """Set a broker config, or delete it with None."""
    operation = AlterConfigOp(ConfigEntry(name, value), OpType.DELETE if value is None else OpType.SET)
    resource = ConfigResource(ResourceType.BROKER, broker)
    admin.incremental_alter_configs({resource: [operation]}, AlterConfigsOptions(validate_only=dry)).all().result()


def create(admin: AdminClient, partitions: int) -> None:
    """Create a topic and delete it again; raise what the broker answers."""
    admin.create_topics([NewTopic(name="t", num_partitions=partitions)]).all().result()
    admin.delete_topics(["t"]).all().result()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(AT_MOST.format(most=2))
    return path


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, AdminClient]]:
    """Clients of two brokers, by whether the broker has a policy."""
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text(AT_MOST.format(most=2))
    config = {"create.topic.policy.class.name": RULES_CLASS, "policy.rules.file": str(path)}
    with (
        klamm.Broker(config=config) as with_policy,
        klamm.Broker() as without,
        AdminClient(with_policy.bootstrap_servers) as first,
        AdminClient(without.bootstrap_servers) as other,
    ):
        yield {True: first, False: other}


@pytest.fixture
def admin(clients: dict[bool, AdminClient]) -> Iterator[AdminClient]:
    """A client of the broker with a policy, whose dynamic configs are deleted after each test."""
    yield clients[True]
    for name in ("create.topic.policy.mode", "policy.rules.file", "client.configs.allowed.keys"):
        set_config(clients[True], name, None)


def test_changed_policy_mode_applies_to_the_next_request(admin: AdminClient) -> None:
    with pytest.raises(PolicyViolationError):
        create(admin, 3)
    set_config(admin, "create.topic.policy.mode", "audit")
    create(admin, 3)
    set_config(admin, "create.topic.policy.mode", "enforce", broker="1")
    with pytest.raises(PolicyViolationError):
        create(admin, 3)
    set_config(admin, "create.topic.policy.mode", None, broker="1")
    create(admin, 3)
    set_config(admin, "create.topic.policy.mode", None)
    with pytest.raises(PolicyViolationError):
        create(admin, 3)


def test_changed_rules_file_applies_to_the_next_request(admin: AdminClient, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(AT_MOST.format(most=5))
    set_config(admin, "policy.rules.file", str(other), dry=True)
    with pytest.raises(PolicyViolationError):
        create(admin, 3)
    set_config(admin, "policy.rules.file", str(other))
    create(admin, 5)
    with pytest.raises(PolicyViolationError, match="maximum 5"):
        create(admin, 6)
    set_config(admin, "policy.rules.file", None)
    with pytest.raises(PolicyViolationError, match="maximum 2"):
        create(admin, 3)


def test_same_rules_file_set_again_is_reloaded_before_the_response(admin: AdminClient, tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(AT_MOST.format(most=5))
    set_config(admin, "policy.rules.file", str(path))
    path.write_text(AT_MOST.format(most=0))
    with pytest.raises(InvalidRequestError, match="0 is below 1"):
        set_config(admin, "policy.rules.file", str(path))
    path.write_text(AT_MOST.format(most=7))
    set_config(admin, "policy.rules.file", str(path))
    create(admin, 6)
    set_config(admin, "policy.rules.file", None)


def test_rules_file_set_at_runtime_is_watched(admin: AdminClient, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(AT_MOST.format(most=5))
    set_config(admin, "policy.rules.file", str(other))
    other.write_text(AT_MOST.format(most=70))  # of another size: two writes may have one time
    for _ in range(600):
        try:
            create(admin, 6)
        except PolicyViolationError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the changed file never counted")


@pytest.mark.parametrize(
    ("has_policy", "text", "reason"),
    [
        (True, None, "No such file"),
        (True, "rules: nonsense", "expected a list"),
        (True, "rules: [{name: a}]", "the rule checks nothing"),
        (True, "rules: [{name: a, deletion: forbidden}]", "no policy is asked about the action delete"),
        (False, "rules: [{name: a, naming: b}]", "no policy reads the file"),
    ],
)
def test_invalid_rules_file_is_rejected_and_current_rules_kept(
    clients: dict[bool, AdminClient], tmp_path: Path, has_policy: bool, text: str | None, reason: str
) -> None:
    wrong = tmp_path / "wrong.yaml"
    if text is not None:
        wrong.write_text(text)
    with pytest.raises(InvalidRequestError, match=reason):
        set_config(clients[has_policy], "policy.rules.file", str(wrong))
    if has_policy:
        with pytest.raises(PolicyViolationError, match="maximum 2"):
            create(clients[True], 3)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("create.topic.policy.mode", "banana", "one of .*ENFORCE, AUDIT"),
        ("delete.topic.policy.mode", "", "one of .*ENFORCE, AUDIT"),
        ("policy.timeout.ms", "abc", "Not a number"),
        ("policy.timeout.ms", "0", "at least 1"),
        ("client.configs.allowed.keys", "ackz", "one of: acks, enforcement, heartbeat.interval.ms, session.timeout.ms"),
        ("metrics.listen", "127.0.0.1:9", "klamm reads metrics.listen only when it starts"),
        ("super.users", "User:eve", "klamm reads super.users only when it starts"),
        ("allow.everyone.if.no.acl.found", "true", "only when it starts"),
    ],
)
@pytest.mark.parametrize("broker", [CLUSTER, "1"])
def test_invalid_broker_config_is_rejected_with_reason(
    admin: AdminClient, name: str, value: str, reason: str, broker: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        set_config(admin, name, value, broker=broker)


@pytest.mark.parametrize("name", [n for n, d in own_broker_configs().items() if d.update_mode is UpdateMode.READ_ONLY])
def test_read_only_config_is_rejected_at_runtime(admin: AdminClient, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="only when it starts: set it in the properties file"):
        set_config(admin, name, "1")


def test_klamm_broker_configs_are_described_with_type_value_and_documentation(admin: AdminClient) -> None:
    # given
    set_config(admin, "create.topic.policy.mode", "audit")
    resource = ConfigResource(ResourceType.BROKER, "1")
    # when
    described = admin.describe_configs([resource], include_documentation=True).all().result()[resource]
    # then
    own = {name: described[name] for name in own_broker_configs()}
    assert not [name for name, entry in own.items() if entry.is_sensitive or not entry.documentation]
    for name, definition in own_broker_configs().items():
        assert own[name].is_read_only == (definition.update_mode is UpdateMode.READ_ONLY)
    assert own["create.topic.policy.mode"].value == "audit"
    assert own["policy.timeout.ms"].value == "2000"


def test_changed_allowed_keys_apply_to_the_next_request(admin: AdminClient) -> None:
    def set_for_client(key: str) -> None:
        entity = ClientConfigEntity.of_client("anna", "app")
        admin.alter_client_configs({entity: [ClientConfigOp(key, "0")]}).all().result()

    set_config(admin, "client.configs.allowed.keys", "session.timeout.ms")
    with pytest.raises(PolicyViolationError, match="must not be set"):
        set_for_client("acks")
    set_config(admin, "client.configs.allowed.keys", "acks,session.timeout.ms")
    set_for_client("acks")


def test_policy_mode_of_a_single_presented_broker_is_rejected() -> None:
    with klamm.Broker(brokers=2) as broker, AdminClient(broker.bootstrap_servers) as admin:
        with pytest.raises(InvalidRequestError, match="set it as the cluster default"):
            set_config(admin, "create.topic.policy.mode", "audit", broker="2")
        set_config(admin, "create.topic.policy.mode", "audit")


def test_login_setting_of_another_presented_broker_than_the_first_is_rejected() -> None:
    name = "listener.name.main.sasl.enabled.mechanisms"
    with klamm.Broker(brokers=2) as broker, AdminClient(broker.bootstrap_servers) as admin:
        with pytest.raises(InvalidRequestError, match="set it for the first of them"):
            set_config(admin, name, "PLAIN", broker="2")
        set_config(admin, name, "PLAIN", broker="1")


@pytest.mark.long
def test_dynamic_configs_survive_a_restart(rules: Path, tmp_path: Path) -> None:
    # given
    other = tmp_path / "other.yaml"
    other.write_text(AT_MOST.format(most=5))
    config = {"create.topic.policy.class.name": RULES_CLASS, "policy.rules.file": str(rules)}
    with KlammBroker(config, data_dir=tmp_path / "data") as broker:
        with AdminClient(broker.bootstrap_servers) as admin:
            set_config(admin, "policy.rules.file", str(other))
        # when
        broker.restart()
        # then
        with AdminClient(broker.bootstrap_servers) as admin:
            create(admin, 5)
            with pytest.raises(PolicyViolationError, match="maximum 5"):
                create(admin, 6)
            set_config(admin, "create.topic.policy.mode", "audit", broker="1")
        broker.restart()
        with AdminClient(broker.bootstrap_servers) as admin:
            create(admin, 6)
        # when: the file that was set at run time is gone
        broker.stop()
        other.unlink()
        # then
        with pytest.raises(RuntimeError, match="was set while the broker ran and outranks the properties file"):
            broker.start()
        other.write_text(AT_MOST.format(most=5))
        broker.start()
