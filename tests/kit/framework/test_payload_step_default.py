"""`environments.default` is the environment of every suite and step that names none; `none` is no environment."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.slurm.step import StepRequest, environment_request
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.models import EnvironmentConfig
from pytest_gpucluster.core import given
from pytest_gpucluster.core.errors import ConfigError, NotAvailable
from pytest_gpucluster.kit.framework.framework_config import FrameworkConfig
from pytest_gpucluster.kit.framework.framework_step import FrameworkStepRunner
from pytest_gpucluster.kit.nccl import nccl_step
from pytest_gpucluster.run import session as plugin_session
from pytest_gpucluster.run.facts import ItemView
from pytest_gpucluster.run.item_record import Record
from pytest_gpucluster.suites.matrix.config import MatrixConfig
from pytest_gpucluster.suites.matrix.steps import Matrix
from pytest_gpucluster.suites.nccl.steps import image_of

if TYPE_CHECKING:
    from pytest_gpucluster.config import Cluster

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "src/pytest_gpucluster/examples/clusters"
IMAGE = "nvcr.io#nvidia/pytorch:24.05-py3"
DEFAULT = EnvironmentConfig(container_image=IMAGE, python="/in/python", exports={"A": "1"}, modules=("gcc",))


def cluster(tmp_path: Path, more: str = "") -> Cluster:
    path = tmp_path / "lab.yaml"
    path.write_text(
        "nodes: 'n[1-2]'\nenvironments:\n  other: {python: /other}\n"
        f"  default: {{container_image: {IMAGE}, python: /in/python, exports: {{A: '1'}}, modules: [gcc]}}\n{more}"
    )
    return load_cluster(path)


def line(request: StepRequest) -> str:
    """Return the options of srun and what each task runs first."""
    full = environment_request(request.environment, request) if request.environment else request
    return " ".join((*full.options(), full.prelude, *(f"{key}={value}" for key, value in full.env.items())))


class Held:
    """An allocation of these nodes, of which none is lost."""

    slurm = True

    def __init__(self, nodes: tuple[str, ...] = (), cluster: Any = None) -> None:
        self.nodes, self.cluster = nodes, cluster
        self.lost: dict[str, str] = {}
        self.inventory: dict[str, Any] = {}

    def allocation_of(self, _: str) -> Held:
        return self


def nccl(
    of: Cluster, there: str, monkeypatch: pytest.MonkeyPatch, *, failing: str = ""
) -> tuple[Any, list[StepRequest]]:
    """Return the steps of the nccl suite, and the requests; a task finds the programs whose words are `there`."""
    asked: list[StepRequest] = []

    def run(_slurm: Any, _held: Any, request: StepRequest) -> StepResult:
        asked.append(request)
        rc = 0 if re.search(there, " ".join(request.argv)) else 1
        tasks = tuple(TaskResult(rank, node, rc, stderr=failing) for rank, node in enumerate(request.nodes))
        return StepResult(rc, tasks, "", 0.1, "srun")

    monkeypatch.setattr(nccl_step, "run_step", run)
    make: Any = nccl_step.NcclStep
    return make(None, Held(of.groups[0].names), of, Held(), {}, gpus_per_node=8), asked


def test_nccl_of_the_basepod_runs_in_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = nccl(load_cluster(EXAMPLES / "dgx-a100-basepod.yaml"), "torch", monkeypatch)
    made.whole(("dgx01", "dgx02"))
    for request in asked:  # also the steps that look for the programs
        assert f"--container-image={IMAGE}" in line(request)
    assert made.runner == "payload"
    assert "NCCL_SOCKET_IFNAME=enp226s0" in line(asked[-1])
    assert "--container-mounts=/home:/home,/raid:/raid,/shared:/shared:ro" in line(asked[-1])


CONDA = ["module load openmpi/4.1.5", "conda activate /shared/conda", "--mpi=pmi2", "=ib0"]


@pytest.mark.parametrize(("name", "words"), [("v100-modules-conda", CONDA), ("aws-g4dn", ["NCCL_SOCKET_IFNAME=ens5"])])
def test_nccl_of_the_examples_runs_in_their_environment(
    name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = load_cluster(EXAMPLES / f"{name}.yaml")
    made, asked = nccl(of, "all_reduce_perf", monkeypatch)
    made.whole(of.groups[0].names)
    assert made.runner == "nccl-tests"
    assert all(word in line(asked[-1]) for word in words)


def test_without_it_the_failed_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = nccl(cluster(tmp_path), "nothing", monkeypatch, failing="module load gcc: failed on n1\n")
    with pytest.raises(NotAvailable, match=r"n\[1-2\] in environments\.default \(module load gcc: failed on n1\)"):
        _ = made.runner


def test_section_without_a_name_has_the_default(tmp_path: Path) -> None:
    of = cluster(tmp_path, "ddp: {}\nhorovod: {environment: none}\nray: {environment: other}\n")
    found = {name: Steps(of, getattr(of, name)).environment for name in ("ddp", "horovod", "ray")}
    assert found == {"ddp": DEFAULT, "horovod": None, "ray": EnvironmentConfig(python="/other")}
    assert image_of(of) == IMAGE
    assert of.environment(None) == DEFAULT
    with pytest.raises(ConfigError, match=r"^environment 'x' is not among the environments: default, other"):
        of.environment("x")


class Steps(FrameworkStepRunner[Any]):
    def __init__(self, of: Cluster, config: FrameworkConfig) -> None:
        super().__init__(Held(), of, {}, config, of.groups[0].names)  # type: ignore[arg-type]


def test_srun_fixture_has_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[StepRequest] = []

    def run(_slurm: Any, _held: Any, request: StepRequest) -> StepResult:
        asked.append(request)
        return StepResult(0, (), "", 0.1, "srun")

    monkeypatch.setattr(plugin_session, "run_step", run)
    mine: Any = Held(("n1",), cluster(tmp_path))
    for name in ("need_slurm", "run_step"):
        setattr(mine, name, partial(getattr(plugin_session.ClusterSession, name), mine))
    srun = given.srun(ItemView(mine, Record("site", "site.step", "n1")))
    for more in ({}, {"environment": "none"}, {"environment": "other"}):
        srun(["hostname"], **more)
    assert [request.environment for request in asked] == [DEFAULT, None, EnvironmentConfig(python="/other")]
    assert {request.nodes for request in asked} == {("n1",)}


def test_cells_of_the_matrix_have_the_default_with_or_without_its_image(tmp_path: Path) -> None:
    make: Any = Matrix
    matrix = make(Held(), Held(cluster=cluster(tmp_path)), None, MatrixConfig(), ("n1",))
    for row in ("srun_pyxis", "srun_framework"):
        assert matrix._environment(row) == DEFAULT
        assert not matrix._absent(row, "cpu")
    for row in ("srun", "mpirun"):
        assert matrix._environment(row) == EnvironmentConfig(exports={"A": "1"}, modules=("gcc",))
