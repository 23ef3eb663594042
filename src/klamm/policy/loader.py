"""Loading of the policies that the broker's properties name, and reloading of their modules after a change."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import reprlib
import sys
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import answer_of
from klamm.policy.errors import PolicyLoadError, without_policy_code
from klamm.policy.modules import is_never_reloaded, own_modules, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.policy.answers import Answer
    from klamm.policy.kinds import PolicyKind, PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """A configured policy, ready for use."""

    policy: object
    questions: Mapping[PolicyKind, Callable[[Any], Answer | None]]
    """Method to call with the details of a request, by kind."""
    files: tuple[Path, ...]
    """Files to watch: the policy's module, the modules it imports from its own directory, and its ``watched_files``."""
    only_computes: bool = False
    """Value of the policy's ``only_computes`` after it was configured."""

    def check_kinds(self, spec: PolicySpec) -> None:
        """Let a policy with rules check that each of them concerns requests that it is asked about.

        Raises:
            PolicyLoadError: A rule does not.
        """
        check = getattr(self.policy, "check_kinds", None)
        if check is None:
            return
        try:
            check(tuple(spec.keys))
        except ValueError as error:
            raise PolicyLoadError(f"{spec.origin}: {error}") from error

    def close(self) -> None:
        """Close the policy if it has a ``close`` method. Its exceptions propagate."""
        _close(self.policy)


@dataclass(slots=True)
class FreshModules:
    """Modules reloaded from their sources, each once.

    The old ones stay available until the new policy has been configured. Each source runs in a new module object, so a
    module that fails half-way leaves the current one unchanged.
    """

    _replaced: dict[str, ModuleType] = field(default_factory=dict)

    def get(self, name: str) -> ModuleType:
        """Return the module reloaded from its source, after the modules that it imports from its own directory.

        Exceptions of the modules propagate.
        """
        current = sys.modules.get(name)
        if current is None or name in self._replaced or is_never_reloaded(name):
            return importlib.import_module(name)
        for neighbour in own_modules(current):
            if neighbour not in self._replaced:
                self._reload(neighbour, sys.modules[neighbour])
        return self._reload(name, current)

    def _reload(self, name: str, current: ModuleType) -> ModuleType:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        self._replaced[name] = current
        _put(name, module)  # dataclasses and pickle look up their module in sys.modules
        source = source_of(module)
        if source is None:
            spec.loader.exec_module(module)
        else:
            # Bypass the bytecode cache: its timestamps miss a change within the same second.
            exec(compile(source.read_bytes(), source, "exec"), module.__dict__)  # noqa: S102 -- that is an import
        return module

    def undo(self) -> None:
        """Restore the previous modules."""
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
    """Create and configure one policy. A policy that cannot be used is closed, as in Kafka.

    Args:
        spec: The class and the kinds of requests.
        properties: All properties of the broker, passed to ``configure`` if the policy has this method.
        fresh: Source of reloaded modules. None uses modules that are already imported.
        advise: Callback for advice to the policy's author, called at most once per method: a return value is ignored.
            It is also called if a policy that cannot be used fails to close.

    Raises:
        PolicyLoadError: The class does not exist or is not a policy, or creating or configuring it failed.
    """
    policy_class, module = _find_class(spec, fresh)
    methods = {kind: _method(policy_class, kind, key) for kind, key in spec.keys.items()}
    with ExitStack() as created:
        try:
            policy = policy_class()
            created.callback(_discard, policy, spec, advise)
            configure = getattr(policy, "configure", None)
            if configure is not None:
                configure(MappingProxyType(dict(properties)))
            watched = [Path(file) for file in getattr(policy, "watched_files", ())]
            only_computes = bool(getattr(policy, "only_computes", False))
        except (Exception, SystemExit) as error:
            raise PolicyLoadError(
                f"{spec.origin}: cannot create or configure the policy: {_describe(error)}"
            ) from error
        if not only_computes and any(kind.must_compute for kind in spec.keys):
            raise PolicyLoadError(
                f"{spec.origin}: a policy on flows or client ids is asked about names that any client chooses, so it"
                " must set only_computes; rules in a file do if no pattern needs Python's re"
            )
        source = source_of(module)
        loaded = LoadedPolicy(
            policy=policy,
            questions={kind: _question(_bound(policy, name, spec), spec, advise) for kind, name in methods.items()},
            files=(*(() if source is None else (source,)), *own_modules(module).values(), *watched),
            only_computes=only_computes,
        )
        created.pop_all()
    return loaded


