"""The mirror with brokers that require authentication and encryption."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not list them
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import klamm
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties, read
from tests.support.processes import free_port
from tests.support.security import PASSWORDS, PLAIN_MODULE, SCRAM_MODULE, Certificates, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
LARGE = 3_000_000
NO_MORE: Mapping[str, str] = MappingProxyType({})


class Guarded:
    """Broker with a plaintext listener for the test and a listener with login for the mirror."""

    def __init__(
        self, protocol: str, certificates: Certificates, more: Mapping[str, str] = NO_MORE, *, days: int = 2
    ) -> None:
        self.inside, self.outside = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.broker = klamm.Broker(
            config={
                **sasl_settings(listener="outside"),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.issue(f"broker{days}", "/CN=broker", days=days)),
                "listeners": f"INSIDE://{self.inside},OUTSIDE://{self.outside}",
                "listener.security.protocol.map": f"INSIDE:PLAINTEXT,OUTSIDE:{protocol}",
                **more,
            }
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates) -> Iterator[Guarded]:
    """Broker that requires a login over TLS, with sessions of two seconds."""
    guarded = Guarded("SASL_SSL", certificates, {"connections.max.reauth.ms": "2000"})
    with guarded.broker:
        admin = AdminClient({"bootstrap.servers": guarded.inside})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            upsertion = UserScramCredentialUpsertion("alice", credential, PASSWORDS["alice"].encode())
            admin.alter_user_scram_credentials([upsertion])["alice"].result(300)
        yield guarded


def client(mechanism: str, certificates: Certificates, secret: str = PASSWORDS["alice"]) -> dict[str, str]:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="alice" password="{secret}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }


def connect(guarded: Guarded, settings: dict[str, str]) -> Cluster:
    return Cluster(ConnectionSettings.of((guarded.outside,), settings, "test"), BufferPool(max_free_bytes=0))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_data_connections_support_every_sasl_mechanism(
    encrypted: Guarded, certificates: Certificates, mechanism: str
) -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.
    """
    name = f"seen-{mechanism}"
    create_topic(encrypted.inside, name)
    cluster = connect(encrypted, client(mechanism, certificates))
    cluster.refresh([name])
    assert cluster.leader(name, 0) is not None
    cluster.close()


def test_failed_login_reports_reason(encrypted: Guarded, certificates: Certificates) -> None:
    cluster = connect(encrypted, client("PLAIN", certificates, "wrong"))
    with pytest.raises(ConnectionLostError, match=r"Login as alice by PLAIN failed: .*[Aa]uthentication failed"):
        cluster.refresh(["any"])


