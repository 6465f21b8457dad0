"""The queries: a few commands for the whole cluster, and one `sbatch --test-only` for each job that the file states."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.batch import SMALL_JOB
from pytest_gpucluster.core.errors import NotAvailable, SlurmError
from pytest_gpucluster.suites.accounting import facts
from pytest_gpucluster.suites.accounting.config import ASSOCIATION_LIMITS, QOS_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.suites.accounting.config import Access, AccountingConfig

MOST_RUNAWAYS = 200  # that a second query confirms
LATER = 10.0  # seconds until the second query for a job that squeue does not show: slurmctld sends records every few seconds


@dataclass(frozen=True)
class Who:
    """The user who runs Slurm's commands. `sees_all`: PrivateData hides nothing from root, SlurmUser and operators."""

    name: str
    is_root: bool
    sees_all: bool


@dataclass(frozen=True)
class Records:
    """Job records of the last time.

    `runaways`: jobs that are alive in the accounting only, of `compared` jobs; `missing`: jobs of this run without a
    record. `unsent`: records that slurmctld has not sent yet, None if unknown; both lists are proved only if it is 0.
    `hidden`: only jobs of this user could be compared.
    """

    jobs: tuple[facts.JobRecord, ...] = ()
    runaways: tuple[facts.JobRecord, ...] = ()
    missing: tuple[str, ...] = ()
    compared: int = 0
    unsent: int | None = 0
    hidden: bool = False


