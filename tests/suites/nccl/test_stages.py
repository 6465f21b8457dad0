"""How the nccl runner starts its steps: every option of the cluster file in srun's words, and on a real Slurm."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import (
    DRAIN,
    MONITOR,
    CounterExample,
    assert_as_expected,
    name,
)
from paths import DATA, ROOT

from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import BandwidthThreshold, Cluster, EnvironmentConfig, Group, Profile
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, StepError, StepMisplaced, StepTimeout
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl import nccl_step as runners
from pytest_gpucluster.kit.nccl import nccl_validation as beliefs
from pytest_gpucluster.kit.nccl.measurement import Localisation
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_step import NcclCommand, NcclMeasurement
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, NcclRun
from pytest_gpucluster.kit.payloads.collective import CONCLUDED
from pytest_gpucluster.kit.payloads.rendezvous import GIVEN_UP
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl import stage as nccl_stage
from pytest_gpucluster.suites.nccl import stages as proofs
from pytest_gpucluster.suites.nccl import steps as nccl_steps
from pytest_gpucluster.suites.nccl.steps import NcclRunner
from pytest_gpucluster.suites.nccl.thresholds import Thresholds
from slurm_sandbox import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.kit.nccl.measurement import Measurement
    from pytest_gpucluster.sandbox import Sandbox

NODES = ("gpu01", "gpu02")
COMMAND = "all_reduce_perf -b 1M -e 1M -f 2 -g 1"


def cluster(environments: Mapping[str, EnvironmentConfig] | None = None, **nccl: Any) -> Cluster:
    profile = Profile(name="p", description="", source="")
    groups = (Group(nodes="gpu[01-02]", profile=profile),)
    plain = Cluster(name="prod", groups=groups, environments=dict(environments or {}))
    return plain.model_copy(update={"nccl": NcclConfig(command=COMMAND, **nccl)})


@dataclass
class Channel:
    """Answers commands as a node would: `there` are words of commands that succeed."""

    there: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def ask(self, command: str, **_: Any) -> dict[str, Answer]:
        return {node: self.ask_node(node, command) for node in NODES}

    def ask_node(self, node: str, command: str, **_: Any) -> Answer:
        self.asked.append(command)
        return Answer(node, 0 if any(word in command for word in self.there) else 1, b"")


@dataclass
class Held:
    """An allocation as far as the runner looks at it."""

    nodes: tuple[str, ...] = NODES


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[StepRequest]:
    """Record the steps instead of running them; each ends well and says nothing."""
    asked: list[StepRequest] = []

    def run(_: Any, __: Any, request: StepRequest) -> StepResult:
        asked.append(request)
        tasks = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(request.nodes))
        return StepResult(0, tasks, "", 0.1, "srun")

    for module in (runners, nccl_steps):
        monkeypatch.setattr(module, "run_step", run)
    return asked


def runner(
    there: tuple[str, ...] = (),
    *,
    gpus: int = 8,
    of: Cluster | None = None,
    channel: Channel | None = None,
    **nccl: Any,
) -> NcclRunner:
    world: tuple[Any, ...] = (None, Held(), of or cluster(**nccl), channel or Channel(there), {})
    return NcclRunner(*world, gpus_per_node=gpus)


def line(request: StepRequest) -> str:
    """Return the step as one line: options and command."""
    return shlex.join([*request.options(), *request.argv])


# --- nccl-tests under srun


@pytest.mark.parametrize("mpi", ["pmix", "pmi2"])
def test_under_srun_one_rank_a_gpu_with_the_mpi_that_is_asked_for(steps: list[StepRequest], mpi: str) -> None:
    runner(runner="nccl-tests", mpi=mpi).whole(NODES)
    (step,) = steps
    assert f"--mpi={mpi}" in step.options()
    assert {"--ntasks-per-node=8", "--gpus-per-task=1", "--nodes=2"} <= set(step.options())
    assert step.argv == ("all_reduce_perf", "-b", "8", "-e", "1048576", "-f", "2", "-g", "1")


def test_alone_is_one_process_a_node_with_all_gpus(steps: list[StepRequest]) -> None:
    runner(runner="nccl-tests", mpi="pmix").alone(NODES)
    (step,) = steps
    assert {"--ntasks-per-node=1", "--gres=gpu:8", "--mpi=none"} <= set(step.options())
    assert step.argv[-2:] == ("-g", "8")
    assert "unset" in step.argv[2]  # PMI and Slurm are hidden: else an MPI build would join the nodes


@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"]
)
def test_each_collective_has_its_program_and_its_payload(steps: list[StepRequest], collective: str) -> None:
    runner(runner="nccl-tests", mpi="pmix").whole(NODES, collective)
    runner(runner="payload").whole(NODES, collective)
    tests, payload = steps
    assert tests.argv[0] == f"{collective}_perf"
    begin = "8" if collective in ("all_reduce", "broadcast", "sendrecv") else str(2**20)
    assert tests.argv[2] == begin
    assert payload.argv[payload.argv.index("-c", 2) + 1] == collective


def test_a_folder_of_the_command_stays(steps: list[StepRequest]) -> None:
    of = cluster().model_copy(
        update={
            "nccl": NcclConfig(
                runner="nccl-tests", command="/opt/nt/build/all_reduce_perf -b 8 -e 8 -c 1 -n 5"
            )
        }
    )
    runner(of=of).whole(NODES, "alltoall")
    assert steps[0].argv[0] == "/opt/nt/build/alltoall_perf"
    assert steps[0].argv[-4:] == ("-c", "1", "-n", "5")  # what is no size is passed on


def test_exports_further_options_deadline_and_gpus(steps: list[StepRequest]) -> None:
    runner(
        runner="nccl-tests",
        mpi="pmi2",
        exports={"NCCL_IB_HCA": "mlx5", "OMPI_MCA_pml": "^ucx"},
        srun_args=("--exclusive", "--comment=x y"),
        gpus_per_node=4,
        deadline=77.0,
        hostid_from_slurm=True,
    ).whole(NODES)
    (step,) = steps
    assert step.env == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5", "OMPI_MCA_pml": "^ucx"}
    assert step.options()[-2:] == ["--exclusive", "--comment=x y"]
    assert "--ntasks-per-node=4" in step.options()
    assert step.timeout == 77.0
    assert "NCCL_HOSTID" in step.prelude


# --- mpirun, containers


def test_under_mpirun_the_step_is_one_task_that_starts_all_ranks(steps: list[StepRequest]) -> None:
    runner(runner="nccl-tests", launcher="mpirun", exports={"NCCL_IB_HCA": "mlx5"}).whole(NODES)
    (step,) = steps
    assert (step.nodes, step.ntasks_per_node, step.mpi) == (("gpu01",), 1, "none")
    assert "SLURM_NODELIST='gpu[01-02]'" in step.prelude
    assert "SLURM_TASKS_PER_NODE='8(x2)'" in step.prelude
    assert shlex.join(step.argv).startswith(
        "mpirun -np 16 --host gpu01:8,gpu02:8 --tag-output -x NCCL_DEBUG -x NCCL_DEBUG_SUBSYS "
        "-x NCCL_DEBUG_FILE -x NCCL_IB_HCA all_reduce_perf -b 8"
    )


def test_a_container_of_nccl_tests_has_the_environment_s_mounts(steps: list[StepRequest]) -> None:
    environments = {"nccl": EnvironmentConfig(container_mounts=("/raid:/raid",), container_remap_root=False)}
    of = cluster(environments, environment="nccl", container="/shared/nccl.sqsh", mpi="pmix")
    runner(of=of).whole(NODES)  # `auto`: with a container it is nccl-tests
    assert (
        "--container-image=/shared/nccl.sqsh --container-mounts=/raid:/raid --container-env=NCCL_DEBUG"
        " --no-container-remap-root"
    ) in line(steps[0])


COMPILE: dict[str, Any] = {
    "compile": True,
    "base_container": "base#pt:1",
    "container": "/s/nt.sqsh",
    "source": "/s/nccl-tests",
}


def test_nccl_tests_is_compiled_once_saved_and_used_again(steps: list[StepRequest]) -> None:
    made = runner(**COMPILE)
    assert "compiled" in made.prepare_image()
    (build,) = steps
    assert build.nodes == ("gpu01",)
    assert (
        "--container-image=base#pt:1 --container-mounts=/s/nccl-tests:/nccl-tests:ro --container-save=/s/nt.sqsh"
        " --container-remap-root --container-writable"
    ) in line(build).replace("'", "")
    assert "make -C /opt/nccl-tests" in build.argv[2]
    assert "re-used" in runner(("test -s /s/nt.sqsh",), **COMPILE).prepare_image()
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("there", "nccl", "removed"),
    [
        ((), {**COMPILE, "cleanup": True}, True),
        ((), {**COMPILE, "cleanup": False}, False),
        (("test -s /s/nt.sqsh",), {**COMPILE, "cleanup": True}, False),
        ((), {"container": "/s/nt.sqsh", "cleanup": True}, False),
    ],
    ids=["compiled", "not asked for", "saved by an earlier run", "not compiled"],
)
@pytest.mark.usefixtures("steps")
def test_clean_up_deletes_only_what_this_run_compiled_and_only_if_asked(
    there: tuple[str, ...], nccl: dict[str, Any], *, removed: bool
) -> None:
    channel = Channel(there)
    made = runner(channel=channel, **nccl)
    made.prepare_image()
    made.clean_up()
    assert [it for it in channel.asked if it.startswith("rm")] == ["rm -f -- /s/nt.sqsh"] * removed


def test_a_failed_build_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TaskResult(0, "gpu01", 2, stderr="mpi.h: No such file or directory\n")
    monkeypatch.setattr(nccl_steps, "run_step", lambda *_: StepResult(2, (task,), "", 1.0, "srun ..."))
    with pytest.raises(StepError, match=r"compiling nccl-tests in base#pt:1 failed: mpi\.h: No such file"):
        runner(**COMPILE).prepare_image()


def test_compile_needs_an_image_and_the_source() -> None:
    with pytest.raises(ConfigError, match=r"nccl\.base_container and nccl\.source"):
        runner(compile=True, container="/s/nt.sqsh").prepare_image()


@pytest.mark.usefixtures("steps")
def test_an_environment_in_the_image_that_no_task_reported_is_not_available() -> None:
    made = runner(container="/s/nt.sqsh", runner="nccl-tests")
    with pytest.raises(NotAvailable, match=r"^the environment in the image is unknown: "):
        made.image_environment("gpu01")  # its task printed nothing
    with pytest.raises(NotAvailable, match=r"unknown: the step exited 0 and printed nothing"):
        made.image_environment("gpu03")  # it has no task


# --- which program, and the payload


def test_neither_is_not_checked_and_names_the_nodes() -> None:
    with pytest.raises(
        NotAvailable, match=r"neither all_reduce_perf nor torch was found on gpu\[01-02\]: install"
    ):
        _ = runner().runner


@dataclass
class Uneven(Channel):
    """Here `without` are (node, word) of commands that one node lacks."""

    without: tuple[tuple[str, str], ...] = ()

    def ask_node(self, node: str, command: str, **_: Any) -> Answer:
        lacks = any(node == where and word in command for where, word in self.without)
        return Answer(node, 1 if lacks else super().ask_node(node, command).rc, b"")


@pytest.mark.parametrize(
    ("there", "without", "program"),
    [
        (("all_reduce_perf", "torch"), (), "nccl-tests"),
        (("torch",), (("gpu02", "torch"),), "payload"),
        (("all_reduce_perf",), (("gpu02", "all_reduce_perf"),), "nccl-tests"),
        (("all_reduce_perf", "torch"), (("gpu02", "all_reduce_perf"),), "payload"),
    ],
)
def test_a_node_that_lacks_what_others_have_costs_only_itself(
    there: tuple[str, ...], without: tuple[tuple[str, str], ...], program: str
) -> None:
    made = runner(channel=Uneven(there, without=without))
    assert made.runner == program
    assert made.can_re_form is (program == "payload" or not without)


def test_the_payload_logs_whatever_a_prolog_says(steps: list[StepRequest]) -> None:
    runner(runner="payload").whole(NODES)
    runner(runner="payload", exports={"NCCL_DEBUG": "TRACE"}).whole(NODES)
    runner(payload=["sim-collective"], runner="payload").whole(NODES)
    ours, traced, stand_in = (step.argv for step in steps)
    assert ours[-4:-2] == ("--nccl-debug", "INFO")
    assert traced[-4:-2] == ("--nccl-debug", "TRACE")
    assert "--nccl-debug" not in stand_in


@pytest.mark.parametrize("kind", ["payload", "nccl-tests"])
def test_the_log_is_asked_for_in_the_task_itself(steps: list[StepRequest], kind: str) -> None:
    """A task prolog goes after what srun exports: with NCCL_DEBUG=VERSION the transports were not proved."""
    runner(runner=kind).alone(NODES)
    runner(runner=kind, exports={"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL"}).whole(NODES)
    prolog = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": "/tmp/nccl.%h", "MASTER_PORT": "29500"}
    shown = [
        subprocess.run(
            ["sh", "-c", f"{step.prelude}; env"],
            env={**os.environ, **prolog},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for step in steps
    ]
    assert {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV", "NCCL_DEBUG_FILE=/dev/stderr"} <= {*shown[0]}
    assert {"NCCL_DEBUG=TRACE", "NCCL_DEBUG_SUBSYS=ALL"} <= {*shown[1]}
    assert not [line for lines in shown for line in lines if line.startswith("MASTER_PORT")]


def test_the_payload_travels_on_the_command_line(steps: list[StepRequest]) -> None:
    environments = {"pt": EnvironmentConfig(python="/opt/pt/bin/python3", container_image="/s/pt.sqsh")}
    of = cluster(environments, environment="pt", runner="payload", mpi="pmix")
    runner(of=of).whole(NODES)
    (step,) = steps
    python, flag, source, *words = step.argv
    assert (python, flag, words[0]) == ("/opt/pt/bin/python3", "-c", "sweep")
    compile(source, "payload", "exec")
    assert step.mpi is None  # rank and rendezvous are Slurm's
    assert "--mpi" not in line(step)


@pytest.mark.parametrize(("deadline", "patience"), [(600, "120"), (60, "30")])
def test_the_payload_gives_up_before_the_step_does(
    steps: list[StepRequest], deadline: int, patience: str
) -> None:
    made = runner(runner="payload", deadline=deadline)
    made.alone(NODES)
    made.whole(NODES)
    for step in steps:
        words = dict(itertools.pairwise(step.argv))
        assert (words["--deadline"], words["--rendezvous"]) == (patience, patience)


def test_a_sweep_that_was_given_up_is_not_waited_for(steps: list[StepRequest]) -> None:
    """A stopped process never ends: what is to be had has been said when all other worlds have ended."""
    made = runner(runner="payload")
    made.alone(NODES)
    made.whole(NODES)
    alone, whole = (step.enough for step in steps)
    assert alone
    assert whole
    assert not whole(CONCLUDED)  # a sound step ends by itself
    assert whole(GIVEN_UP)
    assert not alone(GIVEN_UP)
    assert alone(f"{GIVEN_UP}\n{CONCLUDED}")


def test_rounds_go_to_the_payload_in_one_step_and_without_it_pair_by_pair(steps: list[StepRequest]) -> None:
    batch = ((("gpu01", "gpu02"),), (("gpu01:0", "gpu02:0"),))
    found = runner(runner="payload").rounds(NODES, batch)
    (step,) = steps
    assert step.input == b'[[["gpu01", "gpu02"]], [["gpu01:0", "gpu02:0"]]]'
    assert [it.members for it in found] == [("gpu01", "gpu02"), ("gpu01:0", "gpu02:0")]
    assert all(it.problem for it in found)  # a step that says nothing measured nothing
    steps.clear()
    found = runner(runner="nccl-tests").rounds(NODES, batch)
    assert [step.nodes for step in steps] == [NODES]
    assert found[1].skipped


@pytest.mark.parametrize(
    "words",
    ["-b '1M", "-b 1Q", "-b 0", "-b 2M -e 1M", *(f"-f {it}" for it in ("1", "-2", "x", "٣", "10000")), "-f"],
)
def test_a_sweep_without_steps_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=r"nccl\.command "):
        NcclCommand.parse(f"all_reduce_perf {words}")
    with pytest.raises(ConfigError, match="empty"):
        NcclCommand.parse(" ")
    for factor in (2, 9999):
        assert NcclCommand.parse(f"x -b 8 -e 8 -f {factor}") == NcclCommand("x", 8, 8, factor)


def test_the_sweep_starts_at_8_bytes_only_where_its_steps_meet_the_asked_begin() -> None:
    assert NcclCommand.parse("x -b 1M -e 1G -f 2").with_latency("all_reduce").begin == 8
    assert NcclCommand.parse("x -b 3M -e 1G -f 2").with_latency("all_reduce").begin == 3 << 20
    assert NcclCommand.parse("x -b 4 -e 1G -f 2").with_latency("all_reduce").begin == 4
    assert NcclCommand.parse("x -b 1M -e 1G -f 2").with_latency("all_gather").begin == 1 << 20
    assert NcclCommand.parse("x -b 1M -e 1G").reaching([2**32]).end == 2**32


FOUR = ("gpu01", "gpu02", "gpu03", "gpu04")
ENDED = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(FOUR))


@pytest.mark.parametrize(
    ("unstarted", "unended", "tasks", "fallen"),
    [
        (("gpu03",), {0: "gpu01"}, ENDED[:2], {"gpu03"}),  # the first task waits for the one that never came
        ((), {2: "gpu03"}, ENDED, {"gpu03"}),
        ((), {0: "gpu01", 2: "gpu03"}, ENDED, set()),  # the group of the two hangs: which of them, pairs tell
        ((), dict(enumerate(FOUR)), ENDED, set()),  # a collective that hangs keeps all
        (
            (),
            {1: "gpu02", 2: "gpu03"},
            (TaskResult(0, "gpu01", 3), *ENDED[1:]),
            set(),
        ),  # they wait for a dead one
    ],
)
def test_only_nodes_that_alone_keep_a_step_from_ending_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
    unstarted: tuple[str, ...],
    unended: dict[int, str],
    tasks: tuple[TaskResult, ...],
    fallen: set[str],
) -> None:
    def hang(*_: object) -> StepResult:
        error = StepTimeout("srun: cancelled")
        error.result = StepResult(-1, tasks, "", 33.0, "srun")
        error.unstarted, error.unended = unstarted, unended
        raise error

    monkeypatch.setattr(runners, "run_step", hang)
    made = runner(payload=("sim-collective",))
    found = made.rounds(FOUR, [[FOUR[:2], FOUR[2:]]])
    assert made.lost_nodes.keys() == fallen
    assert all("33 s" in why for why in made.lost_nodes.values())
    assert [it.problem.startswith("gpu03 is lost") for it in found] == [False, bool(fallen)]


def test_rounds_are_complete_when_every_group_has_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[StepRequest] = []

    def note(_slurm: object, _held: object, request: StepRequest) -> StepResult:
        asked.append(request)
        return StepResult(0, (), "", 1.0, "srun")

    monkeypatch.setattr(runners, "run_step", note)
    runner(payload=("sim-collective",)).rounds(FOUR, [[FOUR[:2], FOUR[2:]]])
    (request,) = asked
    assert request.enough is not None
    lines = [
        f'{{"round": 0, "members": ["{one}", "{other}"], "busbw": 9.5}}'
        for one, other in (FOUR[:2], FOUR[2:])
    ]
    assert not request.enough(lines[0])
    assert request.enough("\n".join(lines))


# --- on a real Slurm


def on_slurm(
    sandbox: Sandbox, run: Callable[[NcclRunner], Any], nodes: tuple[str, ...] = NODES, **nccl: Any
) -> Any:
    slurm = Slurm(LocalTransport(sandbox.env))
    with Allocation.request(slurm, AllocationRequest(nodes=nodes)) as held:
        channel: Any = Channel()
        return run(NcclRunner(slurm, held, cluster(**nccl), channel, slurm.nodes(), gpus_per_node=2))


@pytest.mark.thorough
def test_a_node_whose_slurmd_dies_costs_itself_and_no_other(sandbox: Sandbox) -> None:
    ground, nodes = sandbox._fault_context(), ("gpu01", "gpu02", "gpu03", "gpu04")

    def die_and_measure(made: NcclRunner) -> tuple[list[Measurement], dict[str, str]]:
        daemon = ground.daemons.find("slurmd-gpu03")
        assert daemon is not None
        processes.stop([daemon], patience=5.0)
        return made.rounds(nodes, [[nodes[:2], nodes[2:]]]), made.lost_nodes

    try:
        found, fallen = on_slurm(
            sandbox, die_and_measure, nodes, runner="nccl-tests", payload=("sim-collective",), deadline=60.0
        )
    finally:
        sandbox.heal()
    assert [it.members for it in found] == [("gpu01", "gpu02"), ("gpu03", "gpu04")]
    assert found[0].busbw
    assert found[1].problem.startswith("gpu03 is lost: srun: ")
    assert fallen.keys() == {"gpu03"}


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI: apt-get install openmpi-bin")
def test_mpirun_starts_all_ranks_inside_the_allocation(sandbox: Sandbox) -> None:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    found = on_slurm(
        sandbox,
        lambda made: made.whole(NODES),
        runner="nccl-tests",
        launcher="mpirun",
        exports={**as_root, "OMPI_MCA_btl_tcp_if_include": "lo"},
        deadline=60.0,
    )
    assert found.problem == "", found.text
    (run,) = found.output.runs
    assert [(line.rank, line.host) for line in run.ranks] == [
        (0, "gpu01"),
        (1, "gpu01"),
        (2, "gpu02"),
        (3, "gpu02"),
    ]
    assert (
        beliefs.validate_run(found.output, beliefs.RunSpec(NODES, 2, "all_reduce")).outcome is Outcome.PASSED
    )
    assert set(found.log.hosts.values()) == set(NODES)


def test_ranks_that_did_not_find_each_other_accuse_no_link_and_acquit_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = (DATA / "nccl" / "nccl-allreduce-g1.txt").read_text()

    def run(_: Any, __: Any, request: StepRequest) -> StepResult:
        tasks = tuple(TaskResult(rank, node, 0, stdout=printed) for rank, node in enumerate(request.nodes))
        return StepResult(0, tasks, "", 0.1, "srun")

    monkeypatch.setattr(runners, "run_step", run)
    (found,) = runner(runner="nccl-tests", gpus=1).rounds(NODES, [[NODES]])
    assert found.skipped
    assert "without PMI" in found.problem
    for verdict in (
        nccl_fleet.pairs(NODES[0], Localisation(), [found], 2**20),
        nccl_fleet.links(Localisation(), [found], NODES),
    ):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert "nccl.mpi" in verdict.reason


PYTHON = ROOT / ".cache" / "frameworks" / "bin" / "python"


@pytest.mark.thorough
@pytest.mark.skipif(not PYTHON.exists(), reason="needs a python with torch: make frameworks")
def test_our_payload_runs_through_the_runner_on_cpus(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NcclConfig, "pair_size", 2**16)
    script = tmp_path / "python"  # python -c SOURCE MODE ..., with one word more
    script.write_text(f'#!/bin/sh\nc=$1 s=$2 m=$3; shift 3; exec {PYTHON} "$c" "$s" "$m" --device cpu "$@"\n')
    script.chmod(0o755)
    found = on_slurm(
        sandbox,
        lambda made: (made.alone(NODES), made.whole(NODES), made.rounds(NODES, [[NODES]])),
        environments={"pt": EnvironmentConfig(python=str(script), exports={"OMP_NUM_THREADS": "1"})},
        environment="pt",
        runner="payload",
        deadline=120.0,
    )
    alone, whole, rounds = found
    assert alone.problem == "", alone.text
    assert [[line.rank for line in run.ranks] for run in alone.output.runs] == [[0, 1], [0, 1]]
    assert whole.problem == ""
    (run,) = whole.output.runs
    assert (run.collective, run.world, run.rows[0].size, run.rows[-1].size) == ("all_reduce", 4, 8, 2**20)
    assert all(row.out_of_place.wrong == 0 for row in run.rows)
    assert whole.node_of_rank == {0: "gpu01", 1: "gpu01", 2: "gpu02", 3: "gpu02"}
    assert [(it.members, it.problem) for it in rounds] == [(NODES, "")]
    assert rounds[0].busbw


def test_a_port_that_another_process_has_costs_a_step_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = "collective: rank 0: cannot listen at 127.0.0.1 port 20808: name: EADDRINUSE, message: address already in use"
    errors = [taken, "", "never reached"]

    def run(_: Any, __: Any, request: StepRequest) -> StepResult:
        error = errors.pop(0)
        return StepResult(
            0, (TaskResult(0, request.nodes[0], 6 if error else 0, stderr=error),), "", 0.1, "srun"
        )

    monkeypatch.setattr(runners, "run_step", run)
    found = runner(runner="payload").alone(NODES[:1])
    assert (found.tasks[0].rc, errors) == (0, ["never reached"])
    errors[:] = [taken] * 4
    assert runner(runner="payload").alone(NODES[:1]).tasks[0].stderr == taken
    assert len(errors) == 1


def measured(*tasks: TaskResult, problem: str = "") -> NcclMeasurement:
    return NcclMeasurement(NcclOutput(()), nccl_log.NcclLog(), {}, "srun", 1.0, problem=problem, tasks=tasks)


def failing(*findings: tuple[str, str]) -> Verdict:
    made = tuple(Finding(part, said, "good") for part, said in findings)
    return Verdict("nccl.belief", Outcome.FAILED, made, cause="as it is", hint="look")


RECORDED = DATA / "h200x8"
GPU_1 = "GPU-36b3216f-daee-b975-729f-ae923d5a4fd1"


def occupied() -> Answer:
    """A survey of the recorded host with a process on GPU 1."""
    gpus = "\n".join((RECORDED / "query-gpu.txt").read_text().splitlines()[1:-1])
    apps = f"pid, gpu_uuid, used_gpu_memory [MiB], process_name\n772, {GPU_1}, 143052 MiB, python3"
    return Answer("gpu02", 0, f"@@ gpus 0\n{gpus}\n@@ apps 0\n{apps}\n".encode())


def proof_of(monkeypatch: pytest.MonkeyPatch, *tasks: TaskResult) -> proofs.NcclStages:
    """A proof of two nodes of one GPU whose first stage gave these tasks."""
    made = runner(runner="payload", gpus=1)
    log = "".join(f"{task.rank}: {line}\n" for task in tasks for line in task.stderr.splitlines())
    step = NcclMeasurement(NcclOutput(()), nccl_log.read(log), {}, "srun", 1.0, tasks=tasks)
    monkeypatch.setattr(made, "alone", lambda *_: step)
    monkeypatch.setattr(made, "survey", lambda _: occupied())
    return stages_of(made)


def stages_of(made: NcclRunner, *rows: BandwidthThreshold, **env: str) -> proofs.NcclStages:
    slurm: Any = None
    profile = Profile(name="p", description="", source="")
    return proofs.NcclStages(made, NODES, Thresholds(rows, profile, made.config, made.gpus, env), slurm)


WHO = "processes of others on GPUs of gpu02: GPU 1 (GPU-36b3216f-daee-b975-729f-ae923d5a4fd1, 0000:00:07.0): process 772"


def test_memory_that_a_stranger_holds_is_reported_with_the_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200 whose memory was all taken: CUDA's own words name nobody."""
    said = "collective: rank 0 on gpu02: AcceleratorError: CUDA error: out of memory\n"
    proof = proof_of(monkeypatch, TaskResult(0, "gpu01", 1), TaskResult(1, "gpu02", 1, stderr=said))
    verdict = proof.alone.verdicts["gpu02"]
    assert verdict.cause.startswith(WHO)
    assert verdict.cause.endswith("out of memory")
    assert "others" not in proof.alone.verdicts["gpu01"].cause


