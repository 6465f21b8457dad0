"""What ssh printed for logins to nodes with the real pam_slurm_adopt (Slurm 22.05.8), and how logins are bounded."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.transport.base import Completed
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import SlurmError, TransportError
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.suites.isolation import logins
from pytest_gpucluster.suites.isolation.logins import Login, read_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

REFUSED = (
    "Access denied by pam_slurm_adopt: you have no active jobs on this node\r\n"
    "Connection closed by 127.0.0.1 port 22221\r\n"
)
NO_JOBS = "Access denied: user alice has no active jobs.\nClosed.\n"  # of the older module pam_slurm
SHELL = "gpucluster-login 1000\n"


def test_how_a_login_ended() -> None:
    for rc, stdout, stderr, found in (
        (255, "", REFUSED, Login(refusal="you have no active jobs on this node")),
        (0, f"Welcome\n{SHELL}bye\n", "motd", Login(1000)),
        (0, "gpucluster-login", "", Login(problem="ssh: gpucluster-login (exit 0)")),
        (255, "", NO_JOBS, Login(problem="ssh: Closed. (exit 255)")),
        (0, "", "", Login(problem="ssh: no message (exit 0)")),
    ):
        assert read_login(rc, stdout, stderr) == found


class Ssh:
    """A transport whose ssh has one answer, and which counts the logins."""

    def __init__(self, answer: str | TransportError = SHELL) -> None:
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
    """Slurm over an Ssh; squeue prints one list of nodes after the other, or fails."""

    def __init__(self, ssh: Ssh, *listed: str) -> None:
        super().__init__(ssh)  # type: ignore[arg-type] # the two methods that logins call
        self.listed = list(listed)

    def run(self, *argv: str, **_options: Any) -> str:
        assert argv[0] == "squeue"
        if not self.listed:
            raise SlurmError("slurmctld does not answer")
        return self.listed.pop(0)


def test_a_login_asks_nothing_and_uses_no_open_connection() -> None:
    ssh = Ssh()
    found = logins.log_in(FixedSlurm(ssh), ("gpu01", "gpu02"), ("-F", "config"))
    assert found == dict.fromkeys(("gpu01", "gpu02"), Login(1000))
    assert {"-oBatchMode=yes", "-oControlPath=none", "-n"} < set(ssh.commands[0])
    assert sorted(command[-2] for command in ssh.commands) == ["gpu01", "gpu02"]
    assert ssh.commands[0][-4:-2] == ("-F", "config")


def test_logins_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = Ssh(TransportError("ssh: no end within 25 s"))
    found = logins.log_in(FixedSlurm(ssh), ("gpu01",))
    assert found["gpu01"].problem == "ssh: no end within 25 s"
    monkeypatch.setattr(logins, "SECONDS_PER_NODE", -1000.0)
    found = logins.log_in(FixedSlurm(ssh), ("gpu01", "gpu02"))
    assert {login.problem.partition(":")[0] for login in found.values()} == {"no login was tried"}
    assert len(ssh.commands) == 1


def test_a_shell_on_a_node_with_a_job_of_the_user_proves_nothing() -> None:
    def outcome(*listed: str, answer: str = SHELL, **update: Any) -> dict[str, Login]:
        cluster = load_cluster("local").model_copy(update=update)
        early = logins.LoginsWithoutJob(FixedSlurm(Ssh(answer), *listed), cluster)
        early.use_nodes(("gpu01", "gpu02", "gpu03"))
        return early.outcome()

    found = outcome("gpu[02-02]\n", "gpu03\ncpu01\n")
    assert (found["gpu01"], found["gpu02"]) == (Login(1000), found["gpu03"])
    assert "had a job" in found["gpu02"].problem
    assert all("slurmctld does not answer" in it.problem for it in outcome("").values())
    as_root = outcome("gpu[01-03]", "", answer="gpucluster-login 0\n")
    assert {*as_root.values()} == {Login(0)}, "root needs no job"
    assert outcome(not_applicable={"isolation.login": "why"}) == {}


def test_logins_come_before_the_jobs_of_all_suites() -> None:
    works = {suite.name: suite.before_allocation for suite in suites() if suite.before_allocation}
    assert [name for name, work in works.items() if work.first] == ["isolation"]
    assert [works["isolation"].wanted(Namespace(intrusive=on)) for on in (True, False)] == [True, False]
