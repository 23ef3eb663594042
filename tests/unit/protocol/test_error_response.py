"""The error response of any request, derived from its message classes."""

from __future__ import annotations

from klamm.protocol.api import ApiKey
from klamm.protocol.error_response import error_response, request_class
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

WITHOUT_MESSAGES = {ApiKey.UPDATE_FEATURES}


def test_request_class_has_the_key_of_the_api() -> None:
    for key in ApiKey:
        message_class = request_class(key)
        assert (message_class is None) == (key in WITHOUT_MESSAGES)
        assert message_class is None or key == message_class.API_KEY
    assert request_class(999) is None


def test_error_response_reports_the_error_for_each_part_with_its_message() -> None:
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        for name in ("a", "b")
    ]
    response = error_response(CreateTopicsRequest(topics=topics), 7, ErrorCode.POLICY_VIOLATION, "not here")
    assert isinstance(response, CreateTopicsResponse)
    assert [(each.name, each.error_code, each.error_message) for each in response.topics] == [
        ("a", ErrorCode.POLICY_VIOLATION, "not here"),
        ("b", ErrorCode.POLICY_VIOLATION, "not here"),
    ]


def test_error_response_uses_the_outer_level_when_the_request_lists_no_parts() -> None:
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)]
    response = error_response(OffsetFetchRequest(groups=groups), 9, ErrorCode.POLICY_VIOLATION, None)
    assert isinstance(response, OffsetFetchResponse)
    assert [(each.group_id, each.error_code) for each in response.groups] == [("g", ErrorCode.POLICY_VIOLATION)]


def test_error_response_is_none_without_an_error_field() -> None:
    everything = ElectLeadersRequest(topic_partitions=None)
    assert error_response(everything, 0, ErrorCode.POLICY_VIOLATION, None) is None
    response = error_response(everything, 1, ErrorCode.POLICY_VIOLATION, None)
    assert isinstance(response, ElectLeadersResponse)
    assert response.error_code == ErrorCode.POLICY_VIOLATION
