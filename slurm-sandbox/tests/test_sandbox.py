"""The sandbox's daemons: a real Slurm, on loopback only, that leaves nothing behind."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sandbox_helpers import SOURCE, TESTS, left_behind, of_folder, sandbox_folder, wait_for

from slurm_sandbox import commands, faults, models, processes, slurmconf, spank
from slurm_sandbox.api import Sandbox
from slurm_sandbox.daemons import SlurmDaemons
from slurm_sandbox.errors import SandboxError
from slurm_sandbox.layout import Layout
from slurm_sandbox.sandbox import node_names

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a munge socket's has at most 107 characters."""
    with sandbox_folder() as path:
        yield path


def run(sandbox: Sandbox, *argv: str, timeout: float = 60.0) -> str:
    done = commands.run(argv, timeout=timeout, env=sandbox.env)
    assert done.rc == 0, done.stderr
    return done.stdout


def test_tasks_run_on_every_node_under_its_name(sandbox: Sandbox) -> None:
    assert sorted(run(sandbox, "srun", "-N4", "hostname").split()) == ["gpu01", "gpu02", "gpu03", "gpu04"]


def test_slurm_hands_out_gpus(sandbox: Sandbox) -> None:
    out = run(sandbox, "srun", "-N1", "--gpus-per-node=3", "sh", "-c", "echo $SLURM_STEP_GPUS")
    assert out.strip() == "0,1,2"


def test_listens_on_loopback_only(sandbox: Sandbox) -> None:
    known = json.loads(sandbox.layout.state.read_text())["processes"]

    def rows() -> list[str]:
        listed = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
        return [row for row in listed.splitlines() if any(f"pid={pid}," in row for pid, _ in known.values())]

    # a slurmd that was just started listens a moment later
    own = wait_for(lambda: found if len(found := rows()) >= 5 else None, "slurmctld and four slurmds listen")
    assert len(own) == 5
    assert {row.split()[3].rpartition(":")[0] for row in own} == {"127.0.0.1"}


def test_heal_starts_a_slurmd_that_died_by_itself(sandbox: Sandbox) -> None:
    daemon = sandbox._fault_context().daemons.find("slurmd-gpu02")
    assert daemon is not None
    daemon.send(signal.SIGKILL)
    wait_for(lambda: not daemon.alive, "it has gone")
    sandbox.heal("gpu01")  # not this one
    assert sandbox._fault_context().daemons.find("slurmd-gpu02") is None
    sandbox.heal()
    test_listens_on_loopback_only(sandbox)
    assert sandbox.status()["nodes"]["gpu02"] == "idle"


def test_what_cannot_be_healed_is_reported(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match=r"no node 'gpu99': it has gpu\[01-04\]"):
        sandbox.heal("gpu99")
    with pytest.raises(SandboxError, match=r"unknown fault 'nvlink'; did you mean 'nvlink_\w+'\?$"):
        sandbox.heal(kind="nvlink")


def faulty(sandbox: Sandbox) -> list[tuple[str, str]]:
    return [(fault["kind"], fault["node"]) for fault in sandbox.status()["faults"]]


def test_fault_and_heal_take_hostlists(sandbox: Sandbox) -> None:
    assert sandbox.fault("gpu_missing", "gpu[02-03],gpu02", gpu=1) == ("gpu02", "gpu03")
    assert sandbox.fault("drained", "gpu01,gpu03") == ("gpu01", "gpu03")
    assert faulty(sandbox) == [
        ("gpu_missing", "gpu02"), ("gpu_missing", "gpu03"), ("drained", "gpu01"), ("drained", "gpu03"),
    ]  # fmt: skip
    gpus = run(sandbox, "srun", "-N1", "-w", "gpu02", "nvidia-smi", "-L")
    assert len(gpus.splitlines()) == 7
    assert {node for node, state in sandbox.status()["nodes"].items() if "drain" in state} == {"gpu01", "gpu03"}
    sandbox.fault("gpu_missing", "gpu[03-04]", gpu=2)  # again: with other options
    assert faulty(sandbox).count(("gpu_missing", "gpu03")) == 1
    assert sandbox.heal("gpu[01-03]", "drained") == ("gpu01", "gpu02", "gpu03")
    assert sandbox.heal("gpu02,gpu03") == ("gpu02", "gpu03")
    assert faulty(sandbox) == [("gpu_missing", "gpu04")]
    assert sandbox.heal() == sandbox.nodes
    assert faulty(sandbox) == []


