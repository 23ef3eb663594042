"""Command ``klamm policy test POLICY``: list the existing topics that a policy would deny."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_OK
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import print_result, table_lines
from klamm.configs.definitions import POLICY_RULES_FILE, UPSTREAM, topic_configs
from klamm.display import counted
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR, Override, answer_fault, answer_of
from klamm.policy.details import (
    AlterConfigDetails,
    CreatePartitionsDetails,
    DeleteTopicDetails,
    Details,
    TopicDetails,
    overridden,
)
from klamm.policy.errors import PolicyFailedError, PolicyLoadError
from klamm.policy.impact import ask_with_impact
from klamm.policy.kinds import ALTER_CONFIG, CREATE_PARTITIONS, CREATE_TOPIC, DELETE_TOPIC, PolicyKind, PolicySpec
from klamm.policy.loader import load_policy
from klamm.policy.rule import RuleFileError
from klamm.policy.rules import RulesPolicy
from klamm.policy_runtime.decision import TWICE
from klamm.protocol.errors import InvalidConfigError, KafkaApiError
from klamm.security.principals import ANONYMOUS, principal_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import AdminClient, ConfigEntry
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact

EXIT_DENIED: Final = 3
RULES_POLICY: Final = f"{RulesPolicy.__module__}:{RulesPolicy.__qualname__}"
CLIENT_ID: Final = "klamm-policy-test"
_KINDS: Final[Mapping[str, PolicyKind]] = {
    "create": CREATE_TOPIC,
    "alter": ALTER_CONFIG,
    "partitions": CREATE_PARTITIONS,
    "delete": DELETE_TOPIC,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTopic:
    """The facts about an existing topic that a policy can see."""

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]
    """Configs set on the topic itself."""
    defaults: Mapping[str, str]
    """The cluster's values of all other configs; Kafka's defaults if a file describes the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Decision of the policy about one topic."""

    topic: str
    kind: str
    verdict: str
    """``allowed``, ``denied``, ``overridden``, or ``failed`` if the policy raised an unexpected error."""
    code: str | None
    message: str | None


def main(arguments: Sequence[str]) -> int:
    """Judge the topics. Return 0 if all are allowed, 3 if some are not, 1 if the test itself failed."""
    parser = _parser()
    words = list(arguments)
    if words[:1] not in (["test"], ["-h"], ["--help"], ["--version"]):
        parser.error(f"expected test, got {words[0] if words else 'nothing'}")
    options = parser.parse_args(words[1:] if words[:1] == ["test"] else words)
    if options.policy is None and options.rules is None:
        parser.error("a policy or --rules must be specified")
    if (options.bootstrap_server is None) == (options.topics_file is None):
        parser.error("exactly one of --bootstrap-server and --topics-file must be specified")
    return guarded("klamm policy", lambda: _test(options))


def judge(
    policy: object,
    kind: str,
    topics: Sequence[ExistingTopic],
    *,
    principal: str,
    predict: Callable[[Sequence[Change]], Impact] | None = None,
) -> list[Verdict]:
    """Run a policy on every topic, as if a request asked for the present state of that topic.

    A topic has a verdict for each rule of a rule file that it violates.

    Args:
        policy: Object with ``validate``, or with the method of the kind.
        kind: ``create``, ``alter`` (set all configs of the topic once more), ``partitions`` (add one) or ``delete``.
        topics: Existing topics.
        principal: Principal that the policy sees as the requester.
        predict: Function that predicts the impact of changes, if the policy reads it. None without a cluster.
    """
    parts = list(policy.single_rules()) if isinstance(policy, RulesPolicy) else []
    verdicts = []
    for topic in topics:
        details = _details(kind, topic, principal)
        whole = _verdict(policy, kind, topic, details, predict)
        if whole.verdict != "denied" or not parts:
            verdicts.append(whole)
            continue
        for rule, part in parts:
            verdict = _verdict(part, kind, topic, details, predict)
            if verdict.verdict == "denied":
                verdicts.append(replace(verdict, message=f"{verdict.message} (line {rule.line})"))
    return verdicts


def _verdict(
    policy: object,
    kind: str,
    topic: ExistingTopic,
    details: Details,
    predict: Callable[[Sequence[Change]], Impact] | None,
) -> Verdict:
    """Return the decision of a policy about one topic. ``judge`` describes the arguments."""
    method = getattr(policy, _KINDS[kind].method, None) or getattr(policy, "validate")  # noqa: B009 -- mypy
    verdict, code, message = "allowed", None, None
    try:
        reason = _judge(lambda each: ask_with_impact(method, each, predict), _KINDS[kind], details)
        if reason is not None:
            verdict, message = "overridden", reason
    except KafkaApiError as denial:
        verdict, code, message = "denied", denial.error_code.name, denial.error_message
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- it is the policy that is tested
        verdict, message = "failed", f"{type(error).__name__}: {error}"
    return Verdict(topic=topic.name, kind=kind, verdict=verdict, code=code, message=message)


def _judge(ask: Callable[[Details], object], kind: PolicyKind, details: Details) -> str | None:
    """Ask a policy about a request and about the result of its override, as a broker does.

    Returns:
        The reason of the override; None without one. Errors that deny the request propagate.
    """
    override = _override(ask, kind, details)
    if override is None:
        return None
    changed = overridden(details, override)
    _check_values(override, details)
    if _override(ask, kind, changed) is not None:
        raise PolicyFailedError(TWICE)
    return override.reason


def _override(ask: Callable[[Details], object], kind: PolicyKind, details: Details) -> Override | None:
    """Return the override that a policy answers with; None if it allows the request."""
    answer = answer_of(ask(details))
    fault = None if answer is None else answer_fault(answer, kind.answers, kind.overridable)
    if fault is not None:
        raise PolicyFailedError(f"{kind.label} policy: {fault}")
    return answer if isinstance(answer, Override) else None


def _check_values(override: Override, details: Details) -> None:
    """Raise the error of a broker for values of an override that a topic cannot have."""
    defaults = getattr(details, "defaults", {})
    for name, value in override.configs.items():
        definition = topic_configs().get_definition(name)
        if definition is None and name not in defaults and value is not None:
            raise InvalidConfigError(f"Unknown topic config name: {name}")
        if definition is not None and value is not None:
            definition.parse(value)


def _details(kind: str, topic: ExistingTopic, principal: str) -> Details:
    defaults = topic.defaults
    who: dict[str, Any] = {"principal": principal, "client_id": CLIENT_ID}
    count, factor = topic.num_partitions, topic.replication_factor
    if kind == "create":
        return TopicDetails(
            topic.name, count, factor, None, topic.configs, validate_only=True, defaults=defaults, **who
        )
    if kind == "alter":
        configs = topic.configs
        return AlterConfigDetails(
            "TOPIC",
            topic.name,
            configs,
            configs,
            validate_only=True,
            defaults=defaults,
            replication_factor=factor,
            **who,
        )
    if kind == "partitions":
        return CreatePartitionsDetails(
            topic=topic.name,
            num_partitions=count,
            new_num_partitions=count + 1,
            replication_factor=factor,
            configs=topic.configs,
            defaults=defaults,
            **who,
        )
    return DeleteTopicDetails(topic=topic.name, num_partitions=count, replication_factor=factor, **who)


def _test(options: argparse.Namespace) -> int:
    properties = dict(_assignment(text) for text in options.property)
    if options.rules is not None:
        properties[POLICY_RULES_FILE] = options.rules
    if options.bootstrap_server is not None:
        properties.setdefault(UPSTREAM, options.bootstrap_server)  # it decides which configs exist, as in a gateway
    name = options.policy or RULES_POLICY
    kinds = options.kind or ["create"]
    try:
        with redirect_stdout(sys.stderr):  # output printed by the policy must not mix with the result
            spec = _spec(name, kinds)
            policy = load_policy(spec, properties).policy
    except PolicyLoadError as error:
        reason = error.__cause__ if isinstance(error.__cause__, RuleFileError) else error
        raise RequestError(str(reason)) from error
    principal = principal_of(options.principal)
    if options.topics_file is not None:
        topics = _declared(options.topics_file)
        with redirect_stdout(sys.stderr):
            verdicts = [each for kind in kinds for each in judge(policy, kind, topics, principal=principal)]
    else:
        topics, verdicts = _judged_in_cluster(policy, kinds, principal, options)
    bad = [verdict for verdict in verdicts if verdict.verdict != "allowed"]
    document = {
        "policy": spec.name,
        "topics": len(topics),
        "denied": len({verdict.topic for verdict in bad if verdict.verdict != "overridden"}),
        "overridden": len({verdict.topic for verdict in bad if verdict.verdict == "overridden"}),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    print_result(options.output, document, lambda: _table(document, bad))
    return EXIT_DENIED if bad else EXIT_OK


def _judged_in_cluster(
    policy: object, kinds: Sequence[str], principal: str, options: argparse.Namespace
) -> tuple[list[ExistingTopic], list[Verdict]]:
    """Return the topics of the cluster, and the verdicts about them."""
    from klamm.admin.impact import impact_of  # noqa: PLC0415  # the network library

    with connect(options) as admin:
        described = _described(admin)
        topics = [topic for topic, _ in described]
        _check_upstream(policy, [configs for _, configs in described])
        predict = partial(impact_of, admin=admin, sums_up=False)
        with redirect_stdout(sys.stderr):
            return topics, [
                verdict
                for kind in kinds
                for verdict in judge(policy, kind, topics, principal=principal, predict=predict)
            ]


def _table(document: Mapping[str, Any], bad: Sequence[Verdict]) -> list[str]:
    rows = [(v.topic, v.kind, v.verdict if v.code is None else v.code, v.message or "") for v in bad]
    lines = [*table_lines([("TOPIC", "REQUEST", "VERDICT", "REASON"), *rows]), ""] if bad else []
    also = f" and override {document['overridden']}" if document["overridden"] else ""
    of_all = f"of {counted(document['topics'], 'topic')}"
    return [*lines, f"{document['policy']} would deny {document['denied']}{also} {of_all}."]


def _spec(name: str, kinds: Sequence[str]) -> PolicySpec:
    module, class_name = _locate(name)
    return PolicySpec(module=module, class_name=class_name, keys={_KINDS[kind]: "policy" for kind in kinds})


def _locate(name: str) -> tuple[str, str]:
    """Return module and class of ``module:Class``, ``module.Class``, ``file.py:Class`` or ``file.py``."""
    file, _, class_name = name.partition(":")
    if not file.endswith(".py"):
        module, _, class_name = name.rpartition(":" if ":" in name else ".")
        if not module or not class_name:
            raise RequestError(f"{name}: expected FILE.py, FILE.py:Class or module:Class")
        sys.path.insert(0, "")  # as with python -m, so that modules of the working directory can be imported
        return module, class_name
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise RequestError(f"{file}: no such file")
    sys.path.insert(0, str(path.parent.resolve()))
    module_object = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module_object
    try:
        spec.loader.exec_module(module_object)
    except (Exception, SystemExit) as error:
        raise RequestError(f"{file}: {type(error).__name__}: {error}") from error
    return path.stem, class_name or _only_policy(file, vars(module_object), path.stem)


def _only_policy(file: str, names: Mapping[str, Any], module: str) -> str:
    methods = ("validate", *(kind.method for kind in _KINDS.values()))
    classes = [
        name
        for name, value in names.items()
        if isinstance(value, type)
        and value.__module__ == module
        and any(callable(getattr(value, method, None)) for method in methods)
    ]
    if len(classes) != 1:
        listed = ", ".join(classes) or "none"
        raise RequestError(f"{file}: expected one policy in it, or FILE.py:Class; there is {listed}")
    return classes[0]


def _declared(file: str) -> list[ExistingTopic]:
    from klamm.resources.files import read_files  # noqa: PLC0415  # reads YAML
    from klamm.resources.model import NUMBERS, Kind  # noqa: PLC0415

    defaults = {
        name: definition.default for name, definition in topic_configs().items() if definition.default is not None
    }
    return [
        ExistingTopic(
            name=topic.name,
            num_partitions=int(topic.values.get(PARTITIONS, 1)),
            replication_factor=int(topic.values.get(REPLICATION_FACTOR, 1)),
            configs={key: value for key, value in topic.values.items() if key not in NUMBERS},
            defaults=defaults,
        )
        for files in read_files(Path(file))
        for topic in files.resources
        if topic.kind is Kind.TOPIC and topic.is_managed
    ]


def _check_upstream(policy: object, described: Sequence[Mapping[str, ConfigEntry]]) -> None:
    """Reject rules on configs that the cluster does not have. Without a topic they are unknown."""
    if isinstance(policy, RulesPolicy) and described:
        try:
            policy.check_upstream({entry.name: entry.config_type for entry in described[0].values()})
        except RuleFileError as error:
            raise RequestError(str(error)) from error


def _described(admin: AdminClient) -> list[tuple[ExistingTopic, Mapping[str, ConfigEntry]]]:
    """Return all topics of the cluster, each with the description of its configs."""
    from klamm.admin import ConfigResource, ConfigSource, ResourceType  # noqa: PLC0415  # the network library
    from klamm.admin.types import own_values  # noqa: PLC0415

    names = sorted(admin.list_topics().result())
    described = admin.describe_topics(names).all().result() if names else {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configs = admin.describe_configs(resources).all().result() if names else {}
    names_described = {name for entries in configs.values() for name in entries}
    defaults = {
        name: config.default
        for name, config in topic_configs().items()
        if name in names_described and config.default is not None
    }
    for entries in configs.values():  # each topic shows the values that it inherits; a topic that sets one does not
        defaults |= {
            entry.name: entry.value
            for entry in entries.values()
            if entry.source is not ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
        }
    return [
        (
            ExistingTopic(
                name=name,
                num_partitions=len(described[name].partitions),
                replication_factor=len(described[name].partitions[0].replicas),
                configs=own_values(resource, configs[resource]),
                defaults=defaults,
            ),
            configs[resource],
        )
        for name, resource in zip(names, resources, strict=True)
    ]


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RequestError(f"--property {text}: expected NAME=VALUE")
    return name.strip(), value.strip()


def _parser() -> ToolParser:
    parser = ToolParser(
        prog="klamm policy test",
        description="Test a policy on existing topics: which of them would it deny today?",
        epilog="Exit codes: 0 all are allowed, 1 the test failed, 2 wrong flags, 3 some would be denied or overridden.",
    )
    parser.add_argument("policy", nargs="?", metavar="POLICY", help="FILE.py, FILE.py:Class or module:Class")
    add_common(parser, instead=("topics_file",))
    parser.add_value(
        "--topics-file",
        metavar="FILE",
        help="file that declares topics, as for klamm plan, in place of a cluster",
    )
    parser.add_value(
        "--rules", metavar="FILE", help="rules for klamm.policy.rules:RulesPolicy, which is then the policy"
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=tuple(_KINDS),
        help="the kind of request to test (default create); may be repeated",
    )
    parser.add_argument(
        "--property", action="append", default=[], metavar="NAME=VALUE", help="a property for the policy's configure"
    )
    parser.add_argument(
        "--principal", default=ANONYMOUS, metavar="NAME", help=f"requesting user or principal (default {ANONYMOUS})"
    )
    return parser
