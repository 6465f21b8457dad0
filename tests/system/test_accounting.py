"""The accounting suite on a real Slurm with slurmdbd: as its own draft of a cluster file states it, then changed."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import Run, names, run_pytest, start_controller
from sandbox_helpers import environment, left_in_queue, sandbox_folder, slurm, wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.finding import Finding
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
# of the findings
WORDS = """
AccountingStorageEnforce: associations
account ml user daemon: missing
account ops GrpTRES: gres/gpu=7
account stranger: exists
account ml user games: exists
QoS high preempts: low, paused
QoS jobs MaxJobsPU: 2
partition debug AllowAccounts: ALL
SchedulerType: sched/builtin
PriorityWeightFairShare: 0
user games: accepted
user root account trial-a partition debug: accepted
job 99001: alive in the accounting
no AllocTRES (COMPLETED, user root)
"""
CHECKS = [f"test_{name}" for name in ("access", "accounts", "job_records", "partition_access", "qos", "scheduling")]


def configured(plain: str) -> str:
    """Return the sandbox's slurm.conf with the settings of the site."""
    memory = plain.replace("=CR_Core\n", "=CR_Core_Memory\n")
    debug = f"PartitionName={slurmconf.SMALL_PARTITION.name} "
    return memory.replace(debug, f"{debug}AllowAccounts=ops ") + "\n".join([*SITE, ""])


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
        restart(box, {})
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


def run(folder: Path, drafted: dict[str, Any]) -> Run:
    """Run the suite with the drafted cluster file, and with rules of access."""
    section = drafted["accounting"] | {"exact": True, "access": yaml.safe_load(ACCESS)}
    (folder / "site.yaml").write_text(yaml.safe_dump({**drafted, "accounting": section}))
    return run_pytest(folder, "--cluster=site.yaml", *SUITE, where=())


def test_the_draft_of_a_site_states_it_and_passes_there(box: Sandbox, drafted: dict[str, Any], tmp_path: Path) -> None:
    section = drafted["accounting"]
    assert section["accounts"]["ops"]["limits"] == {"GrpTRES": "gres/gpu=6"}
    assert section["accounts"]["trial-sizes"]["limits"]["MaxWall"] == "0-00:05:00"
    assert section["accounts"]["ml"]["users"] == ["daemon"]
    assert section["qos"]["high"]["preempt"] == ["gone", "low", "paused"]
    assert section["partitions"]["debug"]["allow_accounts"] == ["ops"]
    assert section["settings"]["PriorityWeightFairShare"] == 100000
    healthy = run(tmp_path, drafted)
    assert names(healthy.outcomes, "passed") == CHECKS, healthy.out
    assert healthy.rc == 0
    assert "is empty" not in healthy.out  # a QoS that preempts no other
    assert not left_in_queue(box)


def test_each_fault_fails_its_check(box: Sandbox, drafted: dict[str, Any], tmp_path: Path) -> None:
    ids = completed(box)
    restart(box, SITE)
    sacctmgr(box, *CHANGES)
    slurm(box, "scontrol", "update", "PartitionName=debug", "AllowAccounts=ALL")
    # as a lost record of the end, and a database that was restored in part, leave them
    database(box, f"update sandbox_job_table set time_end=0, state=1, id_job=99001 where id_job={ids[0]}")
    database(box, f"update sandbox_job_table set tres_alloc='' where id_job={ids[1]}")
    found = run(tmp_path, drafted)
    assert names(found.outcomes, "failed") == CHECKS, found.out
    verdicts = [verdict for event in found.events for verdict in event.get("verdicts", ())]
    known = [Finding.from_dict(one) for verdict in verdicts for one in verdict["findings"]]
    findings = [f"{one.part}: {one.measured}" for one in known]
    for words in WORDS.strip("\n").splitlines():
        assert any(words in one for one in findings), (words, findings)
    assert {event.get("action") for event in found.events} <= {None, "monitor"}


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


def database(box: Sandbox, statement: str) -> None:
    socket = box.layout.run / "mariadb.sock"
    argv = ["mariadb", "--no-defaults", f"--socket={socket}", "slurm_acct_db", "-e", statement]
    subprocess.run(argv, check=True, timeout=1200)
