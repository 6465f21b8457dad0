"""What killed runs have left: what is removed, and above all what never is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from sandbox_helpers import wait_for

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cluster.channel.channel import Fleet
from pytest_gpucluster.cluster.slurm import leftovers
from pytest_gpucluster.cluster.slurm.allocation import Allocation, AllocationRequest
from pytest_gpucluster.cluster.slurm.client import Slurm
from pytest_gpucluster.cluster.slurm.inventory import parse_nodes
from pytest_gpucluster.cluster.slurm.leftovers import Leftover
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core import run_mark as runmark
from pytest_gpucluster.core.errors import AllocationError, GpuClusterError, SlurmError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.plugin.controller import Controller
from pytest_gpucluster.suites.container import containers
from pytest_gpucluster.suites.submitit.config import SubmititConfig
from pytest_gpucluster.suites.submitit.steps import parameters, shared_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucluster.cluster.channel.channel import Channel

MARK = runmark.mark_of(os.getpid())


@pytest.fixture
def dead() -> str:
    with subprocess.Popen(["sleep", "60"]) as process:
        mark = runmark.mark_of(process.pid)
        process.kill()
    return mark


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


class FakeSlurm:
    """Answers squeue with one queue after the other, the last one for ever; scancel with `refusal`."""

    def __init__(self, *queues: str, refusal: str = "") -> None:
        self.queues, self.refusal = list(queues), refusal
        self.cancelled: list[tuple[str, ...]] = []

    def run(self, *argv: str) -> str:
        if argv[0] == "squeue":
            return self.queues.pop(0) if len(self.queues) > 1 else self.queues[0]
        self.cancelled.append(argv)
        if self.refusal:
            raise SlurmError(self.refusal)
        return ""


def of(fake: FakeSlurm) -> Slurm:
    return cast("Slurm", fake)


# --- jobs


def test_only_jobs_of_dead_runs_are_found_and_cancelled(dead: str) -> None:
    place, pid, start = dead.split("-")
    elsewhere = f"gpucluster-{int(place, 16) ^ 1:08x}-{pid}-{start}"
    diagnostic, plain = f"gpucluster-diagnostic-{dead}-1a2b3c4d", f"gpucluster-{dead}"
    own = (f"gpucluster-{MARK}", f"gpucluster-diagnostic-{MARK}-1a2b3c4d")
    others = ("gpucluster", "train gpt", f"my-{plain}", "")
    names = (diagnostic, plain, elsewhere, *own, *others)
    lines = [f"{number} RUNNING {name}" for number, name in enumerate(names, 11)]
    fake = FakeSlurm("\n".join([f"11 PENDING {diagnostic}", *lines]), "")
    one, other, away = found = leftovers.jobs(of(fake))
    assert one.what == f"job 11 ({diagnostic}, PENDING) of a killed run (process {pid})"
    assert other.what == f"job 12 ({plain}, RUNNING) of a killed run (process {pid})"
    assert away.what.startswith(f"job 13 ({elsewhere}, RUNNING) of process {pid} of another machine, or ")
    assert (one.stays, other.stays, away.remove) == ("", "", None)
    printed: list[str] = []
    assert leftovers.remove(found, printed.append)
    assert fake.cancelled == [("scancel", f"--name={diagnostic}", "11"), ("scancel", f"--name={plain}", "12")]
    said = [f"{one.what}: removed", f"{other.what}: removed", f"{away.what} stays: {away.stays}"]
    assert printed == said


STAYS = "it is still {}: run scancel 7"


@pytest.mark.parametrize(
    ("states", "refusal", "tries", "printed"),
    [
        # one that ends to be requeued escapes scancel, as the array of the slurm suite does
        (["COMPLETING", "PENDING", ""], "", 3, ""),
        (["COMPLETING"], "scancel: Job/step already completing", 10, ""),
        (["RUNNING PENDING"], "", 10, STAYS.format("PENDING, RUNNING")),
        (["RUNNING COMPLETING"], "no", 10, f"no: {STAYS.format('COMPLETING, RUNNING')}"),
        ([""], "Invalid job id", 1, ""),  # it is gone already
    ],
)
def test_a_job_is_cancelled_until_it_is_gone(
    states: list[str], refusal: str, tries: int, printed: str, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    name = f"gpucluster-{dead}"
    own = ("".join(f"7 {word} {name}\n" for word in one.split()) for one in states)
    seen = [f"{one}7 RUNNING b\n8 RUNNING {name}" for one in own]
    fake = FakeSlurm(f"7 RUNNING {name}", *seen, refusal=refusal)
    (job,) = leftovers.jobs(of(fake))
    assert job.remove is not None
    with pytest.raises(GpuClusterError) if printed else contextlib.nullcontext() as reported:
        job.remove()
    assert str(reported.value if reported else "") == printed
    assert fake.cancelled == [("scancel", f"--name={name}", "7")] * tries
    assert pauses == [1] * (tries if tries == leftovers.TRIES else tries - 1)


def refuse(error: Exception) -> Any:
    raise error


def test_what_cannot_be_removed_is_reported_and_the_rest_goes() -> None:
    gone, printed = list[int](), list[str]()
    errors = [GpuClusterError("why"), OSError(13, "no")]
    found = [Leftover(f"{error}", partial(refuse, error)) for error in errors]
    assert leftovers.remove([*found, Leftover("c", lambda: gone.append(1))], printed.append) is False
    assert gone == [1]
    assert printed == [*(f"{error}: could not be removed: {error}" for error in errors), "c: removed"]


# --- folders and files


def test_only_folders_of_dead_runs_are_removed(
    tmp: Path, tmp_path: Path, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, pid, start = dead.split("-")
    shared, precious = tmp_path / "shared", tmp_path / "precious"
    elsewhere = f"gpucluster-{int(place, 16) ^ 1:08x}-{pid}-{start}-1a2b3c4d"
    own = f"gpucluster-{MARK}-1a2b3c4d"
    stay = [tmp / name for name in (own, elsewhere, "gpucluster-1a2b3c4d", f"my-{dead}", f"x{dead}")]
    go = [tmp / f"gpucluster-{dead}-1a2b3c4d", shared / f".gpucluster-submitit-{dead}-1a2b3c4d"]
    for folder in (*stay, *go, precious):
        folder.mkdir(parents=True)
        (folder / "s").touch()
    (tmp / f"gpucluster-{dead}-2a").symlink_to(precious)
    (tmp / f"gpucluster-{dead}-3a").touch()
    found = [one for one in leftovers.folders(shared) if str(tmp_path) in one.what]
    gone = [f"folder {path} of a killed run (process {pid})" for path in go]
    assert [one.what for one in found if one.remove] == gone
    assert [one.what.split(" of ")[0] for one in found if one.remove is None] == [f"folder {tmp / elsewhere}"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert leftovers.folders(shared) == []
    assert leftovers.remove(found, print)
    assert leftovers.remove(found, print)  # the shell of that run may have been faster
    assert [path for path in go if path.exists()] == []
    assert all((path / "s").exists() for path in (*stay, precious))
    assert (tmp / f"gpucluster-{dead}-3a").exists()


def users_file(tmp: Path, text: str, job: str = "7", uid: int = 0) -> Path:
    path = tmp / f"gpucluster-{os.getuid() + uid}-{job}-1a2b3c4d.users"
    path.write_text(text)
    return path


def test_only_unused_files_are_removed(tmp: Path, dead: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = dead.split("-")[1]
    stale = users_file(tmp, killed)
    used = users_file(tmp, f"{killed} {os.getpid()}", "8")
    foreign, odd = users_file(tmp, "", "9", uid=1), users_file(tmp, "", "x")
    link = tmp / f"gpucluster-{os.getuid()}-9-1a2b3c4d.users"
    longer = link.with_name(f"{link.name}.users")
    longer.touch()
    link.symlink_to(foreign)
    locked = users_file(tmp, "", "10")  # by a process that imports an image, and is not in it yet
    with locked.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = containers.stale_user_files()
        assert [one.what for one in found] == [f"file {stale}, whose processes have ended"]
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            assert containers.stale_user_files() == []
        stale.write_text(str(os.getpid()))  # another run of that job
        leftovers.remove(found, print)
        assert stale.exists()
        stale.write_text(killed)
        leftovers.remove(found, print)
    assert sorted(tmp.iterdir()) == sorted([used, foreign, odd, longer, link, locked])


def test_who_waits_for_a_file_that_is_taken_away_makes_a_new_one(tmp: Path) -> None:
    path, held = users_file(tmp, ""), Path("/proc/self/fd")
    with path.open() as file, ThreadPoolExecutor(1) as pool:
        fcntl.flock(file, fcntl.LOCK_EX)
        opened = pool.submit(containers._open_locked, "7-1a2b3c4d")
        wait_for(lambda: [os.path.realpath(one) for one in held.iterdir()].count(str(path)) > 1, "it waits")
        path.unlink()
        file.close()
        new, handle = opened.result()
    assert (new, os.fstat(handle).st_ino) == (path, path.stat().st_ino)
    os.close(handle)


# --- containers


class FakeChannel:
    """Nodes that answer as given; each command is kept."""

    def __init__(self, *answers: dict[str, Answer]) -> None:
        self.answers, self.asked, self.timeouts = list(answers), list[str](), list[float]()
        self.lost: dict[str, str] = {"gpu03": "gone"}

    def ask(self, command: str, *, timeout: float) -> dict[str, Answer]:
        self.asked.append(command)
        self.timeouts.append(timeout)
        return self.answers.pop(0)

    def close(self) -> None:
        """Nothing is open."""


def listed(**names: str) -> dict[str, Answer]:
    return {node: Answer(node, 0, text.encode()) for node, text in names.items()}


def test_a_container_of_a_live_job_is_no_leftover() -> None:
    answers = listed(
        gpu01="pyxis_gpucluster-7-a\npyxis_gpucluster-6-a\npyxis_gpucluster-kept-a-b\npyxis_mine",
        gpu02="pyxis_gpucluster-9-a",
        gpu04="pyxis_gpucluster-5-a\npyxis_5_gpucluster-6-a\npyxis_gpucluster-6-a",
    )
    answers["gpu05"] = Answer("gpu05", 127)
    answers["gpu03"] = Answer("gpu03", None, problem="lost: gone")
    answers["gpu06"] = Answer("gpu06", None, problem="timed out after 60 s")
    busy, fake = of(FakeSlurm("7\n8_[0-1]\n9\n")), cast("Channel", FakeChannel(answers))
    found, (unlisted, late) = containers.containers_of_ended_jobs(busy, fake, ())
    of_gpu04 = ("pyxis_5_gpucluster-6-a", "pyxis_gpucluster-5-a", "pyxis_gpucluster-6-a")
    assert found == {"gpu01": ("pyxis_gpucluster-6-a",), "gpu04": of_gpu04}
    assert unlisted.startswith("gpu05 may still have containers named gpucluster-JOB-...: enroot does not")
    assert late.startswith("gpu06 may still have containers named gpucluster-JOB-...: timed out after 60 s. ")


@pytest.mark.parametrize("started", [False, True])
def test_no_error_of_containers_keeps_the_nodes(*, started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that have not started are not waited for."""
    broken = "pytest_gpucluster.suites.container.containers.clear_nodes"
    monkeypatch.setattr(broken, lambda *_, **__: refuse(GpuClusterError("no task started")))
    controller: Any = Controller.__new__(Controller)
    controller.__dict__.update(channel=FakeChannel(), slurm=object(), left_behind=[], lost=dict)
    controller.__dict__.update(_started=started, _cleared=False)
    controller.let_agents_leave()
    left = [one.endswith("may still be there: no task started") for one in controller.left_behind]
    assert left == [True] * started


