"""Principals of clients that log in through a gateway, against those that real Apache Kafka gives them.

Random logins are played through a relay. Each user may see one topic only, so the topics in Kafka's response to
Metadata name the principal for which Kafka has served it. The gateway must have judged the request for the same one.
The logins in which each request waits for its response are also played on klamm's broker, which must serve the same
principals.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from kafka.net.sasl import get_sasl_mechanism

import klamm
from klamm.admin import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    NewTopic,
    PatternType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.protocol.codec import decode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.kafka import KafkaCluster
from tests.support.processes import wait_until
from tests.support.relay_rig import RelayRig, Side, feature, filter_of, shared_objects
from tests.support.security import PLAIN_MODULE, SCRAM_MODULE, create_acls, sasl_settings
from tests.support.tokens import claims_of, unsecured, unsecured_with
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.gateway.relay.filter import FilterContext

pytestmark = pytest.mark.long

SCRIPTS: Final = 2_000 if os.environ.get("KLAMM_SOAK") else 40
AT_ONCE: Final = 60
USERS: Final = ("ann", "bob", "cem")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
BEARER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
PREFIX: Final = "sasl_plaintext"
SETTINGS: Final = {
    **sasl_settings(authorizer=True),
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    f"listener.name.{PREFIX}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
    + " ".join(f'user_{user}="{user}-secret"' for user in (*USERS, "admin"))
    + ";",
    f"listener.name.{PREFIX}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    f"listener.name.{PREFIX}.oauthbearer.sasl.jaas.config": f'{BEARER} required unsecuredLoginStringClaim_sub="x";',
    "super.users": "User:ANONYMOUS;User:admin",
    "connections.max.reauth.ms": "3600000",
}
TOO_SOON_S: Final = 1.1
"""Kafka takes no login within a second after the one before it on the same connection."""


CENTURY_MS: Final = 100 * 365 * 86_400_000
UNUSUAL: Final = ("1e999", "-1e999", "9" * 400, "9" * 30, "1e300", "NaN", "Infinity", "true", "null", '""', '" "',
                  '"5"', "[]", "{}", "0", "-1")  # fmt: skip


class Login(NamedTuple):
    """A login, or a part of it."""

    mechanism: str
    rejected: tuple[str, ...]
    """Users of OAUTHBEARER tokens that have expired, sent before the last token."""
    user: str
    is_right: bool
    """Whether the password or the last token is valid."""
    messages: int
    """Number of messages that the client sends before it gives up; 2 complete each login."""


@pytest.fixture(scope="module")
def kafka(java: None) -> Iterator[int]:
    """The port with logins of a node of Kafka."""
    with KafkaCluster(1, SETTINGS, with_logins=True) as cluster:
        with AdminClient(cluster.bootstrap_servers) as admin:
            prepare(admin)
        yield cluster.login_ports[1]


@pytest.fixture(scope="module")
def broker() -> Iterator[int]:
    """The port with logins of a klamm broker."""
    jaas = f'{PLAIN_MODULE} required username="admin" password="admin-secret";'
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=SETTINGS) as made:
        with AdminClient.from_properties(made.bootstrap_servers, login) as admin:
            prepare(admin)
        yield int(made.bootstrap_servers.rpartition(":")[2])


def prepare(admin: AdminClient) -> None:
    admin.create_topics([NewTopic(f"of-{user}", 1) for user in USERS]).all().result()
    wanted = [
        Acl(
            resource_type=AclResourceType.TOPIC,
            resource_name=f"of-{user}",
            pattern_type=PatternType.LITERAL,
            principal=f"User:{user}",
            host="*",
            operation=AclOperation.DESCRIBE,
            permission=AclPermission.ALLOW,
        )
        for user in USERS
    ]
    create_acls(admin, wanted)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, iterations=4096)
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(user, info, f"{user}-secret") for user in USERS]
    ).all().result()
    wait_until(
        lambda: len(admin.list_user_scram_credentials().result()) == len(USERS), timeout_s=60, what="SCRAM credentials"
    )


def random_logins(chance: random.Random) -> list[Login]:
    """Return logins of one connection. Most name the same mechanism, as Kafka requires of the second one."""
    mechanism = chance.choice(MECHANISMS)
    return [
        Login(
            mechanism=mechanism if chance.random() < 0.8 else chance.choice(MECHANISMS),
            rejected=tuple(chance.choices(USERS, k=chance.choice((0, 1, 1, 2)))),
            user=chance.choice(USERS),
            is_right=chance.random() < 0.8,
            messages=2 if chance.random() < 0.8 else chance.randrange(2),
        )
        for _ in range(chance.choice((1, 2, 2)))
    ]


class Client:
    """Client that plays logins on one connection, each followed by Metadata.

    Args:
        side: The connection.
        waits: Whether each request waits for the response to the one before it.
    """

    def __init__(self, side: Side, *, waits: bool) -> None:
        self._side = side
        self._waits = waits
        self._pending: list[type[Any]] = []
        self.answers: list[object] = []
        """An error code for each request of a login, and the visible topics for each Metadata."""

    async def play(self, logins: list[Login]) -> None:
        try:
            for number, login in enumerate(logins):
                if number and self._waits:
                    await asyncio.sleep(TOO_SOON_S)
                await self._log_in(login)
                await self._ask(MetadataRequest(topics=None), MetadataResponse, 12)
            while self._pending:
                await self._read()
        except (ConnectionError, AssertionError):
            self.answers.append("closed")

    async def _log_in(self, login: Login) -> None:
        await self._ask(SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse, 1)
        if login.mechanism.startswith("SCRAM"):
            password = f"{login.user}-secret" if login.is_right else "wrong"
            scram = get_sasl_mechanism(login.mechanism)(
                sasl_mechanism=login.mechanism, sasl_plain_username=login.user, sasl_plain_password=password
            )
            for _ in range(login.messages if self._waits else min(login.messages, 1)):
                answer = await self._token(scram.auth_bytes())
                if answer is not None and answer.error_code == 0:
                    scram.receive(bytes(answer.auth_bytes))
        elif login.mechanism == "OAUTHBEARER":
            for user in login.rejected:
                await self._token(bearer(user, is_right=False))
            if login.messages:
                await self._token(bearer(login.user, is_right=login.is_right))
            if not login.is_right:
                await self._token(b"\1")
        elif login.messages:
            await self._token(f"\0{login.user}\0{login.user if login.is_right else 'not-this'}-secret".encode())

    async def _token(self, token: bytes) -> Any:
        return await self._ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)

    async def _ask(self, request: Any, response: type[Any], version: int) -> Any:
        await self._side.send(request_frame(request, version))
        self._pending.append(response)
        return await self._read() if self._waits else None

    async def _read(self) -> Any:
        kind = self._pending.pop(0)
        frame = await self._side.read_frame()
        if len(frame) <= 4:
            raise ConnectionResetError
        version = {SaslHandshakeResponse: 1, SaslAuthenticateResponse: 2, MetadataResponse: 12}[kind]
        answer = decode(kind, version, frame, 4 if version == 1 else 5)
        self.answers.append(
            sorted(topic.name for topic in answer.topics) if kind is MetadataResponse else answer.error_code
        )
        return answer


def bearer(user: str, *, is_right: bool) -> bytes:
    token = unsecured(claims_of(user, seconds=3600 if is_right else -1, iat=None))
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


async def played_through_a_relay(port: int, logins: list[Login], *, waits: bool) -> list[object]:
    """Return the answers, after a check of the principals for which the gateway judged Metadata."""
    principals: list[str] = []

    def judge(_request: object, context: FilterContext) -> None:
        principals.append(context.author.principal)

    requests_filter = filter_of(MetadataRequest, MetadataResponse, judge)
    shared = shared_objects(feature(filters={3: requests_filter}), needs_login=True)
    with RelayRig(shared, broker=("127.0.0.1", port)) as rig:
        client = Client(rig.client, waits=waits)
        await client.play(logins)
    topics = served(client.answers)
    assert len(principals) >= len(topics)
    assert [[f"of-{name.removeprefix('User:')}"] for name in principals[: len(topics)]] == topics, logins
    return client.answers


def served(answers: list[object]) -> list[object]:
    """Return the topics of each Metadata response to a client that was logged in."""
    return [answer for answer in answers if isinstance(answer, list) and answer]


async def played_directly(port: int, logins: list[Login]) -> list[object]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        client = Client(Side(connection), waits=True)
        await client.play(logins)
    return client.answers


async def answer_to(port: int, message: bytes) -> tuple[int, bytes, bool]:
    """Return error code and bytes of the answer to a token, and whether the session ends within a century."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        side = Side(connection)
        await side.send(request_frame(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1))
        await side.read_frame()
        await side.send(request_frame(SaslAuthenticateRequest(auth_bytes=message), 2))
        answer = decode(SaslAuthenticateResponse, 2, await side.read_frame(), 5)
    return answer.error_code, bytes(answer.auth_bytes), answer.session_lifetime_ms < CENTURY_MS