def test_slow_link_of_two_nodes_is_the_link_between_them(sandbox: Sandbox) -> None:
    nodes = set(sandbox.nodes)
    assert sandbox.fault("slow_link", "gpu02,gpu04", factor=0.5) == ("gpu02",)
    (active,) = sandbox.status()["faults"]
    assert active == {"kind": "slow_link", "node": "gpu02", "options": {"peer": "gpu04", "factor": 0.5}}
    slow = {name: sandbox_bandwidth(sandbox, "gpu02", name) for name in sorted(nodes - {"gpu02"})}
    assert slow["gpu04"] == pytest.approx(slow["gpu01"] / 2, rel=0.1)
    assert slow["gpu03"] == pytest.approx(slow["gpu01"], rel=0.1)


def sandbox_bandwidth(sandbox: Sandbox, *nodes: str) -> float:
    argv = ("srun", "-Q", f"-w{','.join(nodes)}", "-N2", "--mpi=pmi2", "all_reduce_perf", "-b", "1G", "-e", "1G")
    return float(run(sandbox, *argv).rpartition("Avg bus bandwidth    : ")[2].split()[0])


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        ("gpu01", {}),  # to itself: the default of peer is gpu01
        ("gpu[01-03]", {}),
        ("gpu[02-03]", {"peer": "gpu03"}),
        ("gpu02", {"peer": "gpu99"}),
    ],
)
def test_slow_link_without_another_end_is_refused(sandbox: Sandbox, nodes: str, options: dict[str, Any]) -> None:
    with pytest.raises(SandboxError, match="names no link: use `slow_link A B`"):
        sandbox.fault("slow_link", nodes, **options)
    assert sandbox.status()["faults"] == []


@pytest.mark.parametrize("nodes", ["gpu[01-05]", "gpu[01", "gpu01,,login", ""])
def test_hostlist_with_an_unknown_node_injects_no_fault(sandbox: Sandbox, nodes: str) -> None:
    with pytest.raises(SandboxError, match=r"gpu05|not a hostlist|login|no node"):
        sandbox.fault("gpu_missing", nodes)
    assert faulty(sandbox) == []


def test_status_says_that_gpus_are_simulated(sandbox: Sandbox) -> None:
    status = sandbox.status()
    assert status["running"]
    assert status["gpus"] == "simulated"
    since = datetime.fromisoformat(status["since"])  # a time that people read, with its zone
    assert since <= datetime.now(since.tzinfo)
    assert set(status["nodes"]) == set(sandbox.nodes)


def test_a_sandbox_of_another_pid_namespace_is_used_and_neither_replaced_nor_stopped(sandbox: Sandbox) -> None:
    code = f"from slurm_sandbox.api import Sandbox; s = Sandbox({str(sandbox.layout.root)!r}); s.up(nodes=4); s.down()"
    own = () if os.geteuid() == 0 else ("--map-root-user",)
    done = commands.run(("unshare", *own, "--pid", "--fork", "--mount-proc", sys.executable, "-c", code), timeout=60)
    assert f"the sandbox in {sandbox.layout.root} runs in another PID namespace" in done.stderr
    assert set(sandbox.status()["nodes"].values()) == {"idle"}