def test_containers_are_recognised_by_name_and_removed_by_name() -> None:
    busy = {**listed(gpu01=""), "gpu02": Answer("gpu02", 1, b"", b"busy\n")}
    fake = FakeChannel(listed(gpu01="", gpu02=""), busy)
    found = {"gpu01": ("pyxis_a",), "gpu02": ("pyxis_a", "pyxis_b")}
    one, other = containers.as_leftovers(cast("Channel", fake), found)
    assert one.what == "container pyxis_a on gpu[01-02], whose job has ended"
    assert other.what == "container pyxis_b on gpu02, whose job has ended"
    printed: list[str] = []
    assert leftovers.remove([one], printed.append)
    assert not leftovers.remove([other], printed.append)
    problem = "gpu02 still has containers of ended jobs: busy: "
    assert printed[1].startswith(f"{other.what}: could not be removed: {problem}")
    assert printed[1].endswith("enroot remove -f pyxis_b </dev/null")
    assert [("pyxis_a)" in one, "pyxis_b)" in one) for one in fake.asked] == [(True, False), (False, True)]


# --- what the next run and `gpucluster clean` find


Places = dict[str, list[Leftover]]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Places:
    """What is found, by where one looks; without 'jobs' squeue does not answer."""
    places: Places = {"jobs": [], "folders": [], "files": []}

    def jobs(_slurm: Slurm) -> list[Leftover]:
        return places["jobs"] if "jobs" in places else refuse(SlurmError("squeue: not found"))

    monkeypatch.setattr(leftovers, "jobs", jobs)
    monkeypatch.setattr(leftovers, "folders", lambda *_more: places["folders"])
    monkeypatch.setattr(containers, "stale_user_files", lambda: places["files"])
    return places


