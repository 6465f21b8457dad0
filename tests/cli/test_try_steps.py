"""`gpucluster check --try`: the environments that are tried, and what each suite would find in them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli import try_steps
from pytest_gpucluster.cluster.slurm import client
from pytest_gpucluster.cluster.slurm import step as slurm_step
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.core.errors import GpuClusterError, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.step import StepRequest

BARE = "system\tUbuntu 24.04\npackages\t{}\npython\t/usr/bin/python3 3.12.3\nend\n"
TORCH = 'packages\t{"torch": "2.5.1"}\npython\t/opt/conda/bin/python 3.11.9\ndevices\t8\nend\n'
TESTS = f"program all_reduce_perf\t/usr/bin/all_reduce_perf\n{BARE}"
FILE = """
slurm: {partition: batch}
nodes: gpu[01-04]
profile: h200-8
"""


class Held(NamedTuple):
    """An allocation."""

    nodes: tuple[str, ...]
    job_id: int = 7


class Site:
    """A Slurm whose steps print `said[label of the image or python]`; an exception is raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, printed: dict[str, Any], *, idle: bool = True) -> None:
        self.said = printed
        self.asked: list[StepRequest] = []
        self.held: list[tuple[str, float]] = []
        state = "IDLE" if idle else "ALLOCATED"
        nodes = {name: NodeInfo(name, state, gres={"gpu": 8}) for name in ("gpu01", "gpu02")}
        self.retry_for, self.transport = 1, self
        self.nodes: Any = lambda: nodes
        monkeypatch.setattr(client, "make_slurm", lambda _cluster: self)
        monkeypatch.setattr(try_steps, "held_node", self.hold)
        monkeypatch.setattr(slurm_step, "run_step", self.run)

    def close(self) -> None:
        """Close the connection."""

    @contextlib.contextmanager
    def hold(self, _cluster: Any, _slurm: Any, _group: Any, node: str, _say: Any, *, seconds: float) -> Iterator[Any]:
        self.held.append((node, seconds))
        yield Held((node,))

    def run(self, _slurm: Any, held: Any, request: StepRequest) -> StepResult:
        self.asked.append(request)
        place = request.environment
        printed = self.said[(place.container_image or place.python) if place else ""]
        if isinstance(printed, Exception):
            raise printed
        rc = 0 if printed.endswith("end\n") else 1
        task = TaskResult(0, held.nodes[0], rc, stdout=printed, stderr="module load x: failed\n")
        return StepResult(task.rc or 0, (task,), "", 0.1, "srun")


def tried(folder: Path, text: str) -> tuple[dict[str, try_steps.Tried], dict[str, str]]:
    path = folder / "lab.yaml"
    path.write_text(FILE + text)
    found, left = try_steps.try_suites(config.load_cluster(path), lambda _: None)
    return {one.suite: one for one in found}, left


def test_each_environment_is_tried_once_in_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, {"nvcr.io#pt:1": TORCH, "/shared/nt.sqsh": TESTS, "": BARE, "/m/python": BARE})
    found, left = tried(
        tmp_path,
        "environments: {default: {container_image: nvcr.io#pt:1}, m: {python: /m/python}, "
        "nt: {container_image: /shared/nt.sqsh}}\n"
        "ddp: {}\ntraining: {}\nray: {environment: m}\ntensorflow: {environment: none}\n"
        "nccl: {environment: nt}\n",
    )
    assert len(site.asked) == 4  # of ddp, training and burnin; of ray, tensorflow and nccl
    assert site.held == [("gpu01", try_steps.SPARE + 4 * try_steps.STEP)]
    assert all((it.timeout, it.mpi, it.ntasks_per_node) == (try_steps.STEP, "none", 1) for it in site.asked)
    assert left == {}
    assert found["ddp"].runs == "torch 2.5.1 (sees 8 GPUs), python /opt/conda/bin/python 3.11.9"
    assert (found["ddp"].missing, found["ddp"].environment) == ("", "environments.default")
    assert found["nccl"].environment == "environments.nt"
    assert found["nccl"].runs == "nccl-tests: /usr/bin/all_reduce_perf, started by srun --mpi=default"
    assert found["ray"].missing.startswith("ray is not in /usr/bin/python3: install it")
    assert found["tensorflow"].environment == try_steps.OUTSIDE


@pytest.mark.parametrize("profile", ["h200-8", "sandbox-h200"])
def test_only_a_simulated_burn_in_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    Site(monkeypatch, {"": BARE})
    monkeypatch.setattr(f"{__name__}.FILE", FILE.replace("h200-8", profile))
    burnin = tried(tmp_path, "burnin: {}\n")[0]["burnin"]
    assert (burnin.missing == "", "GPUs are simulated" in burnin.runs) == (2 * (profile != "h200-8",))


