"""``klamm policy test``."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kafka import KafkaProducer

from klamm.admin import AdminClient, NewTopic
from klamm.cli import main, policy

if TYPE_CHECKING:
    from pathlib import Path

    import klamm

RULES = """
    rules:
      - name: names
        naming: "[a-z.]+"
      - name: sizes
        partitions: {max: 2}
        configs:
          flush.ms: {min: 1000}
"""
TOPICS = """
    topics:
      orders: {partitions: 2}
      big: {partitions: 9}
      Loud:
"""
POLICY = """
    from klamm.policy import CreateTopicPolicy, PolicyViolationError

    class House(CreateTopicPolicy):
        def configure(self, configs):
            self.most = int(configs.get("most", "5"))

        def validate(self, details):
            if details.topic == "Loud":
                raise KeyError("oops")
            if details.num_partitions > self.most:
                raise PolicyViolationError(f"at most {self.most}")
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rules.yaml").write_text(textwrap.dedent(RULES))
    (tmp_path / "topics.yaml").write_text(textwrap.dedent(TOPICS))
    (tmp_path / "house_policy_of_cli.py").write_text(textwrap.dedent(POLICY))
    return tmp_path


def test_rules_decide_on_declared_topics(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["policy", "test", "--rules", str(files / "rules.yaml"), "--topics-file", str(files / "topics.yaml")])
    lines = capsys.readouterr().out.splitlines()
    assert code == 3
    assert lines[0].split() == ["TOPIC", "REQUEST", "VERDICT", "REASON"]
    assert lines[1].split()[:3] == ["big", "create", "POLICY_VIOLATION"]
    assert "partitions=9 of topic big is above the maximum 2" in lines[1]
    assert lines[2].split()[0] == "Loud"
    assert lines[-1] == "klamm.policy.rules:RulesPolicy would deny 2 of 3 topics."