def test_up_again_in_another_shape_is_refused(sandbox: Sandbox) -> None:
    sandbox.up(nodes=4)
    with pytest.raises(SandboxError, match=r"a sandbox of 4 nodes .* already runs"):
        sandbox.up(nodes=5)


def test_down_leaves_nothing(folder: Path) -> None:
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=2)
    hung = subprocess.Popen(["srun", "-N2", "sleep", "600"], env={**os.environ, **sandbox.env})
    assert len(of_folder(folder)) >= 4
    while not run(sandbox, "squeue", "-h", "-t", "R") and hung.poll() is None:
        time.sleep(0.05)
    sandbox.down()
    hung.wait(timeout=120)  # srun may look for its controller a while
    assert of_folder(folder) == []
    assert list(folder.iterdir()) == []
    assert not sandbox.running


def steps_of(sandbox: Sandbox) -> list[processes.DaemonProcess]:
    return list(processes.of_folder(sandbox.layout.root, "slurmstepd"))


def test_steps_whose_slurm_was_killed_go_too(folder: Path) -> None:
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=2)
    with subprocess.Popen(["srun", "-N2", "sleep", "600"], env={**os.environ, **sandbox.env}) as hung:
        try:
            wait_for(lambda: len(steps_of(sandbox)) >= 2, "both steps run")
            steps = steps_of(sandbox)
            known = json.loads(sandbox.layout.state.read_text())["processes"]
            for process in (processes.DaemonProcess(*pair) for name, pair in known.items() if name.startswith("slurm")):
                process.send(signal.SIGKILL)
            sandbox.down()
        finally:
            hung.kill()  # it would look for its controller a while
    assert not [process for process in steps if process.alive]


@pytest.mark.parametrize("kind", ["wrong_gres", "pyxis_missing"])
def test_daemons_that_a_fault_has_started_anew_are_known(
    sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SlurmDaemons.start_slurmd

    def late(*words: Any) -> None:  # as on a loaded machine: it is in the background before it runs
        threading.Timer(1.0, start, words).start()

    monkeypatch.setattr(SlurmDaemons, "start_slurmd", late)
    for act in (partial(sandbox.fault, kind, "gpu02"), sandbox.heal):
        act()
        known = json.loads(sandbox.layout.state.read_text())["processes"]
        assert all(processes.DaemonProcess(*pair).alive for pair in known.values())


def test_state_of_a_killed_sandbox_is_recovered(folder: Path) -> None:
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=2)
    before = json.loads(sandbox.layout.state.read_text())["processes"]
    os.kill(before["slurmctld"][0], signal.SIGKILL)
    processes.stop([processes.DaemonProcess(*before["slurmctld"])], patience=5)
    assert not sandbox.status()["running"]
    sandbox.up(nodes=2)  # stops the slurmds that were left
    after = json.loads(sandbox.layout.state.read_text())["processes"]
    assert sandbox.status()["running"]
    assert not processes.DaemonProcess(*before["slurmd-gpu01"]).alive
    assert before["slurmd-gpu01"] != after["slurmd-gpu01"]


def test_a_process_lives_until_its_last_thread_has_given_back_what_it_holds() -> None:
    code = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    me = processes.identify(child.pid)
    assert me is not None
    stat = Path(f"/proc/{child.pid}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", "the first thread has ended")
    assert me.alive
    child.communicate(b"\n")
    assert not me.alive


