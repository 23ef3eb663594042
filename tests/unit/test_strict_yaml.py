"""Strict YAML for files that guard or configure a cluster."""

from __future__ import annotations

import pytest

from klamm.strict_yaml import StrictYamlError, load_yaml


def test_yaml_numbers_are_plain_decimals() -> None:
    assert load_yaml("[1, -2, +3, 0, 010, 0x10, 1_000, 1:30, 1.5, '7']") == [
        *(1, -2, 3, 0, "010", "0x10", "1_000", "1:30", 1.5, "7")
    ]


def test_yaml_number_of_any_length_is_accepted() -> None:
    digits = "9" * 5_000
    assert load_yaml(f"a: {digits}") == {"a": digits}


def test_yaml_date_is_a_string() -> None:
    assert load_yaml("{2020-01-01: 2020-99-99, t: 2020-01-01 00:00:00}") == {
        "2020-01-01": "2020-99-99",
        "t": "2020-01-01 00:00:00",
    }


def test_yaml_mapping_supports_merge_keys() -> None:
    assert load_yaml("{a: &a {x: 1, y: 2}, b: {<<: *a, x: 3}}") == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: a: is given twice, expected once"),
        ("{[a]: 1}", "line 1: ['a']: expected a name as the key"),
        ("a: [", "line 1 column 5: no YAML: "),
        ("a: !!python/object/apply:os.getpid []", "no YAML: "),
        ("\x00", "no YAML: "),
        ("!!float x", "no YAML: "),
        ("!!bool x", "no YAML: "),
        ("!!int [1]", "line 1 column 1: no YAML: "),
        ("!!timestamp [1]", "line 1 column 1: no YAML: "),
        ("? !!set {a}\n: 1", "no YAML: "),
        ("[" * 500, "too many levels"),
        ("[" * 100_000 + "]" * 100_000, "too many levels"),
        ("- " * 201 + "a", "too many levels"),
    ],
)
def test_ambiguous_yaml_is_rejected_with_position(text: str, complaint: str) -> None:
    with pytest.raises(StrictYamlError) as rejected:
        load_yaml(text)
    assert complaint in str(rejected.value)
