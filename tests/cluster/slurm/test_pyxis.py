"""Every message and exit status of Pyxis 0.24.0 and Enroot 4.1.2 has an explanation of its own."""

from __future__ import annotations

import re

import pytest

from pytest_gpucluster.cluster.slurm import pyxis
from pytest_gpucluster.cluster.slurm.pyxis import PyxisOptions

E = "slurmstepd-gpu01: error: pyxis: "
TAIL = """
slurmstepd-gpu01: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd-gpu01: error: Failed to invoke spank plugin stack
srun: error: gpu01: task 0: Exited with exit code 1
"""
LOG = f"{E}printing enroot log file:\n{E}    "
CASES = {
    "missing file": (
        f"{E}child 7 failed with error code: 1\n{E}failed to create container filesystem for image: ./missing.sqsh\n"
        f"{LOG}[ERROR] No such file or directory: /home/u/missing.sqsh{TAIL}",
        r"^/home/u/missing.sqsh does not exist on the node",
    ),
    "no squashfs": (
        f"{LOG}[ERROR] Invalid image format: /x/bad.sqsh{TAIL}",
        r"^/x/bad.sqsh is no squashfs image",
    ),
    "no network": (
        f"{E}child 7 failed with error code: 6\n{E}failed to import docker image: docker://alpine:3\n"
        f"{LOG}curl: (6) Could not resolve host: registry-1.docker.io{TAIL}",
        r"^the node cannot resolve registry-1.docker.io",
    ),
    "registry without TLS": (
        f"{E}child 7 failed with error code: 35\n{E}failed to import docker image: docker://127.0.0.1:5000#site/tools:1\n"
        f"{LOG}curl: (35) OpenSSL/3.0.19: error:0A00010B:SSL routines::wrong version number{TAIL}",
        r"^the registry answers HTTP, not HTTPS .*enroot.conf",
    ),
    "file without slash": (
        f"{E}failed to import docker image: image.sqsh\n{LOG}curl: (6) Could not resolve host: registry-1.docker.io{TAIL}",
        r"^image.sqsh was taken for a registry image: .*\./image.sqsh",
    ),
    "unknown name": (
        f'{E}error: a container with name "pyxis_nosuch" does not exist, and --container-image is not set{TAIL}',
        r"^no container named nosuch on the node",
    ),
    "race": (
        f"{LOG}[ERROR] File already exists: /data/pyxis_a{TAIL}",
        r"^two steps created one container name",
    ),
    "mount source": (
        f"{E}--container-mounts: source path does not exist: /nonexistent\n"
        f"{E}couldn't create enroot start configuration script{TAIL}",
        r"^mount source /nonexistent does not exist",
    ),
    "malformed mount": (
        'srun: error: pyxis: mount source must be a relative path, an absolute path, "tmpfs" or "umount"\n'
        "srun: error: pyxis: could not add mount entry: rel:/data\nsrun: error: Invalid --container-mounts argument: rel:/data",
        r"^malformed mount rel:/data",
    ),
    "command not found": (
        "slurmstepd-gpu01: error: execve(): nosuchcmd: No such file or directory\n",
        r"^nosuchcmd is not found",
    ),
    "not executable": (
        "slurmstepd-gpu01: error: execve(): /etc/passwd: Permission denied",
        r"^/etc/passwd is not exec",
    ),
    "both remap": (
        "srun: error: pyxis: both --container-remap-root and --no-container-remap-root were specified",
        r"^container_remap_root is set twice",
    ),
    "both writable": (
        "srun: error: pyxis: both --container-writable and --container-readonly were specified",
        r"^--container-writable and --container-readonly contradict",
    ),
    "bad workdir": (
        f"{E}couldn't chdir to /nosuchdir: No such file or directory{TAIL}",
        r"^container_workdir /nosuchdir",
    ),
    "no driver": (
        f"{LOG}[ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container{TAIL}",
        r"^the node lacks libnvidia-container",
    ),
    "no plugin": (
        "srun: unrecognized option '--container-image=x'",
        r"^srun has no option --container-image",
    ),
    "create": (
        f'{E}error: "create" flag was passed to --container-name but the container already exists',
        r":create",
    ),
    "exec": (
        f'{E}error: "exec" flag was passed to --container-name but the container is not running',
        r":exec",
    ),
    "ignored": (
        "srun: error: pyxis: ignoring --container-workdir because neither --container-image nor --container-name is set",
        r"^--container-workdir has no effect",
    ),
    "TaskProlog": (
        "slurmstepd-gpu01: error: run_command: slurm task_prolog can not be executed (/etc/slurm/tp) No such file",
        r"^Slurm runs TaskProlog /etc/slurm/tp inside",
    ),
    # what real steps printed, on Slurm 22.05 with Pyxis 0.24.0 and Enroot 4.1.2
    "cut image": (
        f"{E}child 7 failed with error code: 1\n{E}failed to create container filesystem for image: /i/cut.sqsh\n"
        f"{LOG}[INFO] Extracting squashfs filesystem...\n{E}    Read on filesystem failed because EOF\n"
        f"{E}    read_id_table: failed to read id index table\n{E}    FATAL ERROR: File system corruption detected{TAIL}",
        r"^the image is damaged \(FATAL ERROR: File system corruption detected\): create it again",
    ),
    "damaged image": (
        f"{LOG}zstd uncompress failed with error code 10\n{E}    FATAL ERROR: writer: failed to read/uncompress file /d/x.so{TAIL}",
        r"^the image is damaged \(FATAL ERROR: writer: failed to read/uncompress file /d/x.so\)",
    ),
    "no room": (
        f"{E}failed to create container filesystem for image: /i/a.sqsh\n{LOG}[INFO] Extracting squashfs filesystem...\n"
        f"{E}    Write on output file failed because No space left on device\n"
        f"{E}    FATAL ERROR: writer: failed to write file /d/pyxis_11.0/usr/bin/tar{TAIL}",
        r"^no space on the node \(Write on output file failed because No space left on device\): free space",
    ),
    "read-only": (
        f"{LOG}FATAL ERROR: dir_scan: failed to make directory /d/pyxis_12.0, because Read-only file system{TAIL}",
        r"^a path of Enroot is read-only \(FATAL ERROR: dir_scan: .* because Read-only file system\)",
    ),
    "no right": (
        f"{E}failed to create container filesystem for image: /i/a.sqsh\n{LOG}mkdir: cannot create directory '/d': Permission denied{TAIL}",
        r"^Enroot may not write there \(cannot create directory '/d': Permission denied\)",
    ),
    "other words of unsquashfs": (
        f"{LOG}FATAL ERROR: out of memory{TAIL}",
        r"^unsquashfs could not .* \(FATAL ERROR: out of memory\)",
    ),
    "hook that says why": (
        f"{E}container start failed with error code: 1\n{LOG}hook is unhappy: no license\n"
        f"{E}    [ERROR] /etc/enroot/hooks.d/60-x.sh exited with return code 3\n"
        f"{E}container was not started successfully by another task{TAIL}",
        r"^Enroot's hook /etc/enroot/hooks.d/60-x.sh exited with 3: hook is unhappy: no license: repair it",
    ),
    "hook without a word": (
        f"{LOG}[ERROR] /etc/enroot/hooks.d/60-x.sh exited with return code 3{TAIL}",
        r"^Enroot's hook /etc/enroot/hooks.d/60-x.sh exited with 3: repair it",
    ),
    "log folder of slurmd": (
        f"{E}failed to export container pyxis_n to /s/a.sqsh\n"
        f"{LOG}find: Failed to restore initial working directory: /var/log/slurm: Permission denied{TAIL}",
        r"^Pyxis runs Enroot in slurmd's working folder /var/log/slurm, which users may not enter",
    ),
    "words of Enroot's that are new": (
        f"{E}failed to create container filesystem for image: /i/a.sqsh\n{LOG}[INFO] Extracting\n{E}    no luck, it failed\n{E}    more{TAIL}",
        r"^no root filesystem could be created from /i/a.sqsh: no luck, it failed$",
    ),
    "silent Enroot": (
        f"{E}failed to export container pyxis_n to /s/a.sqsh\n{LOG}one\n{E}    two{TAIL}",
        r"^pyxis_n could not be saved as /s/a.sqsh: two$",
    ),
    "no log of Enroot": (
        TAIL,
        r"^Pyxis could not start the container: Enroot printed nothing more: see the step log$",
    ),
    "no user namespace": (
        f"{LOG}enroot-nsenter: failed to create user namespace: Operation not permitted",
        r"sysctl",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    text, wanted = CASES[case]
    reported = pyxis.explain(text)
    assert reported is not None
    assert re.search(wanted, reported), reported
    assert "\n" not in reported


def test_messages_are_distinguished() -> None:
    assert len({pyxis.explain(text) for text, _ in CASES.values()}) == len(CASES)
    assert pyxis.explain("all is well") is None


def test_exit_statuses() -> None:
    known = {pyxis.explain_exit(rc) for rc in (1, 2, 13, 137, 139, 255)}
    assert None not in known
    assert len(known) == 6
    assert pyxis.explain_exit(42) is None


def test_options() -> None:
    options = PyxisOptions(
        image="r#i:t",
        mounts=("/a:/b:ro", "/c:/d"),
        workdir="/w",
        name="n:create",
        save="/s.sqsh",
        mount_home=False,
        remap_root=True,
        entrypoint=False,
        writable=False,
        env=("A", "B"),
    )
    assert options.argv() == [
        "--container-image=r#i:t",
        "--container-mounts=/a:/b:ro,/c:/d",
        "--container-workdir=/w",
        "--container-name=n:create",
        "--container-save=/s.sqsh",
        "--container-env=A,B",
        "--no-container-mount-home",
        "--container-remap-root",
        "--no-container-entrypoint",
        "--container-readonly",
    ]
