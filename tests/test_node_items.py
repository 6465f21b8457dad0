"""Items that take the short way tell what pytest's own way tells, and leave to pytest what is pytest's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import ENDS, cluster_file, names, on, run_pytest

from pytest_gpucluster.plugin import node_items

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

# as on a cluster of many nodes
SHORT = "from pytest_gpucluster.plugin import node_items\n\nnode_items.FROM_NODES = 1\n"

KNOWN_PYTEST = pytest.mark.skipif(
    not node_items.pays(["gpu01"] * node_items.FROM_NODES),
    reason=f"pytest {pytest.__version__} goes its own way",
)

EVERYTHING = """
import logging
import subprocess
import sys
import warnings

import pytest

from pytest_gpucluster.suite import probed


@pytest.fixture
def chatty(node):
    print("in the fixture of", node)
    logging.getLogger("site").warning("logged in the fixture")
    return node.name


@pytest.fixture
def nothing(node):
    pytest.skip("the fixture has nothing")


@pytest.fixture
def broken(node):
    raise RuntimeError("the fixture breaks")


@pytest.fixture
def torn(node):
    yield node
    assert node.name != "gpu02"


@pytest.fixture(scope="session")
def wide(cluster):
    raise RuntimeError("nothing wide")


def test_first(node):
    pass


def test_passes(node, measure):
    measure("latency", 4.5, "us", device="mlx5_0 <&>" if node.name == "gpu03" else "mlx5_0")


def test_prints(chatty):
    print("in the test of", chatty)
    print("to stderr", file=sys.stderr)
    subprocess.run(["echo", "from a process"])
    logging.getLogger("site").error("logged in the test")


def test_prints_and_fails(chatty):
    print("before it fails")
    assert chatty == "gpu01"


def test_warns(node):
    warnings.warn("take care of " + node.name)


def test_one_warns(node):
    if node.name == "gpu03":
        warnings.warn("this one alone")


def test_leaves_a_filter(node):
    if node.name == "gpu02":
        warnings.simplefilter("ignore")
    elif node.name == "gpu04":
        warnings.warn("the filter of gpu02 is gone")


@pytest.mark.filterwarnings("ignore:quiet")
def test_is_quiet(node):
    warnings.warn("quiet")


def test_is_loud(node):
    warnings.warn("quiet no more")


def test_has_filters(node):
    warnings.warn(f"{len(warnings.filters)} filters")


def test_skips(node):
    pytest.skip("not today")


def test_has_nothing(nothing):
    pass


def test_is_broken(broken):
    pass


def test_wide(wide, node):
    pass


def test_raises(node):
    {}["no such key"]


def test_expected(node):
    pytest.xfail("known")


@pytest.mark.xfail(strict=True)
def test_marked(node):
    assert node.name == "gpu01"


@pytest.mark.skipif("sys.platform == 'linux'")
def test_not_here(node):
    pass


@pytest.mark.parametrize("size", [1, 2])
def test_sizes(node, size):
    assert size == 1


def test_torn(torn):
    pass


class TestClass:
    def test_method(self, node):
        assert self


def test_whole(cluster):
    pass


def test_last(node):
    pass
"""

# the first and the last of a file are pytest's
WHICH_WAY = """
import inspect

import pytest


def is_short():
    return any(frame.filename.endswith("swift.py") for frame in inspect.stack())


def test_first(node):
    assert is_short() == (node.name != "gpu01")


def test_ours(node, expect, measure):  # the first makes the session fixtures
    assert is_short() == (node.name != "gpu01")


@pytest.fixture
def plain():
    return 1


def test_plain_fixture(node, plain):
    assert is_short()


@pytest.fixture
def torn():
    yield


def test_torn(node, torn):
    assert not is_short()


def test_request(node, request):
    assert not is_short()


@pytest.mark.skipif("False")
def test_marked(node):
    assert not is_short()


@pytest.mark.parametrize("size", [1, 2])
def test_sizes(node, size):
    assert not is_short()


def test_last(node):
    assert is_short() == (node.name != "gpu04")
"""


WIDER = """
import pytest


@pytest.fixture(scope="session", params=["tcp", "ib"])
def wire(request):
    return request.param


@pytest.fixture(scope="module", params=[1, 2])
def size(request):
    return request.param


def test_first(node):
    pass


def test_of_size(size):
    pass


def test_second(node):
    pass


def test_on_wire(wire):
    pass


def test_on_wire_and_node(wire, node):
    pass


def test_third(node):
    pass


def test_of_size_on_wire(size, wire):
    pass


def test_last(node):
    pass
"""

# a site may make its nodes once for all tests: then pytest sorts by them
SITES_NODE = """

import pytest


@pytest.fixture(scope="session")
def node(request):
    return request.param
