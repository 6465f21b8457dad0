"""Our container plugin on a real Slurm: the messages and exit statuses of Pyxis 0.24.0 and Enroot 4.1.2."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from sandbox_helpers import environment

from slurm_sandbox import spank
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_sandbox.api import Sandbox

TAIL = (
    r"error: spank: required plugin spank_pyxis.so: task_init\(\) failed with rc=-1\n"
    r"(.*\n)*?.*error: Failed to invoke spank plugin stack"
)
E = r"(?:slurmstepd-gpu01:|\[[-T:.\d]{23}\]) error: pyxis: "  # as in slurmstepd's log since Slurm 25.05
# what is asked of srun, its exit status, and what it prints, in any order
CASES: dict[str, tuple[list[str], int, list[str]]] = {
    "good": (["--container-image=IMAGE", "true"], 0, []),
    "missing": (
        ["--container-image=./missing.sqsh", "true"],
        1,
        [
            rf"{E}child \d+ failed with error code: 1",
            rf"{E}failed to create container filesystem for image: \./missing\.sqsh",
            rf"{E}printing enroot log file:",
            rf"{E}    \[ERROR\] No such file or directory: \S+/missing\.sqsh",
            TAIL,
        ],
    ),
    "not a squashfs": (
        ["--container-image=BAD", "true"],
        1,
        [rf"{E}    \[ERROR\] Invalid image format: \S+/bad\.sqsh", TAIL],
    ),
    "docker": (
        ["--container-image=docker://registry.invalid#alpine:3", "true"],
        1,
        [
            r"pyxis: importing docker image: docker://registry.invalid#alpine:3",
            rf"{E}child \d+ failed with error code: 6",
            rf"{E}failed to import docker image: docker://registry.invalid#alpine:3",
            rf"{E}    curl: \(6\) Could not resolve host: registry.invalid",
            TAIL,
        ],
    ),
    "unknown name": (
        ["--container-name=nosuch", "true"],
        1,
        [rf'{E}error: a container with name "pyxis_nosuch" does not exist, and --container-image is not set', TAIL],
    ),
    "mount source": (
        ["--container-image=IMAGE", "--container-mounts=/no-such-source:/x", "true"],
        1,
        [
            rf"{E}--container-mounts: source path does not exist: /no-such-source",
            rf"{E}couldn't create enroot start configuration script",
            TAIL,
        ],
    ),
    "malformed mount": (
        ["--container-image=IMAGE", "--container-mounts=rel:/data", "true"],
        255,
        [
            r'srun: error: pyxis: mount source must be a relative path, an absolute path, "tmpfs" or "umount"',
            r"Invalid --container-mounts argument: rel:/data",
        ],
    ),
    "command not found": (
        ["--container-image=IMAGE", "nosuchcmd"],
        2,
        [r"error: execve\(\): nosuchcmd: No such file or directory"],
    ),
    "not executable": (["--container-image=IMAGE", "/etc/passwd"], 13, [r"execve\(\): .*Permission denied"]),
    "both remap flags": (
        ["--container-image=IMAGE", "--container-remap-root", "--no-container-remap-root", "true"],
        255,
        [r"srun: error: pyxis: both --container-remap-root and --no-container-remap-root were specified"],
    ),
    "bad workdir": (
        ["--container-image=IMAGE", "--container-workdir=/nosuchdir", "true"],
        1,
        [rf"{E}couldn't chdir to /nosuchdir: ", TAIL],
    ),
    "own exit status": (["--container-image=IMAGE", "sh", "-c", "exit 42"], 42, []),
    "SIGKILL": (["--container-image=IMAGE", "sh", "-c", "kill -KILL $$"], 137, []),
    "SIGSEGV": (["--container-image=IMAGE", "sh", "-c", "kill -SEGV $$"], 139, []),
    "exec of what does not run": (
        ["--container-name=idle:exec", "--container-image=IMAGE", "true"],
        1,
        [r'error: "exec" flag was passed to --container-name but the container is not running', TAIL],
    ),
    "options without a container": (
        ["--container-workdir=/x", "true"],
        0,
        [r"ignoring --container-workdir because neither --container-image nor --container-name is set"],
    ),
}


class Srun:
    """Runs steps on one node of the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.image = sandbox.layout.root / "images" / "sandbox.sqsh"
        self.bad = self.image.with_name("bad.sqsh")
        self.bad.write_text("no squashfs")

    def __call__(self, *words: str, node: str = "gpu01", **variables: str) -> subprocess.CompletedProcess[str]:
        words = tuple(w.replace("=IMAGE", f"={self.image}").replace("=BAD", f"={self.bad}") for w in words)
        return subprocess.run(
            ["srun", "-Q", f"--nodelist={node}", *words],
            env=environment(**self.sandbox.env, **variables),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def enroot(self, *words: str, node: str = "gpu01") -> list[str]:
        tool = self.sandbox.layout.enroot / "bin" / node / "enroot"
        return subprocess.run(
            [str(tool), *words], env=environment(), capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()


@pytest.fixture
def srun(sandbox: Sandbox) -> Iterator[Srun]:
    assert not spank.missing_packages(), f"these tests need {spank.missing_packages()}"
    run = Srun(sandbox)
    yield run
    for node in ("gpu01", "gpu02"):
        if names := run.enroot("list", node=node):
            run.enroot("remove", "-f", *names, node=node)


@pytest.mark.parametrize("case", CASES)
def test_message_and_exit_status(srun: Srun, case: str) -> None:
    words, rc, lines = CASES[case]
    done = srun(*words)
    assert done.returncode == rc, done.stderr
    for line in lines:
        assert re.search(line, done.stderr), f"{line!r} is not in:\n{done.stderr}"
    if not lines:
        assert "pyxis" not in done.stderr
    assert srun.enroot("list") == [], "an unnamed container is left behind"


def test_a_fault_sets_variables_in_the_containers_of_its_node_until_it_is_healed(srun: Srun) -> None:
    show = ("sh", "-c", "echo $UCX_TLS,$NCCL_IB_DISABLE")
    for wrong in ("", "UCX_TLS", "1=2", "A=1 B"):
        with pytest.raises(SandboxError, match="NAME=VALUE"):
            srun.sandbox.fault("container_variables", "gpu01", variables=wrong)
    srun.sandbox.fault("container_variables", "gpu01", variables="UCX_TLS=tcp NCCL_IB_DISABLE=1")
    assert srun("--container-image=IMAGE", *show, UCX_TLS="all").stdout == "tcp,1\n"
    assert srun(*show).stdout == ",\n"
    assert srun("--container-image=IMAGE", *show, node="gpu02").stdout == ",\n"
    srun.sandbox.heal(kind="container_variables")
    assert srun("--container-image=IMAGE", *show).stdout == ",\n"


def test_root_is_read_only_and_a_name_is_kept(srun: Srun) -> None:
    assert srun("--container-image=IMAGE", "touch", "/mark").returncode == 1
    assert (
        srun("--container-image=IMAGE", "--container-name=a", "--container-writable", "touch", "/mark").returncode == 0
    )
    # the image does not count any more, even a wrong one
    done = srun("--container-image=/wrong.sqsh", "--container-name=a", "ls", "/mark")
    assert (done.returncode, done.stdout) == (0, "/mark\n"), done.stderr
    assert srun.enroot("list") == ["pyxis_a"]
    assert srun("--container-name=a", "true", node="gpu02").returncode == 1  # a name is a node's own


def test_running_container_is_joined(srun: Srun) -> None:
    begun = subprocess.Popen(
        [
            "srun",
            "-Q",
            "--overlap",
            "--nodelist=gpu01",
            f"--container-image={srun.image}",
            "--container-name=run",
            "--container-mounts=tmpfs:/only-here",
            *("sh", "-c", "echo go; touch /only-here/x; sleep 60"),
        ],
        env=environment(**srun.sandbox.env),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert begun.stdout is not None
        assert begun.stdout.readline() == "go\n"
        done = srun("--container-name=run:exec", "--overlap", "ls", "/only-here")
        assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr
    finally:
        for _ in range(2):  # srun asks for a second signal
            begun.terminate()
        begun.communicate(timeout=60)


def test_a_task_never_runs_on_the_host_instead_of_a_container_that_has_just_ended(srun: Srun) -> None:
    assert srun("--container-image=IMAGE", "--container-name=brief", "true").returncode == 0
    tool = srun.sandbox.layout.enroot / "bin" / "gpu01" / "enroot"
    original = tool.read_text()
    kept = tool.with_name("enroot.kept")
    kept.write_text(original)
    kept.chmod(0o755)
    try:  # no process has this number (PID_MAX_LIMIT)
        tool.write_text(
            f'#!/bin/sh\n[ "$1 $2" != "state pyxis_brief" ] || {{ echo 4194320; exit; }}\nexec {kept} "$@"\n'
        )
        done = srun("--container-name=brief", "cat", "/etc/os-release")
    finally:
        tool.write_text(original)
        kept.unlink()
    assert (done.returncode, done.stdout) == (1, "")
    assert "unable to open user namespace file: No such file or directory" in done.stderr


def test_mounts_workdir_and_home(srun: Srun, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("token")
    script = "pwd; cat in; touch out; touch /ro/x 2>/dev/null || echo read-only; touch /t/y"
    script += "; ls -d $HOME/mine /root/mine 2>/dev/null"
    home = tmp_path / "home"
    home.mkdir()
    (home / "mine").touch()
    words = [
        f"--container-mounts={tmp_path}:/data,{tmp_path}:/ro:ro,tmpfs:/t",
        "--container-workdir=/data",
        "--container-image=IMAGE",
    ]
    done = srun(*words, "sh", "-c", script, HOME=str(home))
    assert done.stdout == "/data\ntokenread-only\n", done.stderr
    assert (tmp_path / "out").exists()
    done = srun(*words, "--container-mount-home", "sh", "-c", script, HOME=str(home))
    assert done.stdout.splitlines()[2:] == [f"{home}/mine"], done.stderr
    done = srun(*words, "--container-mount-home", "--container-remap-root", "sh", "-c", script, HOME=str(home))
    assert "/root/mine" in done.stdout.splitlines(), done.stderr


def test_environment(srun: Srun) -> None:
    script = ("sh", "-c", "echo $SANDBOX_IMAGE $MINE $PATH")
    outside = {"SANDBOX_IMAGE": "outside", "MINE": "mine"}
    image_path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert srun("--container-image=IMAGE", *script, **outside).stdout == f"1 mine {image_path}\n"
    done = srun("--container-image=IMAGE", "--container-env=SANDBOX_IMAGE", *script, **outside)
    assert done.stdout == f"outside mine {image_path}\n"


def test_defaults_of_the_environment(srun: Srun) -> None:
    done = srun("sh", "-c", ". /etc/os-release; echo $ID; pwd", PYXIS_CONTAINER_IMAGE=str(srun.image))
    assert done.stdout.startswith("sandbox-image\n"), done.stderr
    done = srun(
        "--container-workdir=/tmp", "pwd", PYXIS_CONTAINER_IMAGE=str(srun.image), PYXIS_CONTAINER_WORKDIR="/etc"
    )
    assert done.stdout == "/tmp\n"  # the command line goes first


def test_entrypoint(srun: Srun) -> None:
    script = ("sh", "-c", "echo ${SANDBOX_ENTRYPOINT:-none}")
    assert srun("--container-image=IMAGE", *script).stdout == "none\n"
    assert srun("--container-image=IMAGE", "--container-entrypoint", *script).stdout == "1\n"


def test_save(srun: Srun, tmp_path: Path) -> None:
    saved = tmp_path / "saved.sqsh"
    words = ["--container-image=IMAGE", "--container-writable", f"--container-save={saved}"]
    done = srun(*words, "touch", "/mark")
    assert "exported container pyxis_" in done.stderr
    assert srun(f"--container-image={saved}", "ls", "/mark").stdout == "/mark\n"


def test_ranks_of_pytorch(srun: Srun) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT $SLURM_JOB_ID $OMP_NUM_THREADS"
    done = srun(
        *(
            "-N2",
            "--ntasks-per-node=2",
            "--container-image=IMAGE",
            "--container-env=PYTORCH_VERSION",
            "sh",
            "-c",
            script,
        ),
        node="gpu[01-02]",
        PYTORCH_VERSION="2",
    )
    reported = sorted(line.split() for line in done.stdout.splitlines())
    assert [(words[0], *words[2:4], words[6]) for words in reported] == [
        (str(rank), "4", "gpu01", "1") for rank in range(4)
    ], done.stderr
    assert {int(words[4]) for words in reported} == {61000 + int(reported[0][5]) % 4536}
    assert sorted(words[1] for words in reported) == ["0", "0", "1", "1"]


def test_gpus_come_in_through_the_driver_s_tool(srun: Srun) -> None:
    words = ("--gres=gpu:8", "--container-image=IMAGE", "nvidia-smi", "-L")
    assert srun(*words, NVIDIA_VISIBLE_DEVICES="all").stdout.count("UUID: GPU-") == 8
    assert srun(*words).returncode == 2  # not asked for, not there
    tool = srun.sandbox.layout.enroot / "bin" / "nvidia-container-cli"
    hidden = tool.rename(tool.with_name("hidden"))
    try:
        done = srun(*words, NVIDIA_VISIBLE_DEVICES="all")
    finally:
        hidden.rename(tool)
    assert "[ERROR] Command not found: nvidia-container-cli" in done.stderr
    assert done.returncode == 1


def test_scope_of_a_job(srun: Srun) -> None:
    conf = srun.sandbox.layout.etc / "plugstack.conf"
    tool = srun.sandbox.layout.enroot / "bin" / "gpu01" / "enroot"
    before = conf.read_text()
    conf.write_text(before.strip() + " container_scope=job\n")
    try:
        command = f"srun --container-image={srun.image} --container-name=a true; echo $SLURM_JOB_ID"
        held = subprocess.run(
            ["salloc", "-Q", "--nodelist=gpu01", "sh", "-c", f"{command}; {shlex.quote(str(tool))} list"],
            env=environment(**srun.sandbox.env),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        conf.write_text(before)
    job, listed = held.stdout.split()
    assert listed == f"pyxis_{job}_a", held.stderr
    end = time.monotonic() + 30
    while srun.enroot("list") and time.monotonic() < end:  # Slurm's epilog takes it away
        time.sleep(0.1)
    assert srun.enroot("list") == []


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda tool, **at: None if tool == "unsquashfs" else which(tool, **at))
    assert spank.missing_packages() == "squashfs-tools"


def test_the_plugin_is_made_for_the_slurm_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm takes no plugin of another version: `Incompatible Slurm plugin version` (25.11)."""
    slurmd = tmp_path / "sbin" / "slurmd"
    slurmd.parent.mkdir()
    slurmd.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{slurmd.parent}{os.pathsep}{os.environ['PATH']}")
    assert "libslurm-dev" in spank.missing_packages()  # although the machine has headers, of its own Slurm
    headers = tmp_path / "include" / "slurm"
    headers.mkdir(parents=True)
    (headers / "spank.h").touch()
    assert "libslurm-dev" not in spank.missing_packages()


def test_image_starts_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "root"
    spank.image.fill(root)
    libraries = [path for path in root.rglob("*.so*") if path.is_file()]
    assert libraries
    assert (root / "bin/sh").exists()
    assert "sandbox-image" in (root / "etc/os-release").read_text()
