"""Where tasks ran: recorded roots, and steps on a real Slurm with and without Pyxis."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.cluster.slurm import task_place
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from pytest_gpucluster.cluster.slurm.task_place import Stated
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core.errors import StepMisplaced
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox.spank import image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODES = ("gpu01", "gpu02")
HOST = "259:2:/"
NAMED = Stated("/i.sqsh", "gpucluster-7-ab")


def task(rank: int, node: str, root: str = HOST, image: str = "") -> TaskResult:
    return TaskResult(rank, node, 0, root=root, image=image)


@pytest.mark.parametrize(
    ("container", "root"),
    [
        (NAMED, "259:2:/data/pyxis_7_gpucluster-7-ab"),
        (NAMED, "259:2:/var/lib/enroot/data/1000/pyxis_gpucluster-7-ab//deleted"),
        (Stated("/i.sqsh"), "0:52:/data/pyxis_7.12"),
        (Stated("/i.sqsh"), "0:52:/data/pyxis_7_7.12"),
    ],
)
def test_the_folder_of_the_container_is_the_root(container: Stated, root: str) -> None:
    tasks = [task(0, "gpu01", root)]
    assert task_place.undecided(container, tasks) == ()
    assert task_place.outside(container, tasks, {}) == {}


def test_a_squashfs_that_is_mounted_has_another_device_than_the_host() -> None:
    tasks = [task(0, "gpu01", "0:77:/"), task(1, "gpu02", HOST)]
    assert task_place.undecided(Stated("/i.sqsh"), tasks) == NODES
    found = task_place.outside(Stated("/i.sqsh"), tasks, dict.fromkeys(NODES, HOST))
    assert found.keys() == {"gpu02"}
    assert found["gpu02"].startswith("the task ran on the host, not in the image /i.sqsh: ")


@pytest.mark.parametrize(
    ("root", "host", "reason"),
    [
        ("", HOST, "whether the task ran in the image /i.sqsh is not known"),
        (HOST, "", "whether the task ran in the image /i.sqsh is not known"),
        ("259:2:/data/pyxis_x", HOST, "the task ran in the container pyxis_x, not in the image /i.sqsh"),
    ],
)
def test_what_does_not_show_the_container_is_no_proof(root: str, host: str, reason: str) -> None:
    found = task_place.outside(NAMED, [task(0, "gpu01", root)], {"gpu01": host} if host else {})
    assert found["gpu01"].startswith(reason)


MINE = Stated("/i.sqsh", "mine")


@pytest.mark.parametrize(
    ("images", "container", "expected", "at_fault"),
    [
        ("1 1 1", NAMED, "", {}),
        ("1 1 2", NAMED, "", {"gpu03": "on gpu[01-02] another"}),
        ("1 2", NAMED, "", {"gpu01": "on gpu02", "gpu02": "on gpu01"}),
        # images of several architectures differ; an image without cksum has no fingerprint
        ("1 aarch64-2-9 x86_64-", NAMED, "", {}),
        ("1", MINE, "x86_64-1-9", {}),
        ("1", MINE, "x86_64-2-9", {"gpu01": "container mine (fingerprint x86_64-1-9)"}),
    ],
)
def test_one_name_is_one_image(images: str, container: Stated, expected: str, at_fault: Any) -> None:
    shown = [f"x86_64-{one}-9" if one.isdigit() else one for one in images.split()]
    tasks = [task(n, f"gpu{n + 1:02}", image=image) for n, image in enumerate(shown)]
    found = task_place.other_image(container, tasks, expected)
    assert found.keys() == at_fault.keys()
    assert all(words in found[node] for node, words in at_fault.items())


def test_three_tasks_and_one_are_not_two_and_two() -> None:
    tasks = [task(n, "gpu01") for n in range(3)] + [task(3, "gpu02")]
    found = task_place.miscounted(NODES, 2, 4, tasks)
    assert set(found) == set(NODES)
    assert "2 per node: 3 on gpu01, 1 on gpu02" in found["gpu01"]
    assert task_place.miscounted(NODES, 2, 4, tasks[:2]) == {}  # others did not start
    assert task_place.miscounted(NODES, None, 4, tasks) == {}


def test_options_of_srun_state_the_container() -> None:
    words = ["--nodes=2", "--container-name=mine:exec", "--container-image=nvcr.io#a:1"]
    assert task_place.stated(words) == Stated("nvcr.io#a:1", "mine")
    assert not task_place.stated(["--container-mounts=/a:/b"])


# --- on a real Slurm


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[Sandbox, Allocation]]:
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, gpus_per_node=2)
        slurm = Slurm(LocalTransport(sandbox.env))
        with Allocation.request(slurm, AllocationRequest(nodes=NODES)) as allocation:
            yield sandbox, allocation


@pytest.mark.thorough
def test_a_step_proves_its_container(held: tuple[Sandbox, Allocation], tmp_path: Path) -> None:
    sandbox, allocation = held
    sqsh, other = str(sandbox.layout.root / "images" / "sandbox.sqsh"), str(tmp_path / "o.sqsh")

    def step(*argv: str, **options: Any) -> StepResult:
        return run_step(allocation.slurm, allocation, StepRequest(argv, **options))

    inside = step("cat", "/etc/os-release", ntasks_per_node=2, pyxis=PyxisOptions(image=sqsh))
    assert all(f"ID={image.ID}" in task.stdout and "/pyxis_gpucluster-" in task.root for task in inside.tasks)
    assert len({task.image for task in inside.tasks if task.image}) == 1
    assert [bool(task.image) for task in inside.tasks] == [True, False] * 2
    assert allocation.host_roots == {}  # the folder's name was proof enough

    # another image under the name of the site's container
    root = tmp_path / "root"
    subprocess.run(["unsquashfs", "-no-xattrs", "-quiet", "-d", root, sqsh], check=True, capture_output=True)
    (root / "etc" / "environment").write_text("PATH=/usr/bin:/bin\nVERSION=2\n")
    subprocess.run(["mksquashfs", root, other, "-all-root"], check=True, capture_output=True)
    shutil.rmtree(root)
    assert step("true", pyxis=PyxisOptions(image=other, name="mine:create")).ok
    environment = EnvironmentConfig(container_image=sqsh, container_name="mine")
    with pytest.raises(StepMisplaced, match=rf"mine \(.*\) is not from the image {sqsh}") as caught:
        step("true", environment=environment)
    assert set(caught.value.nodes) == set(NODES)
    gone = environment.model_copy(update={"container_image": str(tmp_path / "gone.sqsh")})
    failed = r"since a second import of the image failed: .*\(.*gone.sqsh"
    with pytest.raises(StepMisplaced, match=failed):
        step("true", environment=gone)
    # a container that did not start has its own message
    missing = step("true", pyxis=PyxisOptions(image="./missing.sqsh"))
    assert "does not exist on the node" in (missing.hint or "")


@pytest.mark.thorough
def test_a_step_with_other_numbers_of_tasks_is_no_result(held: tuple[Sandbox, Allocation]) -> None:
    _, allocation = held
    request = StepRequest(("true",), nodes=NODES, ntasks_per_node=2)
    assert run_step(allocation.slurm, allocation, request).ok
    environment = EnvironmentConfig(srun_args=("--ntasks-per-node=3", "--distribution=plane=3"))
    with pytest.raises(StepMisplaced, match="2 per node: 3 on gpu01, 1 on gpu02"):
        run_step(allocation.slurm, allocation, replace(request, environment=environment))
