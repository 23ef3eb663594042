"""Collection of a file of tests by the worker that runs it, instead of by all workers.

A worker of pytest-xdist collects all tests before it runs the first one: it imports each file and everything that those
import. ``FileScheduling`` distributes whole files, so until a worker gets a file it needs no more than the name. It
collects two placeholders for each file: the first one stands for all tests but the last, the second one for the last.
When a worker runs an item, it has to know the next one, which decides what fixtures are finalized. With one placeholder
for each file, the next file would belong to a worker as soon as it begins one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

_INPUT: Final = "has_placeholders"
"""Name of the value that the controller sends to its workers."""
_OPTIONS_BY_NAME: Final = ("lf", "failedfirst", "newfirst", "stepwise", "sharing")
"""Options that select or sort tests by what only the tests themselves tell."""
_FIRST: Final = "all tests but the last"
_SECOND: Final = "last test"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Send to a worker whether it collects placeholders. It does if it runs whole files."""
    config = node.config
    is_selected = any("::" in argument for argument in config.args) or any(
        config.getoption(name, False) for name in _OPTIONS_BY_NAME
    )
    node.workerinput[_INPUT] = config.getvalue("dist") == "loadfile" and not is_selected


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> PlaceholderFile | None:
    """Collect placeholders instead of the tests of a file, in such a worker."""
    if not getattr(parent.config, "workerinput", {}).get(_INPUT):
        return None
    return PlaceholderFile.from_parent(parent, path=module_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run the tests that a placeholder stands for."""
    if not isinstance(item, Placeholder):
        return None
    item.run_tests(nextitem)
    return True


class PlaceholderFile(pytest.File):
    """A file of tests that is imported when the first of its tests is due."""

    def collect(self) -> Iterator[Placeholder]:
        """Return the first placeholder. ``in_pairs`` adds the second one when the files have their order."""
        yield Placeholder.from_parent(self, name=_FIRST)

    @functools.cached_property
    def tests(self) -> Sequence[pytest.Item]:
        """Tests of the file that are not deselected. Empty if it cannot be collected, which fails the run."""
        module = pytest.Module.from_parent(self.parent, path=self.path)
        items = list(self.session.genitems(module))
        self.ihook.pytest_collection_modifyitems(session=self.session, config=self.config, items=items)
        return items


class Placeholder(pytest.Item):
    """One of the two placeholders of a file."""

    parent: PlaceholderFile

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_marker(pytest.mark.process)  # so the guard watches each test, but not the import of the file

    def run_tests(self, following: pytest.Item | None) -> None:
        """Run the tests that the placeholder stands for.

        Args:
            following: Item that this worker runs next.
        """
        tests, items = self.parent.tests, self.session.items
        if not tests:
            self.session._setupstate.teardown_exact(following)  # the fixtures of the directory were kept for its tests
            return
        position = items.index(self)
        pairs = list(zip(tests, [*tests[1:], following], strict=True))
        for test, next_item in pairs[-1:] if self.name == _SECOND else pairs[:-1]:
            items[position] = test  # xdist compares it with the reports
            test.ihook.pytest_runtest_protocol(item=test, nextitem=next_item)
            if self.session.shouldfail or self.session.shouldstop:
                break
        items[position] = self

    def runtest(self) -> None:
        """Raise an error: the tests are run in its place."""
        raise NotImplementedError


def in_items(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the placeholders."""
    return [item for item in items if isinstance(item, Placeholder)]


def in_pairs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the items with the second placeholder of a file behind its first one."""
    pairs = []
    for item in items:
        pairs.append(item)
        if isinstance(item, Placeholder):
            pairs.append(Placeholder.from_parent(item.parent, name=_SECOND))
    return pairs
