"""Strict YAML for files that guard or set up a cluster: nothing is lost or changed while it is loaded.

A duplicate key is an error, because the intended value is unknown. Only plain decimal numbers are numbers: 010 is not 8
and 1:30 is not 90, as they are in YAML 1.1. Everything else stays the text that it is.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable

_DECIMAL: Final = re.compile("[-+]?(0|[1-9][0-9]{0,20})")
_ERRORS: Final = (yaml.YAMLError, ValueError, KeyError, TypeError, RecursionError)
"""Errors of PyYAML, and StrictYamlError."""
_MAX_LEVELS: Final = 200
"""Maximum number of levels. PyYAML's loaders are recursive, and the one with libyaml overflows the stack."""
_MERGE: Final = "tag:yaml.org,2002:merge"


class StrictYamlError(ValueError):
    """The text is not valid. The message names the line."""


class _Loader(yaml.SafeLoader):
    """YAML loader that creates dictionaries, lists and plain values only."""


def load_yaml(text: str) -> Any:
    """Return the content of a YAML text with one document.

    Raises:
        StrictYamlError: The text is not YAML, has a duplicate or non-string key, or is nested too deeply.
    """
    return _load(text, lambda loader: yaml.load(text, loader))  # noqa: S506  # a SafeLoader


def entry_lines(text: str, key: str) -> list[int]:
    """Return the line of each entry of the list under a key of the document, from 1.

    Args:
        text: YAML text that ``load_yaml`` accepts.
        key: Key at the top level. Without a list under it, there are no lines.
    """
    document = yaml.compose(text, _FAST_LOADER)
    values = (
        []
        if not isinstance(document, yaml.MappingNode)
        else [value for name, value in document.value if name.value == key]
    )
    return [
        entry.start_mark.line + 1 for value in values if isinstance(value, yaml.SequenceNode) for entry in value.value
    ]


def load_yaml_documents(text: str) -> list[Any]:
    """Return the contents of all documents of a YAML text, without empty ones.

    Raises:
        StrictYamlError: As of ``load_yaml``.
    """
    contents = _load(text, lambda loader: list(yaml.load_all(text, loader)))
    return [content for content in contents if content is not None]


def _load(text: str, read: Callable[[type[Any]], Any]) -> Any:
    is_deep = False
    with suppress(*_ERRORS):  # _Loader raises those that describe the problem
        is_deep = _is_deep(text)
        if not is_deep:
            return read(_FAST_LOADER)
    if is_deep:
        raise StrictYamlError("no YAML: too many levels")
    try:
        return read(_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1} column {mark.column + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise StrictYamlError(f"{place}no YAML: {' '.join(problem.split())}") from error
    except RecursionError as error:
        raise StrictYamlError("no YAML: too many levels") from error
    except StrictYamlError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # from PyYAML for a value that an explicit tag does not fit
        raise StrictYamlError(f"no YAML: {error!r}") from error


def _is_deep(text: str) -> bool:
    """Return whether a YAML text has more levels than a loader can take."""
    levels = 0
    for event in yaml.parse(text, _FAST_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            levels += 1
            if levels > _MAX_LEVELS:
                return True
        elif isinstance(event, yaml.CollectionEndEvent):
            levels -= 1
    return False


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue
        line = f"line {key_node.start_mark.line + 1}"
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, (list, dict)):
            raise StrictYamlError(f"{line}: {key}: expected a name as the key")
        if key in seen:
            raise StrictYamlError(f"{line}: {key}: is given twice, expected once")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | str:
    text = _text(loader, node)
    return int(text) if _DECIMAL.fullmatch(text) else text


_FAST_LOADER: Final[type[Any]] = type("_FastLoader", (getattr(yaml, "CSafeLoader", _Loader),), {})
"""Loader with libyaml's parser, ten times as fast, if PyYAML was built with it."""
for _loader in (_Loader, _FAST_LOADER):
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    _loader.add_constructor("tag:yaml.org,2002:int", _number)
    _loader.add_constructor("tag:yaml.org,2002:timestamp", _text)