def clean(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str], str]:
    status = cli.main(["clean", *map(str, words)])
    shown = capsys.readouterr()
    return status, shown.out.splitlines(), shown.err


def test_the_next_run_removes_what_is_dead_and_says_nothing_of_the_rest(found: Places) -> None:
    gone: list[str] = []
    for place, what in (("jobs", "a"), ("folders", "c"), ("files", "d")):
        found[place] = [Leftover(what, partial(gone.append, what)), Leftover("b", None)]
    controller = Controller.__new__(Controller)
    printed: list[str] = []
    for controller.slurm in (of(FakeSlurm("")), None):
        controller._clear_dead_runs(printed.append)
    assert gone == ["a", "c", "d", "c", "d"]
    assert printed == [f"{what}: removed" for what in gone]
    del found["jobs"]
    controller.slurm = of(FakeSlurm(""))
    controller._clear_dead_runs(printed.append)
    assert printed[5:] == ["jobs of runs that were killed may be left: squeue: not found"]


def test_clean_only_lists_without_the_option(found: Places, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ((), ("--yes",), ("--cluster", "local")):
        assert clean(capsys, *argv) == (0, ["No leftovers of killed runs"], "")
    gone: list[str] = []
    found["jobs"] = [Leftover("job 2", None, "it may live")]
    stays = "job 2 stays: it may live"
    assert clean(capsys) == (0, [stays, "No further leftovers of killed runs"], "")
    found["jobs"].insert(0, Leftover("job 1", partial(gone.append, "job")))
    found["files"] = [Leftover("file 3", partial(gone.append, "file"))]
    status, (*lines, last), _ = clean(capsys)
    assert (status, lines, gone) == (0, ["job 1", stays, "file 3"], [])
    assert last.startswith("2 found: `gpucluster clean --yes`")
    assert clean(capsys, "--yes") == (0, ["job 1: removed", stays, "file 3: removed"], "")
    assert gone == ["job", "file"]


def test_clean_fails_if_some_stay(found: Places, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    busy = Leftover("folder 1", partial(refuse, GpuClusterError("busy")))
    found["folders"] = [busy, Leftover("folder 2", list)]
    lines = ["folder 1: could not be removed: busy", "folder 2: removed"]
    assert clean(capsys, "--yes") == (1, lines, "")
    del found["jobs"]
    found["folders"].pop(0)
    status, printed, error = clean(capsys, "--yes")
    assert (status, printed) == (1, ["folder 2: removed"])
    assert "squeue: not found: run it where squeue works" in error
    found["folders"].clear()
    (tmp_path / "c.yaml").write_text("nodes: gpu01\n")
    problem = "gpucluster: error: squeue: not found\n"
    assert clean(capsys, "--cluster", tmp_path / "c.yaml") == (1, [], problem)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ("--nodes gpu01", "--nodes needs --cluster"),
        ("--cluster local --nodes gpu01", "has no scheduler, and runs without jobs leave no"),
        ("--cluster /no/where/nope.yaml", "nope.yaml"),
    ],
)
def test_clean_refuses_what_does_not_fit(
    found: Places, capsys: pytest.CaptureFixture[str], argv: str, why: str
) -> None:
    found["jobs"] = found["folders"] = [Leftover("x", lambda: pytest.fail("nothing may be removed"))]
    status, lines, error = clean(capsys, "--yes", *argv.split())
    assert (status, lines) == (4, [])
    assert why in error


