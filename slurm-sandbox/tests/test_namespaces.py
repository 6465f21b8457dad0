"""Nodes with namespaces of their own: like real ones inside, nothing of them outside, nothing left of them after."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import SOURCE, of_folder, sandbox_folder

from slurm_sandbox import commands, namespaces, processes
from slurm_sandbox.api import Sandbox
from slurm_sandbox.daemons import search_path
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

WHY_NOT = namespaces.why_not(search_path())
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

HELLO = """\
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int rank, size, mine, sum;
  char host[256];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  mine = rank + 1;
  MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  gethostname(host, sizeof host);
  printf("%d/%d %s %d\\n", rank, size, host, sum);
  MPI_Finalize();
  return 0;
}
"""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TWO_BY_TWO = ["0/4 gpu01 10", "1/4 gpu01 10", "2/4 gpu02 10", "3/4 gpu02 10"]


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two namespaced nodes with accounting."""
    with sandbox_folder() as folder:
        sandbox = Sandbox(folder / "s")
        sandbox.up(nodes=2, kind="namespaced", accounting=True)
        yield sandbox


@pytest.fixture
def folder() -> Iterator[Path]:
    with sandbox_folder() as path:
        yield path


@pytest.fixture(scope="module")
def hello(box: Sandbox) -> str:
    """An MPI program on what the nodes share."""
    compiler = shutil.which("mpicc.openmpi")
    if compiler is None:
        pytest.skip("no Open MPI here: apt-get install openmpi-bin libopenmpi-dev")
    source, program = (box.layout.root / "shared" / name for name in ("hello.c", "hello"))
    source.write_text(HELLO)
    subprocess.run([compiler, "-o", program, source], check=True)
    return str(program)


def run(sandbox: Sandbox, *argv: str, timeout: float = 60.0) -> str:
    done = commands.run(argv, timeout=timeout, env={**sandbox.env, **AS_ROOT})
    assert done.rc == 0, done.stderr
    return done.stdout


def interfaces() -> str:
    """Return what the host shows of its network, less counters and lifetimes."""
    return subprocess.run(
        ["sh", "-c", "ip -br link; ip -br addr; ip route"], capture_output=True, text=True, check=True
    ).stdout


def test_each_node_has_its_own_name_address_and_tmp(box: Sandbox) -> None:
    script = (
        "read name < /proc/sys/kernel/hostname; read file < /etc/hostname; /sbin/ip -4 -br addr show eth0 > /tmp/mine;"
        "read if state address < /tmp/mine; echo $name $file $address $(/bin/ls /sys/class/net /dev/shm | wc -l)"
    )
    lines = sorted(run(box, "srun", "-N2", "sh", "-c", script).splitlines())
    assert [line.split()[:3] for line in lines] == [
        ["gpu01", "gpu01", "10.1.0.1/16"],
        ["gpu02", "gpu02", "10.1.0.2/16"],
    ]
    assert not Path("/tmp/mine").exists()
    assert (box.layout.disk("gpu02") / "tmp" / "mine").exists()


def test_names_resolve_alike_and_at_once_on_every_node(box: Sandbox) -> None:
    code = "import socket; print([socket.gethostbyname(n) for n in ('gpu01', 'gpu02', 'login')], socket.getfqdn())"
    lines = sorted(run(box, "srun", "-N2", sys.executable, "-c", code).splitlines())
    addresses = "['10.1.0.1', '10.1.0.2', '10.1.255.254']"
    assert lines == [f"{addresses} gpu01", f"{addresses} gpu02"]


def test_ssh_between_nodes_asks_nothing(box: Sandbox) -> None:
    out = run(box, "srun", "-N1", "-w", "gpu02", "ssh", "gpu01", "cat /proc/sys/kernel/hostname; sinfo -h -o %D")
    assert out.split() == ["gpu01", "2"]


def test_orphans_are_reaped(box: Sandbox) -> None:
    run(box, "srun", "-N1", "-w", "gpu01", "sh", "-c", "(setsid sh -c 'sleep 0.1' &) ; exit 0")
    count = "sleep 0.6; grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    assert run(box, "srun", "-N1", "-w", "gpu01", "sh", "-c", count).strip() == "0"


def test_open_mpi_by_pmix(box: Sandbox, hello: str) -> None:
    out = run(box, "srun", "--mpi=pmix", "-N2", "--ntasks-per-node=2", hello)
    assert sorted(out.splitlines()) == TWO_BY_TWO


@pytest.mark.parametrize("launcher", ["mpirun.openmpi", "mpirun.openmpi --mca plm rsh"])
def test_mpirun_with_hosts(box: Sandbox, hello: str, launcher: str) -> None:
    out = box.layout.root / "shared" / f"out.{len(launcher)}"
    line = f"{launcher} --host gpu01:2,gpu02:2 {hello}"
    run(box, "sbatch", "-W", "-o", str(out), "-N2", "--ntasks-per-node=2", "--wrap", line)
    # of Open MPI's rsh launcher, where its child is quicker than itself
    reported = [line for line in out.read_text().splitlines() if "plm:rsh: Warning: setpgid" not in line]
    assert sorted(reported) == TWO_BY_TWO


def test_mpirun_from_the_login_node(box: Sandbox, hello: str) -> None:
    out = run(box, "salloc", "-Q", "-N2", "--ntasks-per-node=2", "mpirun.openmpi", hello)
    assert sorted(out.splitlines()) == TWO_BY_TWO


