"""Patterns of checks that match none are refused with the nearest; those of site suites and plugins are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from plugin_helpers import FakeConfig, FakeItem, PytestRun

from pytest_gpucluster.config.models import Cluster, Group, Profile
from pytest_gpucluster.core.check import CHECKS
from pytest_gpucluster.core.errors import ConfigError
from pytest_gpucluster.core.registry import import_checks
from pytest_gpucluster.plugin.options import (
    _CHECK,
    AfterCollection,
    check_files,
    check_of_nodeid,
    names_in,
    refuse_unmatched,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE = pytest.Config.ArgsSource
SITE = "from common import test_imported\n\n\ndef test_disk(gpucluster_node):\n    pass\n\n\ntest_made = make()\n"


def cluster(
    required: Iterable[str] = (), not_applicable: Iterable[str] = (), *, name: str = "lab", **profile: Any
) -> Cluster:
    plain = Profile(name="plain", description="of a test", source="none", **profile)
    groups = (Group(nodes="gpu01", profile=plain),)
    return Cluster(
        name=name, groups=groups, required=tuple(required), not_applicable=dict.fromkeys(not_applicable, "why")
    )


class Registry:
    def __init__(self) -> None:
        self.plugins: list[Any] = []

    def register(self, plugin: Any, name: str) -> None:
        assert name == "gpucluster-check-patterns"
        self.plugins.append(plugin)


def run_of(root: Path, *args: str, source: pytest.Config.ArgsSource = SOURCE.ARGS) -> tuple[Any, list[AfterCollection]]:
    """Return what a check needs of pytest's configuration, and the plugins that it registers."""
    registry = Registry()
    found: Any = FakeConfig(args=list(args), folder=root)
    found.args_source, found.rootpath, found.pluginmanager = source, root, registry
    return found, registry.plugins


def refusal(root: Path, lab: Cluster, *args: str) -> str:
    with pytest.raises(ConfigError) as caught:
        refuse_unmatched(run_of(root, *args)[0], lab)
    return str(caught.value)


def accepted(root: Path, lab: Cluster, *args: str, **more: Any) -> bool:
    """Tell whether all patterns are known before the collection."""
    run, plugins = run_of(root, *args, **more)
    refuse_unmatched(run, lab)
    return not plugins


def test_a_pattern_that_matches_no_check_names_place_and_nearest(tmp_path: Path) -> None:
    wrong = "gpu.fabric_manger"
    end = f"{wrong!r} matches no check; the nearest is 'gpu.fabric_manager'"
    assert refusal(tmp_path, cluster(required=["gpu.xid", wrong])) == f"cluster lab: required: {end}"
    assert refusal(tmp_path, cluster(not_applicable=[wrong], name="x")) == f"cluster x: not_applicable: {end}"
    assert refusal(tmp_path, cluster(absent={wrong: "why"})) == f"profile plain: absent: {end}"
    several = refusal(tmp_path, cluster(required=["gpu", "gpu.no", "os.no"]))
    assert several.endswith("'gpu' matches no check (and 2 more); the nearest is 'gpu.*'")
    odd = cluster(required=["gpu.@@@@@@@@@@@@@@@@@@@@@@"])
    assert refusal(tmp_path, odd).endswith("; the nearest is 'gpu.*'")
    plain = Profile(name="plain", description="of a test", source="none", required=("gpu.cout",))
    lab = Cluster(name="lab", groups=(Group(nodes="gpu01", profile=plain),))
    assert refusal(tmp_path, lab).startswith("profile plain: required: 'gpu.cout' matches no check")


def test_a_pattern_of_a_shipped_check_is_known(tmp_path: Path) -> None:
    known = ["gpu.xid", "gpu.*", "*.xid", "[gn]pu.x?d"]
    lab = cluster(required=known, not_applicable=known, absent=dict.fromkeys(known, "why"))
    assert accepted(tmp_path, lab)


@pytest.mark.parametrize(
    ("where", "asked"),
    [
        ("test_site.py", "."),
        ("a/b/c/test_site.py", "a"),
        ("a/b/c/test_site.py", "a/b/c/test_site.py::test_disk"),
        ("a/b/test_site.py", "elsewhere"),
    ],
)
def test_checks_of_a_site_are_known_where_a_run_finds_them(tmp_path: Path, where: str, asked: str) -> None:
    (tmp_path / where).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / where).write_text(SITE)
    lab = cluster(required=["site.disk", "site.imported", "site.made", "s*.d*"])
    assert accepted(tmp_path, lab, asked)
    if "c" in where:  # a folder that nobody has named is not searched to its end
        assert accepted(tmp_path, lab, str(tmp_path))
        assert not accepted(tmp_path, lab, str(tmp_path), source=SOURCE.INVOCATION_DIR)


def left(tmp_path: Path, *patterns: str) -> AfterCollection:
    run, plugins = run_of(tmp_path, ".")
    refuse_unmatched(run, cluster(required=patterns))
    (plugin,) = plugins
    return plugin


def item(nodeid: str) -> Any:
    path, name = nodeid.split("::")
    made = FakeItem(name=name)
    made.path = Path(path)
    return made


def test_checks_that_a_plugin_makes_are_known_after_the_collection(tmp_path: Path) -> None:
    items = [item("test_made.py::test_one"), item("test_made.py::test_two")]
    collected: Any = PytestRun()
    broken: Any = PytestRun(testsfailed=1)  # a file that could not be imported may have the check
    left(tmp_path, "made.one").pytest_collection_modifyitems(broken, [])
    left(tmp_path, "made.one", "mad?.*").pytest_collection_modifyitems(collected, items)
    with pytest.raises(pytest.UsageError) as caught:
        left(tmp_path, "made.one", "mode.two").pytest_collection_modifyitems(collected, items)
    assert "'mode.two' matches no check; the nearest is 'made.two'" in str(caught.value)


def test_the_controller_of_xdist_looks_at_what_its_workers_collect(tmp_path: Path) -> None:
    assert check_of_nodeid("site.py::disk") == "site.disk"
    ids = ["x/test_made.py::test_one[gpu01]", "x/test_made.py::TestMany::test_two"]
    left(tmp_path, "made.one", "made.two").pytest_xdist_node_collection_finished(ids)
    with pytest.raises(pytest.UsageError, match=r"'made\.three' matches no check"):
        left(tmp_path, "made.three").pytest_xdist_node_collection_finished(ids)


def test_every_shipped_check_is_found_in_its_source() -> None:
    import_checks()
    parts = {"matrix.work", "nccl.bandwidth"}  # of other checks
    found = {name for path in check_files() for name in names_in(path, _CHECK)}
    assert found == CHECKS.keys() - parts
