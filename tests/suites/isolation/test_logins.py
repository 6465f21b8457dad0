"""What ssh printed for logins to nodes with the real pam_slurm_adopt (Slurm 22.05.8), and how logins are bounded."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import TransportError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.suites.isolation import logins
from pytest_gpucluster.suites.isolation.config import IsolationConfig
from pytest_gpucluster.suites.isolation.logins import Login, read_login, why_unadoptable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

REFUSED = (
    "Access denied by pam_slurm_adopt: you have no active jobs on this node\r\n"
    "Connection closed by 127.0.0.1 port 22221\r\n"
)
NO_JOBS = "Access denied: user alice has no active jobs.\nClosed.\n"  # of the older module pam_slurm
EXTERN = "/gpucluster-24ce28ddadda/slurm_gpu01/uid_65534/job_1/step_extern"
SESSION = "/user.slice/user-1000.slice/session-3.scope"
V2 = "0::/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special"
ADOPTING = {"PrologFlags": "Alloc,Contain", "ProctrackType": "proctrack/cgroup"}


def shell(*cgroups: str, uid: int = 1000) -> str:
    return "\n".join((f"gpucluster-login {uid}", *cgroups, "gpucluster-login end", ""))


ADOPTED = shell(
    "9:name=systemd:/", f"6:freezer:{EXTERN}", f"5:devices:{EXTERN}", "1:cpu:/", "0::/", uid=65534
)


def test_how_a_login_ended() -> None:
    for rc, stdout, stderr, found in (
        (255, "", REFUSED, Login(refusal="you have no active jobs on this node")),
        (0, ADOPTED, "", Login(65534, 1, EXTERN)),
        (0, shell(V2), "", Login(1000, 77, V2.removeprefix("0::"))),
        (0, f"Welcome\n{shell(f'0::{SESSION}')}bye\n", "motd", Login(1000, None, SESSION)),
        # a shell of another step is not adopted: the epilog does not end it with the job
        (0, shell("0::/slurm/job_7/step_0"), "", Login(1000, None, "/slurm/job_7/step_0")),
        (0, shell(), "", Login(1000, None, "")),
        (0, shell(V2)[:40], "", Login(problem=f"ssh: {V2[:18]} (exit 0)")),
        (255, "", NO_JOBS, Login(problem="ssh: Closed. (exit 255)")),
        (0, "", "", Login(problem="ssh: no message (exit 0)")),
    ):
        assert read_login(rc, stdout, stderr) == found


def test_why_no_login_is_tried() -> None:
    cluster = load_cluster("local")
    excluded = cluster.model_copy(update={"not_applicable": {"isolation.pam_slurm_adopt": "why"}})
    assert why_unadoptable(ADOPTING, cluster) == ""
    assert "not_applicable" in why_unadoptable(ADOPTING, excluded)
    assert "PrologFlags=Alloc" in why_unadoptable(ADOPTING | {"PrologFlags": "Alloc"}, cluster)
    assert "ProctrackType=x" in why_unadoptable(ADOPTING | {"ProctrackType": "x"}, cluster)


class Ssh:
    """A transport whose ssh answers as told, and which counts the logins."""

    def __init__(self, answer: str | TransportError) -> None:
        self.answer = answer
        self.commands: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], **_options: Any) -> Completed:
        self.commands.append(argv)
        if isinstance(self.answer, TransportError):
            raise self.answer
        return Completed(tuple(argv), 0, self.answer, "", 0.1)

    def names(self) -> tuple[str, ...]:
        return ()


class FixedSlurm(Slurm):
    """Slurm with this configuration over an Ssh."""

    def __init__(self, ssh: Ssh, **changes: str) -> None:
        super().__init__(ssh)  # type: ignore[arg-type] # the two methods that logins call
        self.shown = ADOPTING | changes

    def config(self) -> dict[str, str]:
        return self.shown


def test_a_login_asks_nothing_and_uses_no_open_connection() -> None:
    ssh = Ssh(ADOPTED)
    section = IsolationConfig(ssh_options=("-i", "~/.ssh/id_test"))
    found = logins.log_in(FixedSlurm(ssh), section, ("gpu01", "gpu02"))
    assert found == dict.fromkeys(("gpu01", "gpu02"), Login(65534, 1, EXTERN))
    assert {"-oBatchMode=yes", "-oControlPath=none", "-n"} < set(ssh.commands[0])
    assert sorted(command[-2] for command in ssh.commands) == ["gpu01", "gpu02"]
    assert ssh.commands[0][-4:-2] == ("-i", "~/.ssh/id_test")


def test_logins_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = Ssh(TransportError("ssh: no end within 25 s"))
    found = logins.log_in(FixedSlurm(ssh), IsolationConfig(), ("gpu01",))
    assert found["gpu01"].problem == "ssh: no end within 25 s"
    monkeypatch.setattr(logins, "SECONDS_PER_NODE", -1000.0)
    found = logins.log_in(FixedSlurm(ssh), IsolationConfig(), ("gpu01", "gpu02"))
    assert {login.problem.partition(":")[0] for login in found.values()} == {"no login was tried"}
    assert len(ssh.commands) == 1


def test_logins_come_before_the_jobs_of_all_suites_and_need_adoption() -> None:
    works = {suite.name: suite.before_allocation for suite in suites() if suite.before_allocation}
    assert [name for name, work in works.items() if work.first] == ["isolation"]
    assert [works["isolation"].wanted(Namespace(intrusive=on)) for on in (True, False)] == [True, False]
    for flags, tried in (("Contain", 1), ("None", 0)):
        ssh = Ssh(ADOPTED)
        early = logins.LoginsWithoutJob(FixedSlurm(ssh, PrologFlags=flags), load_cluster("local"))
        early.use_nodes(("gpu01",))
        assert len(early.outcome()) == len(ssh.commands) == tried