def test_what_was_set_from_outside_stands_at_a_failure_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200: a task prolog named an interface that the node lacks."""
    said = (
        "gpu02:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9\n"
        "collective: rank 0 on gpu02 (GPU 0000:00:07): NCCL error: Bootstrap : no socket interface found\n"
    )
    proof = proof_of(monkeypatch, TaskResult(0, "gpu01", 1), TaskResult(1, "gpu02", 3, stderr=said))
    verdict = proof.alone.verdicts["gpu02"]
    assert (
        verdict.cause == "set in the environment or nccl.conf: NCCL_SOCKET_IFNAME=eth9; no network interface"
    )
    assert "ip -br link" in verdict.hint


def test_a_node_with_a_stranger_is_not_drained_for_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(monkeypatch)
    slow = replace(
        failing(("gpu02", "slow")), check="nccl.pairs", action=Action.DRAIN, never_healthy="made for a test"
    )
    monkeypatch.setattr(nccl_fleet, "pairs", lambda *_: slow)
    monkeypatch.setitem(proof.__dict__, "localised", (Localisation(bad_nodes=("gpu02",)), ()))
    verdict = proof.pairs("gpu02")
    assert verdict.action is Action.MONITOR
    assert verdict.cause.startswith(WHO)
    monkeypatch.setattr(proof.runner, "survey", lambda _: Answer("gpu02", 1, b""))
    assert proof.pairs("gpu02").action is Action.DRAIN


def test_no_part_is_named_for_a_log_that_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(monkeypatch)
    unsaid = failing((beliefs.TRANSPORT, "no connection between nodes was logged"))
    monkeypatch.setattr(proof, "whole", lambda _: nccl_stage.Stage(measured(), {"": unsaid}))
    monkeypatch.setattr(proof, "_with_suspects", lambda _: pytest.fail("it looks for a part"))
    assert proof.whole_validity("all_reduce") is unsaid


def test_what_is_set_on_one_node_alone_stands_at_what_fails_between_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An nccl.conf of one node with NCCL_PROTO=LL: the ranks disagree and hang, and a link was accused."""
    both = (
        "{}:7:7 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0\n"
        "{}:7:7 [0] NCCL INFO comm 0x1 rank {} nRanks 2\n"
    )
    own = "gpu02:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n"
    tasks = [
        TaskResult(rank, node, 1, stderr=both.format(node, node, rank)) for rank, node in enumerate(NODES)
    ]
    proof = proof_of(monkeypatch, *tasks)
    assert not proof._settings()
    proof.measured["all_reduce"] = nccl_stage.Stage(measured(replace(tasks[1], stderr=own)), {})
    assert proof._settings() == "not set on all nodes: NCCL_PROTO=LL (gpu02)"
    del proof.measured["all_reduce"]
    proof.runner.paired = (replace(tasks[1], stderr=own),)  # before the whole was measured
    assert proof._settings() == "not set on all nodes: NCCL_PROTO=LL (gpu02)"
    bad = replace(failing(("link gpu01-gpu02", "slow")), check="nccl.links")
    monkeypatch.setattr(nccl_fleet, "links", lambda *_: bad)
    monkeypatch.setitem(proof.__dict__, "localised", (Localisation(bad_nodes=()), ()))
    assert proof.links().cause.startswith("not set on all nodes: NCCL_PROTO=LL (gpu02)")