def test_untrusted_broker_certificate_is_rejected(
    encrypted: Guarded, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates.create(tmp_path)
    settings = client("PLAIN", certificates) | {"ssl.truststore.location": str(stranger.authority)}
    with pytest.raises(ConnectionLostError, match="certificate verify failed"):
        connect(encrypted, settings).refresh(["any"])


@pytest.mark.long
def test_mirror_over_tls_and_sasl_with_expiring_sessions(
    encrypted: Guarded, certificates: Certificates, tmp_path: Path
) -> None:
    """K894-27: Key precedence: ``A->B.k`` over top-level ``k``; for clients ``A->B.source.consumer.k``,
    ``A.consumer.k``, ``A.k``, ``k``, ``A->B.consumer.k``, ``A->B.source.cluster.k``.

    K894-28: ``${provider:path:key}`` via config.providers.
    """
    # given
    create_topic(encrypted.inside, "guarded", 2, {"retention.ms": "-1", "max.message.bytes": str(2 * LARGE)})
    records = [(n % 2, Seen(b"k%d" % n, b"v" * (n % 700), (), 1_356_998_400_000 + n)) for n in range(2_000)]
    large = [(0, Seen(b"large", bytes(LARGE), (), 1_356_998_400_000))]
    produce(encrypted.inside, "guarded", records)
    produce(encrypted.inside, "guarded", large, {"message.max.bytes": 2 * LARGE})
    secrets = tmp_path / "secrets.properties"
    secrets.write_text(f"alice={PASSWORDS['alice']}\n")
    from_file = client("SCRAM-SHA-512", certificates, secret=f"${{file:{secrets}:alice}}")
    more = "config.providers = file\n"
    more += "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
    more += "".join(f"A.{key} = {value}\n" for key, value in from_file.items())
    to_target = client("PLAIN", certificates) | {"security.protocol": "SASL_PLAINTEXT"}
    more += "".join(f"B.{key} = {value}\n" for key, value in to_target.items())
    target = Guarded("SASL_PLAINTEXT", certificates)
    # when
    with (
        target.broker,
        MirrorProcess(properties(encrypted.outside, target.outside, more, topics="guarded"), tmp_path) as mirror,
    ):
        mirror.wait_for("2,001/2,001 records")
        later = [(n % 2, Seen(b"k%d" % n, b"later", (), 1_356_998_400_000 + n)) for n in range(500)]
        for begin in range(0, 500, 10):  # several seconds: logins end meanwhile
            produce(encrypted.inside, "guarded", later[begin : begin + 10])
            if begin % 100 == 90:
                mirror.wait_for(f"{2_011 + begin:,}/{2_011 + begin:,} records")
        # then
        mirror.wait_for("2,501/2,501 records")
        assert mirror.stop() == 0
        assert PASSWORDS["alice"] not in mirror.text()
        arrived = read(target.inside, "A.guarded", {0: 1_251, 1: 1_250})
    sent = records + large + later
    assert arrived == {at: [record for partition, record in sent if partition == at] for at in (0, 1)}


@pytest.mark.long
def test_denied_flows_name_cluster_principal_and_reason(certificates: Certificates, tmp_path: Path) -> None:
    """K894-27: logins over TLS that fail on either side. The job ends, because only an operator can resolve them."""
    # given
    stranger_certificates = Certificates.create(tmp_path)
    good = Guarded("SASL_SSL", certificates)
    expired = Guarded("SASL_SSL", certificates, days=-1)
    stranger = Guarded("SASL_SSL", stranger_certificates)
    servers = {"good": good, "badpw": good, "expired": expired, "stranger": stranger}
    more = f"clusters = {', '.join(servers)}\nemit.heartbeats.enabled = false\nemit.checkpoints.enabled = false\n"
    for alias, guarded in servers.items():
        keys = client("PLAIN", certificates, **({"secret": "wrong-secret"} if alias == "badpw" else {}))
        more += f"{alias}.bootstrap.servers = {guarded.outside}\n"
        more += "".join(f"{alias}.{key} = {value}\n" for key, value in keys.items())
    reasons = {
        "badpw->good": "cluster badpw rejects this client: .*Login as alice by PLAIN failed: Authentication failed",
        "good->badpw": "cluster badpw rejects this client: .*Login as alice by PLAIN failed: Authentication failed",
        "good->expired": "cluster expired rejects this client: .*certificate has expired",
        "stranger->good": "cluster stranger rejects this client: .*unable to get local issuer certificate",
    }
    more += "".join(f"{flow}.enabled = true\n" for flow in reasons)
    # when
    with (
        good.broker,
        expired.broker,
        stranger.broker,
        MirrorProcess(f"topics = any\n{more}", tmp_path, "--until-caught-up", as_users_run_it=True) as mirror,
    ):
        code, log = mirror.wait(60), mirror.text()
    # then
    assert code == 1, log
    for flow, reason in reasons.items():
        assert re.search(f"{flow} waits: {reason}", log), (flow, log)
        assert re.search(f"{flow}: gives up.*{reason}", log), (flow, log)
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if "Spark" in line and " INFO " not in line]
    assert "wrong-secret" not in log
