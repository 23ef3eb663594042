"""Finding the policy that the broker's properties name, and finding it anew when its module has changed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import reprlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from klamm.policy.errors import PolicyLoadError
from klamm.policy.following import own_modules, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.policy.kinds import PolicyKind, PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A policy that is ready to be asked."""

    policy: object
    questions: Mapping[PolicyKind, Callable[[Any], None]]
    """By kind, the method to be called with the details."""
    files: tuple[Path, ...]
    """What it was made of: its module, those it imports from its own directory, and what it names in
    ``watched_files``."""
    only_computes: bool = False
    """What the policy says of itself once it is configured."""

    def close(self) -> None:
        """Close the policy when it can be closed; what it raises is raised."""
        close = getattr(self.policy, "close", None)
        if close is not None:
            close()


@dataclass(slots=True)
class FreshModules:
    """Modules run anew from their sources, each once, beside the ones that serve until all is well.

    A module object of its own is filled, so that a module that fails half-way leaves the serving one as it was.
    """

    _replaced: dict[str, ModuleType] = field(default_factory=dict)

    def get(self, name: str) -> ModuleType:
        """Return the module as its source is now, and with it what it imports beside it; raises whatever they raise."""
        current = sys.modules.get(name)
        if current is None or name in self._replaced:
            return importlib.import_module(name)
        for neighbour in own_modules(current):
            if neighbour not in self._replaced:
                self._run_anew(neighbour, sys.modules[neighbour])
        return self._run_anew(name, current)

    def _run_anew(self, name: str, current: ModuleType) -> ModuleType:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        self._replaced[name] = current
        _put(name, module)  # dataclasses and pickle look their module up there
        source = source_of(module)
        if source is None:
            spec.loader.exec_module(module)
        else:
            # Not through the cache of compiled modules: it does not notice a change within a second.
            exec(compile(source.read_bytes(), source, "exec"), module.__dict__)  # noqa: S102 -- that is an import
        return module

    def undo(self) -> None:
        """Put the modules back that served before."""
        for name, module in self._replaced.items():
            _put(name, module)
        self._replaced.clear()


def _put(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    package, _, leaf = name.rpartition(".")
    if package in sys.modules:
        setattr(sys.modules[package], leaf, module)


def load_policy(
    spec: PolicySpec,
    properties: Mapping[str, str],
    *,
    fresh: FreshModules | None = None,
    advise: Callable[[str], None] = lambda _: None,
) -> LoadedPolicy:
    """Make and configure one policy.

    Args:
        spec: Which, and for what.
        properties: All of the broker's properties, handed to ``configure`` when the policy has one.
        fresh: Where to take the module from when it is to be read anew; None takes what is imported.
        advise: Called once per method with what the author should know: that it returns something, which nobody reads.

    Raises:
        PolicyLoadError: No such class, or it is no policy, or making or configuring it fails.
    """
    policy_class, module = _find_class(spec, fresh)
    methods = {kind: _method(policy_class, kind, key) for kind, key in spec.keys.items()}
    try:
        policy = policy_class()
        configure = getattr(policy, "configure", None)
        if configure is not None:
            configure(MappingProxyType(dict(properties)))
        watched = [Path(file) for file in getattr(policy, "watched_files", ())]
        only_computes = bool(getattr(policy, "only_computes", False))
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(f"{spec.origin}: the policy cannot be set up: {_describe(error)}") from error
    source = source_of(module)
    return LoadedPolicy(
        policy=policy,
        questions={kind: _question(getattr(policy, method), spec, advise) for kind, method in methods.items()},
        files=(*(() if source is None else (source,)), *own_modules(module).values(), *watched),
        only_computes=only_computes,
    )


def _question(
    method: Callable[[Any], object], spec: PolicySpec, advise: Callable[[str], None]
) -> Callable[[Any], None]:
    """Return what asks the policy; who answers False is told once that only raising refuses."""
    is_told = False

    def ask(details: Any) -> None:
        nonlocal is_told
        answer = method(details)
        if answer is not None and not is_told:
            is_told = True
            advise(f"{spec.origin}: it returned {reprlib.repr(answer)}, which allows; a policy refuses by raising")

    return ask


def _find_class(spec: PolicySpec, fresh: FreshModules | None) -> tuple[Any, ModuleType]:
    try:
        module = importlib.import_module(spec.module) if fresh is None else fresh.get(spec.module)
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(
            f"{spec.origin}: cannot import {spec.module} ({_describe(error)}); is it on PYTHONPATH?"
        ) from error
    found = getattr(module, spec.class_name, None)
    if not isinstance(found, type):
        raise PolicyLoadError(f"{spec.origin}: {spec.module} has no class {spec.class_name}")
    return found, module


def _method(policy_class: type, kind: PolicyKind, key: str) -> str:
    for name in (kind.method, "validate"):
        method = getattr(policy_class, name, None)
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async or inspect.isgeneratorfunction(method):
            # Nobody would ever run it, so everything would be allowed.
            raise PolicyLoadError(
                f"{key}={policy_class.__module__}:{policy_class.__qualname__}: {name} is"
                f" {'an async function' if is_async else 'a generator'}; a policy has decided when it returns, so make"
                " it a plain one"
            )
        if callable(method):
            return name
    raise PolicyLoadError(
        f"{key}={policy_class.__module__}:{policy_class.__qualname__}: the class has no method validate"
        f" or {kind.method}, so it is no policy"
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
