"""Quotas and SCRAM credentials: request fields, and the errors of old brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.admin import (
    AdminClient,
    ClientQuotaEntity,
    ClientQuotaFilter,
    ClientQuotaOp,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.security.scram import salt_password
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from concurrent.futures import Future

SHA_512 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, iterations=4096)


def test_quota_entity_equality_ignores_part_order() -> None:
    assert ClientQuotaEntity.of({"client-id": None, "user": "u"}) == ClientQuotaEntity.of(
        {"user": "u", "client-id": None}
    )
    assert ClientQuotaEntity.of({"user": None}) != ClientQuotaEntity.of({"client-id": None})


def test_broker_of_kafka_2_3_does_not_support_quotas_and_scram() -> None:
    # given
    entity = ClientQuotaEntity.of({"user": "u"})
    with StubBroker() as broker, AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        futures: list[Future[Any]] = [
            admin.describe_client_quotas(ClientQuotaFilter()),
            admin.alter_client_quotas({entity: [ClientQuotaOp("producer_byte_rate", 1.0)]}).values()[entity],
            admin.list_user_scram_credentials(),
            admin.describe_user_scram_credentials(["u"]).values()["u"],
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", SHA_512, "p")]).values()["u"],
        ]
        # then
        assert [type(future.exception()) for future in futures] == [UnsupportedVersionError] * 5


def test_scram_password_is_sent_as_salted_hash() -> None:
    # given
    done = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user="u", error_message=None)
    with StubBroker(versions={51: (0, 0)}) as broker, AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        broker.answer(51, lambda _: AlterUserScramCredentialsResponse(results=[done]))
        # when
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", SHA_512, "secret")]).all().result()
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("u", SHA_512, "secret", b"salt")]
        ).all().result()
        sent = [request.read(AlterUserScramCredentialsRequest) for request in broker.requests(51)]
    # then
    fresh, upserted = (
        request.upsertions[0] for request in sent if isinstance(request, AlterUserScramCredentialsRequest)
    )
    assert len(fresh.salt) >= 20
    assert upserted.salt == b"salt"
    salted = salt_password(ScramMechanism.SCRAM_SHA_512, "secret", salt=b"salt", iterations=4096)
    assert (upserted.mechanism, upserted.iterations, upserted.salted_password) == (2, 4096, salted)
