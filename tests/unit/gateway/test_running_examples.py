"""The examples that run a gateway: systemd, compose and Kubernetes agree with the gateway's own settings and pages."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

import pytest
import yaml

from klamm.admin import AdminClient, NewTopic
from klamm.gateway.settings import GatewaySettings, parse_arguments, read_settings
from klamm.policy.rule_file import parse_rules
from klamm.properties import parse_properties
from klamm.protocol.errors import PolicyViolationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import klamm

EXAMPLES: Final = Path(__file__).resolve().parents[3] / "examples" / "gateway"
PORTS: Final = "kubernetes.yaml"
NAMES: Final = "kubernetes-sni.yaml"


def read(name: str) -> str:
    return (EXAMPLES / name).read_text(encoding="utf-8")


def systemd_unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(delimiters="=", comment_prefixes="#", interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(read("klamm-gateway.service"))
    return unit


def kubernetes(name: str = PORTS) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(read(name))}


def kubernetes_properties(name: str = PORTS) -> dict[str, str]:
    return parse_properties(kubernetes(name)["Secret"]["stringData"]["gateway.properties"])


def compose_service() -> dict[str, Any]:
    """Return the service of the compose file, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", read("compose.yaml"))
    service: dict[str, Any] = yaml.safe_load(text)["services"]["gateway"]
    return service


def compose_settings() -> GatewaySettings:
    command, *arguments = compose_service()["command"]
    assert command == "gateway"
    return parse_arguments(arguments)


def metrics_port(settings: GatewaySettings) -> int:
    assert settings.metrics is not None
    return settings.metrics.port


