"""Items of the plugin's own report what parametrised functions report; what needs pytest's fixtures is left to it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import ENDS, cluster_file, names, on, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

# a fixture that every test uses, and that only pytest can make
ORDINARY = "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef always():\n    pass\n"

EVERYTHING = """
import logging
import subprocess
import sys
import warnings

import pytest

from pytest_gpucluster.suite import fact, probed


@fact
def chatty(node):
    print("in the fixture of", node)
    logging.getLogger("site").warning("logged in the fixture")
    return node.name


@fact
def nothing(node):
    pytest.skip("the fixture has nothing")


@fact
def broken(node):
    raise RuntimeError("the fixture breaks")


@pytest.fixture
def torn(node):
    yield node
    assert node.name != "gpu02"


@fact(scope="session")
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

WHICH = """
import pytest

from pytest_gpucluster.plugin.node_items import NodeItem
from pytest_gpucluster.suite import fact, probed


def pytest_generate_tests(metafunc):
    if "color" in metafunc.fixturenames:
        metafunc.parametrize("color", ["red", "blue"])


@fact(scope="session")
def combined(cluster, nodes):
    return cluster.name, nodes


@fact
def of_node(node, combined):
    return node.name


@pytest.fixture
def torn():
    yield


@pytest.fixture
def plain():
    return 1


@pytest.mark.own
def test_node(node):
    pass


@pytest.mark.own
@pytest.mark.usefixtures("gpu_profile")
def test_facts(of_node, combined, expect, measure):
    assert of_node in combined[1]


@pytest.mark.own
def test_keyword(of_node, *, node, default=1):
    assert of_node == node.name


@pytest.mark.own
@pytest.mark.skipif("False")
def test_marked(node):
    pass


def test_torn(node, torn):
    pass


def test_plain(node, plain):
    pass


def test_request(node, request):
    pass


@pytest.mark.parametrize("size", [1, 2])
def test_sizes(node, size):
    pass


def test_color(node, color):
    pass


class TestClass:
    def test_method(self, node):
        pass


def test_no_node(cluster):
    pass
"""
KINDS = """
import pytest

from pytest_gpucluster.plugin.node_items import NodeItem


def pytest_configure(config):
    config.addinivalue_line("markers", "own: an item of the plugin's own")


def pytest_collection_modifyitems(items):
    for item in items:
        assert isinstance(item, NodeItem) == (OWN and item.get_closest_marker("own") is not None), item
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
    """Return a text without times, addresses of memory, and the state of a node in Slurm, which changes by itself."""
    text = re.sub(r"NodeInfo\(.*?ending_unseen=\w+\)", "NodeInfo", text)
    # pytest shortens this line, by the length of the state
    text = re.sub(r"node = Node\(.*?(?=\\n|\n|$)", "node", text)
    times = r'(time|timestamp|hostname)="[^"]*"|20\d{6}T\d{6}-\d+|in \d+\.\d+s|\[ *\d+%\]|0x[\da-f]+|\[gw\d\]'
    return re.sub(r"={3,}", "===", re.sub(times, "", text))


def told(run: Run, *, ordered: bool) -> dict[str, Any]:
    """Return all that a run tells, but when."""
    events = [
        {key: value for key, value in event.items() if key not in ("time", "run", "seconds")}
        for event in run.events
        if event["event"] in ("result", "rerun", "lost")
    ]
    text = (run.folder / "reports/latest/junit.xml").read_text().partition("</testsuite>")[0]
    junit = [case.strip() for case in timeless(text).split("<testcase")]
    metrics = (run.folder / "reports/latest/metrics.prom").read_text().splitlines()
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
        ("-v", "-rA"),
        ("-q", "--durations=3"),
        ("-x",),
        ("-n2",),
        ("-s", "-p", "no:logging", "-o", "faulthandler_timeout=60"),
    ],
)
def test_both_kinds_of_items_report_the_same(
    sandbox: Sandbox, tmp_path: Path, options: tuple[str, ...]
) -> None:
    files = {"test_everything.py": EVERYTHING, "test_ends.py": ENDS}
    found = []
    for conftest in ("", ORDINARY):
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
    for conftest in ("", ORDINARY):
        files = {"test_wider.py": WIDER, "test_sizes.py": WIDER, "conftest.py": conftest + site}
        run = run_pytest(tmp_path, on(sandbox), "--collect-only", "-q", files=files)
        assert run.rc == 0, run.out + run.err
        found.append([line for line in run.out.splitlines() if "::" in line])
    short, long = found
    assert len(long) == 2 * (4 * 4 + 2 + 2 + 2 * 4 + 4)
    assert short == long
    assert long != sorted(long, key=lambda name: WIDER.index(name.split("::")[1].split("[")[0])), "sorted"


@pytest.mark.parametrize(
    ("own", "more"),
    [
        (True, ""),
        (False, ORDINARY.partition("\n")[2]),
        (False, "\n\n@pytest.fixture\ndef node(node):\n    return node\n"),
    ],
)
def test_only_tests_of_facts_become_own_items(
    sandbox: Sandbox, tmp_path: Path, more: str, *, own: bool
) -> None:
    files = {"test_which.py": WHICH, "conftest.py": f"OWN = {own}\n{KINDS}{more}"}
    run = run_pytest(tmp_path, on(sandbox), files=files)
    assert run.rc == 0, run.out + run.err
    assert len(run.outcomes) == 4 * 12 + 1


@pytest.mark.parametrize(
    "hook",
    [
        "def pytest_runtest_setup(item):",
        "def pytest_runtest_call(item):",
        "def pytest_runtest_teardown(item):",
        "def pytest_runtest_logstart():",
        "def pytest_runtest_protocol():",
        "def pytest_runtest_makereport():",
    ],
)
def test_hooks_of_others_are_called_for_own_items(sandbox: Sandbox, tmp_path: Path, hook: str) -> None:
    conftest = f"{hook}\n    with open('called', 'a') as file:\n        file.write('x')\n"
    files = {"test_it.py": "def test_it(node):\n    pass\n", "conftest.py": conftest}
    run = run_pytest(tmp_path, on(sandbox), files=files)
    assert run.rc == 0, run.out + run.err
    assert len((run.folder / "called").read_text()) in (4, 12)


ASKED = """
import pytest


