"""Java's client properties, and errors as one line."""

from __future__ import annotations

import pytest

from klamm.cli.connecting import client_settings, explain, guarded
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidConfigError, UnsupportedVersionError

LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password="p w";'


def test_properties_of_the_java_client_are_understood() -> None:
    assert client_settings(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": LOGIN,
            "default.api.timeout.ms": "5000",
            "metadata.max.age.ms": "1",
        }
    ) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": 'al"ice',
        "sasl_plain_password": "p w",
        "timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("request.timeout.ms", "soon", "request.timeout.ms=soon: expected a whole number"),
        ("sasl.jaas.config", "Module required;", "sasl.jaas.config: expected a login module with username"),
    ],
)
def test_properties_that_cannot_be_used_are_named(name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        client_settings({name: value})


def test_tls_is_read_as_the_java_client_does() -> None:
    unchecked = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    assert not client_settings(unchecked)["ssl_context"].check_hostname
    with pytest.raises(SettingsError, match=r"ssl\.truststore\.location=/trust\.jks: can not be read: No such file"):
        client_settings({"security.protocol": "ssl", "ssl.truststore.location": "/trust.jks"})


def test_a_password_is_never_part_of_a_complaint() -> None:
    with pytest.raises(SettingsError) as refused:
        client_settings({"sasl.jaas.config": 'Module required password="hunter2";'})
    assert "hunter2" not in str(refused.value)


def test_errors_become_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    # given
    def fail() -> int:
        raise InvalidConfigError("one\ntwo")

    # then
    assert guarded("klamm configs", fail) == 1
    assert capsys.readouterr().err == "klamm configs: one two\n"


def test_a_broker_that_is_too_old_is_told_apart() -> None:
    assert explain(UnsupportedVersionError("x")) == "The cluster does not offer what this needs: x"
    assert explain(TimeoutError()) == "TimeoutError"
