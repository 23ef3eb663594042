"""Key 51 from bytes to bytes: AlterClientConfigs, and SCRAM beside it."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.broker.client_configs import ClientConfigService
from klamm.broker.context import RequestContext
from klamm.broker.handlers.api_051_alter_client_configs import ROUTE, decode_raw, handle
from klamm.broker.security.authorizer import AllowAll
from klamm.broker.security.credentials import CredentialDeletion, ScramCredentials, upsertion_from_salted_password
from klamm.client_config_runtime.registration_log import RegistrationLog
from klamm.client_configs.definitions import BrokerLimits
from klamm.history.change import BROKER_ITSELF
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode, ProtocolError, StorageError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.security.scram import ScramMechanism
from klamm.server.session import Session
from klamm.server.time_slice import TimeSlice
from klamm.storage.metadata.store import MetadataStore
from tests.support.registrations import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from klamm.server.attempt import ApiError
    from klamm.storage.metadata.changes import Change

Entry = AlterClientConfigsRequest.EntryData
Entity = AlterClientConfigsRequest.EntityData
Op = AlterClientConfigsRequest.OpData


class Broker:
    """A client config service with its store, and a method that sends requests to it."""

    def __init__(self, store: MetadataStore) -> None:
        self.runner = asyncio.Runner()
        self.store = store
        self.credentials = ScramCredentials(store, now_ms=lambda: 0)
        self.service = ClientConfigService(
            store=store, registrations=RegistrationLog(MemoryRecords()), limits=BrokerLimits, now_ms=lambda: 0
        )

    def alter(self, *entries: Entry, validate_only: bool = False) -> list[tuple[int, list[tuple[str, str | None]]]]:
        """Return code and echoed entity of each entry."""
        request = AlterClientConfigsRequest(entries=list(entries), validate_only=validate_only)
        read = decode_raw(0, memoryview(encode(request, 0)), 0)
        assert read == request
        response = self.runner.run(handle(read, self.context()))
        assert isinstance(response, AlterClientConfigsResponse)
        assert encode(response, 0)
        for entry in response.entries:
            assert (entry.error_message is None) == (entry.error_code == ErrorCode.NONE)
        return [
            (entry.error_code, [(component.entity_type, component.entity_name) for component in entry.entity])
            for entry in response.entries
        ]

    def context(self) -> RequestContext:
        services = cast(
            "Any", SimpleNamespace(client_configs=self.service, authorizer=AllowAll(), credentials=self.credentials)
        )
        session = Session(connection_id=1, node_id=1, principal="User:admin")
        return RequestContext(services=services, session=session, api_version=0, client_id="cli")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(MetadataStore.open(tmp_path / "metadata.sqlite"))
    yield broker
    broker.runner.run(broker.store.close())
    broker.runner.close()


def user(name: str | None) -> list[Entity]:
    return [Entity(entity_type="user", entity_name=name)]


def put(key: str, value: str) -> Op:
    return Op(key=key, value=value, remove=False)


def test_only_version_0_is_served() -> None:
    """K649-02: AlterClientConfigs has api key 51, versions 0..0.

    K649-17: Unknown request versions (1+) are not advertised; sent anyway, the connection is closed, as Kafka does for
    all but ApiVersions.
    """
    assert (ROUTE.api.key, ROUTE.api.min_version, ROUTE.api.max_version) == (51, 0, 0)


def test_each_entity_is_echoed_with_its_outcome(broker: Broker) -> None:
    """K649-50: An entry without a user component gets 42; other entries are still processed.

    K649-62: Response echoes each entity with its code, null message on success.
    """
    orphan = [Entity(entity_type="client-id", entity_name="app1")]
    answer = broker.alter(
        Entry(entity=orphan, ops=[put("acks", "all")]),
        Entry(entity=user("bob"), ops=[put("acks", "all")]),
        Entry(entity=user(None), ops=[put("no.such", "1")]),
        Entry(entity=[], ops=[]),
    )
    assert answer == [
        (ErrorCode.INVALID_REQUEST, [("client-id", "app1")]),
        (ErrorCode.NONE, [("user", "bob")]),
        (ErrorCode.INVALID_REQUEST, [("user", None)]),
        (ErrorCode.INVALID_REQUEST, []),
    ]
    assert [str(entity) for entity in broker.service.configs] == ["user 'bob'"]


def test_entry_with_too_many_ops_is_rejected_alone(broker: Broker) -> None:
    """K649-59: One bad op -> nothing of that entry is applied; entries are independent."""
    removals = [Op(key=f"key{number}", value="", remove=True) for number in range(1_001)]
    answer = broker.alter(
        Entry(entity=user("alice"), ops=removals),
        Entry(entity=user("carol") * 1_001, ops=[put("acks", "all")]),
        Entry(entity=user("dave"), ops=removals[1:]),
        Entry(entity=user("bob"), ops=[put("acks", "all")]),
    )
    assert [code for code, _ in answer] == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0, 0]
    assert [str(entity) for entity in broker.service.configs] == ["user 'bob'"]


def test_alter_sets_and_removes_values(broker: Broker) -> None:
    """K649-12: Alter request: Entries array{Entity array{EntityType string, EntityName nullable string}, Ops array{Key
    string, Value string, Remove bool}}, ValidateOnly bool last.

    K649-15: Op.Value is a non-null string even for Remove; it is ignored then (clients send "").

    K649-49: Remove=false sets key to value for the entity; Remove=true removes it.
    """
    broker.alter(Entry(entity=user("alice"), ops=[put("acks", "all"), put("session.timeout.ms", "9000")]))
    broker.alter(Entry(entity=user("alice"), ops=[Op(key="acks", value="junk", remove=True)]))
    assert list(broker.service.configs.values()) == [{"session.timeout.ms": "9000"}]


def test_validate_only_gives_the_same_response_and_changes_nothing(broker: Broker) -> None:
    """K649-61: ValidateOnly=true validates, applies nothing."""
    entries = [
        Entry(entity=user("alice"), ops=[put("acks", "all")]),
        Entry(entity=user("bob"), ops=[put("acks", "2")]),
    ]
    assert broker.alter(*entries, validate_only=True) == broker.alter(*entries)
    assert len(broker.service.configs) == 1


def test_failed_write_fails_every_entry(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(changes: Sequence[Change]) -> asyncio.Future[None]:
        raise StorageError("No space left on device")

    monkeypatch.setattr(broker.store, "submit", submit)
    answer = broker.alter(Entry(entity=user("alice"), ops=[put("acks", "all")]), Entry(entity=user("bob"), ops=[]))
    assert [code for code, _ in answer] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


def test_empty_request_has_an_empty_response(broker: Broker) -> None:
    assert broker.alter() == []


def alter_credentials(
    broker: Broker, *, delete: Sequence[tuple[str, int]] = (), upsert: Sequence[tuple[str, int, int]] = ()
) -> dict[str, tuple[int, str | None]]:
    """Return code and message of each user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=name, mechanism=mechanism)
            for name, mechanism in delete
        ],
        upsertions=[
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
            )
            for name, mechanism, iterations in upsert
        ],
    )
    read = decode_raw(0, memoryview(b"\x00" + encode(request, 0)), 0)
    assert read == request
    response = broker.runner.run(handle(read, broker.context()))
    assert isinstance(response, AlterUserScramCredentialsResponse)
    return {result.user: (result.error_code, result.error_message) for result in response.results}


