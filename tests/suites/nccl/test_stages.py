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
from counter_examples import DRAIN, MONITOR, CounterExample
from judged import judged
from paths import DATA
from payload_helpers import rank_row
from suite_helpers import considered

from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.result import StepResult, TaskResult
from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.config.models import BandwidthThreshold, Cluster, EnvironmentConfig, Group, Profile
from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import ConfigError, NotAvailable, StepMisplaced, StepTimeout
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.nccl import nccl_log
from pytest_gpucluster.kit.nccl import nccl_step as runners
from pytest_gpucluster.kit.nccl import nccl_validation as beliefs
from pytest_gpucluster.kit.nccl.measurement import Localisation, Measurement
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig
from pytest_gpucluster.kit.nccl.nccl_rows import Half, NcclRow
from pytest_gpucluster.kit.nccl.nccl_step import NcclCommand, NcclMeasurement
from pytest_gpucluster.kit.nccl.nccl_tests import NcclOutput, NcclRun
from pytest_gpucluster.kit.payloads.collective import CONCLUDED
from pytest_gpucluster.kit.payloads.rendezvous import GIVEN_UP
from pytest_gpucluster.suites.nccl import fleet as nccl_fleet
from pytest_gpucluster.suites.nccl import stage as nccl_stage
from pytest_gpucluster.suites.nccl import stages as proofs
from pytest_gpucluster.suites.nccl.steps import NcclRunner
from pytest_gpucluster.suites.nccl.thresholds import Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucluster.cluster.slurm.step import StepRequest
    from pytest_gpucluster.sandbox import Sandbox

NODES = ("gpu01", "gpu02")
FOUR = (*NODES, "gpu03", "gpu04")
COMMAND = "all_reduce_perf -b 1M -e 1M -f 2 -g 1"
PROFILE = Profile(name="p", description="", source="")


def cluster(environments: Mapping[str, EnvironmentConfig] | None = None, **nccl: Any) -> Cluster:
    groups = (Group(nodes="gpu[01-02]", profile=PROFILE),)
    plain = Cluster(name="prod", groups=groups, environments=dict(environments or {}))
    return plain.model_copy(update={"nccl": NcclConfig(**{"command": COMMAND, **nccl})})


@dataclass
class Channel:
    """Answers as nodes would: `there` are words of commands that succeed, except for `without`: (node, word)."""

    there: tuple[str, ...] = ()
    without: tuple[tuple[str, str], ...] = ()
    asked: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def ask(self, command: str, **_: Any) -> dict[str, Answer]:
        return {node: self.ask_node(node, command) for node in NODES}

    def ask_node(self, node: str, command: str, **_: Any) -> Answer:
        self.asked.append(command)
        lacks = any(node == where and word in command for where, word in self.without)
        return Answer(node, int(lacks or not any(word in command for word in self.there)), b"")


@dataclass
class Held:
    """An allocation as far as the runner looks at it."""

    nodes: tuple[str, ...] = NODES


def answer_steps(monkeypatch: pytest.MonkeyPatch, answer: Callable[[StepRequest], StepResult]) -> None:
    """Answer the steps instead of running them."""
    monkeypatch.setattr(runners, "run_step", lambda _slurm, _held, request: answer(request))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[StepRequest]:
    """The steps that were asked for; each ends well and says nothing."""
    asked: list[StepRequest] = []

    def run(request: StepRequest) -> StepResult:
        asked.append(request)
        tasks = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(request.nodes))
        return StepResult(0, tasks, "", 0.1, "srun")

    answer_steps(monkeypatch, run)
    return asked


def runner(
    channel: Channel | None = None,
    *,
    gpus: int = 8,
    environments: Mapping[str, EnvironmentConfig] | None = None,
    **nccl: Any,
) -> NcclRunner:
    world: tuple[Any, ...] = (None, Held(), cluster(environments, **nccl), channel or Channel(), {})
    return NcclRunner(*world, gpus_per_node=gpus)


def line(request: StepRequest) -> str:
    """Return the step as one line: options and command."""
    return shlex.join([*request.options(), *request.argv])


# --- nccl-tests under srun