def _close(policy: object) -> None:
    close = getattr(policy, "close", None)
    if close is not None:
        close()


def _discard(policy: object, spec: PolicySpec, advise: Callable[[str], None]) -> None:
    """Close a policy that cannot be used. The error because of which it cannot be used matters more than its own."""
    try:
        _close(policy)
    except (Exception, SystemExit) as error:  # noqa: BLE001
        advise(f"{spec.origin}: the policy failed to close: {_describe(error)}")


def _bound(policy: object, name: str, spec: PolicySpec) -> Callable[[Any], object]:
    """Return a method of a policy, which is called with the details of a request.

    Raises:
        PolicyLoadError: The method cannot be called with one argument, so every request would fail.
    """
    method: Callable[[Any], object] = getattr(policy, name)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a callable that is not written in Python may have none
        return method
    try:
        signature.bind(None)
    except TypeError as error:
        wanted = f"{name} must take one argument, the details of the request"
        raise PolicyLoadError(f"{spec.origin}: {wanted} ({error})") from error
    return method


def _question(
    method: Callable[[Any], object], spec: PolicySpec, advise: Callable[[str], None]
) -> Callable[[Any], Answer | None]:
    """Return a function that asks the policy and returns its answer, if any.

    A first return value that is ignored (``answer_of``) triggers advice: only raising denies. The function raises
    errors of klamm only (``without_policy_code``).
    """
    is_advised = False

    def ask(details: Any) -> Answer | None:
        nonlocal is_advised
        failure: BaseException | None = None
        try:
            returned = method(details)
        except BaseException as error:  # noqa: BLE001 -- nothing that a policy raises may go further
            failure = without_policy_code(error)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # avoids a reference cycle: the error's traceback refers to this frame
        answer = answer_of(returned)
        if answer is None and returned is not None and not is_advised:
            is_advised = True
            advise(
                f"{spec.origin}: the policy returned {reprlib.repr(returned)}, which allows the request; to deny it,"
                " raise PolicyViolationError"
            )
        return cast("Answer | None", answer)

    return ask


def _find_class(spec: PolicySpec, fresh: FreshModules | None) -> tuple[Any, ModuleType]:
    try:
        module = importlib.import_module(spec.module) if fresh is None else fresh.get(spec.module)
    except (Exception, SystemExit) as error:
        raise PolicyLoadError(
            f"{spec.origin}: cannot import {spec.module} ({_describe(error)}); is it on PYTHONPATH?"
        ) from error
    policy_class = getattr(module, spec.class_name, None)
    if not isinstance(policy_class, type):
        raise PolicyLoadError(f"{spec.origin}: {spec.module} has no class {spec.class_name}")
    return policy_class, module


def _method(policy_class: type, kind: PolicyKind, key: str) -> str:
    for name in (kind.method, "validate"):
        method = getattr(policy_class, name, None)
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async or inspect.isgeneratorfunction(method):
            # Its body would never run, so every request would be allowed.
            raise PolicyLoadError(
                f"{key}={policy_class.__module__}:{policy_class.__qualname__}: {name} is"
                f" {'an async function' if is_async else 'a generator'}, which is not supported:"
                " make it a plain function"
            )
        if callable(method):
            return name
    raise PolicyLoadError(
        f"{key}={policy_class.__module__}:{policy_class.__qualname__}: the class has no method validate"
        f" or {kind.method}, so it is not a policy"
    )


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
