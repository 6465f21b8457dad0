"""The accounting suite on two real Slurms with slurmdbd: one as the cluster file states it, and one that enforces little."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import (
    Run,
    command,
    environment,
    left_in_queue,
    names,
    processes,
    queue,
    run_pytest,
    sandbox_folder,
    slurm,
    wait_for,
)

from pytest_gpucluster.sandbox import Sandbox, slurmconf, slurmdbd
from pytest_gpucluster.sandbox.daemons import search_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUITE = ("-m", "accounting", "--pyargs", "pytest_gpucluster.suites.accounting")
COMMON = """PriorityType=priority/multifactor
PriorityDecayHalfLife=7-0
PriorityCalcPeriod=1
PriorityWeightPartition=1000
"""
SITE = """AccountingStorageEnforce=associations,limits,qos
PriorityWeightFairshare=100000
PreemptType=preempt/qos
PreemptMode=REQUEUE
"""
# limits, fair share, preemption and backfill are off
LAX = """AccountingStorageEnforce=associations
PriorityWeightFairshare=0
SchedulerType=sched/builtin
"""
# users that every system has
USERS = """add qos low
add qos high Priority=1000 Preempt=low
add qos other Preempt=low PreemptMode=cancel
add qos jobs MaxJobsPU=1
add qos queued MaxSubmitJobsPU=1
add qos gpus MaxTRESPU=gres/gpu=2
add account ml Fairshare=10
add account ops Fairshare=20 GrpTRES=gres/gpu=6
add account vision parent=ml
add account trial-a,trial-b Fairshare=1
add account trial-nodes GrpTRES=node=2
modify account ml,ops,trial-a,trial-b,trial-nodes set qos+=low,high,other,jobs,queued,gpus
add user daemon Account=ml
add user bin Account=ops
add user root Account=trial-a,trial-b,trial-nodes
"""
SECTION = """
exact: true
accounts:
  ml: {parent: root, users: [daemon], fairshare: 10}
  ops: {users: {bin: {fairshare: 1}}, fairshare: 20, limits: {GrpTRES: gres/gpu=6, MaxJobs: null}}
  vision: {parent: ml}
  trial-a: {users: [root]}
  trial-b: {users: [root]}
  trial-nodes: {users: [root], limits: {GrpTRES: node=2}}
qos:
  low: {preempt: []}
  high: {priority: 1000, preempt: [low]}
  other: {preempt: [low], preempt_mode: cancel}
  jobs: {limits: {MaxJobsPerUser: 1}}
  queued: {limits: {MaxSubmitPU: 1}}
  gpus: {limits: {MaxTRESPU: gres/gpu=2}}
partitions:
  batch: {allow_accounts: [ALL], allow_qos: [ALL]}
  debug: {allow_accounts: [ops]}
access:
  may: [{user: daemon, account: ml}, {user: bin, partition: debug, qos: high}]
  may_not: [{user: daemon, account: ops}, {user: daemon, partition: debug}, {user: games}]
settings: {PriorityWeightFairshare: 100000, PriorityDecayHalfLife: 7-0, AccountingStorageEnforce: [limits, associations, qos]}
trials:
  partition: batch
  account: trial-a
  limits:
    - {qos: jobs, limit: MaxJobsPU}
    - {qos: queued, limit: MaxSubmitPU}
    - {qos: gpus, limit: MaxTRESPU, tres: gres/gpu}
    - {account: trial-nodes, limit: GrpTRES, tres: node}
  fairshare: {busy: trial-a, idle: trial-b, run: 5}
  preemption: {low_qos: low, high_qos: high, mode: requeue, within: 10s}
  backfill: true
  start: 20
