"""Runs of ordinary users: what they may not do is said, what others left is not followed, two of them do not clash.

Root starts the sandbox and becomes them; where it cannot, tests say why they are skipped.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plugin_helpers import Run, jobs_so_far, names, on
from sandbox_helpers import environment, sandbox_folder, slurm
from user_helpers import PYTHON, Checkout, identity, readable_checkout

from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.sandbox import Sandbox
from slurm_sandbox import isolation, node_sshd, slurmconf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALICE, BOB = "nobody", "_apt"  # their homes in the user database do not exist: HOME is that of the tests


HERE = Checkout()


@pytest.fixture(scope="module", autouse=True)
def others() -> Iterator[None]:
    """See to it that other users can run what is tested."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with readable_checkout() as found:
        HERE.suites, HERE.modules = found.suites, found.modules
        yield


def _environment(home: str, **more: str) -> dict[str, str]:
    strange = ("XDG_", "TMPDIR", "HOME", "USER", "LOGNAME")  # root's
    kept = {name: value for name, value in environment().items() if not name.startswith(strange)}
    return {**kept, "HOME": home, "PYTHONPATH": HERE.modules, **more}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox of root's, started with a mask that lets nobody else in, in a folder that others may enter."""
    with sandbox_folder() as folder:
        folder.chmod(0o755)
        box, mask = Sandbox(folder / "s"), os.umask(0o077)
        try:
            box.up(nodes=4)
        finally:
            os.umask(mask)
        yield box


@pytest.fixture
def homes() -> Iterator[dict[str, Path]]:
    """A home for each user, which nobody else may enter."""
    with tempfile.TemporaryDirectory(prefix="home-") as around:
        Path(around).chmod(0o755)
        found = {}
        for name in (ALICE, BOB):
            found[name] = Path(around, name)
            found[name].mkdir(mode=0o700)
            os.chown(found[name], pwd.getpwnam(name).pw_uid, pwd.getpwnam(name).pw_gid)
        yield found


def begin(name: str, home: Path, *argv: object, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-m", *map(str, argv)],
        **identity(name),
        env=_environment(str(home), **env),
        cwd=cwd or home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )


def end(process: subprocess.Popen[str], folder: Path) -> Run:
    out, err = process.communicate(timeout=1200)
    return Run(process.returncode, out, err, folder)


def run_as(name: str, home: Path, *argv: object, cwd: Path | None = None, **env: str) -> Run:
    return end(begin(name, home, *argv, cwd=cwd, **env), cwd or home)


# --- a whole run


def test_two_users_at_once_find_healthy_nodes_fit(sandbox: Sandbox, homes: Mapping[str, Path]) -> None:
    argv = ("pytest", on(sandbox), "-m", "os or slurm or container", HERE.suites)
    options = {ALICE: ("--nodes=gpu[01-02]", "-n2"), BOB: ("--nodes=gpu[03-04]",)}
    both = {name: begin(name, homes[name], *argv, *options[name]) for name in (ALICE, BOB)}
    for run in [end(process, homes[name]) for name, process in both.items()]:
        assert run.rc == 0, run.out[-3000:] + run.err
        assert not names(run.outcomes, "failed")
        assert len(names(run.outcomes, "passed")) > 80
        assert "Warning" not in run.out


@pytest.mark.usefixtures("mounts_of_machine")
def test_a_login_is_refused_without_a_job(homes: Mapping[str, Path]) -> None:
    outside_tmp, home = Path("/var/tmp"), homes[ALICE]
    if why := isolation.why_not(outside_tmp, "plain") or node_sshd.why_not():
        pytest.skip(why)
    key = home / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with sandbox_folder(outside_tmp) as folder:
        folder.chmod(0o755)
        box = Sandbox(folder / "s")
        box.up(nodes=3, isolation=True)
        shutil.copy(key.with_suffix(".pub"), box.layout.ssh / "authorized" / ALICE)
        box.fault("pam_adopt_missing", "gpu02")
        config = box.layout.ssh / "config"
        config.write_text(f"IdentityFile {key}\n{config.read_text()}")
        given = home / "logins.yaml"
        shutil.copy(box.cluster_file, given)
        for path in (key, given):
            os.chown(path, *(identity(ALICE)[kind] for kind in ("user", "group")))
        argv = ("pytest", f"--cluster={given}", "--intrusive", "-k", "test_login", HERE.suites / "isolation")
        run = run_as(ALICE, home, *argv)
    assert names(run.outcomes, "passed") == ["test_login[gpu01]", "test_login[gpu03]"], run.out[-3000:]
    assert names(run.outcomes, "failed") == ["test_login[gpu02]"]
    assert "isolation.login on gpu02: login without a job: measured a shell, expected refused" in run.out


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_history_that_we_may_only_read_is_reported_before_a_node_is_taken(
    sandbox: Sandbox, homes: Mapping[str, Path], where: str
) -> None:
    history, mine = homes[ALICE] / "kept" / "history.db", pwd.getpwnam(ALICE)
    history.parent.mkdir()
    History(history, create=True).close()
    os.chown(history, mine.pw_uid, -1)
    history.chmod(0o400 if where == "file" else 0o600)
    before = jobs_so_far(sandbox)
    run = run_as(ALICE, homes[ALICE], "pytest", on(sandbox), f"--history={history}", HERE.suites)
    assert run.rc == 4
    (line,) = run.errors
    assert line.startswith(f"ERROR: history {history}: this user cannot write it, or its folder (")
    assert jobs_so_far(sandbox) == before


