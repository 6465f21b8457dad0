"""The accounting suite on a real Slurm with slurmdbd: as its own draft of a cluster file states it, then changed."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import Run, command, names, processes, run_pytest, start_controller
from sandbox_helpers import environment, left_in_queue, queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import slurmconf, slurmdbd
from slurm_sandbox.daemons import search_path
from slurm_sandbox.processes import from_pid_file, stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SUITE = ("-m", "accounting", "--pyargs", "pytest_gpucluster.suites.accounting")
# {line of slurm.conf: what it becomes so that Slurm enforces no limits, fair share has no weight, and nothing is backfilled}
SITE = {
    "AccountingStorageEnforce=associations,limits,qos": "AccountingStorageEnforce=associations",
    "PriorityWeightFairshare=100000": "PriorityWeightFairshare=0",
    "SchedulerType=sched/backfill": "SchedulerType=sched/builtin",
    "PriorityType=priority/multifactor": "",
    "PriorityDecayHalfLife=7-0": "",
    "PriorityCalcPeriod=1": "",  # a minute, the least
    "PriorityWeightPartition=1000": "",
    "PreemptType=preempt/qos": "",
    "PreemptMode=SUSPEND,GANG": "",
}
NO_PREEMPTION = {
    "PreemptType=preempt/qos": "PreemptType=preempt/none",
    "PreemptMode=SUSPEND,GANG": "PreemptMode=OFF",
}
# in `urgent` jobs suspend those in `alone`
PARTITIONS = (
    "PartitionName=alone Nodes=gpu04 State=UP",
    "PartitionName=urgent Nodes=gpu04 State=UP PriorityTier=10",
    "PartitionName=rest Nodes=gpu[01-03] State=UP",
)
QOS = {
    "low": "PreemptMode=requeue",
    "gone": "PreemptMode=cancel",
    "paused": "PreemptMode=suspend",
    "high": "Priority=1000",
    "jobs": "MaxJobsPU=1",
    "queued": "MaxSubmitJobsPU=1",
    "strict": "Flags=DenyOnLimit MaxTRES=cpu=2",
    "sizes": "MaxTRESPU=gres/gpu=2,cpu=3 MaxTRES=mem=250 MaxWall=3",
}
# account: its parent, limits and users, whom every system has
ACCOUNTS = {
    "ml": ("root", "Fairshare=10", "daemon"),
    "ops": ("root", "Fairshare=20:GrpTRES=gres/gpu=6", "bin"),
    "vision": ("ml", "Fairshare=1", ""),
    "trial-a": ("root", "Fairshare=1", "root"),
    "trial-b": ("root", "Fairshare=1", "root"),
    "trial-nodes": ("root", "GrpTRES=node=2", "root"),
    "trial-sizes": ("root", "GrpTRES=mem=300:MaxTRESPerJob=cpu=2:MaxWallDurationPerJob=5", "root"),
}
# each line by a process of its own: slurmdbd waits more than it works
CHANGES = (
    "modify qos jobs set MaxJobsPU=2",
    "modify qos low set PreemptMode=cancel",
    "modify qos high set Preempt=low,paused",
    "remove user daemon Account=ml\nmodify account ops set GrpTRES=gres/gpu=7\nadd account stranger\n"
    "add user games Account=ml DefaultAccount=ml",
)
ACCESS = """
may: [{user: daemon, account: ml}, {user: bin, partition: debug, qos: high}]
may_not: [{user: daemon, account: ops}, {user: root, account: trial-a, partition: debug}, {user: games}]
"""
TRIALS = """
partition: batch
account: trial-a
limits:
  - {qos: jobs, limit: MaxJobsPU}
  - {qos: queued, limit: MaxSubmitPU}
  - {qos: sizes, limit: MaxTRESPU, tres: gres/gpu}
  - {qos: sizes, limit: MaxTRESPU, tres: cpu}
  - {qos: sizes, limit: MaxTRES, tres: mem}
  - {qos: sizes, limit: MaxWall}
  - {qos: strict, limit: MaxTRES, tres: cpu}
  - {account: trial-nodes, limit: GrpTRES, tres: node}
  - {account: trial-sizes, limit: GrpTRES, tres: mem}
  - {account: trial-sizes, limit: MaxTRES, tres: cpu}
  - {account: trial-sizes, limit: MaxWall}