def slow_alone(
    monkeypatch: pytest.MonkeyPatch, busbw: Mapping[str, float], *said: TaskResult
) -> proofs.NcclStages:
    """A proof whose nodes measured this much alone, with a hard limit of 300 GB/s."""
    conditions = {"NCCL_NVLS_ENABLE": "0"}
    row = BandwidthThreshold(
        gpus_per_node=1, size=2**30, busbw=365, drain_below=300, source="site", conditions=conditions
    )
    proof = stages_of(proof_of(monkeypatch, *said).runner, row, **conditions)
    monkeypatch.setattr(proof.runner, "survey", lambda _: Answer("gpu02", 1, b""))
    runs = {
        node: NcclRun(
            collective="all_reduce",
            world=2,
            rows=(NcclRow(2**30, 1, "float", "sum", -1, Half(1, 1, value, 0), None),),
        )
        for node, value in busbw.items()
    }
    stage = nccl_stage.Stage(
        NcclMeasurement(NcclOutput(()), nccl_log.read(""), {}, "srun", 1.0, tasks=said), {}, runs
    )
    proof.measured[proofs.EACH_ALONE] = stage
    return proof


def test_where_most_nodes_are_slow_alone_each_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = slow_alone(monkeypatch, {"gpu01": 200.0, "gpu02": 210.0})
    for node in NODES:
        verdict = proof.alone_bandwidth(node)
        assert verdict.action is Action.MONITOR  # what they share is the cause
        assert "2 of 2 nodes are below their hard limit" in verdict.cause
    for busbw in ({"gpu01": 200.0}, {"gpu01": 200.0, "gpu02": 365.0}):
        assert "hard limit:" not in slow_alone(monkeypatch, busbw).alone_bandwidth("gpu01").cause
    assert proof.alone_bandwidth("gpu01").outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("setting", "action"),
    [("NCCL_PROTO", Action.MONITOR), ("NCCL_IB_HCA", Action.DRAIN), ("NCCL_NVLS_ENABLE", Action.DRAIN)],
)
def test_a_setting_that_slows_a_node_drains_nobody(
    monkeypatch: pytest.MonkeyPatch, setting: str, action: Action
) -> None:
    log = f"gpu02:7:7 [0] NCCL INFO {setting} set by environment to 0\n"
    said = TaskResult(1, "gpu02", 0, stderr=log)
    proof = slow_alone(monkeypatch, {"gpu01": 365.0, "gpu02": 200.0, "gpu03": 365.0}, said)
    assert proof.alone_bandwidth("gpu02").action is action
    assert proof.alone_bandwidth("gpu01").outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("own", "rows", "limit", "expected"),
    [
        ({}, (), None, {}),
        ({"pair_busbw": 50, "pair_drain_below": 40}, (), 40.0, {"within": 50.0}),
        ({}, (50, 30), 30.0, {"within": 47.5}),
        ({}, (50, None), None, {"within": 47.5}),
        ({"pair_drain_below": 40, "pair_busbw": 60}, (50, 30), 40.0, {"within": 60.0}),
    ],
)
def test_the_hard_limit_of_a_pair(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, float], rows: tuple[float | None, ...], limit: float | None,
    expected: dict[str, float],
) -> None:  # fmt: skip
    made = proof_of(monkeypatch).runner
    made.config = NcclConfig(runner="payload", **own)
    of_pairs = [
        BandwidthThreshold(
            nodes=2, gpus_per_node=1, size=2**28, busbw=rows[0], drain_below=rows[1], source="x"
        )
        for _ in rows[:1]
    ]
    proof = stages_of(made, *of_pairs)
    assert proof.thresholds.hard_limit_of_pairs == limit
    assert proof.thresholds.expected_of_pairs == pytest.approx(expected)
    seen: list[tuple[object, ...]] = []

    def judge(*args: object) -> Verdict:
        seen.append(args)
        return failing(("gpu02", "slow"))

    monkeypatch.setattr(nccl_fleet, "pairs", judge)
    monkeypatch.setitem(proof.__dict__, "localised", (Localisation(), ()))
    proof.pairs("gpu02")
    assert seen == [("gpu02", Localisation(), (), 2**28, limit)]