def test_accounting_knows_the_jobs(box: Sandbox) -> None:
    run(box, "sbatch", "-W", "-J", "kept", "-o", "/dev/null", "-N2", "--wrap", "true")
    words = ("sacct", "-n", "-X", "-P", "--name=kept", "-o", "State,NodeList")
    for _ in range(100):  # slurmctld sends it a moment later
        out = run(box, *words)
        if "COMPLETED" in out:
            break
        time.sleep(0.1)
    assert out.splitlines() == ["COMPLETED|gpu[01-02]"]
    assert "sandbox" in run(box, "sacctmgr", "-n", "list", "cluster")


def test_the_host_sees_nothing(box: Sandbox) -> None:
    assert box.running
    assert "10.1.0." not in interfaces()
    assert str(box.layout.root) not in Path("/proc/self/mounts").read_text()
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    pids = [pair[0] for pair in json.loads(box.layout.state.read_text())["processes"].values()]
    assert not [row for row in listening.splitlines() if any(f"pid={pid}," in row for pid in pids)]


def test_down_leaves_nothing(folder: Path) -> None:
    before = interfaces()
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=2, kind="namespaced")
    first = sandbox._namespaces(sandbox._running_state())
    assert first is not None
    inits = [first.first_process(node) for node in ("gpu01", "gpu02")]
    run(sandbox, "srun", "-N2", "sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &")
    sandbox.down()
    assert not any(init is None or init.alive for init in inits)
    assert of_folder(folder) == []
    assert list(folder.iterdir()) == []
    assert interfaces() == before


def test_a_start_that_was_killed_is_cleared(folder: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from slurm_sandbox import daemons; from slurm_sandbox.api import Sandbox;"
        "daemons.SlurmDaemons.start_slurmctld = lambda self: os.kill(os.getpid(), signal.SIGKILL);"
        f"Sandbox(Path({str(folder / 's')!r})).up(nodes=2, kind='namespaced')"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(of_folder(folder)) > 4  # two nodes, munged and the login's network are left
    Sandbox(folder / "s").up(nodes=2, kind="namespaced")
    assert run(Sandbox(folder / "s"), "srun", "-N2", "cat", "/proc/sys/kernel/hostname").count("gpu") == 2
    Sandbox(folder / "s").down()
    assert of_folder(folder) == []


def test_a_node_that_was_killed_is_named(folder: Path) -> None:
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=1, kind="namespaced")
    holder = processes.from_pid_file(sandbox.layout.pid_file("node-gpu01"), str(folder))
    assert holder is not None
    processes.kill([*processes.children(holder.pid), holder], patience=10)
    own = sandbox._namespaces(sandbox._running_state())
    assert own is not None
    with pytest.raises(SandboxError, match="gpu01 does not run: stop the sandbox and start it again"):
        own.on_node("gpu01")


def test_commands_of_a_sandbox_that_is_down_say_so(folder: Path) -> None:
    sandbox = Sandbox(folder / "s")
    sandbox.up(nodes=1, kind="namespaced")
    script = (sandbox.layout.bin / "sinfo").read_text()
    sandbox.down()
    done = commands.run(["sh", "-c", script, "sinfo"], timeout=10)
    assert (done.rc, done.stderr) == (1, "sinfo: the sandbox of this command is down\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_as_an_ordinary_user() -> None:
    user = pwd.getpwnam("daemon")  # Slurm takes no SlurmUser=nobody since 23.02
    modules = [path for path in sys.path if path.endswith("site-packages")]
    with tempfile.TemporaryDirectory(prefix="sbx-") as home:
        os.chown(home, user.pw_uid, user.pw_gid)
        code = (
            "from pathlib import Path; from slurm_sandbox.api import Sandbox;"
            "from slurm_sandbox import commands;"
            f"s = Sandbox(Path({home!r}) / 's'); s.up(nodes=2, kind='namespaced');"
            "argv = ['srun', '-N2', 'sh', '-c', 'id -un; cat /proc/sys/kernel/hostname'];"
            "print(commands.run(argv, timeout=60, env=s.env).stdout); s.down()"
        )
        done = subprocess.run(
            [shutil.which("python3", path="/usr/bin") or sys.executable, "-B", "-c", code],
            env={"PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": os.pathsep.join([str(SOURCE), *modules])},
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
        if "daemon may not create namespaces" in done.stderr:
            pytest.skip(done.stderr.strip().splitlines()[-1])
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == ["daemon", "daemon", "gpu01", "gpu02"]
        assert of_folder(Path(home)) == []


def test_auto_says_why_the_nodes_are_plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "_PACKAGES", {"no-such-tool": "no-such-package"})
    sandbox = Sandbox(folder / "s")
    with pytest.raises(SandboxError, match=r"namespaced nodes need no-such-tool: apt-get install .*no-such-package"):
        sandbox.up(nodes=1, kind="namespaced")
    sandbox.up(nodes=1, kind="auto")
    status = sandbox.status()
    assert status["kind"] == "plain"
    assert "no-such-package" in status["why_plain"]


def test_nsswitch_keeps_all_but_hosts() -> None:
    assert namespaces.nsswitch("passwd: files ldap\nhosts: files dns\n") == "passwd: files ldap\nhosts: files\n"