def test_under_srun_one_rank_a_gpu_with_the_mpi_that_is_asked_for(steps: list[StepRequest]) -> None:
    for mpi in ("pmix", "pmi2"):
        runner(runner="nccl-tests", mpi=mpi).whole(NODES)
        step = steps.pop()
        words = {f"--mpi={mpi}", "--ntasks-per-node=8", "--gpus-per-task=1", "--nodes=2"}
        assert words <= set(step.options())
        assert step.argv == ("all_reduce_perf", "-b", "8", "-e", "1048576", "-f", "2", "-g", "1")


def test_alone_is_one_process_a_node_with_all_gpus(steps: list[StepRequest]) -> None:
    runner(runner="nccl-tests", mpi="pmix").alone(NODES)
    (step,) = steps
    assert {"--ntasks-per-node=1", "--gres=gpu:8", "--mpi=none"} <= set(step.options())
    assert step.argv[-2:] == ("-g", "8")
    assert "unset" in step.argv[2]  # PMI and Slurm are hidden: else an MPI build would join the nodes


def test_alone_the_payload_makes_a_world_of_each_node(steps: list[StepRequest]) -> None:
    runner(runner="payload", payload=("sh", "-c", "env", "sh"), gpus=2).alone(NODES)
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
    worlds = []
    for node in ("0", "1"):
        printed = subprocess.check_output(steps[0].argv, env=os.environ | job | {"SLURM_NODEID": node}, text=True)
        worlds.append(dict(line.split("=", 1) for line in printed.splitlines() if "=" in line))
        assert (worlds[-1]["SLURM_PROCID"], worlds[-1]["SLURM_NTASKS"]) == ("1", "2")
        assert worlds[-1]["MASTER_ADDR"] == "127.0.0.1"
    first, second = (int(world["MASTER_PORT"]) for world in worlds)
    assert 20000 <= first < second < 32768  # nodes of a sandbox share one host