fairshare: {busy: trial-a, idle: trial-b}
preemption:
  - {low_qos: paused, low_partition: alone, high_qos: high, high_partition: urgent, mode: suspend, within: 10s}
  - {low_qos: low, high_qos: high, mode: requeue, within: 10s}
  - {low_qos: gone, high_qos: high, mode: cancel, within: 10s}
backfill: true
"""
# of the findings; what a job does when its time is up depends on the machine
WORDS = """
AccountingStorageEnforce: associations
user daemon of account ml: missing
GrpTRES of account ops: gres/gpu=7
account stranger: exists
user games of account ml: has the account
QoS high: preempts low, paused
MaxJobsPU of QoS jobs: 2
AllowAccounts of partition debug: ALL
SchedulerType: sched/builtin
fair share: PriorityType=priority/multifactor, PriorityWeightFairShare=0
user games: accepted
user root account trial-a partition debug: accepted
short job: PENDING (Priority)
job 99001 (RUNNING, user root): alive in the accounting
(COMPLETED, user root): no AllocTRES
MaxJobsPU of qos jobs: 2 in use
MaxSubmitPU of qos queued: 2 jobs accepted
MaxTRESPU of qos sizes, gres/gpu: 3 in use
MaxTRESPU of qos sizes, cpu: 4 in use
MaxTRES of qos sizes, mem: a job of 251MiB runs
MaxTRES of qos strict, cpu: a job of 3 runs
MaxWall of qos sizes: a job of 0-00:04:00 runs
GrpTRES of account trial-nodes, node: 3 in use
GrpTRES of account trial-sizes, mem: 400MiB in use
MaxTRES of account trial-sizes, cpu: a job of 3 runs
MaxWall of account trial-sizes: a job of 0-00:06:00 runs
 job (suspend paused):
 job (requeue low):
 job (cancel gone):
"""
READ_ONLY = [
    f"test_{name}" for name in ("access", "accounts", "job_records", "partition_access", "qos", "scheduling")
]
REST = "access_jobs or limits or fairshare or backfill"
JOBS = [f"test_{name}" for name in ("access_jobs", "backfill", "fairshare", "limits", "preemption")]


def configured(plain: str) -> str:
    """Return the sandbox's slurm.conf with the settings of the site."""
    memory = plain.replace("=CR_Core\n", "=CR_Core_Memory\n")
    debug = f"PartitionName={slurmconf.SMALL_PARTITION.name} "
    return memory.replace(debug, f"{debug}AllowAccounts=ops ") + "\n".join([*SITE, *PARTITIONS, ""])


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    try:
        slurmdbd.find_programs(search_path())
    except Exception as error:
        pytest.skip(str(error))
    plain = slurmconf.slurm_conf
    with sandbox_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurmconf, "slurm_conf", lambda *args, **options: configured(plain(*args, **options)))
        folder.chmod(0o755)  # other users submit jobs too
        box = Sandbox(folder / "s")
        box.up(nodes=4, gpus_per_node=2, accounting=True)
        add_accounts(box, folder / "accounts")
        job = ("srun", "--chdir=/", "--mem=100M", "--account=trial-a", "sleep", "1")
        with ThreadPoolExecutor(2) as pool:  # whose records are read
            list(pool.map(lambda _: slurm(box, *job), range(2)))
        wait_for(lambda: len(completed(box)) == 2, "slurmctld has sent the records")
        restart(box, {})  # computes fair share from the usage so far; the next time is a minute later
        # as it stays if slurmctld restarts before it has sent the rest of a short job's record
        database(box, "update sandbox_job_table set time_eligible=0")
        yield box


def sacctmgr(box: Sandbox, *scripts: str) -> None:
    """Run each script in a process of its own, all at once."""

    def one(lines: str) -> None:
        argv, env = ["sacctmgr", "-i"], environment(**box.env)
        done = subprocess.run(argv, env=env, input=lines, capture_output=True, text=True, check=True)
        assert "error" not in done.stderr.lower(), done.stderr

    with ThreadPoolExecutor(len(scripts)) as pool:
        list(pool.map(one, scripts))


