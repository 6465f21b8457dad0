"""One item a node without pytest's cost of an item: what the items of one test share is kept once.

A Function of pytest takes 2.5 kB and 20 us to make, most of it for containers that stay empty. A NodeItem is a Function
whose attributes are made when somebody first asks for them, and let go when it has run. Only tests whose one parameter
is the node become NodeItems, and only where no other plugin has a say in how items are made.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import _pytest.fixtures
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# whose hooks do not change what we make ourselves
_GENERATE = {"python", "funcmanage", "pytest11.testinfra", "gpucluster-hooks"}
_MAKE = {"python", "unittest", "gpucluster-hooks"}
FROM_NODES = 32  # fewer are quick enough by pytest's own way
_PYTESTS = {(9, 2)}  # whose insides this file, swift.py and testcases.py know; others go their own way


def pays(nodes: Sequence[str]) -> bool:
    """Return whether NodeItems, and all that goes with them, are for this run."""
    return len(nodes) >= FROM_NODES and pytest.version_tuple[:2] in _PYTESTS


class Shared:
    """What all items of one test share. `template` is the Function that pytest itself made for the first node."""

    def __init__(self, template: pytest.Function) -> None:
        self.template = template
        self.test = template.originalname
        self.prefix = template.nodeid.partition("[")[0]
        self.file, self.line, _ = template.location
        self.suite = template.path.stem.removeprefix("test_")
        self.check = f"{self.suite}.{self.test.removeprefix('test_')}"
        self.marks = frozenset(mark.name for mark in template.iter_markers())
        inside = f"[{template.callspec.id}]"
        own = {template.name, template.callspec.id}
        self.is_plain = template.nodeid.endswith(inside) and template.name == self.test + inside
        self.keywords = [name for name in template.keywords if name not in own]  # as reports have them
        self.extra = {
            **{mark.name: mark for mark in template.own_markers},
            **vars(template.obj),
        }
        self.run: Any = None  # how the items are run: plugin.swift keeps it here


class NodeItem(pytest.Function):
    """A test on one node. Whatever it lacks is made by `__getattr__`, as pytest.Function makes it."""

    # what is made and let go again has slots: a dictionary of its own would stay, empty, with every item that has run
    __slots__ = (
        *("_shared", "callspec", "own_markers", "keywords", "extra_keyword_matches", "stash"),
        *("_report_sections", "user_properties", "funcargs", "_request"),
    )

    if TYPE_CHECKING:
        _shared: Shared
        callspec: Any
        own_markers: list[pytest.Mark]
        _report_sections: list[tuple[str, str, str]]

    def __getattr__(self, name: str) -> Any:
        """Make an attribute that is not there yet."""
        make = _MAKERS.get(name)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = make(self)
        if name not in _OF_ALL:
            setattr(self, name, value)
        return value

    @property
    def node_name(self) -> str:
        """The name of the node."""
        name: str = self.callspec.params["node"]
        return name

    @property
    def suite(self) -> str:
        """SUITE of test_SUITE.py."""
        return self._shared.suite

    @property
    def check(self) -> str:
        """SUITE.WHAT of test_SUITE.py::test_WHAT."""
        return self._shared.check

    @property
    def cls(self) -> None:
        """No class: the test is a function of a module."""

    @property
    def nodeid(self) -> str:
        """The address of the item, as text."""
        return f"{self._shared.prefix}[{self.callspec.id}]"

    @property
    def location(self) -> tuple[str, int | None, str]:
        """File, line and name, as pytest's `location`."""
        return self._shared.file, self._shared.line, self.name

    def report_keywords(self) -> dict[str, Any]:
        """Return the keywords as a report has them."""
        return dict.fromkeys((self.name, *self._shared.keywords, self.callspec.id), 1)

    def let_go(self) -> None:
        """Forget what was made for the item; it is made anew where somebody asks."""
        for name in _MADE:
            try:
                object.__delattr__(self, name)
            except AttributeError:
                continue


def _keywords(item: NodeItem) -> Any:
    shared = item._shared  # noqa: SLF001 - ours
    mapping: Any = type(shared.template.keywords)  # pytest's own
    keywords = mapping(item)
    keywords.update({**shared.extra, item.callspec.id: True})
    return keywords


def _request(item: NodeItem, name: str) -> Any:
    item._initrequest()  # noqa: SLF001 - as Function does
    return object.__getattribute__(item, name)


def _id(item: NodeItem) -> Any:
    return replace(item._shared.template._id, params=item.callspec.id)  # noqa: SLF001 - as pytest makes it


# as pytest.Function and its bases initialise them
_MAKERS: dict[str, Callable[[NodeItem], Any]] = {
    "keywords": _keywords,
    "own_markers": lambda item: list(item._shared.template.own_markers),  # noqa: SLF001
    "extra_keyword_matches": lambda item: set(item._shared.template.extra_keyword_matches),  # noqa: SLF001
    "stash": lambda _: pytest.Stash(),
    "_store": lambda item: item.stash,
    "_report_sections": lambda _: [],
    "user_properties": lambda _: [],
    "funcargs": lambda item: _request(item, "funcargs"),
    "_request": lambda item: _request(item, "_request"),
    "originalname": lambda item: item._shared.test,  # noqa: SLF001
    "fixturenames": lambda item: item._shared.template.fixturenames,  # noqa: SLF001
    "_fixtureinfo": lambda item: item._shared.template._fixtureinfo,  # noqa: SLF001
    "_obj": lambda item: item._shared.template.obj,  # noqa: SLF001
    "_id": _id,
}
_OF_ALL = {"originalname", "fixturenames", "_fixtureinfo", "_obj"}
_MADE = tuple(name for name in _MAKERS if name not in _OF_ALL)