async def test_tokens_with_an_unusual_expiry_are_accepted_as_by_kafka(kafka: int, broker: int) -> None:
    for value in UNUSUAL:
        token = unsecured_with("exp", value, claims_of("ann", iat=None))
        message = b"n,,\1auth=Bearer " + token.encode() + b"\1\1"
        answers = await asyncio.gather(answer_to(kafka, message), answer_to(broker, message))
        assert answers[0] == answers[1], value


@pytest.mark.parametrize("waits", [True, False], ids=["one by one", "pipelined"])
async def test_policy_sees_the_principal_that_kafka_assigns(kafka: int, broker: int, waits: bool) -> None:
    chance = random.Random(f"{SCRIPTS} {waits}")
    scripts = [random_logins(chance) for _ in range(SCRIPTS)]

    limit = asyncio.Semaphore(AT_ONCE)

    async def play(logins: list[Login]) -> list[object]:
        async with limit:
            through = played_through_a_relay(kafka, logins, waits=waits)
            if not waits:
                return await through
            direct = (played_directly(port, logins) for port in (kafka, broker))
            relayed, kafkas, ours = await asyncio.gather(through, *direct)
        assert relayed == kafkas, logins
        assert served(ours) == served(kafkas), logins
        return relayed

    answers = await asyncio.gather(*map(play, scripts))
    names = {str(topics) for each in answers for topics in served(each)}
    assert names == {f"['of-{user}']" for user in USERS}