def test_exports_options_deadline_and_the_folder_of_the_command(steps: list[StepRequest]) -> None:
    exports = {"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "TRACE"}
    own = EnvironmentConfig(exports=exports, srun_args=("--exclusive", "--comment=x y"))
    command = "/opt/nt/build/all_reduce_perf -b 8 -e 8 -c 1 -n 5"
    made = runner(runner="nccl-tests", mpi="pmi2", environments={"default": own}, command=command, gpus=4)
    made.whole(NODES, "alltoall")
    (step,) = steps
    assert (step.env, step.environment, step.timeout) == ({"NCCL_DEBUG": "TRACE"}, own, 600.0)
    assert "--ntasks-per-node=4" in step.options()
    assert step.argv[0] == "/opt/nt/build/alltoall_perf"
    assert step.argv[-4:] == ("-c", "1", "-n", "5")  # what is no size is passed on


@pytest.mark.parametrize(
    "words", ["-b '1M", "-b 1Q", "-b 0", "-b 2M -e 1M", *(f"-f {it}" for it in ("1", "-2", "x", "٣", "10000")), "-f"]
)
def test_a_sweep_without_steps_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a|greater than 0|not a size|quotation"):
        NcclCommand.parse(f"all_reduce_perf {words}")


# --- mpirun, containers


def test_under_mpirun_the_step_is_one_task_that_starts_all_ranks(steps: list[StepRequest]) -> None:
    own = {"default": EnvironmentConfig(exports={"NCCL_IB_HCA": "mlx5"})}
    runner(runner="nccl-tests", launcher="mpirun", environments=own).whole(NODES)
    (step,) = steps
    assert (step.nodes, step.ntasks_per_node, step.mpi) == (("gpu01",), 1, "none")
    assert "SLURM_NODELIST='gpu[01-02]'" in step.prelude
    assert "SLURM_TASKS_PER_NODE='8(x2)'" in step.prelude
    assert shlex.join(step.argv).startswith(
        "mpirun -np 16 --host gpu01:8,gpu02:8 --tag-output -x NCCL_DEBUG -x NCCL_DEBUG_SUBSYS "
        "-x NCCL_DEBUG_FILE -x NCCL_IB_HCA all_reduce_perf -b 8"
    )


@pytest.mark.usefixtures("steps")
def test_an_environment_in_the_image_that_no_task_reported_is_not_available() -> None:
    made = runner(runner="nccl-tests")
    with pytest.raises(NotAvailable, match=r"^the environment in the image is unknown: "):
        made.image_environment("gpu01")  # its task printed nothing
    with pytest.raises(NotAvailable, match=r"unknown: the step exited 0 and printed nothing"):
        made.image_environment("gpu03")  # it has no task


# --- which program, and the payload


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
    made = runner(Channel(there, without))
    assert made.runner == program
    assert made.can_re_form is (program == "payload" or not without)


@pytest.mark.parametrize("kind", ["payload", "nccl-tests"])
def test_the_log_is_asked_for_in_the_task_itself(steps: list[StepRequest], kind: str) -> None:
    """A task prolog goes after what srun exports: with NCCL_DEBUG=VERSION the transports were not proved."""
    runner(runner=kind).alone(NODES)
    own = EnvironmentConfig(exports={"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_SUBSYS": "ALL"})
    runner(runner=kind, environments={"default": own}).whole(NODES)
    prolog = {"NCCL_DEBUG": "VERSION", "NCCL_DEBUG_FILE": "/tmp/nccl.%h", "MASTER_PORT": "29500"}
    plain, traced = (
        subprocess.check_output(["sh", "-c", f"{step.prelude}; env"], env=os.environ | prolog, text=True)
        for step in steps
    )
    wanted = {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,ENV", "NCCL_DEBUG_FILE=/dev/stderr"}
    assert wanted <= {*plain.splitlines()}
    assert {"NCCL_DEBUG=TRACE", "NCCL_DEBUG_SUBSYS=ALL"} <= {*traced.splitlines()}
    assert "MASTER_PORT" not in plain + traced


def test_the_payload_gives_up_before_the_step_does(steps: list[StepRequest]) -> None:
    for deadline, patience in ((600, "120"), (60, "30")):
        made = runner(runner="payload")
        made.deadline = deadline
        made.alone(NODES)
        made.whole(NODES)
        for step in steps[-2:]:
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


# --- rounds of pairs


def reported(*groups: tuple[str, ...]) -> str:
    """Return what the payload prints of one round."""
    names = (", ".join(f'"{member}"' for member in group) for group in groups)
    return "\n".join(f'{{"round": 0, "members": [{members}], "busbw": 9.5}}' for members in names)


def test_rounds_go_to_the_payload_in_one_step_and_without_it_pair_by_pair(steps: list[StepRequest]) -> None:
    batch = ((("gpu01", "gpu02"),), (("gpu01:0", "gpu02:0"),))
    found = runner(runner="payload").rounds(NODES, batch)
    (step,) = steps
    assert step.input == b'[[["gpu01", "gpu02"]], [["gpu01:0", "gpu02:0"]]]'
    assert [it.members for it in found] == [("gpu01", "gpu02"), ("gpu01:0", "gpu02:0")]
    assert all(it.problem for it in found)  # a step that says nothing measured nothing
    assert step.enough is not None
    assert not step.enough(reported(NODES))
    two = reported(("gpu01:0", "gpu02:0")).replace("0,", "1,", 1)
    assert step.enough(f"{reported(NODES)}\n{two}")
    steps.clear()
    found = runner(runner="nccl-tests").rounds(NODES, batch)
    assert [step.nodes for step in steps] == [NODES]
    assert found[1].skipped


ENDED = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(FOUR))


@pytest.mark.parametrize(
    ("unstarted", "unended", "tasks", "fallen"),
    [
        (("gpu03",), {0: "gpu01"}, ENDED[:2], {"gpu03"}),  # the first task waits for the one that never came
        ((), {2: "gpu03"}, ENDED, {"gpu03"}),
        ((), {0: "gpu01", 2: "gpu03"}, ENDED, set()),  # the group of the two hangs: which of them, pairs tell
        ((), dict(enumerate(FOUR)), ENDED, set()),  # a collective that hangs keeps all
        # they wait for a dead one
        ((), {1: "gpu02", 2: "gpu03"}, (TaskResult(0, "gpu01", 3), *ENDED[1:]), set()),
    ],
)
def test_only_nodes_that_alone_keep_a_step_from_ending_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
    unstarted: tuple[str, ...],
    unended: dict[int, str],
    tasks: tuple[TaskResult, ...],
    fallen: set[str],
) -> None:
    def hang(_: StepRequest) -> StepResult:
        error = StepTimeout("srun: cancelled")
        error.result = StepResult(-1, tasks, "", 33.0, "srun")
        error.unstarted, error.unended = unstarted, unended
        raise error

    answer_steps(monkeypatch, hang)
    made = runner(payload=("sim-collective",))
    found = made.rounds(FOUR, [[FOUR[:2], FOUR[2:]]])
    assert made.lost_nodes.keys() == fallen
    assert all("33 s" in why for why in made.lost_nodes.values())
    assert [it.problem.startswith("gpu03 is lost") for it in found] == [False, bool(fallen)]