class Maker:
    """Makes the items of one run. `nodes` are the names of all nodes under test."""

    def __init__(self, config: pytest.Config, nodes: Sequence[str]) -> None:
        self._config, self._nodes = config, nodes
        # the items of one node share what parametrises them
        self._specs: dict[tuple[Any, ...], list[Any]] = {}
        self._one = False

    def parametrize(self, metafunc: pytest.Metafunc, params: Sequence[Any]) -> None:
        """Parametrise a test by nodes: by the first only, where `items` will make the others."""
        self._one = len(params) > 1 and self._is_alone(metafunc)
        metafunc.parametrize("node", params[:1] if self._one else params, indirect=True)

    def _is_alone(self, metafunc: pytest.Metafunc) -> bool:
        """Return True where nothing else parametrises the test or takes part in making its items."""
        hook = self._config.hook
        return (
            pays(self._nodes)
            and plugins(hook.pytest_generate_tests) <= _GENERATE
            and plugins(hook.pytest_pycollect_makeitem) <= _MAKE
            and metafunc.cls is None
            and "_testinfra_host" not in metafunc.fixturenames
            and not hasattr(metafunc.module, "pytest_generate_tests")
            and metafunc.definition.get_closest_marker("parametrize") is None
            and all(
                found[-1].params is None
                for found in metafunc._arg2fixturedefs.values()  # noqa: SLF001 - as pytest itself asks
            )
        )

    def begin(self) -> None:
        """Forget what an attempt that broke has left."""
        self._one = False

    def items(self, made: Any) -> Any:
        """Return what was made of a test, with the items of all nodes in place of that of the first."""
        one, self._one = self._one, False
        if not one:
            return made
        (template,) = made  # parametrize() has seen that there is one parameter, and has given it one value
        shared = Shared(template)
        if type(template) is not pytest.Function or not shared.is_plain:
            raise AssertionError(f"{template!r}: made in a way that is not known")
        return list(self._all(shared))

    def _all(self, shared: Shared) -> Iterator[NodeItem]:
        first = shared.template
        config, session, parent, path = first.config, first.session, first.parent, first.path
        for spec in self._specs_like(first.callspec):
            item = NodeItem.__new__(NodeItem)  # not by from_parent: all that it would fill in is shared
            item._shared, item.callspec = shared, spec  # noqa: SLF001 - ours
            item.config, item.session, item.parent, item.path = config, session, parent, path
            item.name = f"{shared.test}[{spec.id}]"
            yield item

    def _specs_like(self, spec: Any) -> list[Any]:
        key = (*spec._arg2scope.items(), *map(id, spec.marks))  # noqa: SLF001 - as pytest itself makes it
        if key not in self._specs:
            self._specs[key] = [
                replace(spec, params={"node": node}, indices={"node": index}, _idlist=(node,))
                for index, node in enumerate(self._nodes)
            ]
        return self._specs[key]


def plugins(caller: Any, *, around: bool | None = None) -> set[str]:
    """Return the names of those who have a hook: with `around` set, only the wrappers, or only the others."""
    return {
        impl.plugin_name
        for impl in caller.get_hookimpls()
        if around is None or around == (impl.wrapper or impl.hookwrapper)
    }


def marks_of(item: pytest.Item) -> frozenset[str]:
    """Return the names of an item's marks; those that all items of a test share are looked at once."""
    if type(item) is not NodeItem:
        return frozenset(mark.name for mark in item.iter_markers())
    own = own_marks(item)
    return item._shared.marks.union(mark.name for mark in own) if own else item._shared.marks  # noqa: SLF001 - ours


def own_marks(item: NodeItem) -> Sequence[pytest.Mark]:
    """Return the marks of an item's own, without making them where nobody has asked for them."""
    try:
        found: Sequence[pytest.Mark] = NodeItem.__dict__["own_markers"].__get__(item)
    except AttributeError:
        return ()
    return found


def kinds(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield one item of each test, and every item that is no NodeItem."""
    seen: set[int] = set()
    for item in items:
        if type(item) is NodeItem:
            if id(item._shared) in seen:  # noqa: SLF001 - ours
                continue
            seen.add(id(item._shared))  # noqa: SLF001 - ours
        yield item


@contextmanager
def reordered_in_rows() -> Iterator[None]:
    """Let pytest sort a row of NodeItems as one by the parameters of wider scopes: it looks at each item four times."""
    pytests = _pytest.fixtures.reorder_items

    def reorder(items: Sequence[pytest.Item]) -> list[pytest.Item]:
        rows = {row[0]: row for row in (list(row) for _, row in groupby(items, _row_of))}
        return [item for first in pytests(list(rows)) for item in rows[first]]

    _pytest.fixtures.reorder_items = reorder
    try:
        yield
    finally:
        _pytest.fixtures.reorder_items = pytests


def _row_of(item: pytest.Item) -> int:
    """Return one number for all items that pytest has no reason to move, and one of its own for any other."""
    stays = type(item) is NodeItem and item.callspec._arg2scope["node"].value == "function"  # noqa: SLF001 - as pytest asks
    return 0 if stays else id(item)