@pytest.mark.usefixtures("found")
def test_clean_looks_into_the_folders_of_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, ...]] = []

    def folders(*more: Path) -> list[Leftover]:
        looked.append(tuple(map(str, more)))
        return []

    monkeypatch.setattr(leftovers, "folders", folders)
    for text, more in (
        ("submitit: {folder: /a}\nos: {shared_storage: [/b]}", ("/a",)),
        ("submitit: {}\nos: {shared_storage: [/b, /c]}", ("/b",)),
        ("submitit: {}\ntraining: {}", ()),
        ("os: {shared_storage: [/b]}", ()),
        ("training: {checkpoint: /a}", ("/a",)),
    ):
        (tmp_path / "c.yaml").write_text(f"nodes: gpu01\n{text}\n")
        assert cli.main(["clean", "--cluster", str(tmp_path / "c.yaml")]) == 0
        assert looked.pop() == more


NODES = """NodeName=gpu01 State=IDLE CPUTot=8 Partitions=batch Gres=gpu:8
NodeName=gpu02 State=IDLE CPUTot=8 Partitions=fast Gres=gpu:8
NodeName=gpu03 State=DOWN CPUTot=8 Partitions=batch Reason=dead [root@2026-11-20T10:00:00]
"""
NODES_FILE = """
slurm: {partition: batch, account: ops, exclusive: true, time: 2h}
groups: [{nodes: "gpu[01,03-05]"}, {nodes: gpu02, partition: fast}]
"""