"""


def start(folder: Path, more: str) -> Sandbox:
    folder.chmod(0o755)  # other users submit jobs too
    box = Sandbox(folder / "s")
    box.up(nodes=4, gpus_per_node=2, accounting=True)
    for line in USERS.splitlines():
        slurm(box, "sacctmgr", "-i", *line.split())
    for _ in range(2):  # whose records are read
        slurm(box, "sbatch", "--wait", "--chdir=/", "--output=/dev/null", "--account=trial-a", "--wrap=true")
    if more is SITE:
        slurm(box, "scontrol", "update", "PartitionName=debug", "AllowAccounts=ops")
    return box


@pytest.fixture(scope="module")
def boxes() -> Iterator[tuple[Sandbox, Sandbox]]:
    """The site as stated, and the lax one."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    try:
        slurmdbd.find_programs(search_path())
    except Exception as error:
        pytest.skip(str(error))
    plain = slurmconf.slurm_conf
    with contextlib.ExitStack() as stack:
        folders = {SITE: stack.enter_context(sandbox_folder()), LAX: stack.enter_context(sandbox_folder())}

        def configured(layout: Any, *args: Any, **options: Any) -> str:
            more = next(text for text, folder in folders.items() if layout.root.is_relative_to(folder))
            return plain(layout, *args, **options).replace("SelectType=", COMMON + more + "SelectType=")

        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(slurmconf, "slurm_conf", configured)
        with ThreadPoolExecutor(2) as pool:
            site, lax = pool.map(lambda one: start(one[1], one[0]), folders.items())
        yield site, lax


def cluster_file(box: Sandbox, folder: Path, **changes: object) -> None:
    plain = yaml.safe_load(box.cluster_file.read_text())
    plain["accounting"] = yaml.safe_load(SECTION) | changes
    (folder / "site.yaml").write_text(yaml.safe_dump(plain))


def run(box: Sandbox, folder: Path, *options: str, **changes: object) -> Run:
    folder.mkdir(exist_ok=True)
    cluster_file(box, folder, **changes)
    return run_pytest(folder, "--cluster=site.yaml", *options, *SUITE, where=())


READ_ONLY = [
    f"test_{name}" for name in ("access", "accounts", "job_records", "partition_access", "qos", "scheduling")
]
JOBS = [f"test_{name}" for name in ("access_jobs", "backfill", "fairshare", "limits", "preemption")]


def test_accounting_as_stated_passes_and_each_fault_of_slurm_conf_fails_its_check(
    boxes: tuple[Sandbox, Sandbox], tmp_path: Path
) -> None:
    site, lax = boxes
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(run, site, tmp_path / "site", "--intrusive")
        bad = pool.submit(run, lax, tmp_path / "lax", "--intrusive")
        healthy, faulty = good.result(), bad.result()
    assert names(healthy.outcomes, "passed") == sorted([*READ_ONLY, *JOBS]), healthy.out
    assert healthy.rc == 0
    assert not left_in_queue(site)
    metrics = {metric["name"] for event in healthy.events for metric in event.get("metrics", ())}
    assert {"preemption", "backfill"} <= metrics

    assert faulty.rc == 1
    assert names(faulty.outcomes, "failed") == sorted(
        [
            *("test_accounts", "test_qos", "test_scheduling", "test_access", "test_access_jobs"),
            *("test_partition_access", "test_limits", "test_fairshare", "test_backfill", "test_preemption"),
        ]
    ), faulty.out
    for words in (
        "AccountingStorageEnforce: measured associations, expected limits",
        "PreemptType",
        "SchedulerType",
        "MaxJobsPU of qos jobs",
        "MaxSubmitPU of qos queued",
        "MaxTRESPU of qos gpus, gres/gpu",
        "PriorityWeightFairShare=0",
        "user daemon partition debug",
    ):
        assert words in faulty.out, words
    assert not left_in_queue(lax)
    assert {event.get("action") for event in faulty.events} <= {None, "monitor"}