def test_pids_of_an_earlier_boot_are_left_alone(folder: Path) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=1)
        state = json.loads(sandbox.layout.state.read_text())
        me = processes.identify(bystander.pid)
        assert me is not None
        sandbox.down()
        sandbox.layout.root.mkdir()
        state["boot_id"] = "another boot"
        state["processes"] = {"slurmctld": [me.pid, me.started], "slurmd-gpu01": [me.pid, me.started - 1]}
        sandbox.layout.state.write_text(json.dumps(state))
        assert not sandbox.running
        sandbox.down()
        assert bystander.poll() is None
        assert not sandbox.layout.root.exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_a_controller_that_replaced_itself_is_found_and_stopped(folder: Path) -> None:
    """Since 23.11 `scontrol reconfigure` starts a new slurmctld, which for a moment no pid file names."""
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=1)
    state = json.loads(sandbox.layout.state.read_text())
    sandbox.down()
    sandbox.layout.root.mkdir()
    sandbox.layout.state.write_text(json.dumps(state))
    assert not sandbox.status()["running"]
    conf = str(sandbox.layout.conf)
    command = [str(sandbox.layout.root / "sbin/slurmctld"), "-c", "import time; time.sleep(600)", "-f"]
    other = subprocess.Popen([*command, f"{conf}.backup"], executable=sys.executable)
    try:
        assert not sandbox.status()["running"]  # a backup controller is not the sandbox's slurmctld
        successor = subprocess.Popen([*command, conf], executable=sys.executable)
        try:
            wait_for(lambda: sandbox.running, "the kernel shows the command line")  # a moment after exec it is empty
            processes.stop([p for p in [processes.identify(other.pid)] if p], patience=5)
            sandbox.down()
            assert successor.wait(timeout=5) == -signal.SIGTERM
        finally:
            successor.kill()
            successor.wait()
    finally:
        other.kill()
        other.wait()


def test_a_pid_that_was_given_away_is_not_killed() -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        now = processes.identify(bystander.pid)
        assert now is not None
        processes.stop([processes.DaemonProcess(now.pid, now.started - 1)], patience=0.1)
        assert bystander.poll() is None
        processes.stop([now], patience=5)
        assert bystander.wait(timeout=5) == -signal.SIGTERM
    finally:
        bystander.kill()
        bystander.wait()


def test_a_foreign_folder_is_never_removed(folder: Path) -> None:
    (folder / "s").mkdir()
    precious = folder / "s" / "thesis.tex"
    precious.touch()
    with pytest.raises(SandboxError, match="is not the state folder of a sandbox"):
        Sandbox(folder / "s").up(nodes=1)
    assert precious.exists()
    precious.unlink()


def test_two_at_the_same_moment(folder: Path) -> None:
    boxes = [Sandbox(folder / name) for name in ("a", "b", "a")]
    errors: list[BaseException] = []

    def up(box: Sandbox) -> None:
        try:
            box.up(nodes=2)
        except BaseException as error:  # shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=up, args=(box,)) for box in boxes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert errors == []
        assert [run(box, "srun", "-N2", "hostname").count("gpu") for box in boxes[:2]] == [2, 2]
    finally:
        for box in boxes:
            box.down()


@pytest.mark.parametrize(
    ("version", "plugin"),
    [((22, 5), "cgroup/v1"), ((23, 11), "cgroup/v1"), ((24, 5), "disabled"), ((25, 11), "disabled")],
)
def test_cgroups_are_switched_off_as_each_version_knows_it(version: tuple[int, int], plugin: str) -> None:
    """23.11 (Ubuntu 24.04): 'cannot create cgroup context for disabled'; cgroup/v1 does nothing until it is used."""
    assert slurmconf.cgroup_conf(version) == f"CgroupPlugin={plugin}\n"