@pytest.mark.parametrize(
    "said",
    ["Node failure on gpu03", "Task launch for StepId=7.2 failed on node gpu03: Communication connection failure"],
)
def test_a_node_whose_slurmd_dies_costs_itself_alone(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    asked: list[StepRequest] = []

    def run(request: StepRequest) -> StepResult:
        asked.append(request)
        if len(asked) == 1:
            return StepResult(1, (), f"srun: error: {said}\n", 1.0, "srun")
        return StepResult(0, (TaskResult(0, "gpu01", 0, stdout=reported(FOUR[:2])),), "", 1.0, "srun")

    answer_steps(monkeypatch, run)
    made = runner(payload=("sim-collective",))
    sound, lost = made.rounds(FOUR, [[FOUR[:2], FOUR[2:]]])
    assert [step.nodes for step in asked] == [FOUR, NODES]
    assert (sound.busbw, sound.problem) == (9.5, "")
    assert lost.problem.startswith("gpu03 is lost: srun: ")
    assert made.lost_nodes.keys() == {"gpu03"}


def test_ranks_that_never_met_accuse_no_link_and_acquit_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = (DATA / "nccl" / "nccl-allreduce-g1.txt").read_text()
    tasks = tuple(TaskResult(rank, node, 0, stdout=printed) for rank, node in enumerate(NODES))
    answer_steps(monkeypatch, lambda _: StepResult(0, tasks, "", 0.1, "srun"))
    (found,) = runner(runner="nccl-tests", gpus=1).rounds(NODES, [[NODES]])
    assert found.skipped
    assert "without PMI" in found.problem
    for verdict in (
        nccl_fleet.pairs(NODES[0], Localisation(), [found], 2**20),
        nccl_fleet.links(Localisation(), [found], NODES),
    ):
        assert verdict.outcome is Outcome.NOT_CHECKED
        assert "nccl.mpi" in verdict.reason


def test_a_port_that_another_process_has_costs_a_step_and_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = rank_row(0, "odd", "port_taken")
    errors = [taken, "", "never reached"]

    def run(request: StepRequest) -> StepResult:
        error = errors.pop(0)
        task = TaskResult(0, request.nodes[0], 6 if error else 0, stderr=error)
        return StepResult(0, (task,), "", 0.1, "srun")

    answer_steps(monkeypatch, run)
    found = runner(runner="payload").alone(NODES[:1])
    assert (found.tasks[0].rc, errors) == (0, ["never reached"])
    errors[:] = [taken] * 4
    assert runner(runner="payload").alone(NODES[:1]).tasks[0].stderr == taken
    assert len(errors) == 1


# --- on a real Slurm


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs Open MPI: apt-get install openmpi-bin")
def test_mpirun_starts_all_ranks_inside_the_allocation(sandbox: Sandbox) -> None:
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    exports = {**as_root, "OMPI_MCA_btl_tcp_if_include": "lo"}
    own = {"default": EnvironmentConfig(exports=exports)}
    config = cluster(own, runner="nccl-tests", launcher="mpirun")
    slurm, channel = Slurm(LocalTransport(sandbox.env)), Channel()
    with Allocation.request(slurm, AllocationRequest(nodes=NODES)) as held:
        world: tuple[Any, ...] = (slurm, held, config, channel, slurm.nodes())
        found = NcclRunner(*world, gpus_per_node=2).whole(NODES)
    assert found.problem == "", found.tasks
    (run,) = found.output.runs
    assert [(line.rank, line.host) for line in run.ranks] == list(enumerate(sorted(NODES * 2)))
    spec = beliefs.RunSpec(NODES, 2, "all_reduce")
    assert beliefs.validate_run(found.output, spec).outcome is Outcome.PASSED
    assert set(found.log.hosts.values()) == set(NODES)


# --- what the stages conclude


def measured(*tasks: TaskResult) -> NcclMeasurement:
    log = "".join(f"{task.rank}: {line}\n" for task in tasks for line in task.stderr.splitlines())
    return NcclMeasurement(NcclOutput(()), nccl_log.read(log), {}, tasks=tasks)


RECORDED = DATA / "h200x8"
GPU_1 = "GPU-36b3216f-daee-b975-729f-ae923d5a4fd1"
QUIET = Answer("gpu02", 1, b"")
SOUND = dict.fromkeys(NODES, Verdict("nccl.alone", Outcome.PASSED))


def occupied() -> Answer:
    """A survey of the recorded host with a process on GPU 1."""
    gpus = "\n".join((RECORDED / "query-gpu.txt").read_text().splitlines()[1:-1])
    apps = f"pid, gpu_uuid, used_gpu_memory [MiB], process_name\n772, {GPU_1}, 143052 MiB, python3"
    return Answer("gpu02", 0, f"@@ gpus 0\n{gpus}\n@@ apps 0\n{apps}\n".encode())


def proof_of(
    monkeypatch: pytest.MonkeyPatch,
    *tasks: TaskResult,
    rows: tuple[BandwidthThreshold, ...] = (),
    survey: Answer = QUIET,
    env: Mapping[str, str] | None = None,
    **nccl: Any,
) -> proofs.NcclStages:
    """A proof of two nodes of one GPU whose first stage gave these tasks, with these answers of nvidia-smi."""
    made = runner(runner="payload", gpus=1, **nccl)
    monkeypatch.setattr(made, "alone", lambda *_: measured(*tasks))
    monkeypatch.setattr(made, "survey", lambda _: survey)
    slurm: Any = None
    return proofs.NcclStages(made, NODES, Thresholds(rows, PROFILE, made.config, made.gpus, env or {}), slurm)


def localised(proof: proofs.NcclStages, found: Localisation, busbw: float) -> None:
    """Let the rounds of pairs have found this."""
    vars(proof)["localised"] = (found, (Measurement(NODES, busbw),))


WHO = f"processes of others on GPUs of gpu02: GPU 1 ({GPU_1}, 0000:00:07.0, 1658054045748): process 772"


def test_memory_that_a_stranger_holds_is_reported_with_the_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200 whose memory was all taken: CUDA's own words name nobody."""
    said = rank_row(0, "AcceleratorError: CUDA error: out of memory", node="gpu02") + "\n"
    tasks = TaskResult(0, "gpu01", 1), TaskResult(1, "gpu02", 1, stderr=said)
    verdicts = proof_of(monkeypatch, *tasks, survey=occupied()).alone.verdicts
    assert verdicts["gpu02"].cause.startswith(WHO)
    assert verdicts["gpu02"].cause.endswith("out of memory")
    assert "others" not in verdicts["gpu01"].cause


def test_what_was_set_from_outside_stands_at_a_failure_of_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded on an H200: a task prolog named an interface that the node lacks."""
    said = "gpu02:7:7 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth9\n"
    said += rank_row(0, "NCCL error: Bootstrap : no socket interface found", node="gpu02") + "\n"
    proof = proof_of(monkeypatch, TaskResult(0, "gpu01", 1), TaskResult(1, "gpu02", 3, stderr=said))
    verdict = proof.alone.verdicts["gpu02"]
    assert verdict.cause.startswith("set in the environment or nccl.conf: NCCL_SOCKET_IFNAME=eth9; ")
    assert "ip -br link" in verdict.hint


def test_a_node_with_a_stranger_is_not_drained_for_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for survey, action, cause in ((occupied(), Action.MONITOR, WHO), (QUIET, Action.DRAIN, "")):
        proof = proof_of(monkeypatch, survey=survey)
        localised(proof, Localisation(bad_nodes=("gpu02",)), 30.0)
        verdict = proof.pairs("gpu02")
        assert verdict.action is action
        assert verdict.cause.startswith(cause)


def test_no_part_is_named_for_a_log_that_did_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proof_of(monkeypatch)
    monkeypatch.setattr(proof.runner, "rounds", lambda *_: pytest.fail("it looks for a part"))
    proof.measured[proofs.EACH_ALONE] = nccl_stage.Stage(measured(), SOUND)
    silent = (Finding("transport", "none was logged", "good", code=beliefs.UNLOGGED),)
    unsaid = Verdict("nccl.whole", Outcome.FAILED, silent, cause="as it is", hint="look")
    proof.measured["all_reduce"] = nccl_stage.Stage(measured(), {"": unsaid})
    assert proof.whole_validity("all_reduce") is unsaid


def test_what_one_node_alone_sets_stands_at_what_fails_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An nccl.conf of one node with NCCL_PROTO=LL: the ranks disagree and hang, and a link was accused."""
    both = (
        "{0}:7:7 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0\n"
        "{0}:7:7 [0] NCCL INFO comm 0x1 rank {1} nRanks 2\n"
    )
    tasks = [TaskResult(rank, node, 1, stderr=both.format(node, rank)) for rank, node in enumerate(NODES)]
    own = replace(tasks[1], stderr="gpu02:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")
    proof = proof_of(monkeypatch)
    proof.measured[proofs.EACH_ALONE] = nccl_stage.Stage(measured(*tasks), SOUND)
    localised(proof, Localisation(bad_nodes=("gpu02",), bad_links=(NODES,)), 30.0)
    assert "not set on all nodes" not in proof.links().cause + proof.pairs("gpu02").cause
    proof.measured["all_reduce"] = nccl_stage.Stage(measured(own), {})
    assert proof.links().cause.startswith("not set on all nodes: NCCL_PROTO=LL (gpu02)")
    del proof.measured["all_reduce"]
    proof.runner.paired = (own,)  # before the whole was measured
    for verdict in (proof.links(), proof.pairs("gpu02")):
        assert verdict.cause.startswith("not set on all nodes: NCCL_PROTO=LL (gpu02)")


def slow_alone(
    monkeypatch: pytest.MonkeyPatch, busbw: Mapping[str, float], *said: TaskResult, survey: Answer = QUIET
) -> proofs.NcclStages:
    """A proof whose nodes measured this much alone, with a hard limit of 300 GB/s."""
    conditions = {"NCCL_NVLS_ENABLE": "0"}
    row = BandwidthThreshold(
        gpus_per_node=1, size=2**30, busbw=365, drain_below=300, source="site", conditions=conditions
    )
    proof = proof_of(monkeypatch, rows=(row,), survey=survey, env=conditions)
    rows = {node: (NcclRow(2**30, Half(1, 1, value, 0), None),) for node, value in busbw.items()}
    runs = {node: NcclRun(collective="all_reduce", world=2, rows=found) for node, found in rows.items()}
    proof.measured[proofs.EACH_ALONE] = nccl_stage.Stage(measured(*said), {}, runs)
    return proof


@pytest.mark.parametrize(
    ("setting", "action"),
    [("NCCL_ALGO", Action.MONITOR), ("NCCL_IB_HCA", Action.DRAIN), ("NCCL_NVLS_ENABLE", Action.DRAIN)],
)
def test_a_slow_setting_drains_nobody(monkeypatch: pytest.MonkeyPatch, setting: str, action: Action) -> None:
    log = f"gpu02:7:7 [0] NCCL INFO {setting} set by environment to 0\n"
    proof = slow_alone(monkeypatch, FAST, TaskResult(1, "gpu02", 0, stderr=log))
    assert proof.alone_bandwidth("gpu02").action is action
    assert proof.alone_bandwidth("gpu01").outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("row", "limit", "expected"),
    [
        ({}, None, {}),
        ({"busbw": 50, "drain_below": 30}, 30.0, {"within": 47.5}),
        ({"busbw": 50}, None, {"within": 47.5}),
    ],
)
def test_the_hard_limit_of_a_pair(
    monkeypatch: pytest.MonkeyPatch, row: dict[str, float], limit: float | None, expected: dict[str, float]
) -> None:
    of_pairs: dict[str, Any] = {"nodes": 2, "gpus_per_node": 1, "size": 2**28, "source": "x", **row}
    rows = (BandwidthThreshold(**of_pairs),) if row else ()
    proof = proof_of(monkeypatch, rows=rows)
    assert proof.thresholds.hard_limit_of_pairs == limit
    assert proof.thresholds.expected_of_pairs == pytest.approx(expected)
    for busbw in (29.9, 30.0, 39.9, 40.0):
        localised(proof, Localisation(bad_nodes=("gpu02",)), busbw)
        verdict = proof.pairs("gpu02")
        assert judged(verdict) == (DRAIN if limit is None or busbw < limit else MONITOR, ["gpu02"])
        assert "256 MiB" in str(verdict.findings[0].measured)