"""


def timeless(text: str) -> str:
    """Return a text without times and addresses of memory."""
    times = r'(time|timestamp|hostname)="[^"]*"|20\d{6}T\d{6}-\d+|in \d+\.\d+s|\[ *\d+%\]|0x[\da-f]+|\[gw\d\]'
    return re.sub(r"={3,}", "===", re.sub(times, "", text))


def told(run: Run, *, ordered: bool) -> dict[str, Any]:
    """Return all that a run tells, but when."""
    events = [
        {key: value for key, value in event.items() if key not in ("time", "run", "seconds")}
        for event in run.events
        if event["event"] in ("result", "rerun", "lost")
    ]
    text = (run.folder / "reports/junit.xml").read_text().removesuffix("</testsuite></testsuites>")
    junit = timeless(text).split("<testcase")
    metrics = (run.folder / "reports/metrics.prom").read_text().splitlines()
    sort = list if ordered else sorted
    return {
        "rc": run.rc,
        "events": sort(timeless(json.dumps(event)) for event in events),
        "junit": sort(junit),
        "metrics": sort(line for line in metrics if "_seconds" not in line),
        **({"out": timeless(run.out).splitlines()} if ordered else {}),
    }


@pytest.mark.parametrize(
    "options",
    [
        ("-rA",),
        ("-v", "-rA"),
        ("-q", "--durations=3"),
        ("-x",),
        ("-s",),
        ("-n2",),
        ("-o", "junit_logging=all"),
        ("-p", "no:logging"),
    ],
)
def test_both_ways_tell_the_same(sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...]) -> None:
    files = {"test_everything.py": EVERYTHING, "test_ends.py": ENDS}
    found = []
    for conftest in (SHORT, ""):
        run = run_pytest(tmp_path, on(sandbox), *options, files={**files, "conftest.py": conftest})
        assert run.rc == 1, run.out + run.err
        result = told(run, ordered="-n2" not in options)
        if "--durations=3" in options:  # which are slow is chance
            result.pop("out")
        found.append(result)
    short, long = found
    for what in short:
        assert short[what] == long[what], what


@pytest.mark.parametrize("site", ["", SITES_NODE])
def test_items_stand_in_pytests_order(sandbox: Sandbox, tmp_path: Path, site: str) -> None:
    found = []
    for conftest in (SHORT, ""):
        files = {"test_wider.py": WIDER, "test_sizes.py": WIDER, "conftest.py": conftest + site}
        run = run_pytest(tmp_path, on(sandbox), "--collect-only", "-q", files=files)
        assert run.rc == 0, run.out + run.err
        found.append([line for line in run.out.splitlines() if "::" in line])
    short, long = found
    assert len(long) == 2 * (4 * 4 + 2 + 2 + 2 * 4 + 4)
    assert short == long
    assert long != sorted(long, key=lambda name: WIDER.index(name.split("::")[1].split("[")[0])), "sorted"


@KNOWN_PYTEST
def test_the_short_way_is_taken_where_nobody_else_has_a_say(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), files={"test_which.py": WHICH_WAY, "conftest.py": SHORT})
    assert run.rc == 0, run.out
    assert len(run.outcomes) == 9 * 4


def test_few_nodes_go_pytests_own_way(sandbox: Sandbox, tmp_path: Path) -> None:
    suite = WHICH_WAY.partition("def test_first")[0] + "def test_long(node):\n    assert not is_short()\n"
    run = run_pytest(tmp_path, on(sandbox), files={"test_which.py": suite})
    assert run.rc == 0, run.out


def test_a_pytest_of_another_version_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["gpu01"] * node_items.FROM_NODES
    monkeypatch.setattr(pytest, "version_tuple", (9, 2, 1))
    assert node_items.pays(nodes)
    assert not node_items.pays(nodes[1:])
    monkeypatch.setattr(pytest, "version_tuple", (9, 3, 0))
    assert not node_items.pays(nodes)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conftest.py", "def pytest_runtest_call(item):\n    item.called = True\n"),
        ("conftest.py", "def pytest_runtest_protocol(item):\n    item.called = True\n"),
        ("conftest.py", "def pytest_pyfunc_call(pyfuncitem):\n    pyfuncitem.called = True\n"),
        ("conftest.py", "def pytest_fixture_setup(request):\n    pass\n"),
        ("conftest.py", "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef always():\n    yield\n"),
        ("test_which.py", "def setup_function(function):\n    pass\n"),
    ],
)
def test_whoever_has_a_say_gets_pytests_own_way(
    sandbox: Sandbox, tmp_path: Path, file: str, text: str
) -> None:
    suite = WHICH_WAY.partition("def test_first")[0] + "def test_long(node):\n    assert not is_short()\n"
    files = {"test_which.py": suite, "conftest.py": SHORT}
    files[file] += "\n\n" + text
    run = run_pytest(tmp_path, on(sandbox), files=files)
    assert run.rc == 0, run.out
    assert names(run.outcomes, "passed") == [f"test_long[gpu0{number}]" for number in range(1, 5)]


ROWS = """
import sys


