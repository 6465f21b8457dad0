"""The container suite on real Slurm with our plugin, and with the Pyxis that GPUCLUSTER_TEST_PYXIS names, if any."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from paths import ROOT
from plugin_helpers import on, run_pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.run_mark import container_name
from pytest_gpucluster.kit.container.containers import NamedContainers, remove_containers
from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from plugin_helpers import Run

SUITE = ROOT / "suites" / "container" / "test_container.py"
FAULTS = {
    "image_missing": "container.import",
    "image_corrupt": "container.import",
    "mount_source_missing": "container.mounts",
    "pyxis_missing": "container.plugin",
    "container_left": "container.leftovers",
}


@pytest.fixture(scope="module")
def faulty() -> Iterator[tuple[Sandbox, dict[str, str]]]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(FAULTS) + 1, gpus_per_node=2)
        node_of = dict(zip(FAULTS, sandbox.nodes, strict=False))
        for kind, node in node_of.items():
            sandbox.fault(kind, node)
        yield sandbox, node_of


@pytest.fixture(scope="module")
def run(faulty: tuple[Sandbox, dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_pytest(tmp_path_factory.mktemp("run"), on(faulty[0]), where=[str(SUITE)])


@pytest.mark.parametrize("kind", FAULTS)
def test_fault_has_its_own_verdict(run: Run, faulty: tuple[Sandbox, dict[str, str]], kind: str) -> None:
    node = faulty[1][kind]
    failed = {
        event["check"]
        for event in run.events
        if event.get("outcome") == "failed" and event.get("node") == node
    }
    assert failed == {FAULTS[kind]}, run.out[-3000:]


def test_healthy_node_passes_everything(run: Run, faulty: tuple[Sandbox, dict[str, str]]) -> None:
    healthy = faulty[0].nodes[-1]
    ends = {
        event["check"]: event["outcome"]
        for event in run.events
        if event.get("node") == healthy and "check" in event
    }
    assert len(ends) == 21
    assert ends.pop("container.sshd") == "not applicable"
    assert set(ends.values()) == {"passed"}, ends
    left = (faulty[0].layout.node(healthy) / "enroot").glob("pyxis*")
    assert list(left) == []


@pytest.mark.skipif("GPUCLUSTER_TEST_PYXIS" not in os.environ, reason="no Pyxis of a site is named")
def test_with_the_site_s_pyxis(tmp_path: Path) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, gpus_per_node=2, pyxis=os.environ["GPUCLUSTER_TEST_PYXIS"])
        done = run_pytest(tmp_path, on(sandbox), where=[str(SUITE)])
        assert done.rc == 0, done.out[-3000:]


# -- images by name ---------------------------------------------------------------------------------------------


@pytest.fixture
def store(sandbox: Sandbox) -> Iterator[NamedContainers]:
    slurm = Slurm(LocalTransport(sandbox.env))
    request = AllocationRequest(nodes=("gpu01", "gpu02"))
    with Allocation.request(slurm, request) as held, Fleet.over_slurm(slurm, held) as fleet:
        made = NamedContainers(slurm, held, fleet, deadline=60)
        yield made
        made.close()


def test_one_import_for_many_and_removed_at_the_end(
    store: NamedContainers, sandbox: Sandbox, tmp_path: Path
) -> None:
    image = tmp_path / "image.sqsh"
    shutil.copy(sandbox.layout.root / "images" / "sandbox.sqsh", image)
    nodes = ("gpu01", "gpu02")
    first = store.ensure(str(image))
    assert set(first.seconds) == set(nodes)
    assert store.ensure(str(image)) is first
    assert store.remove(first.name, ["gpu01"]) == {}
    store._known.clear()  # as another run would start
    again = store.ensure(str(image))
    assert (set(again.seconds), again.reused) == ({"gpu01"}, ("gpu02",))
    store.close()
    assert store.listed(nodes) == {"gpu01": (), "gpu02": ()}


def test_what_is_kept_is_imported_anew_where_its_image_was_made_anew(
    store: NamedContainers, sandbox: Sandbox, tmp_path: Path
) -> None:
    image = tmp_path / "image.sqsh"
    shutil.copy(sandbox.layout.root / "images" / "sandbox.sqsh", image)
    store._keep = True
    kept = store.ensure(str(image))
    assert re.fullmatch(r"gpucluster-kept-[0-9a-f]{8}-[0-9a-f]{8}", kept.name)
    os.utime(image, (1, 1))  # made anew
    store._known.clear()
    newer = store.ensure(str(image))
    assert newer.name != kept.name
    assert set(newer.replaced) == {"gpu01", "gpu02"}
    store.close()
    assert set(store.listed(["gpu01"]).values()) == {(f"pyxis_{newer.name}",)}
    store.remove(newer.name, ["gpu01", "gpu02"])


def test_containers_go_with_their_job_and_those_of_others_stay(
    store: NamedContainers, sandbox: Sandbox
) -> None:
    slurm, held = store._slurm, store._allocation
    image = str(sandbox.layout.root / "images" / "sandbox.sqsh")
    environment = EnvironmentConfig(container_image=image)
    request = StepRequest(argv=("true",), nodes=("gpu01",), environment=environment)
    assert run_step(slurm, held, request).ok
    assert run_step(slurm, held, request).ok
    own = f"pyxis_{container_name(held.job_id, 'step', image)}"
    assert store.listed(["gpu01"]) == {"gpu01": (own,)}
    for name in ("gpucluster-4000000-x", "gpucluster-kept-x-y", "mine"):
        options = PyxisOptions(image=image, name=name)
        assert run_step(slurm, held, StepRequest(argv=("true",), nodes=("gpu01",), pyxis=options)).ok
    assert remove_containers(slurm, store._channel, {held.job_id}) == []
    assert store.listed(["gpu01"]) == {"gpu01": ("pyxis_gpucluster-kept-x-y", "pyxis_mine")}
    for name in ("gpucluster-kept-x-y", "mine"):
        store.remove(name, ["gpu01"])


def test_image_that_is_not_there(store: NamedContainers) -> None:
    failed = store.ensure("/nonexistent.sqsh").failed
    assert set(failed) == {"gpu01", "gpu02"}
    assert "/nonexistent.sqsh does not exist on the node" in failed["gpu01"]