class Accounting:
    """Slurm's accounting. Each query runs once; NotAvailable where it was refused, ProbeError where it is not understood.

    `conf`: slurm.conf of the commands, '' for the usual one; `sudo`: other users with `sudo -n -u USER`, unless as root.
    """

    def __init__(self, slurm: Slurm, config: AccountingConfig, conf: str = "", *, sudo: bool = False) -> None:
        self.slurm, self.config, self.conf, self.sudo = slurm, config, conf, sudo

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """What `scontrol show config` prints; NotAvailable where Slurm stores no accounting."""
        found = self.slurm.config()
        if "slurmdbd" not in found.get("AccountingStorageType", ""):
            stored = found.get("AccountingStorageType") or "nothing"
            raise NotAvailable(f"Slurm stores no accounting in slurmdbd (AccountingStorageType={stored})")
        return found

    @cached_property
    def enforced(self) -> frozenset[str]:
        """What AccountingStorageEnforce enforces, with what its words imply (slurm.conf(5))."""
        return facts.enforced_words(self.settings.get("AccountingStorageEnforce", ""))

    @cached_property
    def who(self) -> Who:
        """The user of the commands, here or on the login node."""
        name = self.run("id", "-un").strip()
        level = ""
        if not facts.sees_all(name, self.settings, level):
            level = self.run("sacctmgr", "-nP", "show", "user", name, "format=AdminLevel").strip()
        return Who(name, name == "root", facts.sees_all(name, self.settings, level))

    @cached_property
    def hidden(self) -> frozenset[str]:
        """What slurmdbd hides from this user (PrivateData of slurmdbd.conf)."""
        if self.who.sees_all:
            return frozenset()
        return facts.parse_private_data(self.run("sacctmgr", "show", "configuration"))

    @cached_property
    def associations(self) -> tuple[facts.Association, ...]:
        """All associations of the cluster, with the limits that the file states anywhere."""
        accounts = self.config.accounts.values()
        stated = [*accounts, *(user for account in accounts for user in account.users.values())]
        limits = _used(ASSOCIATION_LIMITS, (one.limits for one in stated))
        columns = ",".join((*facts.ASSOCIATION, *limits))
        cluster = f"cluster={self.settings.get('ClusterName', '')}"
        text = self.run("sacctmgr", "-nP", "show", "assoc", cluster, f"format={columns}")
        return facts.parse_associations(text, limits)

    @cached_property
    def qos(self) -> dict[str, facts.QosInfo]:
        """All QoS, with the limits that the file states anywhere."""
        limits = _used(QOS_LIMITS, (one.limits for one in self.config.qos.values()))
        columns = ",".join((*facts.QOS, *limits))
        return facts.parse_qos(self.run("sacctmgr", "-nP", "show", "qos", f"format={columns}"), limits)

    def become(self, user: str) -> tuple[str, ...]:
        """Return the command prefix with which a command runs as a user; NotAvailable where that is not possible.

        Not `sbatch --uid`: Slurm then checks some of root's rights instead of the user's (sbatch(1)).
        """
        if user == self.who.name:
            return ()
        if self.who.is_root:
            return ("runuser", "-u", user, "--")
        if self.sudo:
            conf = (f"SLURM_CONF={self.conf}",) if self.conf else ()  # sudo clears the environment
            return ("sudo", "-n", "-u", user, "--", "env", *conf)
        raise NotAvailable(
            f"user {user}: only root can become another user: run as root, or set `sudo: true` in the cluster file"
        )

    def _answer(self, access: Access) -> facts.SubmitReply:
        """Return Slurm's answer to `sbatch --test-only` of a job of one task, asked as its user.

        NotAvailable where this machine cannot become the user, or does not know it.
        """
        words = {"account": access.account, "partition": access.partition, "qos": access.qos}
        asked = (f"--{key}={value}" for key, value in words.items() if value)
        argv = (*SMALL_JOB, "--chdir=/", *asked, "--test-only", "--wrap=true")
        try:
            self.slurm.run(*self.become(access.user), *argv)
        except SlurmError as error:
            if error.rc is None or not re.search("sbatch|allocation failure", error.stderr):
                raise NotAvailable(str(error)) from error  # runuser or sudo, or no answer
            return facts.read_refusal(error.stderr)
        return facts.SubmitReply("accepted")

    def answers(self, jobs: Iterable[Access]) -> dict[Access, facts.SubmitReply]:
        """Return Slurm's answers to `sbatch --test-only` of jobs."""
        found = {}
        for access in jobs:
            try:
                found[access] = self._answer(access)
            except NotAvailable as error:
                found[access] = facts.SubmitReply("not tried", str(error))
        return found

    def records(self, own: Iterable[int]) -> Records:
        """Return the records of the last time, the runaway jobs, and which of `own` jobs have no record."""
        # by state: without -s, sacct shows no job whose time_eligible slurmctld never sent, as for a short job before its restart
        states = ",".join(sorted(facts.ENDED | facts.ALIVE))
        jobs = self._sacct("-S", f"now-{max(60, round(self.config.records))}", "-E", "now", "-s", states)
        hidden = not self.who.sees_all and "jobs" in self.settings.get("PrivateData", "")
        alive = [
            one
            for one in self._sacct("-s", ",".join(sorted(facts.ALIVE)))
            if one.state in facts.ALIVE and (not hidden or one.user == self.who.name)
        ]
        # after sacct: a job that ends in between stays in squeue for MinJobAge
        queued = set(self.run("squeue", "-a", "-h", "-t", "all", "-o", "%A").split())
        lost = [one.job for one in alive if one.job not in queued]
        missing = sorted({str(job) for job in own} - {one.job for one in jobs})
        if not lost and not missing:
            return Records(jobs, compared=len(alive), hidden=hidden)
        time.sleep(LATER)
        end = time.monotonic() + LATER
        while (unsent := facts.parse_queue_size(self.run("sdiag"))) and time.monotonic() < end:
            time.sleep(1.0)  # a busy cluster often has a record to send; at 0 all earlier ones are sent
        again = self._sacct("-j", ",".join([*missing, *lost[:MOST_RUNAWAYS]]))
        still = tuple(one for one in again if one.state in facts.ALIVE and one.job in lost)
        absent = tuple(job for job in missing if job not in {one.job for one in again})
        return Records(jobs, still, absent, len(alive), unsent, hidden)

    def _sacct(self, *options: str) -> tuple[facts.JobRecord, ...]:
        columns = ",".join(facts.RECORD)
        return facts.parse_records(self.run("sacct", "-a", "-X", "-nP", *options, "-o", columns))

    def run(self, *argv: str) -> str:
        """Run a command; NotAvailable with its message where it failed."""
        try:
            return self.slurm.run(*argv)
        except SlurmError as error:
            raise NotAvailable(str(error)) from error


def _used(known: Mapping[str, str], stated: Iterable[Mapping[str, object]]) -> dict[str, str]:
    names = {name for one in stated for name in one}
    return {name: limit_type for name, limit_type in known.items() if name in names}