def is_further():
    frame = sys._getframe()
    while frame and frame.f_code.co_name != "_run_next":
        frame = frame.f_back
    return frame is not None


def test_first(node):  # pytest itself runs the first item of a file
    assert is_further() == (ROWS and node.name not in ("gpu01", "gpu02"))


def test_long(node):
    assert is_further() == (ROWS and node.name != "gpu01")


def test_last(node):
    pass
"""
AROUND = """

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    return (yield)
"""
PASSING = "def pytest_assertion_pass(item):\n    pass\n"


@KNOWN_PYTEST
@pytest.mark.parametrize(
    ("conftest", "options", "rows"),
    [
        (SHORT, (), True),
        (SHORT + AROUND, (), False),
        (SHORT + "\n\n" + PASSING, (), False),
        (SHORT, ("-o", "faulthandler_timeout=60"), False),
        (SHORT, ("-p", "no:warnings"), False),
        (SHORT, ("-n1",), False),
    ],
)
def test_a_row_goes_through_the_wrappers_once_where_they_are_pytests(
    sandbox: Sandbox, tmp_path: Path, conftest: str, options: tuple[str, ...], *, rows: bool
) -> None:
    files = {"test_rows.py": f"ROWS = {rows}\n{ROWS}", "conftest.py": conftest}
    run = run_pytest(tmp_path, on(sandbox), *options, files=files)
    assert run.rc == 0, run.out
    assert len(run.outcomes) == 12


ASKED = """
import pytest


def described(item):
    return {
        "type": isinstance(item, pytest.Function),
        "name": (item.name, item.originalname, item.nodeid, item.location, str(item.path), repr(item.obj)),
        "marks": [mark.name for mark in item.iter_markers()],
        "keywords": sorted(item.keywords),
        "params": (item.callspec.params, item.callspec.id, item.callspec.indices),
        "fixtures": (item.fixturenames, sorted(item.funcargs), item.cls, item.module.__name__),
        "chain": [node.name for node in item.listchain()],
        "empty": (item.user_properties, sorted(item.extra_keyword_matches), item.reportinfo()[1:]),
        "missing": hasattr(item, "no_such_thing"),
    }


def pytest_collection_modifyitems(items):
    for item in items:
        print("ITEM", described(item))
    items[0].add_marker(pytest.mark.skip(reason="only this one"))
    items[1].stash[KEY] = 1
    assert KEY not in items[2].stash


KEY = pytest.StashKey[int]()
"""


def test_an_item_has_what_pytests_own_has(sandbox: Sandbox, tmp_path: Path) -> None:
    suite = "import pytest\n\npytestmark = pytest.mark.gpu\n\n\n@pytest.mark.slow\ndef test_it(node, host):\n    pass\n"
    said = []
    for more in (SHORT, ""):
        run = run_pytest(
            tmp_path, on(sandbox), "-s", "--slow", files={"test_it.py": suite, "conftest.py": ASKED + more}
        )
        assert run.rc == 0, run.out + run.err
        assert names(run.outcomes, "passed") == [f"test_it[gpu0{number}]" for number in (2, 3, 4)]
        said.append([re.sub("0x[0-9a-f]+", "", line) for line in run.out.splitlines() if "ITEM" in line])
    assert len(said[0]) == 4
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("-k", "gpu02 and passes"), ["test_passes[gpu02]"]),
        (("-m", "xfail and not skip"), [f"test_marked[gpu0{number}]" for number in range(1, 5)]),
        (("test_everything.py::test_first[gpu03]",), ["test_first[gpu03]"]),
        (
            ("-k", "test_first", "--deselect=test_everything.py::test_first[gpu01]"),
            [f"test_first[gpu0{number}]" for number in range(2, 5)],
        ),
    ],
)
def test_items_are_chosen_as_ever(
    sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...], left: list[str]
) -> None:
    where = ("test_everything.py",) if "::" not in options[0] else ()
    run = run_pytest(
        tmp_path,
        on(sandbox),
        "-q",
        "--collect-only",
        *options,
        files={"test_everything.py": EVERYTHING, "conftest.py": SHORT},
        where=where,
    )
    assert [line.rpartition("::")[2] for line in run.out.splitlines() if "::" in line] == left


@KNOWN_PYTEST
def test_rules_of_the_cluster_file_skip_items_one_by_one(sandbox: Sandbox, tmp_path: Path) -> None:
    file = cluster_file(sandbox, tmp_path, not_applicable={"which.ours": "we have none"})
    run = run_pytest(tmp_path, f"--cluster={file}", files={"test_which.py": WHICH_WAY, "conftest.py": SHORT})
    assert run.rc == 0, run.out
    assert names(run.outcomes, "not applicable") == [f"test_ours[gpu0{number}]" for number in range(1, 5)]