def test_the_job_is_no_longer_than_the_file_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurm.time of a draft is at most MaxTime of the partition: Slurm refuses a longer job."""
    monkeypatch.setattr(f"{__name__}.FILE", FILE.replace("batch", "short, time: 4m"))
    site = Site(monkeypatch, {"": TORCH, "/m/python": TORCH})
    tried(tmp_path, "environments: {m: {python: /m/python}}\nddp: {environment: m}\n")
    assert site.held == [("gpu01", 240)]


def test_what_is_missing_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "nccl: {command: /opt/nt/all_reduce_perf -g 1}\n"
    site = Site(monkeypatch, {"": f"program /opt/nt/all_reduce_perf\t/opt/nt/all_reduce_perf\n{BARE}"})
    assert tried(tmp_path, command)[0]["nccl"].runs.startswith("nccl-tests: /opt/nt/all_reduce_perf")
    assert all(" /opt/nt/all_reduce_perf;" in one.argv[-1] for one in site.asked)
    Site(monkeypatch, {"": BARE})
    assert "neither /opt/nt/all_reduce_perf nor torch" in tried(tmp_path, command)[0]["nccl"].missing
    # where init finds them too: what nccl.command names is what the run starts
    built = "/opt/nccl-tests/build/all_reduce_perf"
    Site(monkeypatch, {"": f"program {built}\t{built}\nprogram all_reduce_perf\t{built}\n{BARE}"})
    by_path = tried(tmp_path, f"nccl: {{command: {built} -g 1}}\n")[0]["nccl"]
    assert (by_path.runs.partition(",")[0], by_path.missing) == (f"nccl-tests: {built}", "")
    assert f"(built in {built}: nccl.command may name it)" in tried(tmp_path, "nccl: {}\n")[0]["nccl"].missing
    Site(monkeypatch, {"": f"program my_perf\t/usr/bin/my_perf\n{BARE}"})
    by_name = tried(tmp_path, "nccl: {command: my_perf -g 1}\n")[0]["nccl"]
    assert by_name.runs.startswith("nccl-tests: /usr/bin/my_perf")
    Site(monkeypatch, {"": BARE})
    found, _ = tried(tmp_path, "mpi: {}\nddp: {nodes: 1}\n")
    assert "neither nccl-tests nor torch was found" in found["nccl"].missing
    assert "environments.default" in found["nccl"].missing
    assert "mpirun is not on PATH; mpicc is not on PATH: load its module" in found["mpi"].missing
    assert "so no GPU would be loaded" in found["burnin"].missing
    assert tried(tmp_path, "rdma: {}\n")[0]["rdma"].missing == "ib_write_bw is not on PATH"
    assert "nothing between nodes can be proved" in found["ddp"].missing


REFUSED = StepError("srun: no task started: the image is not there (exit 1; repeat: srun -n 1 a)")
REFUSED.brief = "srun: no task started: the image is not there (exit 1)"


@pytest.mark.parametrize(
    ("printed", "missing"),
    [
        (REFUSED, "the image is not there (exit 1)"),
        ("program x\t/x\n", "module load x: failed"),
        (TORCH.replace("devices\t8", "devices\t0"), "torch sees no GPU there"),
        (TORCH.replace("devices\t8\n", ""), "torch is installed, and does not start"),
    ],
)
def test_step_that_fails_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Any, missing: str
) -> None:
    Site(monkeypatch, {"": printed})
    found, _ = tried(tmp_path, "ddp: {}\n")
    assert missing in found["ddp"].missing
    assert "repeat:" not in found["ddp"].missing


@pytest.mark.parametrize(
    ("nodes", "section", "runs", "missing"),
    [
        ("gpu01", "{}", "nothing between nodes", ""),  # the run itself accepts a cluster of one node
        ("gpu[01-04]", "{nodes: 1}", "torch", "it would have one node: nothing between nodes can be proved"),
        ("gpu[01-04]", "{}", "torch", ""),
    ],
)
def test_one_node_alone_can_run_where_the_cluster_has_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, section: str, runs: str, missing: str
) -> None:
    Site(monkeypatch, {"": TORCH})
    monkeypatch.setattr(f"{__name__}.FILE", FILE.replace("gpu[01-04]", nodes))
    ddp = tried(tmp_path, f"ddp: {section}\n")[0]["ddp"]
    assert runs in ddp.runs
    assert (missing in ddp.missing) if missing else not ddp.missing


def test_report_is_narrow_and_the_status_counts_suites_with_a_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(monkeypatch, {"": BARE})
    path = tmp_path / "lab.yaml"
    path.write_text(FILE)
    assert cli.main(["check", str(path), "--try"]) == 0  # burnin and nccl cannot run, and have no section
    path.write_text(f"{FILE}ddp: {{}}\n")
    assert cli.main(["check", str(path), "--try"]) == 1
    out = capsys.readouterr().out
    assert "gpu[01-04]: tried on gpu01" in out
    assert "  ddp           CANNOT RUN: torch is not in /usr/bin/python3: " in out
    report = out[out.rindex("gpu[01-04]: tried") :]
    assert max(map(len, report.splitlines())) < 80
    assert cli.main(["check", str(path), "--try", "--json"]) == 1
    document = capsys.readouterr().out
    assert '"missing": "torch is not in' in document
    assert '"suites_not_tried": []' in document
    site.said[""] = TORCH
    path.write_text(f"{FILE}ddp: {{}}\ncontroller: {{}}\nibfabric: {{}}\n")
    assert cli.main(["check", str(path), "--try"]) == 0
    assert capsys.readouterr().out.endswith("what they find: controller, ibfabric\n")


def test_without_an_idle_node_or_slurm_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(monkeypatch, {}, idle=False)
    (tmp_path / "lab.yaml").write_text(FILE)
    assert cli.main(["check", str(tmp_path / "lab.yaml"), "--try"]) == 1
    assert "gpu[01-04]: not tried: no node of it is idle (gpu01: " in capsys.readouterr().out
    assert site.held == []
    monkeypatch.setattr(client, "make_slurm", lambda _cluster: None)
    with pytest.raises(GpuClusterError, match="--try: there are no steps: the nodes are reached over SSH"):
        tried(tmp_path, "access: ssh\n".replace("slurm", ""))