def add_accounts(box: Sandbox, file: Path) -> None:
    """Add QoS, accounts and users: one file instead of many commands."""
    sacctmgr(box, *(f"add qos {name} {settings}" for name, settings in QOS.items()))
    sacctmgr(box, "modify qos high set Preempt=low,gone,paused")
    lines = ["Cluster - 'sandbox'"]
    for account, (parent, settings, user) in ACCOUNTS.items():
        lines += [f"Parent - '{parent}'", f"Account - '{account}':{settings}:QOS='normal,{','.join(QOS)}'"]
        lines += [f"Parent - '{account}'", f"User - '{user}'"] if user else []
    file.write_text("\n".join([*lines, ""]))
    sacctmgr(box, f"load file={file}")


@pytest.fixture(scope="module")
def drafted(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The cluster file that `gpucluster init` drafts of the site."""
    path = tmp_path_factory.mktemp("draft") / "site.yaml"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in box.env.items():
            patch.setenv(name, value)
        assert cli.main(["init", "--output", str(path)]) == 0
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    assert "accounting" in found, path.read_text()
    return found


def write(folder: Path, drafted: dict[str, Any], **changes: object) -> None:
    trials = yaml.safe_load(TRIALS) | changes
    section = drafted["accounting"] | {"exact": True, "access": yaml.safe_load(ACCESS), "trials": trials}
    folder.mkdir(exist_ok=True)
    (folder / "site.yaml").write_text(yaml.safe_dump({**drafted, "accounting": section}))


def run(folder: Path, *options: str, suite: tuple[str, ...] = SUITE, start: float = 20) -> Run:
    trials = {"start": start, "fairshare": {"run": 2}}
    words = ("--cluster=site.yaml", *options, *suite)
    return run_pytest(folder, *words, where=(), constants={"accounting": {"trials": trials}})


def test_the_draft_of_a_site_states_it_and_passes_there_with_all_trials(
    box: Sandbox, drafted: dict[str, Any], tmp_path: Path
) -> None:
    section = drafted["accounting"]
    assert section["accounts"]["ops"]["limits"] == {"GrpTRES": "gres/gpu=6"}
    assert section["accounts"]["trial-sizes"]["limits"]["MaxWall"] == "0-00:05:00"
    assert section["accounts"]["ml"]["users"] == ["daemon"]
    assert section["qos"]["high"]["preempt"] == ["gone", "low", "paused"]
    assert section["partitions"]["debug"]["allow_accounts"] == ["ops"]
    assert section["settings"]["PriorityWeightFairShare"] == 100000
    write(tmp_path, drafted)
    healthy = run(tmp_path, "--intrusive")
    assert names(healthy.outcomes, "passed") == sorted([*READ_ONLY, *JOBS]), healthy.out
    assert healthy.rc == 0
    assert "is empty" not in healthy.out  # a QoS that preempts no other
    assert not left_in_queue(box)
    metrics = [metric for event in healthy.events for metric in event.get("metrics", ())]
    tried = [one["device"] for one in metrics if one["name"] == "preemption"]
    assert tried == ["suspend paused", "requeue low", "cancel gone"]
    assert any(one["name"] == "backfill" for one in metrics)


def test_each_fault_fails_its_check(box: Sandbox, drafted: dict[str, Any], tmp_path: Path) -> None:
    ids = completed(box)
    restart(box, SITE)
    sacctmgr(box, *CHANGES)
    slurm(box, "scontrol", "update", "PartitionName=debug", "AllowAccounts=ALL")
    # as a lost record of the end, and a database that was restored in part, leave them
    database(box, f"update sandbox_job_table set time_end=0, state=1, id_job=99001 where id_job={ids[0]}")
    database(box, f"update sandbox_job_table set tres_alloc='' where id_job={ids[1]}")
    suspend, *others = (one | {"within": "4s"} for one in yaml.safe_load(TRIALS)["preemption"])
    others[-1]["within"] = "2s"  # never starts
    suspend["within"] = "8s"  # in which `disturb` must see the job suspended, on a busy machine too
    write(tmp_path / "read", drafted)
    write(tmp_path / "one", drafted, partition="alone", preemption=[suspend, suspend, *others])
    write(tmp_path / "rest", drafted, partition="rest")
    jobs = {"read": (), "one": ("--intrusive", "-k", "preemption"), "rest": ("--intrusive", "-k", REST)}
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(run, tmp_path / name, *options, start=5 if name == "rest" else 20)
            for name, options in jobs.items()
        ]
        disturb(box)
        found = [one.result() for one in runs]
    assert names(found[0].outcomes, "failed") == READ_ONLY, found[0].out
    outcomes = found[1].outcomes | found[2].outcomes
    assert names(outcomes, "failed") == JOBS, found[1].out + found[2].out
    events = [event for one in found for event in one.events]
    verdicts = [verdict for event in events for verdict in event.get("verdicts", ())]
    findings = [f"{one['part']}: {one['measured']}" for verdict in verdicts for one in verdict["findings"]]
    for words in WORDS.strip("\n").splitlines():
        assert any(words in one for one in findings), (words, findings)
    assert {event.get("action") for event in events} <= {None, "monitor"}
    assert not left_in_queue(box)


def restart(box: Sandbox, changes: Mapping[str, str]) -> None:
    """Let slurmctld read a changed slurm.conf; some keys need more than scontrol reconfigure."""
    text = box.layout.conf.read_text()
    for line, other in changes.items():
        text = text.replace(f"{line}\n", f"{other or line}\n")
    box.layout.conf.write_text(text)
    process = from_pid_file(box.layout.pid_file("slurmctld"), str(box.layout.root))
    assert process
    stop([process], patience=300.0)
    start_controller(box)
    for node in box.nodes:  # registers at once
        os.kill(int(box.layout.pid_file(f"slurmd-{node}").read_text()), signal.SIGHUP)
    states = ("sinfo", "-h", "-o", "%T")
    wait_for(lambda: set(slurm(box, *states).split()) == {"idle"}, "slurmctld knows its nodes")


def completed(box: Sandbox) -> list[str]:
    """Return the jobs whose records have an end."""
    return slurm(box, "sacct", "-aXnP", "-S", "now-3600", "-E", "now", "-s", "CD", "-o", "JobIDRaw").split()


def disturb(box: Sandbox) -> None:
    """Suspend a preempted job again, so that it is not resumed; then take the partition's precedence."""

    own = environment(**box.env)

    def suspended_again() -> bool:
        jobs = [line.split()[0] for line in queue(box) if line.endswith("SUSPENDED")]
        return any(
            subprocess.run(("scontrol", "suspend", job), env=own, check=False).returncode == 0 for job in jobs
        )

    wait_for(suspended_again, "a job is preempted")
    slurm(box, "scontrol", "update", "PartitionName=urgent", "PriorityTier=1")


def database(box: Sandbox, statement: str) -> None:
    socket = box.layout.run / "mariadb.sock"
    argv = ["mariadb", "--no-defaults", f"--socket={socket}", "slurm_acct_db", "-e", statement]
    subprocess.run(argv, check=True, timeout=1200)


def test_clean_removes_the_jobs_of_a_trial_whose_run_and_guard_were_killed(
    box: Sandbox, drafted: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, drafted, preemption={"low_qos": "low", "mode": "cancel"})
    argv = command("--cluster=site.yaml", "--intrusive", "-k", "preemption", "-p", "no:cacheprovider", *SUITE)
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: len(queue(box)) >= 2, "the jobs of the trial are submitted")
            name = queue(box)[0].split()[1]
            guards = [pid for pid, line in processes("SLURM_CONF=") if "scancel" in line and name in line]
            assert guards  # test_controller.py: it cancels the jobs of a killed run
            for pid in guards:
                os.kill(pid, signal.SIGKILL)
        finally:
            process.kill()
    assert queue(box)
    clean = [*command()[:2], "pytest_gpucluster", "clean", "--yes", "--cluster=site.yaml"]
    done = subprocess.run(clean, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert name in done.stdout
    wait_for(lambda: not queue(box), "the jobs are cancelled")


def test_a_run_that_holds_the_nodes_itself_does_not_wait_for_them(
    box: Sandbox, drafted: dict[str, Any], tmp_path: Path
) -> None:
    restart(box, NO_PREEMPTION)
    own = drafted | {"slurm": {**drafted["slurm"], "account": "trial-a"}}
    write(tmp_path, own)
    suites = ("-m", "slurm", "--pyargs", "pytest_gpucluster.suites")
    found = run(tmp_path, "--intrusive", "-k", "test_step or preemption or test_qos", suite=suites)
    assert names(found.outcomes, "not checked") == ["test_preemption"], found.out
    assert len(names(found.outcomes, "passed")) == 4
    assert "this run holds all nodes" in found.out
    assert names(found.outcomes, "failed") == ["test_qos"]
    assert "PreemptType" in found.out
