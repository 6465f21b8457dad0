"""The queries of the accounting suite on a Slurm that answers from a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.errors import NotAvailable, SlurmError
from pytest_gpucluster.suites.accounting import steps
from pytest_gpucluster.suites.accounting.config import Access, AccountingConfig
from pytest_gpucluster.suites.accounting.steps import Accounting

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "limits",
    "SlurmUser": "slurm(64030)",
    "PrivateData": "jobs",
    "ClusterName": "prod",
}
RUNS = "{0}|{1}|ml|p|RUNNING|2026-11-23T14:45:44|2026-11-23T14:45:44|Unknown|0:0|cpu=1|gpu01\n"


class TableSlurm:
    """Answers the first command in the table whose words a command has; a list has one answer per call."""

    def __init__(self, table: Mapping[str, Any], config: Mapping[str, str]) -> None:
        self.table, self.shown = table, dict(config)
        self.calls: list[str] = []

    def config(self) -> dict[str, str]:
        return self.shown

    def run(self, *argv: str) -> str:
        line = " ".join(argv)
        self.calls.append(line)
        answer = next(value for words, value in self.table.items() if words in line)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)


def accounting(
    table: Mapping[str, Any], config: Mapping[str, str] = CONFIG, *, sudo: bool = False, **section: Any
) -> Accounting:
    slurm: Any = TableSlurm(table, config)
    return Accounting(slurm, AccountingConfig.model_validate(section), "/etc/slurm.conf", sudo=sudo)


def test_what_is_enforced_with_what_that_implies() -> None:
    for words, expected in (
        ("none", set()),
        ("limits,qos", {"associations", "limits", "qos"}),
        ("safe", {"associations", "limits", "safe"}),
        ("all", {"all", "associations", "limits", "qos", "safe"}),
    ):
        assert accounting({}, {**CONFIG, "AccountingStorageEnforce": words}).enforced == expected
        with pytest.raises(NotAvailable, match="accounting_storage/none"):
            _ = accounting({}, {"AccountingStorageType": "accounting_storage/none"}).settings


def test_who_sees_what_private_data_hides() -> None:
    for name, level, root, sees_all in (
        ("root", "", True, True),
        ("slurm", "", False, True),
        ("eve", "Operator", False, True),
        ("eve", "None", False, False),
    ):
        private = "\nSlurmDBD configuration:\nPrivateData            = users\n"
        found = accounting({"id -un": f"{name}\n", "show user": f"{level}\n", "show configuration": private})
        assert (found.who.is_root, found.who.sees_all) == (root, sees_all)
        assert found.hidden == (set() if sees_all else {"users"})


def test_other_users_only_as_root_or_with_sudo() -> None:
    table = {"id -un": "eve", "show user": "None"}
    assert accounting(table).become("eve") == ()
    with pytest.raises(NotAvailable, match="sudo: true"):
        accounting(table).become("bob")
    words = ("sudo", "-n", "-u", "bob", "--", "env", "SLURM_CONF=/etc/slurm.conf")
    assert accounting(table, sudo=True).become("bob") == words
    assert accounting({"id -un": "root"}).become("bob") == ("runuser", "-u", "bob", "--")


def test_answers_of_sbatch_and_of_what_runs_it() -> None:
    refused = SlurmError("sbatch: x", rc=1, stderr="allocation failure: Invalid qos specification\n")
    unknown = SlurmError("runuser: x", rc=1, stderr="runuser: user ghost does not exist\n")
    hung = SlurmError("sbatch: not finished after 30 s", rc=None)
    table = {"id -un": "root", "--qos=q": refused, "-u ghost": unknown, "-u hung": hung, "sbatch": ""}
    jobs = [Access(user="a"), Access(user="a", qos="q"), Access(user="ghost"), Access(user="hung")]
    found = accounting(table).answers(jobs)
    assert [found[job].result for job in jobs] == ["accepted", "refused", "not tried", "not tried"]


def test_only_the_stated_limits_are_requested() -> None:
    table = {"show assoc": "root||||1|normal|\n", "show qos": "normal|0||\n"}
    found = accounting(table, accounts={"ml": {"users": {"a": {"limits": {"MaxJobs": 1}}}}})
    assert found.associations[0].limits == {"MaxJobs": None}
    assert found.qos["normal"].limits == {}
    slurm: Any = found.slurm
    columns = "Account,User,Partition,ParentName,Fairshare,QOS,MaxJobs"
    assert slurm.calls[0].endswith(f"cluster=prod format={columns}")


ALIVE = RUNS.format(7, "a") + RUNS.format(8, "b") + RUNS.format(9, "b")
ENDED = RUNS.format(9, "b").replace("RUNNING", "COMPLETED")
SENT, UNSENT = "DBD Agent queue size: 0\n", "DBD Agent queue size: 3\n"


def test_jobs_that_only_the_accounting_has_are_runaways_if_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr("time.sleep", paused.append)
    root = {"id -un": "root", "sdiag": [UNSENT, SENT], "sacct": "", "squeue": "7\n"}
    found = accounting({"-s PENDING": ALIVE, "-j 8,9": RUNS.format(8, "b") + ENDED, **root}).records(())
    assert [one.job for one in found.runaways] == ["8"]
    assert (found.compared, found.unsent, found.hidden) == (3, 0, False)
    assert set(paused) == {steps.LATER, 1.0}  # records on their way are waited for
    # an own job without a record is looked up again
    own = {"-s PENDING": "", "-j 5,6": RUNS.format(5, "a"), **root, "squeue": ""}
    assert accounting(own).records((5, 6)).missing == ("6",)
    # without rights only own jobs are compared
    found = accounting({"-s PENDING": ALIVE, "show user": "None", **root, "id -un": "a"}).records(())
    assert (found.runaways, found.compared, found.hidden) == ((), 1, True)