def test_tasks_outside_of_the_stated_container_fail_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "the task ran on the host, not in the container pt.sqsh: slurmd on gpu02 does not load Pyxis"
    tasks = tuple(TaskResult(rank, node, 0) for rank, node in enumerate(NODES))

    def run(_: StepRequest) -> StepResult:
        error = StepMisplaced(why)
        error.result, error.nodes = StepResult(0, tasks, "", 0.1, "srun"), {"gpu02": why}
        raise error

    answer_steps(monkeypatch, run)
    made = runner(runner="payload", gpus=1)
    slurm: Any = None
    found = proofs.NcclStages(made, NODES, Thresholds((), PROFILE, made.config, 1, {}), slurm).alone.verdicts
    assert judged(found["gpu02"]) == (Action.CONFIGURE.value, ["gpu02"])
    assert found["gpu02"].findings[0].measured == why
    assert why not in str(found["gpu01"].findings)
    assert made.whole(NODES).misplaced == {"gpu02": why}


FAST = {"gpu01": 365.0, "gpu02": 200.0, "gpu03": 365.0}
LL = TaskResult(1, "gpu02", 0, stderr="gpu02:7:7 [0] NCCL INFO NCCL_PROTO set by environment to LL\n")


def alone(busbw: Mapping[str, float], *said: TaskResult, survey: Answer = QUIET) -> Callable[[], Verdict]:
    """Return the verdict on gpu02 after its run alone; busbw: {node: GB/s}."""

    def verdict() -> Verdict:
        with pytest.MonkeyPatch.context() as monkeypatch:
            return slow_alone(monkeypatch, busbw, *said, survey=survey).alone_bandwidth("gpu02")

    return verdict


# machine, source, expected, verdict; a row of 365 and a hard limit of 300 GB/s
ROWS = [
    ("all nodes below the limit: another board", "shared", MONITOR, alone(dict.fromkeys(FAST, 200.0))),
    ("the only node of the run", "nothing to compare with", MONITOR, alone({"gpu02": 200.0})),
    ("another job on its GPUs", "processes of others", MONITOR, alone(FAST, survey=occupied())),
    ("NCCL_PROTO=LL in a file of the node", "a variable that slows NCCL", MONITOR, alone(FAST, LL)),
    ("9% below the row", "the spread between runs", MONITOR, alone(FAST | {"gpu02": 332.0})),
    ("45% below two others, alone", "a bad NVLink or GPU", DRAIN, alone(FAST)),
]
COUNTER_EXAMPLES = [CounterExample("nccl.bandwidth", *row, sick=row[2] == DRAIN) for row in ROWS]
test_machines_get_the_verdict_that_a_person_gives_them = considered(COUNTER_EXAMPLES)