def test_systemd_unit_starts_a_gateway_with_the_properties_beside_it() -> None:
    # given
    service = systemd_unit()["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    name, _, source = service["LoadCredential"].partition(":")
    # when
    settings = parse_arguments([word.replace("${CREDENTIALS_DIRECTORY}", str(EXAMPLES)) for word in arguments])
    # then
    assert (PurePosixPath(program).name, command) == ("klamm", "gateway")
    assert arguments[-1] == f"${{CREDENTIALS_DIRECTORY}}/{name}"
    assert settings.data_dir == Path("/var/lib") / service["StateDirectory"]
    assert int(service["TimeoutStopSec"]) > settings.shutdown_grace_s
    installed = set(re.findall(r"^# +install .* (/etc/\S+)$", read("klamm-gateway.service"), re.MULTILINE))
    assert {source, settings.configs["policy.rules.file"]} <= installed


def test_rules_of_the_examples_are_understood() -> None:
    assert parse_rules(read("rules.yaml"), source="rules.yaml")
    for name in (PORTS, NAMES):
        assert parse_rules(kubernetes(name)["Secret"]["stringData"]["rules.yaml"], source=name)


def test_compose_file_publishes_the_ports_and_keeps_the_directory_of_its_gateway() -> None:
    # given
    service, settings = compose_service(), compose_settings()
    build = service["build"]
    # then
    assert (EXAMPLES / build["context"] / build["dockerfile"]).is_file()
    base = settings.listener.listen[0].port
    inside, outside = service["ports"][0].split(":")
    assert inside == outside == f"{base}-{base + 8}"
    assert service["ports"][1].endswith(f":{metrics_port(settings)}")
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    assert mounted == [str(settings.data_dir), settings.configs["policy.rules.file"]]
    assert int(service["stop_grace_period"].rstrip("s")) > settings.shutdown_grace_s
    assert f"127.0.0.1:{metrics_port(settings)}/" in service["healthcheck"]["test"][-1]


def test_kubernetes_service_has_the_port_of_each_broker() -> None:
    # given
    documents, settings = kubernetes(), read_settings(kubernetes_properties())
    service = documents["Service"]
    base = settings.listener.listen[0].port
    (container,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    # then
    served = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert served == {"bootstrap": base} | {f"broker-{node}": base + node for node in (1, 2, 3)}
    assert all(port["targetPort"] == port["name"] for port in service["spec"]["ports"])
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert opened == served | {"metrics": metrics_port(settings)}
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert str(settings.advertised) == f"{name}.{namespace}.svc:{base}"


def test_names_of_all_brokers_lead_to_the_one_port_with_the_certificate_for_them() -> None:
    # given
    documents, settings = kubernetes(NAMES), read_settings(kubernetes_properties(NAMES))
    service, certificate = documents["Service"], documents["Certificate"]["spec"]
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (served,) = service["spec"]["ports"]
    # then
    assert settings.advertised is not None
    assert settings.broker_hosts is not None
    # DNS leads all names below the advertised one to the gateway. An upstream there would be the gateway itself.
    hosts = [server.rpartition(":")[0] for server in settings.upstream.bootstrap_servers]
    assert [host for host in hosts if f".{host}".endswith(f".{settings.advertised.host}")] == []
    names = [settings.advertised.host, f"*.{settings.advertised.host}"]
    assert settings.broker_hosts.host_of(7).partition(".")[2] == settings.advertised.host
    assert certificate["dnsNames"] == names
    assert service["metadata"]["annotations"]["external-dns.alpha.kubernetes.io/hostname"] == ",".join(names)
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert opened == {served["targetPort"]: settings.listener.listen[0].port, "metrics": metrics_port(settings)}
    assert served["port"] == settings.advertised.port
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.configs["ssl.keystore.location"] == f"{mounted['certificate']}/tls-combined.pem"
    (store,) = [volume for volume in pod["volumes"] if volume["name"] == "certificate"]
    assert store["secret"]["secretName"] == certificate["secretName"]


@pytest.mark.parametrize("name", [PORTS, NAMES])
def test_kubernetes_deployment_probes_stops_and_keeps_its_gateways(name: str) -> None:
    # given
    documents, settings = kubernetes(name), read_settings(kubernetes_properties(name))
    deployment = documents["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    # then
    labels = deployment["template"]["metadata"]["labels"]
    budget = documents["PodDisruptionBudget"]["spec"]
    assert labels == documents["Service"]["spec"]["selector"] == budget["selector"]["matchLabels"]
    assert labels == deployment["selector"]["matchLabels"]
    assert 0 < budget["minAvailable"] < deployment["replicas"]
    assert deployment["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(metrics_port(settings))
    assert [container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("readiness", "liveness")] == ["metrics"] * 2
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > sleep + settings.shutdown_grace_s
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted["data"] == str(settings.data_dir)
    files = {f"{mounted['settings']}/{file}" for file in documents["Secret"]["stringData"]}
    assert container["args"] == ["gateway", "--config", f"{mounted['settings']}/gateway.properties"]
    assert {container["args"][-1], settings.configs["policy.rules.file"]} == files
    assert pod["volumes"][0]["secret"]["secretName"] == documents["Secret"]["metadata"]["name"]


def probed_paths() -> set[str]:
    """Return the paths that the examples ask, to be served by a gateway."""
    containers = [
        kubernetes(name)["Deployment"]["spec"]["template"]["spec"]["containers"][0] for name in (PORTS, NAMES)
    ]
    probes = [container[f"{kind}Probe"] for container in containers for kind in ("readiness", "liveness")]
    paths = {probe["httpGet"]["path"] for probe in probes}
    (health_path,) = re.findall(r"http://127\.0\.0\.1:\d+(/\w+)", compose_service()["healthcheck"]["test"][-1])
    return {*paths, health_path}


def on_this_machine(properties: Mapping[str, str], rules: Path) -> dict[str, object]:
    own = {name: value for name, value in properties.items() if "policy" in name}
    return own | {"policy.rules.file": rules, "metrics.listen": "127.0.0.1:0"}


@pytest.mark.process
def test_gateway_with_the_settings_of_the_example_answers_its_probes_and_applies_its_rules(
    klamm_session_broker: klamm.Broker, make_klamm_gateway: Callable[..., klamm.Gateway], tmp_path: Path
) -> None:
    # given
    rules = tmp_path / "rules.yaml"
    rules.write_text(kubernetes()["Secret"]["stringData"]["rules.yaml"], encoding="utf-8")
    config = on_this_machine(kubernetes_properties(), rules)
    # when
    gateway = make_klamm_gateway(klamm_session_broker.bootstrap_servers, config=config)
    metrics = gateway.log_text().partition("Metrics on http://")[2].partition("/")[0]
    # then
    assert probed_paths() == {"/ready", "/live"}
    for path in sorted(probed_paths()):
        with urlopen(f"http://{metrics}{path}", timeout=30) as answer:
            assert answer.status == 200
    with AdminClient(gateway.bootstrap_servers) as admin:
        topics = [NewTopic("small", num_partitions=1), NewTopic("large", num_partitions=49)]
        created = admin.create_topics(topics, validate_only=True)
        created.values()["small"].result()
        assert isinstance(created.values()["large"].exception(), PolicyViolationError)


@pytest.mark.parametrize("page", ["gateway.md", "containers.md"])
def test_commands_of_the_pages_are_those_of_the_gateway(page: str) -> None:
    text = (EXAMPLES.parents[1] / "docs" / page).read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^(?:podman run .* )?klamm gateway (--.*)$", text, re.MULTILINE)
    assert [parse_arguments(shlex.split(command)).metrics is not None for command in commands] == [True]