@pytest.mark.usefixtures("found")
def test_clean_asks_for_little_and_tells_which_nodes_it_did_not_see(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[AllocationRequest] = []

    @contextlib.contextmanager
    def request(_slurm: Slurm, asked: AllocationRequest, **_: object) -> Iterator[None]:
        requests.append(asked)
        if asked.partition == "fast":
            raise AllocationError("no nodes within 60 s")
        yield

    def answering(*_: object) -> contextlib.nullcontext[FakeChannel]:
        seen = {**listed(gpu01="pyxis_gpucluster-6-a"), "gpu04": Answer("gpu04", 127)}
        return contextlib.nullcontext(FakeChannel(seen, listed(gpu01="")))

    monkeypatch.setattr(Slurm, "nodes", lambda _self: parse_nodes(NODES))
    monkeypatch.setattr(Slurm, "run", lambda *_: "")
    monkeypatch.setattr(Allocation, "request", request)
    monkeypatch.setattr(Fleet, "over_slurm", answering)
    (tmp_path / "c.yaml").write_text(NODES_FILE)
    argv = ("--cluster", tmp_path / "c.yaml", "--nodes", "gpu[01-03]", "--yes")
    status, lines, error = clean(capsys, *argv)
    assert (status, lines) == (1, ["container pyxis_gpucluster-6-a on gpu01, whose job has ended: removed"])
    down, unlisted, lost, held = (line.partition("error: ")[2] for line in error.splitlines())
    assert down[:21] == lost[:21] == "gpu03 was not checked"
    assert unlisted.startswith("gpu04 may still have ")
    assert held == "gpu02 was not checked: no nodes within 60 s"
    assert [(one.nodes, one.partition, one.account, one.time) for one in requests] == [
        (("gpu01",), "batch", "ops", 300.0),
        (("gpu02",), "fast", "ops", 300.0),
    ]
    assert not any(one.exclusive or one.gpus_per_node for one in requests)


def test_what_a_run_makes_bears_its_mark() -> None:
    request = AllocationRequest(count=1, queue_wait=9.5)
    assert runmark.mark_in(request.job_name) == MARK
    assert request.job_name != AllocationRequest(count=1).job_name  # the guard cancels a job by its name
    # salloc gives up by itself, should nobody be left to end it
    assert {f"--job-name={request.job_name}", "--immediate=70"} <= set(request.argv())
    assert parameters(load_cluster("local"))["name"] == f"gpucluster-submitit-{MARK}"
    cluster = load_cluster("local").model_copy(update={"submitit": SubmititConfig(folder="/shared")})
    claim = cluster.section(SubmititConfig)
    assert claim is not None
    assert shared_folder(cluster, claim) == "/shared"
    assert runmark.mark_in(f"gpucluster-submitit-{MARK}-0123456789abcdef") == MARK


@pytest.mark.parametrize("hurry", [False, True])
def test_a_stopped_run_waits_for_containers_for_seconds(*, hurry: bool) -> None:
    fake = FakeChannel(listed(gpu01="pyxis_gpucluster-6-a"), {"gpu01": Answer("gpu01", 0)})
    assert containers.remove_containers(cast("Slurm", None), cast("Channel", fake), {6}, hurry=hurry) == []
    assert fake.timeouts == [containers.HURRY if hurry else containers.PATIENCE] * 2