def described(item):
    return {
        "name": (item.name, item.originalname, item.nodeid, item.location, str(item.path), repr(item.obj)),
        "marks": [mark.name for mark in item.iter_markers()],
        "fixtures": (sorted(item.fixturenames), item.cls, item.module.__name__, item.function.__name__),
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


def test_an_item_has_what_plugins_expect_of_a_function(sandbox: Sandbox, tmp_path: Path) -> None:
    suite = "import pytest\n\npytestmark = pytest.mark.gpu\n\n\n@pytest.mark.slow\ndef test_it(node, host):\n    pass\n"
    said = []
    for more in ("", "@pytest.fixture\ndef host(host):\n    return host\n"):
        run = run_pytest(
            tmp_path, on(sandbox), "-s", "--slow", files={"test_it.py": suite, "conftest.py": ASKED + more}
        )
        assert run.rc == 0, run.out + run.err
        assert names(run.outcomes, "passed") == [f"test_it[gpu0{number}]" for number in (2, 3, 4)]
        said.append([re.sub("0x[0-9a-f]+", "", line) for line in run.out.splitlines() if "ITEM" in line])
    assert len(said[0]) == 4
    assert said[0] == said[1]


def test_intrusive_tests_run_with_their_option_alone(sandbox: Sandbox, tmp_path: Path) -> None:
    mark = "import pytest\n\n\n@pytest.mark.intrusive\ndef test_it(node, host):\n    assert node.name != 'gpu03'\n"
    files = {"test_it.py": mark, "conftest.py": ""}
    for options in ((), ("-m", "intrusive")):
        run = run_pytest(tmp_path, on(sandbox), *options, files=files)
        assert not run.outcomes, run.out + run.err
        assert "on request only: 4 intrusive checks (--intrusive): it" in run.out
    run = run_pytest(tmp_path, on(sandbox), "test_it.py::test_it[gpu03]", files=files)
    assert run.rc == 1
    assert "it.it disturbs users of the cluster for a short time: add --intrusive" in run.out
    run = run_pytest(tmp_path, on(sandbox), "--intrusive", files=files)
    assert len(names(run.outcomes, "passed")) == 3
    assert names(run.outcomes, "failed") == ["test_it[gpu03]"]
    assert f"rerun:        pytest {on(sandbox)} --intrusive 'test_it.py::test_it[gpu03]'" in run.out


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
        files={"test_everything.py": EVERYTHING},
        where=where,
    )
    assert [line.rpartition("::")[2] for line in run.out.splitlines() if "::" in line] == left


def test_rules_of_the_cluster_file_skip_items_one_by_one(sandbox: Sandbox, tmp_path: Path) -> None:
    file = cluster_file(sandbox, tmp_path, not_applicable={"which.facts": "we have none"})
    run = run_pytest(tmp_path, f"--cluster={file}", files={"test_which.py": WHICH})
    assert run.rc == 0, run.out
    assert names(run.outcomes, "not applicable") == [f"test_facts[gpu0{number}]" for number in range(1, 5)]


COUNTED = """
def pytest_terminal_summary(terminalreporter):
    print("REPORTS", sum(map(len, terminalreporter.stats.values())))
"""


@pytest.mark.parametrize(
    ("conftest", "options", "reports"),
    [
        ("", (), 4),
        ("def pytest_runtest_logreport():\n    pass\n", (), 12),
        ("def pytest_runtest_makereport():\n    pass\n", (), 12),
        ("def pytest_report_teststatus():\n    pass\n", (), 12),
        ("def pytest_runtest_protocol():\n    pass\n", (), 12),
        ("", ("--durations=1",), 12),
        ("def pytest_runtest_teardown(item):\n    print('bye', item.name)\n", ("-rA",), 8),
    ],
)
def test_reports_that_nothing_reads_are_left_out(
    sandbox: Sandbox, tmp_path: Path, conftest: str, options: tuple[str, ...], reports: int
) -> None:
    files = {"test_it.py": "def test_it(node):\n    pass\n", "conftest.py": conftest + COUNTED}
    run = run_pytest(tmp_path, on(sandbox), "-p", "no:cacheprovider", *options, files=files)
    assert run.rc == 0, run.out + run.err
    assert f"REPORTS {reports}\n" in run.out
    assert run.out.count("bye") == (4 if reports == 8 else 0)


SESSIONS = """
import pytest

from pytest_gpucluster.suite import fact


@fact(scope="session")
def judged(expect):
    return 1


def test_it(node, judged):
    pass
"""


def test_a_fact_of_the_session_cannot_use_what_belongs_to_an_item(sandbox: Sandbox, tmp_path: Path) -> None:
    run = run_pytest(tmp_path, on(sandbox), files={"test_it.py": SESSIONS})
    assert run.rc == 1, run.out + run.err
    assert "ScopeMismatch" in run.out
    assert names(run.outcomes, "error") == [f"test_it[gpu0{number}]" for number in range(1, 5)]
