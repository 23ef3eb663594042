"""Keys 50 and 51: KIP-649 and SCRAM requests, distinguished by their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.codec import encode
from klamm.protocol.errors import TooManyElementsError
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest
from klamm.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from klamm.protocol.shapes import decode_by_shape, is_client_configs_request

if TYPE_CHECKING:
    from klamm.protocol.schema import Message

names = st.text(max_size=20)
nullable_names = st.none() | names
HEADER_TAGS = b"\x00"


def behind_the_client_id(message: Message) -> bytes:
    return (HEADER_TAGS if message.is_flexible(0) else b"") + bytes(encode(message, 0))


describe_client_configs = st.builds(
    DescribeClientConfigsRequest,
    components=st.lists(
        st.builds(
            DescribeClientConfigsRequest.ComponentData,
            entity_type=names,
            match_type=st.integers(-128, 127),
            match=nullable_names,
        ),
        max_size=4,
    ),
    supported_configs=st.none() | st.lists(names, max_size=4),
    resolve_entity=st.booleans(),
    strict=st.booleans(),
)
alter_client_configs = st.builds(
    AlterClientConfigsRequest,
    entries=st.lists(
        st.builds(
            AlterClientConfigsRequest.EntryData,
            entity=st.lists(
                st.builds(AlterClientConfigsRequest.EntityData, entity_type=names, entity_name=nullable_names),
                max_size=3,
            ),
            ops=st.lists(
                st.builds(AlterClientConfigsRequest.OpData, key=names, value=names, remove=st.booleans()), max_size=3
            ),
        ),
        max_size=4,
    ),
    validate_only=st.booleans(),
)
describe_scram = st.builds(
    DescribeUserScramCredentialsRequest,
    users=st.none() | st.lists(st.builds(DescribeUserScramCredentialsRequest.UserName, name=names), max_size=200),
)
alter_scram = st.builds(
    AlterUserScramCredentialsRequest,
    deletions=st.lists(
        st.builds(
            AlterUserScramCredentialsRequest.ScramCredentialDeletion, name=names, mechanism=st.integers(-128, 127)
        ),
        max_size=4,
    ),
    upsertions=st.lists(
        st.builds(
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion,
            name=names,
            mechanism=st.integers(-128, 127),
            iterations=st.integers(-(2**31), 2**31 - 1),
            salt=st.binary(max_size=20),
            salted_password=st.binary(max_size=20),
        ),
        max_size=4,
    ),
)


@given(request=describe_client_configs)
def test_describe_client_configs_request_is_recognized(request: DescribeClientConfigsRequest) -> None:
    """O649-A, K649-01."""
    assert is_client_configs_request(50, behind_the_client_id(request))


@given(request=alter_client_configs)
def test_alter_client_configs_request_is_recognized(request: AlterClientConfigsRequest) -> None:
    """O649-A, K649-02."""
    assert is_client_configs_request(51, behind_the_client_id(request))


@given(request=describe_scram)
def test_describe_scram_request_is_not_a_client_configs_request(request: DescribeUserScramCredentialsRequest) -> None:
    """O649-A."""
    assert not is_client_configs_request(50, behind_the_client_id(request))


@given(request=alter_scram)
def test_alter_scram_request_is_not_a_client_configs_request(request: AlterUserScramCredentialsRequest) -> None:
    """O649-A."""
    assert not is_client_configs_request(51, behind_the_client_id(request))


@pytest.mark.parametrize("api_key", [50, 51])
def test_small_frame_of_many_elements_is_rejected_before_decoding(api_key: int) -> None:
    many = 100_000
    scram: Message = DescribeUserScramCredentialsRequest(
        users=[DescribeUserScramCredentialsRequest.UserName(name="u")] * many
    )
    configs: Message = DescribeClientConfigsRequest(components=[], supported_configs=["k"] * many)
    if api_key == 51:
        deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="u", mechanism=1)
        scram = AlterUserScramCredentialsRequest(deletions=[deletion] * many, upsertions=[])
        op = AlterClientConfigsRequest.OpData(key="k", value="", remove=True)
        configs = AlterClientConfigsRequest(entries=[AlterClientConfigsRequest.EntryData(entity=[], ops=[op] * many)])
    for message in (scram, configs):
        body = memoryview(behind_the_client_id(message))
        with pytest.raises(TooManyElementsError):
            decode_by_shape(type(configs), type(scram), 0, body, 0)