# --- rights of Slurm's


@pytest.mark.parametrize("option", ["--drain=apply", "--resume-passing", "--drain=dry-run"])
def test_who_may_change_no_node_is_told_so_before_a_node_is_taken_and_a_dry_run_needs_no_rights(
    sandbox: Sandbox, homes: Mapping[str, Path], option: str
) -> None:
    before = jobs_so_far(sandbox)
    run = run_as(ALICE, homes[ALICE], "pytest", on(sandbox), option, "-k", "known", HERE.suites)
    if option == "--drain=dry-run":
        assert run.rc == 0, run.out + run.err
        return
    assert run.rc == 4
    (line,) = run.errors
    assert option in line
    assert "only Slurm's administrators change nodes" in line
    assert jobs_so_far(sandbox) == before


# --- what others left where everybody may write


def test_the_link_of_another_user_in_a_shared_folder_is_left_and_reported(homes: Mapping[str, Path]) -> None:
    home, (alice, bob) = homes[ALICE], (pwd.getpwnam(name).pw_uid for name in (ALICE, BOB))
    precious, reports = home / "precious", home.parent / "reports"
    precious.mkdir()
    os.chown(precious, alice, -1)
    reports.mkdir()
    reports.chmod(0o1777)
    (reports / "latest-rerun").symlink_to(precious)  # a run of one check is no full run
    os.chown(reports / "latest-rerun", bob, -1, follow_symlinks=False)
    argv = ("pytest", "--cluster=local", "-k", "test_responds", f"--report-dir={reports}", HERE.suites)
    run = run_as(ALICE, home, *argv)
    assert run.rc == 1, run.out
    assert any("latest-rerun: cannot be written" in line for line in run.errors), run.out
    assert (reports / "latest-rerun").readlink() == precious
    assert list(precious.iterdir()) == []
    assert len(list(reports.glob("20*/junit.xml"))) == 1


# --- a site with accounts, limits, memory as a resource, and private data

MORE_CONF = """\
AccountingStorageEnforce=limits,qos
PrivateData=jobs,usage
DefMemPerNode=100
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Sandbox]:
    """A sandbox that asks for an account, which one of our users has."""
    if shutil.which("mariadbd") is None:
        pytest.skip("no MariaDB: apt-get install mariadb-server-core mariadb-client-core slurmdbd")
    plain = slurmconf.slurm_conf

    def strict(*args: Any, **options: Any) -> str:
        text = plain(*args, **options).replace("=CR_Core\n", "=CR_Core_Memory\n")
        return (
            text.replace("SelectType=", MORE_CONF + "SelectType=")
            .replace("PartitionName=batch ", "PartitionName=batch AllowAccounts=ops ExclusiveUser=YES ")
            .replace("PartitionName=debug ", "PartitionName=debug DefMemPerNode=300 MaxMemPerNode=3000 ")
        )

    with sandbox_folder() as folder, pytest.MonkeyPatch.context() as patch:
        folder.chmod(0o755)
        patch.setattr(slurmconf, "slurm_conf", strict)
        box = Sandbox(folder / "s")
        box.up(nodes=4, gpus_per_node=2, accounting=True)
        account(box, "add", "account", "ops", "Organization=ops")
        account(box, "add", "user", ALICE, "Account=ops")
        yield box


def account(box: Sandbox, *words: str) -> None:
    slurm(box, "sacctmgr", "-i", *words)


def cluster_of(site: Sandbox, folder: Path, **keys: str) -> str:
    plain = yaml.safe_load(site.cluster_file.read_text())
    plain["slurm"].update(keys)
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(plain))
    return f"--cluster={path}"


def test_a_limit_of_jobs_costs_the_checks_of_jobs_alone(site: Sandbox, homes: Mapping[str, Path]) -> None:
    account(site, "modify", "user", ALICE, "set", "MaxSubmitJobs=2")
    try:
        argv = ("pytest", cluster_of(site, homes[ALICE], account="ops"), "-m", "slurm", HERE.suites)
        run = run_as(ALICE, homes[ALICE], *argv)
    finally:
        account(site, "modify", "user", ALICE, "set", "MaxSubmitJobs=-1")
    assert run.rc == 0, run.out[-3000:] + run.err
    ends = {end for name, end in run.outcomes.items() if "array" in name or "requeue" in name}
    assert ends == {"not checked"}
    assert "MaxSubmitJobLimit" in run.out
    assert "test_step[gpu01]" in names(run.outcomes, "passed")


@pytest.mark.parametrize(("level", "rc"), [("Operator", 4), ("Administrator", 0)])
def test_nodes_are_drained_by_administrators_alone(
    site: Sandbox, homes: Mapping[str, Path], level: str, rc: int
) -> None:
    cluster = cluster_of(site, homes[ALICE], account="ops")
    account(site, "modify", "user", ALICE, "set", f"AdminLevel={level}")
    try:
        run = run_as(ALICE, homes[ALICE], "pytest", cluster, "--drain=apply", "-k", "known", HERE.suites)
    finally:
        account(site, "modify", "user", ALICE, "set", "AdminLevel=None")
    assert run.rc == rc, run.out + run.err
    assert ("AdminLevel=Administrator (Operator is too little)" in run.err) is (rc == 4)
