"""Which lines of Slurm's logs count, and which node they name. Lines without a source were recorded on the sandbox (22.05.8, 25.11.7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml
from paths import ROOT

from pytest_gpucluster.cluster.slurm.inventory import NodeInfo
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.known_lines import KnownLine
from pytest_gpucluster.suites.controller import checks
from pytest_gpucluster.suites.controller.config import ControllerConfig
from pytest_gpucluster.suites.controller.facts import LogLine
from pytest_gpucluster.suites.controller.known_errors import (
    SLURMCTLD,
    SLURMD,
    SLURMDBD,
    Daemon,
    LogError,
    sorted_errors,
    subjects,
    table,
)

NODES = ("gpu01", "gpu02", "gpu03", "k003-006")


def judged(text: str, daemon: Daemon, age: float | None = 60.0, **options: object) -> list[LogError]:
    known = {"window": 86400.0, "nodes": NODES, **options}
    found = sorted_errors([LogLine(age, text)], daemon, **known)  # type: ignore[arg-type]
    return [one for one in found if not one.quiet]


@pytest.mark.parametrize(
    ("text", "what", "nodes"),
    [
        (
            "error: validate_node_specs: Prolog or job env setup failure on node gpu02, draining the node",
            "prolog failed",
            ("gpu02",),
        ),
        (
            "error: Prolog/Epilog failure on nodes gpu01, set to state DRAIN",
            "prolog or epilog failed",
            ("gpu01",),
        ),
        (
            "error: job_epilog_complete: JobId=8 epilog error on gpu03, draining the node",
            "epilog failed",
            ("gpu03",),
        ),
        ("error: Epilog failure on host k003-006, setting DOWN", "epilog failed", ("k003-006",)),
        (
            "error: Prolog/Epilog failure on nodes gpu[01-02], setting DOWN",
            "prolog or epilog failed",
            ("gpu01", "gpu02"),
        ),
        (
            "error: Setting node gpu03 state to INVAL with reason:gres/gpu count reported lower than configured (4 < 8)",
            "invalid registration",
            ("gpu03",),
        ),
        ("update_node: node gpu01 reason set to: Kill task failed", "processes not killed", ("gpu01",)),
        (
            "error: Node gpu02 appears to have a different slurm.conf than the slurmctld.  This could cause issues",
            "other slurm.conf",
            ("gpu02",),
        ),
        (  # before 22.05
            "error: Setting node gpu02 state to DRAIN with reason:Low RealMemory",
            "invalid registration",
            ("gpu02",),
        ),
        ("fatal: mkdir(/var/spool/slurm/ctld): No such file or directory", "the daemon ended", ()),
        (
            "error: agent queue filling (15021), MaxDBDMsgs=20012, RESTART SLURMDBD NOW",
            "accounting records lost",
            (),
        ),
        (
            "error: slurm_persist_conn_open_without_init: failed to open persistent connection to host:db:6819: Connection "
            "refused",
            "slurmdbd not reached",
            (),
        ),
        (
            "error: Can't save state, create file /s/node_state.new error Read-only file system",
            "state cannot be saved",
            (),
        ),
        ("error: Munge decode failed: Invalid credential", "authentication", ()),
        (
            "error: slurm_unpack_received_msg: [[localhost]:49138] auth_g_verify: REQUEST_PARTITION_INFO has authentication "
            "error: Unspecified error",
            "authentication",
            (),
        ),
        (
            "error: agent queue is full (20012), discarding DBD_STEP_START:1442 request",
            "accounting records lost",
            (),
        ),
        (
            "error: Can't save state, error writing file /var/spool/slurmctld/job_state.new: x",
            "state cannot be saved",
            (),
        ),
        ("error: gpu07 and node gpu02 disagree", None, ("gpu02",)),
    ],
)
def test_lines_of_slurmctld(text: str, what: str | None, nodes: tuple[str, ...]) -> None:
    (found,) = judged(text, SLURMCTLD)
    assert getattr(found.known, "what", None) == what
    assert found.nodes == nodes


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("error: prolog failed: rc:1 output:prolog of the sandbox: simulated failure", "prolog failed"),
        ("error: [job 6] prolog failed status=1:0", "prolog failed"),
        ("error: JobId=1 SLUID=s9VHM84X91Z600 prolog failed status=1:0", "prolog failed"),  # 25.11.7
        ("error: JobId=2 SLUID=s9VHM84X91ZD00 epilog failed status=1:0", "epilog failed"),
        ("error: [job 8] epilog failed status=1:0", "epilog failed"),
        (  # ai4d-iasc/trixie #45
            "[63532.0] error: *** STEP 63532.0 STEPD TERMINATED ON cn106 AT 2020-12-14T09:44:56 DUE TO JOB NOT ENDING WITH "
            "SIGNALS ***",
            "processes not killed",
        ),
        ("error: health_check failed: rc:1 output:ERROR:  nhc:  Health check failed", "health check failed"),
        (  # galaxyproject/galaxy #6293, #7429
            "error: xcgroup_instantiate: unable to create cgroup '/sys/fs/cgroup/memory/slurm/uid_8' : No space left on device",
            "no cgroup",
        ),
        ('error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": x', "authentication"),
        ("error: open(/var/spool/slurmd/cred_state.new): No space left on device", "no resources"),
        (
            "spank-epilog: error: pyxis: mkdir: cannot create directory '/raid/enroot': Permission denied",
            "SPANK plugin",
        ),
        (
            "error: Container 4 in cgroup plugin has 2 processes, giving up after 127 sec",
            "processes not killed",
        ),
        ("error: _open_as_other: fork failure", "no resources"),
        ("error: Node configuration is odd", None),
    ],
)
def test_lines_of_slurmd(text: str, what: str | None) -> None:
    (found,) = judged(text, SLURMD)
    assert getattr(found.known, "what", None) == what


@pytest.mark.parametrize(
    "text",
    [
        # first start of a healthy slurmctld: the sandbox; aws-parallelcluster #1413; elasticluster #300
        "error: Configured MailProg is invalid",
        "error: Could not open job state file /var/spool/slurm/job_state: No such file or directory",
        "error: NOTE: Trying backup state save file. Jobs may be lost!",
        "error: Incomplete trigger data checkpoint file",
        # a port scan, a client that was killed
        "error: slurm_receive_msg [127.0.0.1:38356]: Insane message length",
        "error: slurm_receive_msg [10.0.0.9:38356]: Zero Bytes were transmitted or received",
        "error: slurm_msg_sendto: address:port=127.0.0.1:58156 msg_type=2036: Unexpected missing socket error",
        # slurmctld, slurmscriptd and slurmd 25.11.7, built without libhttp_parser
        "error: cannot create url_parser context for http_parser/libhttp_parser",
        "error: cannot create http_parser context for http_parser/libhttp_parser",
        # users
        "[2.batch] error: *** JOB 2 ON gpu01 CANCELLED AT 2026-11-23T14:46:37 ***",
        "error: *** STEP 7.0 ON gpu01 CANCELLED AT 2026-11-21T06:58:04 DUE TO TIME LIMIT ***",
        "[7.0] error: TaskProlog failed status=1",
        "[7.batch] error: Unable to write to /home/alice/slurm-7.out: No space left on device",
        "error: _shutdown_bu_thread:send/recv sandbox-backup: Connection refused",
        "error: Security violation, REQUEST_KILL_JOB RPC from uid=1004",
        "error: slurm_unpack_received_msg: g_slurm_auth_verify: REQUEST_CONFIG has authentication error: x",
        # a node that starts, or that slept
        "error: Nodes gpu[01-03] not responding",
        "error: Nodes gpu02 not responding, setting DOWN",
        "error: find_node_record: lookup failure for node gpu99",
        "error: Unable to register: Unable to contact slurm controller (connect failure)",
        # mpi_pmix.c of 22.05 and later, without a PMIx library
        "error: mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx library",
        "error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed",
        "error: MPI: Cannot create context for mpi/pmix",
        # lines of other levels that hold the words
        "debug2: _file_read_content: error: unable to open '/sys/fs/cgroup': No space left on device",
        "sched: JobId=7 fatal: odd",
    ],
)
def test_lines_of_healthy_clusters_do_not_count(text: str) -> None:
    assert judged(text, SLURMCTLD) == []
    assert judged(text, SLURMD) == []


def test_old_and_ignored_lines_do_not_count() -> None:
    text = "error: Node gpu02 appears to have a different slurm.conf than the slurmctld."
    assert judged(text, SLURMCTLD, age=86401.0) == []
    assert (
        judged(text, SLURMCTLD, of_site=(KnownLine(pattern="different slurm.conf", meaning="x", reason="y"),))
        == []
    )
    assert len(judged(text, SLURMCTLD, age=None)) == 1


def test_every_known_error_has_a_hint_a_cause_and_a_source() -> None:
    for known in (*table(SLURMCTLD), *table(SLURMD), *table(SLURMDBD)):
        assert known.cause, known
        assert known.hint, known
        assert known.source, known


# --- subjects


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("error: Invalid SchedulerParameters bf_max_job_test: -4", "a setting"),
        ("error: nonstop.conf: Ignoring invalid HotSpare (8)", "a setting"),
        ("error: SlurmctldPort == SlurmdPort", "a setting"),
        ("error: power_save: reboot requested but RebootProgram is not configured", "a setting"),
        ("error: unknown autodetect flag 'nvlm'", "a setting"),
        ("warning: Multiple leaf switches contain nodes: gpu[01-02]", "a setting"),
        ("error: power_save: program exit status of 127", "a program of the site"),
        ("[4.extern] error: namespace_g_join(JobId=4): Permission denied", "a plugin at work"),
        ("error: MailProg returned error, it's output was 'sendmail: fatal'", "a program of the site"),
        ("error: Invalid PrologFlag: Contian", "a setting"),  # of PrologFlags
        ("error: Torus3d configuration requires non-zero x,y,z", "a setting"),
        ("error: Host c2 not in hostlist c1", "an identity"),
        ("error: Apparent duplicate JobId=8. Two primary slurmctld daemons might be active", "an identity"),
        ("error: Resource spec is odd, memory limit disabled", "an ignored part"),
        ("error: open(/srv/slurm/state): Permission denied", "access to a file"),
        ("[4.batch] error: open(/sys/fs/cgroup/job_4): Device or resource busy", "access to a file"),
        (
            "[4.batch] error: execve(): /srv/d/job00004/slurm_script: No such file or directory",
            "access to a file",
        ),
    ],
)
def test_what_a_line_is_about_decides_without_a_known_line(text: str, what: str) -> None:
    (found,) = judged(text, SLURMD)
    assert getattr(found.known, "what", None) == what
    verdict = checks.node_errors((found,), 5.0, None, ControllerConfig())
    assert verdict.outcome is not Outcome.FAILED
    assert [one.part for one in verdict.advisories] == [what]


@pytest.mark.parametrize(
    "text",
    [
        "error: Job request for SchedulerParameters bf_max_job_test: invalid",  # a user's request
        "error: The option SchedulerParameters=defer_batch is invalid and defunct",
        "[4.0] error: --task-prolog failed status=127",  # the program of a user
        "error: power_save: program exit status of 1",  # its own answer
        "error: cannot create job_container context for job_container/tmpfs",  # a plugin that is not loaded
        # the old node of a requeued job
        "error: Batch completion for JobId=4 sent from wrong node (a rather than b). Was the job requeued due to node failure?",
        "error: step creation disabled for external jobs",
        "[4.batch] error: Could not open stdout file /var/tmp/out.txt: Permission denied",
        "[4.0] error: execve(): /home/ada/run.sh: Permission denied",
        "[4.0] error: open(/scratch/ada/run.sh): Permission denied",
        "error: connect(10.0.0.9:6818): Connection refused",
    ],
)
def test_a_user_a_peer_a_setting_without_effect_and_a_plugin_not_loaded_are_no_subject(text: str) -> None:
    assert not any(one.matches(text) for one in subjects())


@pytest.mark.parametrize(
    "text",
    [
        "warning: can't honor --ntasks-per-node set to 4",  # of a job
        "Warning: Note very large processing time from schedule: usec=4223000",
        "warning: DefMemPerCPU is obsolete",
        "Configured with rsmi, but that lib wasn't found.",  # without AutoDetect=rsmi
    ],
)
def test_other_warnings_mean_nothing(text: str) -> None:
    assert not judged(text, SLURMD)


def test_each_subject_excludes_lines_and_names_its_source() -> None:
    assert len(subjects()) == 6
    assert all(one.unless and one.source and one.cause and one.hint for one in subjects())


def test_a_warning_about_a_subject_names_the_node_of_the_line() -> None:
    (found,) = judged(
        "error: fwd_tree_thread: can't find address for host gpu02, check slurm.conf", SLURMCTLD
    )
    assert found.nodes == ("gpu02",)


# --- lines of public threads, each with its verdict: tests/data/controller/log-lines.yaml

LINES: list[tuple[Daemon, str, str, dict[str, Any]]] = [
    (daemon, expected, text, facts[0] if facts else {})
    for thread in yaml.safe_load((ROOT / "tests" / "data" / "controller" / "log-lines.yaml").read_text())
    for daemon in (SLURMCTLD, SLURMD, SLURMDBD)
    for expected, text, *facts in thread.get(daemon, [])
]


@pytest.mark.parametrize(("daemon", "expected", "text", "facts"), LINES)
def test_a_line_of_a_public_thread(daemon: Daemon, expected: str, text: str, facts: dict[str, Any]) -> None:
    line = LogLine(float(facts.get("age", 1800)), text)
    node = NodeInfo("gpu01", "IDLE", frozenset({"DRAIN"} if facts.get("drained") else ()))
    found = tuple(sorted_errors([line], daemon, window=86_400.0))
    verdict = checks.node_errors(found, 5.0, node, ControllerConfig())
    seen = "fail" if verdict.outcome is Outcome.FAILED else "warn" if verdict.advisories else "silent"
    assert seen == expected


def test_the_threads_hold_lines_of_every_verdict() -> None:
    assert len(LINES) >= 80
    assert set(Counter(expected for _, expected, *_ in LINES)) == {"silent", "warn", "fail"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("error: JobId=8 is odd", 0),
        ("error: qos is odd", 0),
        ("error: sinfo sent something odd", 0),
        ("error: Nodes gpu01 not responding", 1),  # quiet, but it may explain why a node is out of service
        ("error: something of gpu01", 1),
    ],
)
def test_lines_of_jobs_users_and_clients_explain_no_node(text: str, found: int) -> None:
    lines = list(sorted_errors([LogLine(1.0, text)], SLURMCTLD, window=9.0))
    assert len(lines) == found


def test_a_node_is_named_with_its_domain_and_in_a_list() -> None:
    for words, nodes in (
        ("node gpu01.lab is odd", ("gpu01.lab",)),
        ("nodes gpu[01-02],k003-006.", ("gpu01", "gpu02", "k003-006")),
        ("nodes [", ()),
        ("it is odd", ()),
    ):
        (one,) = judged(f"error: {words}", SLURMCTLD, nodes=(*NODES, "gpu01.lab", "x"))
        assert one.nodes == nodes