def test_scram_on_the_same_key_is_answered_as_scram(broker: Broker) -> None:
    """O649-A."""
    answers = alter_credentials(broker, delete=[("alice", 1)], upsert=[("bob", 1, 4096), ("bob2", 2, 16384)])
    assert answers == {
        "alice": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        "bob": (ErrorCode.NONE, None),
        "bob2": (ErrorCode.NONE, None),
    }


def test_scram_credentials_are_stored_and_deleted_by_mechanism(broker: Broker) -> None:
    alter_credentials(broker, upsert=[("bob", 1, 4096), ("carol", 2, 8192)])
    assert alter_credentials(broker, delete=[("bob", 1), ("carol", 1)])["carol"][0] == ErrorCode.RESOURCE_NOT_FOUND
    broker.credentials.load()
    assert broker.credentials.users == ("carol",)


@pytest.mark.parametrize(
    ("upsertion", "answer"),
    [
        (("bob", 1, 4095), (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")),
        (("bob", 2, 16385), (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")),
        (("", 1, 4096), (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")),
        (("bob", 3, 4096), (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")),
        (("bob", 0, 4096), (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")),
    ],
)
def test_invalid_scram_credential_is_rejected_like_kafka(
    broker: Broker, upsertion: tuple[str, int, int], answer: tuple[int, str]
) -> None:
    assert alter_credentials(broker, upsert=[upsertion]) == {upsertion[0]: answer}
    assert broker.credentials.users == ()


def test_user_altered_twice_in_one_request_is_rejected(broker: Broker) -> None:
    alter_credentials(broker, upsert=[("bob", 1, 4096)])
    answers = alter_credentials(broker, delete=[("bob", 1)], upsert=[("bob", 2, 4096), ("carol", 1, 4096)])
    assert answers["bob"][0] == ErrorCode.DUPLICATE_RESOURCE
    assert answers["carol"][0] == ErrorCode.NONE
    assert [int(mechanism) for mechanism, _ in broker.credentials.describe("bob")] == [1]


def test_empty_tagged_fields_of_librdkafka_are_ignored() -> None:
    frame = memoryview(b"\x00" + encode(AlterUserScramCredentialsRequest(), 0) + b"\x00")
    assert isinstance(decode_raw(0, frame, 0), AlterUserScramCredentialsRequest)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        bytes(4),
        bytes(5) + b"x",
        b"\xff" * 6,
        b"\x00\x00\x00\x01\x00\x00",
        b"\x00" + encode(AlterUserScramCredentialsRequest(), 0) + b"x",
    ],
)
def test_malformed_request_closes_the_connection(data: bytes) -> None:
    """O649-A."""
    with pytest.raises(ProtocolError):
        decode_raw(0, memoryview(data), 0)


def test_missing_credential_is_reported_once_its_deletion_is_durable(broker: Broker) -> None:
    """Also when the client that deleted it did not wait for the response."""
    sha_256 = ScramMechanism.SCRAM_SHA_256
    deletion = CredentialDeletion(user="bob", mechanism=sha_256)
    upsertion = upsertion_from_salted_password("bob", sha_256, salted_password=b"p", salt=b"s", iterations=4096)
    alter = partial(broker.credentials.alter, author=BROKER_ITSELF, time_slice=TimeSlice(math.inf))

    async def delete_twice() -> ApiError:
        await alter([], [upsertion])
        first = asyncio.create_task(alter([deletion], []))
        await asyncio.sleep(0)
        assert broker.credentials.find("bob", sha_256) is None
        first.cancel()
        return (await alter([deletion], []))["bob"]

    assert broker.runner.run(delete_twice()).error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert not broker.store.load_scram_credentials()
