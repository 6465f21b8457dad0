"""Every reader of text from Slurm, from files and from steps, with what it is fuzzed from. What a probe reads is guarded: core/probe.py.

A corpus is made of recordings (tests/data) and of short texts in the reader's own format.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ibfabric_helpers
from hypothesis import HealthCheck, settings

from pytest_gpucluster.campaign import state_file
from pytest_gpucluster.campaign.model import Campaign, Kind, NodeResult, RunGroup, SlurmNode
from pytest_gpucluster.campaign.state_file import parse_state
from pytest_gpucluster.campaign.summary import CampaignState, judge
from pytest_gpucluster.cli.signed_folder import parse_manifest
from pytest_gpucluster.cluster.channel import protocol
from pytest_gpucluster.cluster.channel.batch import Batch
from pytest_gpucluster.cluster.slurm import completing, inventory, pyxis, step
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import hostlist, topology, units
from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.budget import Budget
from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.drain.reason import read_reason
from pytest_gpucluster.gate import baseline as gate_baseline
from pytest_gpucluster.kit.framework import payload_result
from pytest_gpucluster.kit.mpi import mpi_errors
from pytest_gpucluster.kit.mpi import mpi_facts as mpi
from pytest_gpucluster.kit.nccl import nccl_log, nccl_tests
from pytest_gpucluster.kit.nccl.measurement import Measurement
from pytest_gpucluster.kit.nccl.nccl_names import NameFilter
from pytest_gpucluster.kit.node import node_facts
from pytest_gpucluster.report.machine.events import events_of, read_run
from pytest_gpucluster.report.run_model import Run
from pytest_gpucluster.suites.accounting import config as accounting_config
from pytest_gpucluster.suites.accounting import facts as accounting
from pytest_gpucluster.suites.burnin import dcgm
from pytest_gpucluster.suites.burnin.results import NodeTotals
from pytest_gpucluster.suites.container import facts as container
from pytest_gpucluster.suites.controller import facts as controller
from pytest_gpucluster.suites.horovod import facts as horovod_build
from pytest_gpucluster.suites.ibfabric import facts as ib_facts
from pytest_gpucluster.suites.ibfabric import subnet as ib_subnet
from pytest_gpucluster.suites.ibfabric.lldp import parse_neighbours
from pytest_gpucluster.suites.ibfabric.plan import parse_plan
from pytest_gpucluster.suites.isolation.logins import read_login
from pytest_gpucluster.suites.isolation.settings import shared_resources
from pytest_gpucluster.suites.isolation.steps import read_terminal
from pytest_gpucluster.suites.kubernetes import facts as kubernetes
from pytest_gpucluster.suites.monitoring import facts as monitoring
from pytest_gpucluster.suites.monitoring import gpu_facts
from pytest_gpucluster.suites.nccl import steps as nccl
from pytest_gpucluster.suites.slurm import diagnostic_step as diagnostic
from pytest_gpucluster.suites.software import facts as software

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = Path(__file__).parent / "data"
TOO_LONG = 20  # seconds that no reader may take for 100 kB, on the slowest machine


@dataclass(frozen=True)
class Reader:
    """One reader of bytes, and texts that it was made for."""

    name: str
    read: Callable[[bytes], Any]
    seeds: tuple[bytes, ...]
    typed: tuple[type[Exception], ...] = (GpuClusterError,)


def recorded(*names: str) -> tuple[bytes, ...]:
    return tuple((DATA / name).read_bytes() for name in names)


def _in(folder: str, pattern: str, most: int = 6) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((DATA / folder).glob(pattern))[:most])


_KUBERNETES = tuple(
    section.encode()
    for path in sorted((DATA.parent / "corpus" / "kubernetes").glob("*a*.txt"))[:4]
    for section in re.split(r"^>>> .*\n", path.read_text(), flags=re.MULTILINE)[2:]
)
_NODES = (
    b"NodeName=gpu01 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=4 Gres=gpu:h200:8(S:0-1) NodeAddr=127.0.0.1 "
    b"NodeHostName=gpu01 Version=22.05.8 OS=Linux RealMemory=1000 State=IDLE+DRAIN Partitions=batch,debug "
    b"BootTime=2026-11-20T10:00:00 Reason=bad cable [root@2026-11-20T10:00:00]\n",
)
_SRUN = (
    b"srun: error: gpu01: task 0: Exited with exit code 1\nsrun: error: gpu[01-02]: tasks 0-3,5: Killed\n"
    b"srun: error: Node failure on gpu03\nsrun: error: task 7 launch failed: Unspecified error\n"
    b"srun: error: Task launch for StepId=12.0 failed on node gpu01: Invalid job credential\n",
)
_WORLD = (
    b'gpucluster-mpi {"kind": "rank", "rank": 0, "size": 2, "host": "a", "node": "gpu01", "threads": "x", "wrong": 0, '
    b'"of": 9, "library": "Open MPI v4.1.4"}\ngpucluster-mpi {"kind": "pair", "ranks": [0, 1], "latency": 1e-6, '
    b'"bandwidth": 2e9}\n',
)
_DCGM = (
    b'warming up\n{"DCGM Diagnostic": {"version": "4.2", "test_categories": [{"category": "Hardware", "tests": [{"name": '
    b'"memory", "results": [{"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [{"warning": "x"}]}]}]}]}}',
)
_BURNIN = (
    b'{"load": "matmul", "results": [{"gpu": 0, "uuid": "GPU-1", "dtype": "bf16", "tflops": 700.5, "wrong": 0, "checked": 2, '
    b'"key": "matmul/bf16", "hash": "ab"}], "deltas": {"GPU-1": {"ecc": 1}}, "sensors": {"GPU-1": {"samples": 3, "slow": '
    b'{"thermal": 0.5}, "sm_mhz": 1900}}, "unread": {}}',
)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _both(function: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: function(_text(data))


def _hardware(data: bytes) -> Any:
    return node_facts.read_hardware(*(Answer("gpu01", 0, it) for it in (*data.split(b"%%"), b"", b"")[:3]))


def _shared(data: bytes) -> Any:
    return shared_resources(inventory.parse_config(_text(data)), load_cluster("local"))


def _generated(function: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: list(function(_text(data)))


def _stream(data: bytes) -> object:
    stream = protocol.Stream()
    for line in data.split(b"\n"):
        frame = protocol.parse(line, b"n")
        if frame is not None and frame.kind in "oO":
            (stream.add(frame, 1 << 16) if frame.kind == "o" else stream.end(frame))
    return stream.data(protocol.BASE64, 1 << 16)


def _batch(data: bytes) -> object:
    batch = Batch((("true", 1.0), ("false", 1.0)))
    return batch.split(Answer("gpu01", 0, data.replace(b"MARK", batch.mark.encode()), data))


def _burnin_totals(data: bytes) -> object:
    line = jsontext.loads(_text(data))
    node = NodeTotals("gpu01")
    node.add(line)
    return NodeTotals.from_dict(node.as_dict())


def _run(data: bytes) -> Run:
    """Read a log as `gpucluster report` does."""
    return read_run(events_of(_text(data).splitlines()))


_TARGETS = (
    b'{"status": "success", "data": {"activeTargets": [{"labels": {"job": "node", "instance": "gpu01:9100"}, '
    b'"discoveredLabels": {"__address__": "gpu01:9100"}, "scrapeUrl": "http://gpu01:9100/metrics", "health": "up", '
    b'"lastError": "", "lastScrape": "2026-11-21T01:02:03.5Z", "scrapeInterval": "15s"}]}}',
)
_SLURM_LOG = (
    b"now 1795446612 2026-11-23T15:10:12\nwritten 1795446600\n[2026-11-23T15:10:02.151+02:00] error: [job 6] prolog failed status=1:0\n"
    b"[Nov  3 15:10:02] error: x\n"
    b'{"log": "error: x", "stream": "stderr", "time": "2026-11-23T15:10:02"}\n',
)


def _campaign() -> bytes:
    """Return the state of a campaign with one group."""
    kind = Kind("alone", "gpu", ("gpu",))
    campaign = Campaign(1, "c", "x", False, ("gpu01",), (kind,), 1.0)
    group = RunGroup(1, 1, "alone", ("gpu01",), False, "000001", "", "", 1.0, 2.0, 3.0, "r", "0" * 64)
    result = NodeResult("alone", "gpu01", 1, ("gpu01",), 3.0, "fit")
    state = CampaignState(campaign, (group,), (result,), {}, {"gpu01": SlurmNode(False, True)})
    return state_file.encode(state_file.document_of(judge(state, now=1.0)))


_EVENTS = (
    b'{"event": "start", "run": "r", "time": 1.0, "cluster": "c"}\n{"event": "nodes", "selected": ["gpu01"]}\n'
    b'{"event": "selection", "sets": [["gpu01"]], "required": [["gpu", "gpu.count", 1, 0, false, ""]]}\n'
    b'{"event": "result", "nodeid": "test_gpu.py::test_count[gpu01]", "outcome": "passed", "suite": "gpu", '
    b'"check": "gpu.count", "node": "gpu01", "verdicts": [], "metrics": []}\n{"event": "finish", "exit": 0}\n',
    b'{"time": 1, "run": "r", "event": "shape", "name": "c", "of": {"nodeid": ["a[", "]"], "outcome": "passed", '
    b'"metrics": [{"name": "x", "part": 0}]}}\n{"event": "parts", "number": 0, "of": [{"kind": "gpu"}]}\n["c","n",0.5,0.1,0,7]\n',
)

VALUE = (GpuClusterError, ValueError)  # who calls these tells where: SlurmError, ConfigError
# printed by tasks of the bundled payloads, behind a door that takes these (kit.payload_step)
DOOR = (*VALUE, KeyError, TypeError, AttributeError, OverflowError)
OTHERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader("kit.framework.payload_result.read_facts", lambda data: payload_result.read_facts(_text(data), "ddp"), (
            b'{"ddp": "rank", "rank": 0, "node": "gpu01"}\nnoise {"ddp": "x"}\n',)),
        Reader("kit.node.node_facts.read_hardware", _hardware, (b"@@ gpus 0\n%%port mlx5_0 1;4: ACTIVE;400 Gb/sec (4X NDR);InfiniBand;32.0 GT/s PCIe;16;;;;;\nend\n%%Architecture: x86_64\n\nQEMU\nend\n",)),
        Reader("core.topology.parse_slurm_topology", _both(topology.parse_slurm_topology), (
            b"SwitchName=s0 Level=0 LinkSpeed=1 Nodes=gpu[01-04]\nSwitchName=s1 Level=1 Switches=s[0-3]\n",), VALUE),
        Reader("kit.nccl.measurement.Measurement.from_dict", lambda data: Measurement.from_dict(jsontext.loads(_text(data))), (
            b'{"members": ["gpu01", "gpu02"], "busbw": 1.5, "collective": "all_reduce", "size": 4, "round": 1}',), DOOR),
        Reader("suites.burnin.results.NodeTotals.from_dict", _burnin_totals, _BURNIN, DOOR),
        Reader("core.budget.Budget.parse", _both(Budget.parse), (b"10%", b"3"), VALUE),
        Reader("drain.reason.read_reason", _both(lambda text: read_reason("gpu01", text)), (
            b"gpucluster:gpu.count 1<2 GPUs run=20261121T010203-42 sum=5a4e2ac0",
            b"gpucluster:gpu.count 1<2 also=os.mounts,gpu.* run=r sum=00000000",
            b"gpucluster:gpu.count 1<2 GPUs run=r sum=a7b464f3 : Not responding")),
        Reader("suites.monitoring.facts.read_targets", monitoring.read_targets, _TARGETS),
        Reader("suites.monitoring.facts.read_alerts", monitoring.read_alerts, (
            b'{"status": "success", "data": {"alerts": [{"labels": {"alertname": "Down"}, "annotations": {}, "state": "firing", '
            b'"activeAt": "2026-11-21T01:02:03.5Z", "value": "1e+00"}]}}',)),
        Reader("suites.monitoring.facts.read_version", monitoring.read_version, (
            b'{"status": "success", "data": {"version": "2.42.0"}}',)),
        Reader("suites.monitoring.facts.read_began", monitoring.read_began, (
            b'{"status": "success", "data": {"startTime": "2026-11-21T01:02:03Z", "lastConfigTime": '
            b'"2026-11-21T02:02:03+01:00"}}',)),
        Reader("suites.monitoring.facts.read_grafana", monitoring.read_grafana, (b'{"database": "ok", "version": "11.0"}',)),
        Reader("suites.monitoring.facts.read_time", _both(monitoring.read_time), (
            b"2026-11-21T01:02:03.123456789Z", b"0001-01-01T00:00:00Z"), VALUE),
        Reader("suites.monitoring.gpu_facts.read_rules", gpu_facts.read_rules, (
            b'{"status": "success", "data": {"groups": [{"name": "g", "rules": [{"name": "Hot", "query": "DCGM_FI_DEV_GPU_TEMP > 90", '
            b'"type": "alerting", "health": "ok", "lastError": ""}]}]}}',)),
        Reader("suites.monitoring.gpu_facts.read_samples", gpu_facts.read_samples, (
            b'{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", '
            b'"UUID": "GPU-1", "instance": "gpu01:9400", "job": "dcgm"}, "values": [[1795446612.5, "45"]]}]}}',)),
        Reader("suites.controller.facts.parse_ping", _both(controller.parse_ping), (
            b"Slurmctld(primary) at ctl1 is UP\nSlurmctld(backup) at ctl2 is DOWN\n",)),
        Reader("suites.controller.facts.parse_sdiag", _both(controller.parse_sdiag), recorded("controller/sdiag-22.05.8.txt")),
        Reader("suites.controller.facts.read_log", lambda data: controller.read_log(Answer("gpu01", 0, data)), _SLURM_LOG),
        Reader("suites.kubernetes.facts.read_version", _both(kubernetes.read_version), (
            b'{"clientVersion": {"gitVersion": "v1.33.5"}, "serverVersion": {"gitVersion": "v1.33.5+rke2r1"}}',)),
        Reader("suites.kubernetes.facts.read_objects", _both(kubernetes.read_objects), _KUBERNETES),
        Reader("suites.kubernetes.facts.read_jobs", _both(kubernetes.read_jobs), (
            b'{"items": [{"metadata": {"name": "gpucluster-gpus-1-0", "uid": "1", "labels": {"a": "b"}}, "spec": '
            b'{"ttlSecondsAfterFinished": 300}, "status": {"conditions": [{"type": "Failed", "status": "True", '
            b'"lastTransitionTime": "2026-11-23T09:00:00Z"}]}}]}',)),
        Reader("suites.kubernetes.facts.read_job_pods", _both(kubernetes.read_job_pods), (
            b'{"items": [{"metadata": {"name": "gpucluster-nccl-1-0-x", "labels": {"gpucluster-job": "gpucluster-nccl-1"}, '
            b'"annotations": {"batch.kubernetes.io/job-completion-index": "0"}}, "spec": {"nodeName": "gpu01"}, "status": '
            b'{"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "x"}}}]}}]}',)),
        Reader("suites.kubernetes.facts.read_uid", _both(kubernetes.read_uid), (b'{"metadata": {"uid": "1"}}',), VALUE),
        Reader("suites.kubernetes.facts.read_time", _both(kubernetes.read_time), (b"2026-11-23T09:00:00.5Z",), VALUE),
        Reader("suites.accounting.facts.parse_associations", _both(
            lambda text: accounting.parse_associations(text, {"GrpTRES": "tres", "MaxJobs": "count", "MaxWall": "time"})), (
            b"root||||1|normal|||\nml|||root|10|high,low|gres/gpu=2,mem=100G|4|1-00:00:00\nml|daemon|||1|high,low|||\n",)),
        Reader("suites.accounting.facts.parse_qos", _both(lambda text: accounting.parse_qos(text, {"MaxTRESPU": "tres"})), (
            b"normal|0|||\nhigh|1000|low|DenyOnLimit|gres/gpu=3,mem=100G\n",)),
        Reader("suites.accounting.facts.parse_records", _both(accounting.parse_records), (
            b"12|root|ml|batch|CANCELLED by 0|2026-11-23T14:45:44|None|2026-11-23T14:46:24|0:0||None assigned\n",)),
        Reader("suites.accounting.facts.parse_queue_size", _both(accounting.parse_queue_size), (
            b"Agent thread count:   0\nDBD Agent queue size: 12\n",)),
        Reader("suites.accounting.facts.parse_private_data", _both(accounting.parse_private_data), (
            b"PrivateData = none\n\nSlurmDBD configuration:\nPrivateData            = jobs,users\n",)),
        Reader("suites.accounting.facts.read_refusal", _both(accounting.read_refusal), (
            b"allocation failure: Invalid qos specification\n",)),
        Reader("suites.accounting.config.read_value", _both(lambda text: accounting_config.read_value("tres", text)), (
            b"gres/gpu=3,mem=100G", b"node=-1"), VALUE),
        Reader("suites.ibfabric.subnet.read_ibnetdiscover", _both(ib_subnet.read_ibnetdiscover), (ibfabric_helpers.NETDISCOVER.encode(),)),
        Reader("suites.ibfabric.facts.read_fabric", _both(lambda text: ib_facts.read_fabric("gpu01", text, text)), (ibfabric_helpers.SHOWN.encode(),)),
        Reader("suites.ibfabric.facts.parse_node_ports", lambda data: ib_facts.parse_node_ports(Answer("gpu01", 0, data)), (b"tools\nend\n",)),
        Reader("suites.software.facts.read_steps", lambda data: software.read_steps(Answer("a", 0, data)), (
            *recorded("software/tcl-5.2.0.txt", "software/lmod-8.6.19.txt", "software/conda-26.7.txt"),)),
        Reader("suites.software.facts.read_packages", _both(software.read_packages), (
            b'[{"name": "numpy", "version": "1.26.4"}]', b'{"message": "No packages match"}')),
        Reader("suites.ibfabric.plan.parse_plan", _both(lambda text: parse_plan("plan", text)), (
            *_in("ibfabric", "plan-*", 7), *recorded("ibfabric/ibnetdiscover-ibsim.txt"))),
        Reader("suites.ibfabric.lldp.parse_neighbours", _both(parse_neighbours), _in("ibfabric", "lldp-*")),
        Reader("report.machine.events.read_run", _run, _EVENTS),
        Reader("cli.signed_folder.parse_manifest", lambda data: parse_manifest(data, Path("SHA256SUMS")), (b"%064d  a/b\n" % 0,)),
        Reader("campaign.state_file.parse_state", lambda data: parse_state(data, Path("campaign.json")), (_campaign(),)),
        Reader("gate.baseline.parse", _both(gate_baseline.parse), (
            b'{"version":1,"cluster":"prod","run":"r","written":1.0,"nodes":{"gpu01":{"cpus":8}},'
            b'"answers":{"gpu01":{"uname -r":[0,"6.8.0","",1.0,2.0]}}}',)),
        Reader("cluster.slurm.inventory.parse_reservations", _both(inventory.parse_reservations), (
            b"ReservationName=maint State=ACTIVE Nodes=gpu[01-02] Flags=MAINT,IGNORE_JOBS\n",
            b"No reservations in the system\n"), VALUE),
        Reader("cluster.slurm.completing.parse_ending", _both(completing.parse_ending), (
            b"12|alice|2026-11-21T03:04:05|gpu[01-02]\n13|bob|N/A|gpu03\n",)),
        Reader("cluster.channel.batch.Batch.split", _batch, (b"hello\nMARK 0\nx\nMARK 1\n",)),
        Reader("cluster.channel.protocol.parse", lambda data: protocol.parse(data, b"n"), (
            b"n 1 o 0 4 YWJj", b"n 0 H 1 b 5.1", b"n 1 X 0", b"n 1 O 1 0"), (protocol.FrameError,)),
        Reader("cluster.channel.protocol.Stream", _stream, (b"n 1 o 0 4 YWJj\nn 1 O 1 0\n",), (protocol.FrameError,)),
        Reader("cluster.channel.protocol.ending", _both(protocol.ending), _SRUN),
        Reader("core.hostlist.expand", _both(hostlist.expand), (b"gpu[01-16,20],login", b"rack[1-3]gpu[01-08]"), VALUE),
        Reader("core.safe_json.loads", _both(jsontext.loads), (b'{"a": [1, 2.5, null]}',), (ValueError,)),
        Reader("suites.container.facts.read_facts", _both(container.read_facts), (b"c|root|8:1\nc|env|a|b\n",)),
        Reader("suites.burnin.dcgm.read", lambda data: dcgm.read(0, _text(data)), _DCGM),
        Reader("suites.horovod.facts.read", _both(horovod_build.read), _in("horovod", "*.txt")),
        Reader("kit.mpi.mpi_facts.version_of", _both(mpi.version_of), (b"mpirun (Open MPI) 4.1.4", b"MPICH Version: 4.2.1")),
        Reader("kit.mpi.mpi_facts.read_installed", lambda data: mpi.read_installed("gpu01", _text(data)), _in("mpi", "prepare*")),
        Reader("kit.mpi.mpi_facts.read_world", _both(mpi.read_world), _WORLD),
        Reader("kit.mpi.mpi_errors.explain", _both(mpi_errors.explain), (*_in("nccl", "mpi-*.txt"), *_SRUN)),
        Reader("kit.nccl.nccl_log.read", _both(nccl_log.read), recorded("nccl/nccl-debug-info.txt")),
        Reader("kit.nccl.nccl_tests.read", _both(nccl_tests.read), (
            *_in("nccl", "nccl-*.txt"), *_in("nccl", "derived-2.1*-all_reduce.txt"))),
        Reader("kit.nccl.nccl_tests.read_tasks", lambda data: nccl_tests.read_tasks({"0": _text(data)}, stderr=_text(data)), (
            *_in("nccl", "per-node*.txt"), *_in("nccl", "torch-*.txt"))),

        Reader("kit.nccl.nccl_names.NameFilter.parse", _both(NameFilter.parse), (b"^=mlx5_0:1,mlx5_1", b"eth,ib:2"), ()),
        Reader("suites.nccl.steps.read_rounds", _generated(nccl.read_rounds), (
            b'{"round": 1, "members": ["gpu01", "gpu02"], "busbw": 1.5}\n',)),
        Reader("suites.isolation.steps.read_terminal", _both(read_terminal), (b"^@srun: error\r\npty|yes|end\r\n",)),
        Reader("suites.isolation.logins.read_login", lambda data: read_login(255, _text(data), _text(data)), (
            b"gpucluster-login 1000\n",
            b"Access denied by pam_slurm_adopt: you have no active jobs on this node\r\n")),
        Reader("suites.isolation.settings.shared_resources", _shared, (b"TaskPlugin = task/cgroup\nConstrainCores = yes\n",), VALUE),
        Reader("suites.slurm.diagnostic_step.parse_squeue", _both(diagnostic.parse_squeue), (
            b"12_0                12        COMPLETED           1  \n",), VALUE),
        Reader("cluster.slurm.inventory.parse_nodes", _both(inventory.parse_nodes), _NODES, VALUE),
        Reader("cluster.slurm.inventory.parse_partitions", _both(inventory.parse_partitions), (
            b"PartitionName=batch Default=YES MaxTime=1-00:00:00 Nodes=gpu[01-04] State=UP OverSubscribe=NO\n",), VALUE),
        Reader("cluster.slurm.inventory.parse_steps", _both(inventory.parse_steps), (
            b"StepId=10.0 UserId=0 State=RUNNING Partition=batch NodeList=gpu[01-02] Nodes=2 CPUs=2 Name=a b Network=(null)\n",
            ), VALUE),
        Reader("cluster.slurm.inventory.parse_config", _both(inventory.parse_config), (b"SLURM_VERSION           = 22.05.8\n",), VALUE),
        Reader("cluster.slurm.pyxis.explain", _both(pyxis.explain), (
            b"slurmstepd: error: pyxis: couldn't chdir to /x: No such file\n", b"curl: (6) Could not resolve host: nvcr.io")),
        Reader("cluster.slurm.step.srun_endings", _both(step.srun_endings), _SRUN),
        Reader("core.units.cpu_list", _both(units.cpu_list), (b"0-2,8", b"0-127"), VALUE),
        Reader("core.units.parse_size", _both(units.parse_size), (b"81559MiB", b"2 TB"), VALUE),
        Reader("core.units.parse_duration", _both(units.parse_duration), (b"1-02:00:00", b"250ms"), VALUE),
    )
}  # fmt: skip

ALL = [*OTHERS.values()]


def campaign(examples: int) -> settings:
    """Return settings of a test with random input: as many examples, the same ones each time; `make fuzz` draws many others."""
    asked = os.environ.get("GPUCLUSTER_FUZZ_EXAMPLES")
    count, checks = int(asked or examples), list(HealthCheck)
    return settings(max_examples=count, deadline=None, suppress_health_check=checks, derandomize=not asked)


@contextmanager
def deadline(seconds: int = TOO_LONG) -> Iterator[None]:
    """Fail, in place of hanging for ever."""

    def stop(*_: object) -> None:
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def typed(reader: Reader, data: bytes) -> Any:
    """Return the facts, or the error of the types that the reader may raise; every other one is a bug."""
    with deadline():
        try:
            return reader.read(data)
        except reader.typed as error:
            return error
