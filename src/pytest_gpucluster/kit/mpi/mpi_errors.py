"""Launch failures of MPI, PMIx, torch and NCCL, recognised in the output. Pure.

Each pattern is from a recording (tests/data/nccl) or from the source of the program that prints it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.check import NO_MEMORY, with_cause
from pytest_gpucluster.kit.gpu.too_few import FEW_GPUS, reports_too_few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucluster.core.check import Verdict

__all__ = ["LaunchFailure", "code_of", "duplicate_gpus", "explain", "nodes_of_tasks", "with_software_cause"]

_PMIX = "start the step with srun --mpi=pmix (`srun --mpi=list` shows what Slurm has)"
DUPLICATE, LIMITED = "duplicate GPU", "low limits"  # kinds


@dataclass(frozen=True)
class LaunchFailure:
    """One failure: its kind, its host or hostlist ('' if unknown), its text, and what to do.

    `what`: the text without the rank, where our payload names one; `silent`: that rank had stopped or was gone.
    """

    kind: str
    host: str
    text: str
    hint: str
    what: str = ""
    silent: bool = False

    @property
    def code(self) -> str:
        """The kind as the code of a finding, like out_of_memory."""
        return code_of_kind(self.kind)


@dataclass(frozen=True)
class _Known:
    kind: str
    pattern: re.Pattern[str]
    hint: str


_PAIR = re.compile(r"Duplicate GPU detected : rank (\d{1,7}) and rank (\d{1,7}) both on CUDA device ([0-9a-f]+)")
_KNOWN = (
    _Known(
        "MPI without PMI",
        re.compile(r"OMPI was not built with SLURM's PMI support"),
        f"this Open MPI found no PMI server that it can use: {_PMIX}; if Slurm has no pmix, use mpirun inside "
        "the allocation (nccl-tests: or one process per node with -g)",
    ),
    _Known(
        "MPI without PMI",
        re.compile(r"PMI server not found|PMI2_Init failed to intialize|PMI_Init failed|PMI2_Job_GetId failed"),
        f"the MPI found no PMI server: {_PMIX}",
    ),
    _Known(
        "orte_ess_init",
        re.compile(r"(?:orte_ess_init|ess_init|orte_init) failed|ORTE_ERROR_LOG: .* in file ess_\w+\.c"),
        f"the runtime of Open MPI did not start: {_PMIX}, or mpirun inside the allocation; "
        "check that OPAL_PREFIX and the MPI of image and node are the same",
    ),
    _Known(
        "PMIx abort",
        re.compile(r"PMIX ERROR: .+|PMIx_Init failed.*|mpi/pmix.*: ERROR: .+|pmixp_\w+.*(?:error|ERROR).*"),
        "the PMIx plugin of Slurm and the PMIx library of the MPI do not agree: compare `srun --mpi=list` with "
        "`ompi_info | grep -i pmix`, and check slurmd's log on the node",
    ),
    _Known(
        "step launch failed",
        re.compile(r"launch_p_step_launch: StepId=\S+ aborted before step completely launched"),
        "slurmstepd could not start the tasks: with --mpi=pmix its plugin or library is missing on the nodes "
        "(`srun --mpi=list`); the reason is in slurmd's log of the nodes",
    ),
    _Known(
        "plugin missing",
        re.compile(r"(?:Couldn't find the specified plugin name for mpi/\w+|cannot find mpi plugin for \w+|"
                   r"cannot create mpi context for \w+)"),
        "Slurm has no such MPI plugin: choose one of `srun --mpi=list`",
    ),
    _Known(
        "too few slots",
        re.compile(r"There are not enough slots available in the system"),
        "mpirun takes hosts and slots from the allocation: request them with --ntasks-per-node, and let no --host or "
        "hostfile of OMPI_MCA_* reduce them",
    ),
    _Known(
        "mpirun daemons",
        re.compile(r"O(?:RTE|MPI) was unable to reliably start one or more daemons|"
                   r"An ORTE daemon has unexpectedly failed|PRTE has lost communication with a remote daemon|"
                   r"HYD\w+.*(?:unable to|error)"),
        "mpirun could not start its daemons on the other nodes: srun must be on the nodes' PATH, and mpirun at the "
        "same path everywhere (`srun -N2 command -v mpirun orted`)",
    ),
    _Known(
        "mpirun as root",
        re.compile(r"(?:mpirun|prterun) has detected an attempt to run as root"),
        "run as an ordinary user, or export OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    _Known(
        DUPLICATE,
        _PAIR,
        "each rank needs its own GPU: give each task one GPU (--gpus-per-task=1) or set CUDA_VISIBLE_DEVICES "
        "from SLURM_LOCALID; on nodes that share one host, assign different GPUs to each node",
    ),
    _Known(
        "low limit of locked memory",
        re.compile(r"Call to ibv_(?:create_cq|create_qp|reg_mr)\w* failed .*Cannot allocate memory.*"),
        "memlock must be unlimited: `ulimit -l` in a step; LimitMEMLOCK=infinity in slurmd's unit, and "
        "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf; for a container, the limit of its runtime",
    ),
    _Known(
        "shared memory is full",
        re.compile(r"Error while creating shared memory segment .*No space left on device.*"),
        "df -h /dev/shm; ls -l /dev/shm/nccl-*; mount -o remount,size=50% /dev/shm, or give the container more of it",
    ),
    _Known(
        "no network interface",
        re.compile(r"Bootstrap : no socket interface found|NET/Socket : no interface found"),
        "NCCL_SOCKET_IFNAME (environment, task prolog, /etc/nccl.conf, ~/.nccl.conf) names an interface that the node "
        "lacks: ip -br link",
    ),
    _Known(
        LIMITED,
        # a low limit explains only these failures
        re.compile(r"(?:(?:CUDA error: |Cuda failure '?)out of memory|busy or unavailable|[Tt]oo many open files|"
                   r"[Cc]annot allocate memory|unknown error).*"),
        "ulimit -n; ulimit -v in a step on the node; LimitNOFILE=, LimitAS= of slurmd's unit, limits.conf, and what "
        "the shell that runs pytest passes on (PropagateResourceLimits of slurm.conf)",
    ),
    _Known(
        "fabric manager",
        re.compile(r"system not yet initialized"),
        "systemctl status nvidia-fabricmanager; it must run, in the driver's version, before CUDA starts",
    ),
    _Known(
        "driver library",
        re.compile(r"CUDA driver is a stub library|driver on your system is too old|driver version is insufficient|"
                   r"forward compatibility was attempted|system has unsupported display driver"),
        "which libcuda.so.1 is loaded, and is it the driver's: LD_LIBRARY_PATH of the step (a task prolog, a module, "
        "the image), ldconfig -p, cat /proc/driver/nvidia/version; torch.version.cuda may be newer than the driver",
    ),
    _Known(
        "ranks do not fit",
        re.compile(r"NET/\w+ : peer \S+ message truncated : receiving \d+ bytes instead of \d+"),
        "NCCL_PROTO, NCCL_ALGO, NCCL_BUFFSIZE or the version of NCCL differ between the nodes: /etc/nccl.conf, "
        "~/.nccl.conf, the task prolog, the image",
    ),
    _Known(
        "NCCL",
        re.compile(r"(?:torch\.distributed\.DistBackendError: )?NCCL error(?: in)?: .*|ncclUnhandledCudaError.*|"
                   r"ncclSystemError.*|ncclRemoteError.*|ncclInternalError.*"),
        "set NCCL_DEBUG=INFO and repeat; the first rank that fails is the cause, the others follow",
    ),
    _Known(
        "out of memory",
        re.compile(r"CUDA error: out of memory|Cuda failure '?out of memory|"
                   r"\S*OutOfMemoryError.*|[Oo]ut [Oo]f [Mm]emory.*oom.kill.*"),
        "another process holds the memory (nvidia-smi), or the largest size is too large",
    ),
    _Known(
        "no torch",
        re.compile(r"No module named 'torch'.*"),
        "python3 -c 'import torch' on the node; install it, or name the python, container or modules that have it "
        "under environments and nccl.environment",
    ),
    _Known(
        "library missing",
        re.compile(r"error while loading shared libraries: \S+: .*|libnccl\.so\.\d+: cannot open shared object file"),
        "load the module or use the container image that has it; check LD_LIBRARY_PATH inside the step",
    ),
    _Known(
        "command missing",
        re.compile(r"execve\(\): \S+: No such file or directory|(?<!\S)\S{1,255}_perf: (?:command )?not found"),
        "nccl-tests is not at this path on the nodes or in the image",
    ),
)  # fmt: skip
# kinds that our payloads name by the code; no text is read for them: {kind: hint}
OF_PAYLOADS = {
    "CPU build of torch": "python3 -c 'import torch; print(torch.__file__, torch.version.cuda)' on the node; install the "
    "CUDA build, or name the python, container or modules that have it",
    "port taken": "another process listens there: ss -ltnp on the node; repeat: each step has its own port",
    "no GPU": "the step assigns a GPU that does not exist: compare CUDA_VISIBLE_DEVICES with nvidia-smi -L, gres.conf and "
    "the task prolog; or the driver is too old for torch",
}
# kinds that only repeat the cause: {kind: causes}
_FOLLOWS = {"NCCL": {DUPLICATE, "no network interface", LIMITED, "ranks do not fit"}, "out of memory": {LIMITED}}
_WITHOUT_LIMITS = tuple(known for known in _KNOWN if known.kind != LIMITED)
_OF_MPI = ("MPI without PMI", "orte_ess_init", "PMIx abort", "step launch failed", "plugin missing")
_ENDED_TASKS = re.compile(r"srun: error: (?P<nodes>\S+): tasks? (?P<tasks>[\d,\-\[\] ]+): ")


def code_of_kind(kind: str) -> str:
    """Return the code of a finding of this kind, like out_of_memory."""
    return kind.lower().replace(" ", "_")


# no hardware faults, by the code of a finding
SOFTWARE = {
    code_of_kind(kind): kind for kind in (LIMITED, "driver library", "CPU build of torch", "no torch", DUPLICATE)
}
# what a rank sees if another one has died or waits
_PEER_LOST = re.compile(
    r"[Tt]imed? ?out|[Cc]onnection|[Bb]roken pipe|clients joined|Unavailable|DEADLINE_EXCEEDED|heartbeat|task:\d+"
)
MAX_LINE = 2048
MAX_TASK = 1 << 17  # above any step; a damaged line must not fill the memory
_SPAN = re.compile(r"\b(\d{1,7})(?:-(\d{1,7}))?\b")
_LAUNCH = re.compile(r"srun: error: task (\d{1,7}) launch failed")


def explain(text: str, *, mpi: str | None = None, low_limits: bool = False) -> tuple[LaunchFailure, ...]:
    """Return each kind of known failure in the text once, with the nodes that srun names for it.

    `mpi` is the step's --mpi ('' for none); failures of MPI show it. `low_limits`: the process had limits too low for CUDA.
    """
    text = clipped(text)
    found: dict[str, LaunchFailure] = {}
    matched_lines: set[int] = set()  # a line that matches several kinds has the first one
    nodes = hostlist.shown(set(nodes_of_tasks(text).values()), none="")
    started = "" if mpi is None else f"; the step ran with --mpi={mpi}" if mpi else "; the step ran without --mpi"
    for known in _KNOWN if low_limits else _WITHOUT_LIMITS:
        lines = {text.rfind("\n", 0, match.start()): match for match in known.pattern.finditer(text)}
        match = next((match for at, match in lines.items() if at not in matched_lines), None)
        matched_lines |= lines.keys()
        if match and known.kind not in found and not found.keys() & _FOLLOWS.get(known.kind, set()):
            description = _describe(known, match, text) + (started if known.kind in _OF_MPI else "")
            # after a failed launch srun names the tasks of the other nodes, which it kills
            host = "" if known.kind == "step launch failed" else nodes
            found[known.kind] = LaunchFailure(known.kind, host, description, known.hint)
    return tuple(found.values())


def code_of(text: str, otherwise: str, *, low_limits: bool = False) -> str:
    """Return the code of what torch, CUDA, NCCL or TensorFlow printed, like `out_of_memory`; `otherwise` if unknown."""
    code = next((found.code for found in explain(text, low_limits=low_limits)), otherwise)
    if code in SOFTWARE:
        return code
    if reports_too_few(text):
        return FEW_GPUS
    return "out_of_memory" if NO_MEMORY in text else "peer_lost" if _PEER_LOST.search(text) else code


def with_software_cause(verdict: Verdict) -> Verdict:
    """Return the verdict of a failed GPU start with its software cause, if all findings have the code of one."""
    kinds = [SOFTWARE[finding.code] for finding in verdict.findings if finding.code in SOFTWARE]
    if not kinds or len(kinds) < len(verdict.findings):
        return verdict
    hints = {**{known.kind: known.hint for known in _KNOWN}, **OF_PAYLOADS}
    return with_cause(verdict, "", f"{kinds[0]}: settings or software of the node, not its GPU", hints[kinds[0]])


def clipped(text: str) -> str:
    """Return the text with lines cut to MAX_LINE characters: the patterns take quadratic time."""
    return "\n".join(line[:MAX_LINE] for line in text.split("\n"))


def _describe(known: _Known, match: re.Match[str], text: str) -> str:
    if known.kind == DUPLICATE:
        return "; ".join(_shared(text))
    times = len(known.pattern.findall(text))
    line = " ".join(match[0].split())
    more = f" ({times} times)" if times > 1 else ""
    client = re.search(r"Unreachable in file (ext(\d)x_client\.c)", text)
    if known.kind == "MPI without PMI" and client:
        more += f"; it was built for PMIx {client[2]} ({client[1]})"
    failed = _LAUNCH.findall(text)
    if known.kind == "step launch failed" and failed:
        more += f"; tasks {_fold_numbers(failed)} did not start"
    return line + more


def duplicate_gpus(text: str) -> dict[str, tuple[int, ...]]:
    """Return {CUDA device: ranks that share it} of NCCL's 'Duplicate GPU detected' lines.

    The device is NCCL's bus id without domain and function: '60' is 0000:00:06.0.
    """
    shared: dict[str, set[int]] = {}
    for one, other, device in _PAIR.findall(text):
        shared.setdefault(device, set()).update((int(one), int(other)))
    return {device: tuple(sorted(ranks)) for device, ranks in sorted(shared.items())}


def _shared(text: str) -> Iterator[str]:
    nodes = nodes_of_tasks(text)
    for device, ranks in duplicate_gpus(text).items():
        where = [f"{rank} ({nodes[rank]})" if rank in nodes else f"{rank}" for rank in ranks]
        yield f"ranks {', '.join(where)} share the GPU at bus id {device}"


def nodes_of_tasks(text: str) -> Mapping[int, str]:
    """Return {task: node} from the lines of srun about failed tasks."""
    where: dict[int, str] = {}
    for match in _ENDED_TASKS.finditer(text):
        for task in _numbers(match["tasks"]):
            where[task] = match["nodes"]
    return where


def _numbers(text: str) -> Iterator[int]:
    for first, last in _SPAN.findall(text):
        yield from range(int(first), min(int(last or first), MAX_TASK) + 1)


def _fold_numbers(numbers: list[str]) -> str:
    return ",".join(sorted({*numbers}, key=int))