def test_tasks_outside_of_the_stated_container_are_a_failure_of_their_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    why = "the task ran on the host, not in the container pt.sqsh: slurmd on gpu02 does not load Pyxis"
    tasks = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(NODES))

    def run(*_: Any) -> StepResult:
        error = StepMisplaced(why)
        error.result, error.nodes = StepResult(0, tasks, "", 0.1, "srun"), {"gpu02": why}
        raise error

    for module in (runners, nccl_steps):
        monkeypatch.setattr(module, "run_step", run)
    made = runner(runner="payload", gpus=1)
    found = stages_of(made)
    (finding,) = found.alone.verdicts["gpu02"].findings
    assert (finding.part, finding.measured) == ("gpu02", why)
    assert found.alone.verdicts["gpu02"].action is Action.CONFIGURE
    assert why not in str(found.alone.verdicts["gpu01"].findings)
    assert made.whole(NODES).misplaced == {"gpu02": why}


def alone(machine: str, source: str, expected: str, busbw: Mapping[str, float], *said: TaskResult, busy: bool = False,
          sick: bool = False) -> CounterExample:  # fmt: skip
    """Return gpu02 after its run alone; busbw: {node: GB/s}, with a row of 365 and a hard limit of 300 GB/s."""

    def judged() -> Verdict:
        with pytest.MonkeyPatch.context() as monkeypatch:
            proof = slow_alone(monkeypatch, busbw, *said)
            if busy:
                monkeypatch.setattr(proof.runner, "survey", lambda _: occupied())
            return proof.alone_bandwidth("gpu02")

    return CounterExample("nccl.bandwidth", machine, source, expected, judged, sick)


FAST = {"gpu01": 365.0, "gpu02": 200.0, "gpu03": 365.0}
LL = TaskResult(1, "gpu02", 0, stderr="gpu02:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
COUNTER_EXAMPLES = [
    alone("all nodes below the limit: a power limit, a driver, another board", "what all share", MONITOR,
          dict.fromkeys(FAST, 200.0)),
    alone("the only node of the run", "nothing to compare with", MONITOR, {"gpu02": 200.0}),
    alone("another job on its GPUs", "processes of others", MONITOR, FAST, busy=True),
    alone("NCCL_PROTO=LL in a file of the node", "a variable that slows NCCL", MONITOR, FAST, LL),
    alone("9% below the row, above the hard limit", "the spread between runs", MONITOR, FAST | {"gpu02": 332.0}),
    alone("45% below two others, alone", "a bad NVLink or GPU", DRAIN, FAST, sick=True),
]  # fmt: skip


@pytest.mark.parametrize("machine", COUNTER_EXAMPLES, ids=name)
def test_machines_get_the_verdict_that_a_person_gives_them(machine: CounterExample) -> None:
    assert_as_expected(machine)