@pytest.mark.parametrize(
    "name", ["{}/house_policy_of_cli.py", "{}/house_policy_of_cli.py:House", "house_policy_of_cli:House"]
)
def test_policy_is_loaded_from_file_or_module(name: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["test", name.format(files), "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert policy.main([*arguments, "--property", "most=20"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert (document["policy"], document["topics"], document["denied"]) == ("house_policy_of_cli:House", 3, 1)
    assert {v["topic"]: (v["verdict"], v["message"]) for v in document["verdicts"]} == {
        "orders": ("allowed", None),
        "big": ("allowed", None),
        "Loud": ("failed", "KeyError: 'oops'"),
    }


OVERRIDES = """
    rules:
      - {name: few, effect: override, partitions: {max: 4}, configs: {flush.ms: {max: 1s}}}
      - {name: many, topics: "l.*", partitions: {min: 6}}
      - {name: more, topics: "b.*", effect: override, partitions: {min: 8}}
      - {name: frugal, topics: "f.*", configs: {flush.ms: {forbidden: true}}}
"""


def test_override_result_is_checked_again(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "rules.yaml").write_text(textwrap.dedent(OVERRIDES))
    (files / "topics.yaml").write_text(
        "topics: {orders: {partitions: 9}, loud: {partitions: 9}, big: {partitions: 2},"
        " fast: {partitions: 2, configs: {flush.ms: 5000}}, slow: {partitions: 2, configs: {flush.ms: 1000}}}"
    )
    arguments = ["--rules", str(files / "rules.yaml"), "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert main(["policy", "test", *arguments]) == 3
    document = json.loads(capsys.readouterr().out)
    assert {entry["topic"]: (entry["verdict"], entry["code"]) for entry in document["verdicts"]} == {
        "orders": ("overridden", None),
        "loud": ("denied", "POLICY_VIOLATION"),
        "big": ("denied", "UNKNOWN_SERVER_ERROR"),
        "fast": ("denied", "POLICY_VIOLATION"),
        "slow": ("allowed", None),
    }
    assert (document["denied"], document["overridden"]) == (3, 1)


@pytest.mark.parametrize(
    ("kind", "answer", "message"),
    [
        (
            "create",
            "Override(reason='r', num_partitions=0)",
            "Create topic policy: Override(num_partitions=0)",
        ),
        ("create", "Throttle(reason='r', delay_ms=1)", "Create topic policy: it cannot return Throttle"),
        ("create", "False", "Create topic policy: it cannot return bool"),
        ("create", "(each for each in ())", "Create topic policy: it cannot return generator"),
        (
            "create",
            "details.num_partitions == 1 and Override(reason='r', num_partitions=2)",
            "Create topic policy: it cannot return bool",
        ),
        ("delete", "Override(reason='r', num_partitions=5)", "Delete topic policy: it cannot return Override"),
        ("create", "Override(reason='r', configs={'retention.ms': 'soon'})", "Invalid value soon for configuration"),
        ("alter", "Override(reason='r', configs={'retention.mss': '5'})", "Unknown topic config name: retention.mss"),
    ],
)
def test_impossible_policy_decision_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str], kind: str, answer: str, message: str
) -> None:
    name = f"answers_of_cli_{uuid4().hex}"
    head = "from klamm.policy import Override, Throttle"
    (files / f"{name}.py").write_text(f"{head}\nclass P:\n    def validate(self, details):\n        return {answer}\n")
    (files / "topics.yaml").write_text("topics: {orders: {}}")
    arguments = ["--kind", kind, "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert main(["policy", "test", f"{name}:P", *arguments]) == 3
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["verdict"] == "denied"
    assert message in verdict["message"]


@pytest.mark.parametrize("kind", ["create", "alter", "partitions"])
def test_policy_sees_configs_and_defaults(kind: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"seen_by_cli_{uuid4().hex}"
    body = "raise PolicyViolationError(details.configs['flush.ms'] + ' of ' + details.defaults['flush.messages'])"
    head = "from klamm.policy import PolicyViolationError"
    (files / f"{name}.py").write_text(f"{head}\nclass P:\n    def validate(self, details):\n        {body}\n")
    (files / "topics.yaml").write_text("topics: {orders: {configs: {flush.ms: 5}}}")
    arguments = ["--kind", kind, "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert main(["policy", "test", f"{name}:P", *arguments]) == 3
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["message"].endswith("5 of 9223372036854775807")


@pytest.mark.process
def test_cluster_topics_are_checked_by_dynamic_configs(
    files: Path, klamm_broker: klamm.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    with AdminClient(klamm_broker.bootstrap_servers) as admin:
        topics = [
            NewTopic(name="fine", num_partitions=2, replication_factor=1),
            NewTopic(name="hasty", num_partitions=1, replication_factor=1, configs={"flush.ms": "5"}),
        ]
        admin.create_topics(topics).all().result()
    arguments = ["test", "--rules", str(files / "rules.yaml"), "--bootstrap-server", klamm_broker.bootstrap_servers]
    # when
    code = policy.main([*arguments, "--kind", "create", "--kind", "alter"])
    # then
    output = capsys.readouterr().out
    assert code == 3
    assert output.count("flush.ms=5 of topic hasty is below the minimum 1000") == 2
    assert output.splitlines()[-1] == "klamm.policy.rules:RulesPolicy would deny 1 of 2 topics."
    # and when
    (files / "typo.yaml").write_text("rules: [{name: a, only_configs: [confluent.value.schema.validation]}]")
    assert policy.main(["test", "--rules", str(files / "typo.yaml"), *arguments[3:]]) == 1
    assert "only_configs[0]: not a topic config of the upstream" in capsys.readouterr().err
    # and when
    code = policy.main([*arguments, "--kind", "delete"])
    # then
    assert code == 0
    assert capsys.readouterr().out == "klamm.policy.rules:RulesPolicy would deny 0 of 2 topics.\n"


@pytest.mark.process
def test_rules_on_the_impact_are_checked_with_the_facts_of_the_cluster(
    files: Path, klamm_broker: klamm.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with AdminClient(klamm_broker.bootstrap_servers) as admin:
        topics = [NewTopic(name=name, num_partitions=1, replication_factor=1) for name in ("empty", "full")]
        admin.create_topics(topics).all().result()
    with KafkaProducer(bootstrap_servers=klamm_broker.bootstrap_servers) as producer:
        producer.send("full", b"value").get()
    (files / "impact.yaml").write_text("rules: [{name: keep, data_loss: forbidden}]")
    arguments = ["policy", "test", "--rules", str(files / "impact.yaml"), "-o", "json"]

    code = main(
        [*arguments, "--kind", "delete", "--kind", "alter", "--bootstrap-server", klamm_broker.bootstrap_servers]
    )

    bad = [each for each in json.loads(capsys.readouterr().out)["verdicts"] if each["verdict"] != "allowed"]
    assert code == 3
    assert [(each["topic"], each["kind"]) for each in bad] == [("full", "delete")]
    assert "1 record" in bad[0]["message"]


def test_topic_has_a_line_for_each_rule_that_it_violates(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "topics.yaml").write_text("topics: {Big: {partitions: 9}, orders: {}}")
    arguments = ["--rules", str(files / "rules.yaml"), "--topics-file", str(files / "topics.yaml")]
    assert main(["policy", "test", *arguments]) == 3
    _, names, sizes, _, summary = capsys.readouterr().out.splitlines()
    assert "Rule 'names': name=Big of topic Big" in names
    assert names.endswith("(line 3)")
    assert "Rule 'sizes': partitions=9 of topic Big" in sizes
    assert sizes.endswith("(line 5)")
    assert summary.endswith("would deny 1 of 2 topics.")


def test_rule_that_an_override_satisfies_is_not_violated(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "fix.yaml").write_text(
        "rules: [{name: deny, partitions: {max: 2}}, {name: fix, partitions: {max: 2}, effect: override},"
        " {name: names, naming: '[a-z]+'}]"
    )
    arguments = ["--rules", str(files / "fix.yaml"), "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert main(["policy", "test", *arguments]) == 3
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert {(each["topic"], each["verdict"]) for each in verdicts} == {
        ("orders", "allowed"), ("big", "overridden"), ("Loud", "denied"),
    }  # fmt: skip


def test_each_invalid_rule_of_a_file_is_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "bad.yaml").write_text("rules:\n- name: a\n  partitions: {}\n- name: b\n  naming: c\n- nme: d\n")
    arguments = ["--rules", str(files / "bad.yaml"), "--topics-file", str(files / "topics.yaml")]
    assert main(["policy", "test", *arguments]) == 1
    error = capsys.readouterr().err
    assert "rules[0].partitions: checks nothing; give it min or max (line 2); rules[2].nme: unknown key" in error
    assert error.rstrip().endswith("(line 6)")


def test_rules_on_the_impact_need_a_cluster(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "impact.yaml").write_text("rules: [{name: keep, data_loss: forbidden}]")
    (files / "topics.yaml").write_text("topics: {orders: {}}")
    arguments = ["--rules", str(files / "impact.yaml"), "--topics-file", str(files / "topics.yaml"), "-o", "json"]
    assert main(["policy", "test", "--kind", "delete", *arguments]) == 3
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["message"].startswith(
        "Rule 'keep': the impact of the deletion of topic orders cannot be determined:"
    )
    assert "use --bootstrap-server" in verdict["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected test, got nothing"),
        (["test"], "a policy or --rules must be specified"),
        (["test", "a:B"], "exactly one of --bootstrap-server and --topics-file"),
        (["test", "a:B", "--topics-file", "f", "--bootstrap-server", "h:1"], "exactly one of"),
    ],
)
def test_wrong_usage_ends_with_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        policy.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_file_without_rules_is_named_alone(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rules := files / "mm2.properties").write_text("clusters = A, B\n" * 100)
    assert policy.main(["test", "--rules", str(rules), "--topics-file", str(files / "topics.yaml")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"klamm policy: {rules}: the document: expected a mapping with string keys, got str")
    assert "clusters" not in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.py", "none.py: no such file"),
        ("nodots", "expected FILE.py, FILE.py:Class or module:Class"),
        ("no.such.module:Class", "cannot import no.such.module"),
        ("{}/empty_policy.py", "expected one policy in it"),
        ("{}/broken_policy.py", "RuntimeError: boom"),
    ],
)
def test_unloadable_policy_is_reported_in_one_line(
    name: str, message: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "empty_policy.py").write_text("")
    (files / "broken_policy.py").write_text("raise RuntimeError('boom')")
    assert policy.main(["test", name.format(files), "--topics-file", str(files / "topics.yaml")]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [b"\xff", b"topics: 5", b"["])
def test_unreadable_topics_file_is_named(content: bytes, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (odd := files / "odd.yaml").write_bytes(content)
    assert policy.main(["test", "--rules", str(files / "rules.yaml"), "--topics-file", str(odd)]) == 1
    assert capsys.readouterr().err.startswith(f"klamm policy: {odd}: ")


def test_policy_output_is_not_part_of_result(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "chatty_policy_of_cli.py").write_text(
        "print('imported')\nclass Chatty:\n    def validate(self, details):\n        print(details.topic)\n"
    )
    topics = str(files / "topics.yaml")
    assert main(["policy", "test", "chatty_policy_of_cli:Chatty", "--topics-file", topics, "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["denied"] == 0
    assert captured.err.splitlines() == ["imported", "orders", "big", "Loud"]
