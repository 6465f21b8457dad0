"""The container suite on real Slurm with our plugin, and with the Pyxis that GPUCLUSTER_TEST_PYXIS names, if any."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
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
from pytest_gpucluster.sandbox import Sandbox
from pytest_gpucluster.suites.container.containers import NamedContainers, remove_containers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


NODES = ("gpu01", "gpu02")
SUITE = ROOT / "suites" / "container" / "test_container.py"
FAULTS = {
    "image_missing": "container.import",
    "image_corrupt": "container.import",
    "mount_source_missing": "container.mounts",
    "pyxis_missing": "container.plugin",
    "container_left": "container.leftovers",
}


def test_each_fault_has_its_own_verdict_and_a_healthy_node_passes_everything(tmp_path: Path) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=len(FAULTS) + 1, gpus_per_node=2)
        node_of = dict(zip(FAULTS, sandbox.nodes, strict=False))
        for kind, node in node_of.items():
            sandbox.fault(kind, node)
        run = run_pytest(tmp_path, on(sandbox), where=[str(SUITE)])
        healthy = sandbox.nodes[-1]
        assert list((sandbox.layout.node(healthy) / "enroot").glob("pyxis*")) == []
    results = [event for event in run.events if event["event"] == "result"]
    failed = {(it["node"], it["check"]) for it in results if it["outcome"] == "failed" and it["node"]}
    assert failed == {(node_of[kind], check) for kind, check in FAULTS.items()}, run.out[-3000:]
    ends = {it["check"]: it["outcome"] for it in results if it["node"] == healthy}
    assert len(ends) == 20
    assert set(ends.values()) == {"passed"}, ends


@pytest.mark.skipif("GPUCLUSTER_TEST_PYXIS" not in os.environ, reason="no Pyxis of a site is named")
def test_with_the_site_s_pyxis(tmp_path: Path) -> None:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, gpus_per_node=2, pyxis=os.environ["GPUCLUSTER_TEST_PYXIS"])
        done = run_pytest(tmp_path, on(sandbox), where=[str(SUITE)])
        assert done.rc == 0, done.out[-3000:]


# -- images by name ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """Two nodes, and the containers by name that runs make there."""

    slurm: Slurm
    allocation: Allocation
    channel: Fleet

    def store(self) -> NamedContainers:
        """Return what one run knows of containers: nothing at first."""
        return NamedContainers(self.slurm, self.allocation, self.channel, deadline=60)


@pytest.fixture
def held(sandbox: Sandbox) -> Iterator[Held]:
    slurm = Slurm(LocalTransport(sandbox.env))
    request = AllocationRequest(nodes=NODES)
    with Allocation.request(slurm, request) as allocation, Fleet.over_slurm(slurm, allocation) as fleet:
        yield Held(slurm, allocation, fleet)


@pytest.fixture
def image(sandbox: Sandbox, tmp_path: Path) -> str:
    return str(shutil.copy(sandbox.layout.root / "images" / "sandbox.sqsh", tmp_path / "image.sqsh"))


def test_one_import_for_many_and_removed_at_the_end(held: Held, image: str) -> None:
    store = held.store()
    first = store.ensure(image)
    assert set(first.seconds) == set(NODES)
    assert store.ensure(image) is first
    assert store.remove(first.name, ["gpu01"]) == {}
    store._known.clear()  # as another run would start
    again = store.ensure(image)
    assert (set(again.seconds), again.reused) == ({"gpu01"}, ("gpu02",))
    failed = store.ensure("/nonexistent.sqsh").failed
    assert set(failed) == set(NODES)
    assert failed["gpu01"].code == "no_such_file"
    store.close()
    assert store.listed(NODES) == {"gpu01": (), "gpu02": ()}


def test_containers_go_with_their_job_and_those_of_others_stay(held: Held, image: str) -> None:
    slurm, job, store = held.slurm, held.allocation, held.store()
    environment = EnvironmentConfig(container_image=image)
    request = StepRequest(argv=("true",), nodes=("gpu01",), environment=environment)
    assert run_step(slurm, job, request).ok
    assert run_step(slurm, job, request).ok
    own = f"pyxis_{container_name(job.job_id, 'step', image)}"
    assert store.listed(["gpu01"]) == {"gpu01": (own,)}
    for name in ("gpucluster-4000000-x", "gpucluster-kept-x-y", "mine"):
        options = PyxisOptions(image=image, name=name)
        assert run_step(slurm, job, StepRequest(argv=("true",), nodes=("gpu01",), pyxis=options)).ok
    assert remove_containers(slurm, held.channel, {job.job_id}) == []
    assert store.listed(["gpu01"]) == {"gpu01": ("pyxis_gpucluster-kept-x-y", "pyxis_mine")}
    for name in ("gpucluster-kept-x-y", "mine"):
        store.remove(name, ["gpu01"])