@pytest.mark.skipif(bool(spank.missing_packages()), reason=f"no plugin can be compiled: {spank.missing_packages()}")
def test_a_plugin_prepares_tasks_as_the_task_prolog_does(folder: Path) -> None:
    """Where no plugin is, a TaskProlog does the same; a node that hangs keeps a task either way until it is healed."""
    names = ("PATH", "SLURM_SANDBOX_NODE", "ENROOT_DATA_PATH")
    found = []
    for pyxis in (spank.AUTO, spank.OFF):
        sandbox = Sandbox(folder / "s")
        try:
            sandbox.up(nodes=1, pyxis=pyxis)
            assert ("TaskProlog=" in sandbox.layout.conf.read_text()) == (pyxis == spank.OFF)
            env = {**os.environ, **sandbox.env}
            shown = "; ".join(f'echo "{name} ${name}"' for name in names)
            argv = ["srun", "sh", "-c", f"{shown}; nvidia-smi -L | wc -l"]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=True)
            found.append(done.stdout)
            sandbox.fault("node_hanging", "gpu01")
            with subprocess.Popen(["srun", "true"], env=env, stderr=subprocess.PIPE) as step:
                with pytest.raises(subprocess.TimeoutExpired):
                    step.wait(timeout=3)
                sandbox.heal("gpu01")
                step.communicate(timeout=60)
        finally:
            sandbox.down()
    assert found[0] == found[1]
    assert f"PATH {sandbox.layout.simbin}:" in found[0]
    assert f"ENROOT_DATA_PATH {sandbox.layout.node('gpu01')}/enroot" in found[0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_as_an_ordinary_user() -> None:
    user = pwd.getpwnam("daemon")  # Slurm takes no SlurmUser=nobody since 23.02
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    modules = [path for path in sys.path if path.endswith("site-packages")]
    with tempfile.TemporaryDirectory(prefix="sbx-") as home:
        os.chown(home, user.pw_uid, user.pw_gid)
        code = (
            "from pathlib import Path; from slurm_sandbox.api import Sandbox;"
            "from slurm_sandbox import commands;"
            f"s = Sandbox(Path({home!r}) / 's'); s.up(nodes=2);"
            "argv = ['srun', '-N2', 'sh', '-c', 'id -un; nvidia-smi -L | wc -l'];"
            "print(commands.run(argv, timeout=60, env=s.env).stdout); s.down()"
        )
        path = os.pathsep.join([str(SOURCE), *modules])
        done = subprocess.run(
            [python, "-B", "-c", code],
            env={"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": path},
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if "No module named" in done.stderr or "Permission denied" in done.stderr:
            pytest.skip(f"the checkout or its interpreter cannot be read by daemon: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == ["8", "8", "daemon", "daemon"]


def test_missing_packages_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_sandbox.daemons.search_path", lambda: str(folder))
    with pytest.raises(SandboxError, match=r"apt-get install .*slurm-wlm munge"):
        Sandbox(folder / "s").up(nodes=1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.1.1", "10.0.0.5", None])
def test_a_host_name_that_is_not_127_0_0_1_is_named_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    def lookup(host: str) -> str:
        if address is None:
            raise socket.gaierror
        return address

    monkeypatch.setattr("slurm_sandbox.sandbox.socket.gethostbyname", lookup)
    line = rf"resolves to {address or 'no address'}: write the line '127.0.0.1 {re.escape(socket.gethostname())}'"
    with pytest.raises(SandboxError, match=line):
        Sandbox(folder / "s").up(nodes=1)
    assert of_folder(folder) == []


def test_a_daemon_that_fails_shows_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_sandbox.slurmconf.gres_conf", lambda *_: "NodeName=gpu01 Name=nonsense\n")
    monkeypatch.setattr("slurm_sandbox.sandbox._PATIENCE", 4.0)
    with pytest.raises(SandboxError, match=r"nonsense|gres|INVAL|inval"):
        Sandbox(folder / "s").up(nodes=1)
    assert of_folder(folder) == []


@pytest.mark.parametrize("count", [0, -1, 257])
def test_impossible_sizes(folder: Path, count: int) -> None:
    with pytest.raises(SandboxError, match="1 to 256 nodes"):
        Sandbox(folder / "s").up(nodes=count)


def test_node_names() -> None:
    assert node_names(2) == ("gpu01", "gpu02")
    assert node_names(100)[0] == "gpu001"


def test_prolog_and_epilog_run(sandbox: Sandbox) -> None:
    seen = run(sandbox, "srun", "-N1", "-w", "gpu02", "sh", "-c", f"ls {sandbox.layout.node('gpu02')}/prolog.*")
    assert "prolog." in seen


def test_a_batch_job_starts_soon_and_leaves_its_output(sandbox: Sandbox, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(sandbox, "sbatch", "-W", "-o", str(out), "--begin=now+1", "--wrap", "hostname")
    assert out.read_text().startswith("gpu0")


def test_jobs_beyond_the_limits_are_refused(sandbox: Sandbox) -> None:
    done = commands.run(["srun", "-p", "debug", "-N3", "true"], timeout=30, env=sandbox.env)
    assert done.rc != 0
    assert "node count" in done.stderr.lower() or "Node" in done.stderr


def test_the_default_gpu_of_a_fault_is_one_that_the_nodes_have() -> None:
    missing = faults.find("gpu_missing")
    h200 = models.model("h200")
    assert faults.resolve_options(missing, {}, h200, 8)["gpu"] == 5
    assert faults.resolve_options(missing, {}, h200, 4)["gpu"] == 3
    assert (
        faults.resolve_options(missing, {"gpu": 6}, h200, 4)["gpu"] == 6
    )  # asked for: the node will say that it has none


def test_what_a_test_leaves_is_named_and_taken_away(sandbox: Sandbox) -> None:
    words = ("sbatch", "--parsable", "-N1", "-o", "/dev/null", "--wrap", "sleep 300")
    kept, left = (run(sandbox, *words, "-J", name).strip() for name in ("kept", "left"))
    (reported,) = left_behind(sandbox, [f"{kept} kept RUNNING"], patience=1)
    assert reported.startswith(f"job {left} left ")
    run(sandbox, "scancel", kept)
    assert left_behind(sandbox, []) == []
    run(sandbox, "scontrol", "update", "NodeName=gpu02", "State=DRAIN", "Reason=bad cable")
    assert left_behind(sandbox, [], patience=1) == ["node gpu02 drained"]
    assert run(sandbox, "sinfo", "-h", "-o", "%T", "-p", "batch").split() == ["idle"]


def test_a_test_that_is_killed_leaves_no_sandbox() -> None:
    """As an xdist worker is, 10 s after Ctrl-C."""
    code = (
        "import time; from sandbox_helpers import sandbox_folder; from slurm_sandbox.api import Sandbox\n"
        "with sandbox_folder() as folder:\n"
        "    Sandbox(folder / 's').up(nodes=1); print(folder, flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=TESTS) as killed:
        assert killed.stdout
        folder = Path(killed.stdout.readline().strip())
        running = of_folder(folder)
        killed.kill()
    assert folder.is_absolute()
    assert running
    wait_for(lambda: not folder.exists(), "the sandbox is taken down")
    assert of_folder(folder) == []


def test_a_shared_folder_that_would_hide_the_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=rf"--share {tmp_path} would hide the state folder {tmp_path}/a/s"):
        Sandbox(tmp_path / "a" / "s").up(share=[tmp_path])


def test_a_path_that_is_too_long_for_the_socket_of_a_batch_job_is_refused(tmp_path: Path) -> None:
    short = Path("/tmp") / ("x" * 66)
    daemons = SlurmDaemons(Layout(short), {})
    daemons.refuse_long_paths(["gpu01"])
    with pytest.raises(SandboxError, match=r"71 characters are too long .* at most 69"):
        daemons.refuse_long_paths(["gpu01", "gpu002"])
    folder = tmp_path / ("x" * 80)
    with pytest.raises(SandboxError, match="choose a path of at most 71"):
        Sandbox(folder).up(nodes=1)
    assert not (folder / "etc").exists()


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    text = (SOURCE.parent / "README.md").read_text()
    (code,) = re.findall(r"is complete:\n\n```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "test_submit.py").write_text(code)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:gpucluster", "-p", "no:cacheprovider", "test_submit.py"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout
