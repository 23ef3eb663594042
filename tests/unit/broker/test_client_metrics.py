from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from klamm.broker import client_metrics as module
from klamm.broker.client_metrics import DECOMPRESSED_FACTOR, ClientMetricsService
from klamm.broker.handlers import api_071_get_telemetry_subscriptions as get_api
from klamm.broker.handlers import api_072_push_telemetry as push_api
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from klamm.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from klamm.protocol.primitives import uuid_text
from klamm.protocol.records import Codec
from klamm.protocol.records.codecs import compress
from klamm.server.session import Session
from klamm.telemetry.otlp import decode_metrics
from tests.support.otlp import gauge, metrics_data, number, twenty_metrics

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 100_000
EVERYTHING = {"all": {"metrics": "*", "interval.ms": "1000"}}


class Target:
    """Export that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.dropped = 0

    def put(self, data: bytes) -> None:
        self.got.append(data)

    async def close(self) -> None:
        """Do nothing."""


class MetricsApis:
    """The two APIs, from bytes to bytes, with subscriptions and a clock that the test changes."""

    def __init__(self, subscriptions: dict[str, dict[str, str]] | None = None) -> None:
        self.now_ms = 1_700_000_000_000
        self.subscriptions = dict(EVERYTHING if subscriptions is None else subscriptions)
        self.listeners: list[Callable[[object], None]] = []
        self.target = Target()
        configs = SimpleNamespace(
            int_value=lambda _: MAX_BYTES,
            resource_names=lambda _: sorted(self.subscriptions),
            set_on_client_metrics=self.subscriptions.__getitem__,
            subscribe=lambda listener, _: self.listeners.append(listener),
        )
        self.service = ClientMetricsService(
            cast("Any", configs),
            now_ms=lambda: self.now_ms,
            has_page=True,
            exports=[cast("Any", self.target)],
            max_series=lambda: 1000,
        )
        self.session = Session(
            connection_id=1, node_id=1, client_host="10.0.0.7", client_port=5, software_name="java", principal="User:a"
        )
        self.client_id = "app"

    def change(self, name: str, configs: dict[str, str]) -> None:
        self.subscriptions[name] = configs
        for listener in self.listeners:
            listener(None)

    def context(self) -> Any:
        services = SimpleNamespace(client_metrics=self.service)
        return SimpleNamespace(services=services, session=self.session, client_id=self.client_id)

    def get(self, instance: UUID = UUID(int=0)) -> GetTelemetrySubscriptionsResponse:  # noqa: B008 - immutable
        request = decode(
            GetTelemetrySubscriptionsRequest,
            0,
            encode(GetTelemetrySubscriptionsRequest(client_instance_id=instance), 0),
        )
        answer = asyncio.run(cast("Any", get_api.handle(request, self.context())))
        return decode(GetTelemetrySubscriptionsResponse, 0, encode(answer, 0))

    def push(self, of: GetTelemetrySubscriptionsResponse, metrics: bytes = b"", **more: Any) -> ErrorCode:
        fields = {"client_instance_id": of.client_instance_id, "subscription_id": of.subscription_id, **more}
        request = decode(PushTelemetryRequest, 0, encode(PushTelemetryRequest(metrics=metrics, **fields), 0))
        answer = asyncio.run(cast("Any", push_api.handle(request, self.context())))
        return ErrorCode(decode(PushTelemetryResponse, 0, encode(answer, 0)).error_code)

    def names(self) -> set[str]:
        assert self.service.series is not None
        return {name for values in self.service.series.values_by_instance.values() for name, _ in values}


def test_client_gets_instance_id_and_subscription() -> None:
    """K714-01."""
    apis = MetricsApis()
    answer = apis.get()
    assert answer.client_instance_id.int
    assert (answer.error_code, answer.push_interval_ms, answer.requested_metrics) == (0, 1000, ["*"])
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert (answer.telemetry_max_bytes, answer.delta_temporality) == (MAX_BYTES, True)
    assert apis.get(answer.client_instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    own = UUID(int=2**99)
    assert apis.get(own).client_instance_id == own


@pytest.mark.parametrize("codec", list(Codec))
def test_metrics_are_accepted_in_every_compression(codec: Codec) -> None:
    """K714-04."""
    apis = MetricsApis()
    data = twenty_metrics()
    assert apis.push(apis.get(), compress(codec, data), compression_type=codec) is ErrorCode.NONE
    assert apis.service.series is not None
    assert apis.service.series.count == 20
    (exported,) = apis.target.got
    assert decode_metrics(exported) == decode_metrics(data)
    assert b"client_source_address" in exported
    assert apis.service.counts == {"accepted": 1}


@pytest.mark.parametrize(
    ("metrics", "more", "error"),
    [
        (b"", {"client_instance_id": UUID(int=0)}, ErrorCode.INVALID_REQUEST),
        (b"", {"subscription_id": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        (b"", {"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (b"x" * (MAX_BYTES + 1), {}, ErrorCode.TELEMETRY_TOO_LARGE),
        (b"\xff" * 9, {}, ErrorCode.INVALID_RECORD),
        (b"no zstd", {"compression_type": 4}, ErrorCode.INVALID_RECORD),
        (
            compress(Codec.ZSTD, bytes(MAX_BYTES * DECOMPRESSED_FACTOR + 1)),
            {"compression_type": 4},
            ErrorCode.TELEMETRY_TOO_LARGE,
        ),
        (compress(Codec.ZSTD, b"\n\0" * 20_000), {"compression_type": 4}, ErrorCode.INVALID_RECORD),
    ],
)
def test_invalid_pushes_are_rejected(metrics: bytes, more: dict[str, Any], error: ErrorCode) -> None:
    """K714-04, -05."""
    apis = MetricsApis()
    assert apis.push(apis.get(), metrics, **more) is error
    assert apis.service.counts == {error.name: 1}
    assert apis.target.got == []


def test_large_metrics_are_decoded_in_a_thread() -> None:
    apis = MetricsApis()
    data = metrics_data(*[gauge(f"metric.{i}", number(1.0, text="x" * 100)) for i in range(500)])
    assert module.SHORT_BYTES < len(data) < MAX_BYTES
    assert apis.push(apis.get(), data) is ErrorCode.NONE
    assert len(apis.names()) == 500


def test_long_client_id_and_principal_are_shortened_and_kept_apart_in_labels() -> None:
    """Each series repeats them. Kafka allows 32 KiB for a client id."""
    # given
    apis = MetricsApis()
    assert apis.service.series is not None
    # when
    for last in "ab":
        apis.client_id, apis.session.principal = f"{'x' * 32_766}{last}", f"User:{'y' * 1000}{last}"
        assert apis.push(apis.get(), twenty_metrics()) is ErrorCode.NONE
    # then
    both = apis.service.series.labels_by_instance.values()
    assert {len(labels[name]) for labels in both for name in ("client_id", "principal")} == {256}
    assert len({labels["client_id"] for labels in both}) == len({labels["principal"] for labels in both}) == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_push_without_metrics_ends_the_series_of_the_client(codec: Codec) -> None:
    # given
    apis = MetricsApis()
    answer = apis.get()
    assert apis.push(answer, metrics_data(gauge("lag", number(5.0)))) is ErrorCode.NONE
    apis.now_ms += answer.push_interval_ms
    # when
    error = apis.push(answer, b"", compression_type=codec)
    # then
    assert (error, apis.names(), len(apis.target.got)) == (ErrorCode.NONE, set(), 1)


def test_changed_subscription_is_fetched_again_by_the_client() -> None:
    apis = MetricsApis()
    before = apis.get()
    apis.change("more", {"metrics": "*", "interval.ms": "500", "match": "client_id=ap+,client_source_port=5"})
    assert apis.push(before) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    after = apis.get(before.client_instance_id)
    assert (after.error_code, after.push_interval_ms) == (0, 500)
    assert apis.push(after, twenty_metrics()) is ErrorCode.NONE


def test_unusable_match_pattern_matches_no_client(caplog: pytest.LogCaptureFixture) -> None:
    apis = MetricsApis({"odd": {"metrics": "*", "match": "client_id=(?=a).*"}})
    assert apis.get().requested_metrics == []
    assert "odd matches no client" in caplog.text


def test_metrics_are_removed_on_disconnect_or_silence() -> None:
    apis = MetricsApis()
    assert apis.push(apis.get(), twenty_metrics()) is ErrorCode.NONE
    apis.service.forget_session(apis.session)
    assert (apis.service.instance_count, apis.names()) == (0, set())
    assert apis.push(apis.get(), twenty_metrics()) is ErrorCode.NONE
    apis.now_ms += 60_001
    apis.session = Session(connection_id=2, node_id=1)
    apis.get()
    assert (apis.service.instance_count, apis.names()) == (1, set())


@pytest.mark.parametrize("is_changed", [False, True])
def test_end_of_an_earlier_connection_keeps_the_metrics_of_a_client(is_changed: bool) -> None:
    """A client that has moved to another connection pushes on; a half-open connection ends much later."""
    # given
    apis = MetricsApis()
    answer, earlier = apis.get(), apis.session
    assert apis.push(answer, twenty_metrics()) is ErrorCode.NONE
    pushed = apis.names()
    if is_changed:
        apis.change("more", {"metrics": "*", "interval.ms": "500"})
    apis.now_ms += answer.push_interval_ms
    apis.session = Session(connection_id=2, node_id=1)
    apis.get(answer.client_instance_id)
    # when
    apis.service.forget_session(earlier)
    # then
    assert (apis.service.instance_count, apis.names()) == (1, pushed)
    # and when
    apis.service.forget_session(apis.session)
    # then
    assert (apis.service.instance_count, apis.names()) == (0, set())


def test_client_instances_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INSTANCES", 3)
    apis = MetricsApis()
    first, *_ = [apis.get() for _ in range(4)]
    assert apis.service.instance_count == 3
    assert apis.push(first, twenty_metrics()) is ErrorCode.NONE, "it is known again"


def test_series_name_their_client() -> None:
    apis = MetricsApis()
    answer = apis.get()
    apis.push(answer, twenty_metrics())
    assert apis.service.series is not None
    assert apis.service.series.labels_by_instance[answer.client_instance_id] == {
        "client_id": "app",
        "client_instance_id": uuid_text(answer.client_instance_id),
        "principal": "User:a",
    }


def test_ten_thousand_clients_cost_a_twentieth_of_a_core() -> None:
    """K714-09. With Kafka's default interval of 300 s they push 33 times a second, so one push may cost 1.5 ms."""
    apis, count = MetricsApis(), 200
    answer = apis.get()
    body = compress(Codec.ZSTD, twenty_metrics())
    frame = encode(
        PushTelemetryRequest(
            client_instance_id=answer.client_instance_id,
            subscription_id=answer.subscription_id,
            compression_type=Codec.ZSTD,
            metrics=body,
        ),
        0,
    )
    context = apis.context()

    async def pushes() -> float:
        began = time.thread_time()
        for _ in range(count):
            apis.now_ms += 300_000
            await cast("Any", push_api.handle(decode(PushTelemetryRequest, 0, frame), context))
        return (time.thread_time() - began) / count

    cost_s = asyncio.run(pushes())
    assert apis.service.counts == {"accepted": count}
    assert cost_s <= 0.05 * 300 / 10_000, f"{cost_s * 1e6:.0f} us"
