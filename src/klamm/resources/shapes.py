"""Shapes of values in files: JSON Schemas of draft 2020-12, as far as files of resources need them.

One shape serves three purposes: ``check`` rejects a wrong value with its place, ``klamm schema`` prints the shape for
editors, and its ``title`` and ``description`` stand in the tables of docs/gitops.md. The description also completes
"expected ..." in messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, TypeAlias

from klamm.properties import SettingsError, did_you_mean

Shape: TypeAlias = Mapping[str, Any]
"""JSON Schema with the keywords that ``check`` reads. ``if`` and ``then`` are for editors alone; ``writeOnly`` marks a
secret, which messages do not show.
"""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (NoneType,),
}
_NOT_IN_OVERLAYS: Final = ("required", "oneOf", "if", "then")


def resolved(shape: Any, definitions: Shape) -> Any:
    """Return a shape with definitions in place of names in ``$ref``. Objects are closed unless they say otherwise."""
    if isinstance(shape, list):
        return [resolved(inner, definitions) for inner in shape]
    if not isinstance(shape, dict) or shape.get("$ref", "").startswith("#"):
        return shape
    shape = {**definitions.get(shape.get("$ref", ""), {}), **shape}
    result = {key: resolved(inner, definitions) for key, inner in shape.items() if key != "$ref"}
    return {"type": "object", "additionalProperties": False, **result} if "properties" in result else result


def optional_in_overlays(shape: Shape) -> dict[str, Any]:
    """Return the shape in a file that may be laid over others: null removes any key, and no key is required.

    Lists and secrets stay as they are: overlays replace lists as a whole.
    """

    def or_null(inner: Any) -> Any:
        return {"anyOf": [optional_in_overlays(inner), {"type": "null"}]} if isinstance(inner, Mapping) else inner

    if shape.get("writeOnly"):
        return dict(shape)
    result = {key: inner for key, inner in shape.items() if key not in _NOT_IN_OVERLAYS}
    if "properties" in shape:
        result["properties"] = {key: or_null(inner) for key, inner in shape["properties"].items()}
    if "additionalProperties" in shape:
        result["additionalProperties"] = or_null(shape["additionalProperties"])
    if "anyOf" in shape:
        result["anyOf"] = [optional_in_overlays(inner) for inner in shape["anyOf"]]
    return result


def check(place: str, content: object, shape: Shape) -> None:
    """Check that a value has a shape.

    Args:
        place: Place of the value for the message, such as ``file.yaml: topics.orders``. One that ends with ": " is that
            of a whole file.
        content: Value of the file.
        shape: Its shape.

    Raises:
        SettingsError: It has another shape. The message has the place, the value and what is allowed.
    """
    if "anyOf" in shape:
        branches = [branch for branch in shape["anyOf"] if _has_type(content, branch)]
        if len(branches) == 1:  # its message is the most exact one
            check(place, content, {**{key: value for key, value in shape.items() if key != "anyOf"}, **branches[0]})
        elif not any(_is_valid(content, branch) for branch in branches):
            raise _mismatch(place, content, shape)
        return
    if not _has_type(content, shape) or not _fits(content, shape):
        raise _mismatch(place, content, shape)
    if isinstance(content, dict):
        _check_object(place, content, shape)
    elif isinstance(content, list):
        for index, item in enumerate(content):
            check(f"{place}[{index}]", item, shape["items"])


def _check_object(place: str, content: Mapping[Any, Any], shape: Shape) -> None:
    properties, others = shape.get("properties", {}), shape.get("additionalProperties")
    names = shape.get("propertyNames", {})
    prefix, shown = place if place.endswith(": ") else f"{place}.", place.removesuffix(": ")
    for key, value in content.items():
        if not isinstance(key, str):
            raise SettingsError(f"{shown}: key {key!r}: expected a string; put it in quotes")
        if not _fits(key, names):
            raise SettingsError(f"{shown}: {key}: expected {names['description']}")
        if key not in properties and others is False:
            hint = did_you_mean(key, properties)
            raise SettingsError(f"{shown}: unknown key {key}: expected one of {', '.join(properties)}{hint}")
        inner = properties.get(key, others)
        if isinstance(inner, Mapping):
            check(f"{prefix}{key}", value, inner)
    for key in shape.get("required", ()):
        if key not in content:
            raise _mismatch(f"{prefix}{key}", None, properties[key])
    keys = [key for branch in shape.get("oneOf", ()) for key in branch["required"]]
    if keys and sum(key in content for key in keys) != 1:
        raise SettingsError(f"{shown}: expected either {' or '.join(keys)}")


def _is_valid(content: object, shape: Shape) -> bool:
    try:
        check("", content, shape)
    except SettingsError:
        return False
    return True


def _has_type(content: object, shape: Shape) -> bool:
    """Return whether a value has one of the types of a shape. True and False are no numbers."""
    names = shape.get("type", tuple(_TYPES))
    return any(
        isinstance(content, _TYPES[name]) and (name == "boolean" or not isinstance(content, bool))
        for name in ([names] if isinstance(names, str) else names)
    )


def _fits(content: Any, shape: Shape) -> bool:
    """Return whether a value of the right type is among those of a shape."""
    if "enum" in shape and content not in shape["enum"]:
        return False
    match content:
        case str():
            return (
                len(content) >= shape.get("minLength", 0) and re.search(shape.get("pattern", ""), content) is not None
            )
        case list():
            return len(content) >= int(shape.get("minItems", 0))
        case int() | float():
            is_within = shape.get("minimum", content) <= content <= shape.get("maximum", content)
            return bool(is_within and content > shape.get("exclusiveMinimum", float("-inf")))
    return True


def _mismatch(place: str, content: object, shape: Shape) -> SettingsError:
    expected = shape.get("description")
    if expected is None and "enum" in shape:
        expected = f"one of {', '.join(map(str, shape['enum']))}"
    elif expected is None and "properties" in shape:
        expected = f"a mapping with {', '.join(shape['properties'])}"
    shown = "no content" if content is None and place.endswith(": ") else repr(content)
    value = "" if shape.get("writeOnly") else f" {shown}:"
    return SettingsError(f"{place.removesuffix(': ')}:{value} expected {expected or shape['type']}")