def test_each_change_in_the_accounting_fails_its_check(
    boxes: tuple[Sandbox, Sandbox], tmp_path: Path
) -> None:
    site, _ = boxes
    assert names(run(site, tmp_path).outcomes, "passed") == READ_ONLY
    ids = slurm(
        site, "sacct", "-a", "-X", "-nP", "-s", "CD", "-S", "now-3600", "-E", "now", "-o", "JobIDRaw"
    ).split()
    assert len(ids) >= 2
    runaway, cut = ids[0], ids[1]
    wait_for(
        lambda: runaway not in slurm(site, "squeue", "-h", "-t", "all", "-o", "%A").split(),
        "MinJobAge is over",
    )
    slurm(site, "sacctmgr", "-i", "remove", "user", "daemon", "Account=ml")
    slurm(site, "sacctmgr", "-i", "modify", "account", "ops", "set", "GrpTRES=gres/gpu=7")
    slurm(site, "sacctmgr", "-i", "add", "account", "stranger")
    slurm(site, "sacctmgr", "-i", "modify", "qos", "other", "set", "Preempt=")
    slurm(site, "sacctmgr", "-i", "modify", "qos", "jobs", "set", "MaxJobsPU=2")
    slurm(site, "sacctmgr", "-i", "modify", "qos", "low", "set", "PreemptMode=cancel")  # of its own jobs
    slurm(site, "sacctmgr", "-i", "add", "user", "games", "Account=ml", "DefaultAccount=ml")
    slurm(site, "scontrol", "update", "PartitionName=debug", "AllowAccounts=ALL")
    # what a lost record of the end, and a database that was restored in part, leave
    database(site, f"update sandbox_job_table set time_end=0, state=1 where id_job={runaway}")
    database(site, f"update sandbox_job_table set tres_alloc='' where id_job={cut}")
    found = run(site, tmp_path, "--intrusive", "-k", "not limits and not fairshare and not backfill")
    assert names(found.outcomes, "failed") == [
        *("test_access", "test_access_jobs", "test_accounts", "test_job_records", "test_partition_access"),
        *("test_preemption", "test_qos"),
    ], found.out
    for words in (
        *(
            "user daemon of account ml",
            "GrpTRES of account ops",
            "account stranger",
            "user games of account ml",
        ),
        *(
            "QoS other",
            "PREEMPTED, 0 restarts",
            "MaxJobsPU of QoS jobs",
            "AllowAccounts of partition debug",
            "user games",
        ),
        *(f"job {runaway} (RUNNING", "unknown to squeue", f"job {cut} (COMPLETED", "no AllocTRES"),
    ):
        assert words in found.out, words


def database(box: Sandbox, statement: str) -> None:
    socket = box.layout.run / "mariadb.sock"
    subprocess.run(
        ["mariadb", "--no-defaults", f"--socket={socket}", "slurm_acct_db", "-e", statement],
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize("guard_too", [False, True])
def test_no_job_of_a_trial_outlives_a_killed_run(
    boxes: tuple[Sandbox, Sandbox], tmp_path: Path, guard_too: bool
) -> None:
    _, lax = boxes
    trials = yaml.safe_load(SECTION)["trials"] | {"account": "trial-b", "start": 60}
    cluster_file(lax, tmp_path, trials=trials | {"preemption": {"low_qos": "low", "mode": "cancel"}})
    argv = command("--cluster=site.yaml", "--intrusive", "-k", "preemption", "-p", "no:cacheprovider", *SUITE)
    with subprocess.Popen(
        argv, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(lambda: len(queue(lax)) >= 2, "the jobs of the trial are submitted")
            name = queue(lax)[0].split()[1]
            guards = [pid for pid, line in processes("SLURM_CONF=") if "scancel" in line and name in line]
            assert guards
            for pid in guards if guard_too else ():
                os.kill(pid, signal.SIGKILL)
        finally:
            process.kill()
    if guard_too:
        assert queue(lax)
        clean = [*command()[:2], "pytest_gpucluster.cli", "clean", "--yes", "--cluster=site.yaml"]
        done = subprocess.run(
            clean, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        assert name in done.stdout
    wait_for(lambda: not queue(lax), "the jobs are cancelled", 30)


def test_a_run_that_holds_the_nodes_itself_does_not_wait_for_them(
    boxes: tuple[Sandbox, Sandbox], tmp_path: Path
) -> None:
    _, lax = boxes
    cluster_file(lax, tmp_path)
    options = ("--cluster=site.yaml", "-m", "slurm", "--intrusive", "-k", "test_step or preemption")
    plain = yaml.safe_load((tmp_path / "site.yaml").read_text())
    plain["slurm"]["account"] = "trial-a"
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(plain))
    found = run_pytest(tmp_path, *options, "--pyargs", "pytest_gpucluster.suites", where=())
    assert names(found.outcomes, "not checked") == ["test_preemption"], found.out
    assert len(names(found.outcomes, "passed")) == 4
    assert "this run holds all nodes" in found.out
