"""Every message and exit status of Pyxis 0.24.0 and Enroot 4.1.2 has an explanation of its own."""

from __future__ import annotations

from typing import Any

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
NOT_MADE = f"{E}failed to create container filesystem for image: /i/a.sqsh\n{LOG}"
HOOK = "[ERROR] /etc/enroot/hooks.d/60-x.sh exited with return code 3"
NO_CLI = "[ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container"
NEXT = f"\n{E}    "
UNPACKED = NOT_MADE + NEXT.join(
    ("[INFO] Extracting squashfs filesystem...", "Parallel unsquashfs: Using 2 processors", "369 inodes (439 blocks) to write",
     "[=====|] 439/439 100%", "created 5 files", "created 1 directory", "created 0 devices", "created 2 hardlinks")
)  # fmt: skip
DEVICE = f"create_inode: could not create character device /d/pyxis_a/dev/ptyp0, because you're not superuser!{NEXT}"
NO_HOST = f"{LOG}curl: (6) Could not resolve host: registry-1.docker.io"
MOUNT = "source path does not exist: /nonexistent"
# what steps printed -> how the explanation begins; causes go before consequences
CASES = {
    f"{NOT_MADE}[ERROR] No such file or directory: /u/missing.sqsh": "/u/missing.sqsh does not exist on the node",
    f"{LOG}[ERROR] Invalid image format: /x/bad.sqsh": "/x/bad.sqsh is no squashfs image",
    f"{E}failed to import docker image: docker://alpine:3\n{NO_HOST}": "the node cannot resolve registry-1.docker.io",
    f"{LOG}curl: (35) OpenSSL/3.0.19: SSL routines::wrong version number": "the registry answers HTTP, not HTTPS",
    f"{LOG}curl: (22) The requested URL returned error: 401": "the image could not be fetched (The requested",
    f"{LOG}[ERROR] URL https://r/v2 returned error code: 404": "the registry answered 404",
    f"{E}failed to import docker image: docker://r#i:1": "image docker://r#i:1 could not be imported",
    f"{E}failed to import docker image: image.sqsh\n{NO_HOST}": "image.sqsh was taken for a registry image",
    f'{E}error: a container with name "pyxis_nosuch" does not exist, and': "no container named nosuch on the node",
    f"{LOG}[ERROR] File already exists: /data/pyxis_a": "two steps created one container name",
    f"{E}--container-mounts: {MOUNT}\n{E}couldn't create enroot start configuration script": (
        "mount source /nonexistent does not exist"
    ),
    f"{E}couldn't create enroot start configuration script": "Pyxis could not write enroot's start configuration",
    "srun: error: Invalid --container-mounts argument: rel:/data": "malformed mount rel:/data",
    "slurmstepd-gpu01: error: execve(): nosuchcmd: No such file or directory\n": "nosuchcmd is not found",
    "slurmstepd-gpu01: error: execve(): /etc/passwd: Permission denied": "/etc/passwd is not exec",
    "pyxis: both --container-remap-root and --no-container-remap-root were": "--container-remap-root is set twice",
    "pyxis: both --container-writable and --container-readonly were specified": (
        "--container-writable and --container-readonly contradict"
    ),
    "pyxis: --container-image specified multiple times": "--container-image is set twice with different values",
    f"{E}couldn't chdir to /nosuchdir: No such file or directory": "--container-workdir /nosuchdir",
    # what Enroot's own hook prints (98-nvidia.sh)
    f"{LOG}{NO_CLI}\n{E}    {HOOK.replace('60-x.sh', '98-nvidia.sh').replace('3', '1')}": (
        "/etc/enroot/hooks.d/98-nvidia.sh exited with 1: the node lacks libnvidia-container, which gives "
        "containers their GPUs: install nvidia-container-cli there"
    ),
    f"{LOG}{NO_CLI}": "the node lacks libnvidia-container",
    f"{LOG}[WARN] Kernel module nvidia_uvm is not loaded.\n{E}    nvidia-container-cli: initialization error: no driver\n"
    f"{E}    {HOOK}": (
        "/etc/enroot/hooks.d/60-x.sh exited with 3: nvidia-container-cli: initialization error: no driver: "
        "repair what it needs"
    ),
    f"{LOG}[ERROR] Command not found: foo\n{E}    {HOOK}": (
        "/etc/enroot/hooks.d/60-x.sh exited with 3: Command not found: foo: repair what it needs"
    ),
    # what unsquashfs prints of work that succeeds explains nothing
    f"{UNPACKED}\n{E}    {HOOK}": "/etc/enroot/hooks.d/60-x.sh exited with 3: run its commands",
    UNPACKED: "no root filesystem could be created from /i/a.sqsh: Enroot printed nothing more",
    f"{UNPACKED.replace('created 5', DEVICE + 'created 5')}": "the image has the device file /d/pyxis_a/dev/ptyp0, which",
    f"{UNPACKED.replace('created 5', 'could not make it' + NEXT + 'created 5')}": (
        "no root filesystem could be created from /i/a.sqsh: could not make it"
    ),
    "srun: unrecognized option '--container-image=x'": "srun has no option --container-image",
    f'{E}error: "create" flag was passed to --container-name but': "the container already exists: omit :create",
    f'{E}error: "exec" flag was passed to --container-name but': "no step runs in the container now: omit :exec",
    "srun: error: pyxis: ignoring --container-workdir because neither": "--container-workdir has no effect",
    "run_command: slurm task_prolog can not be executed (/etc/slurm/tp) No such": "Slurm runs TaskProlog /etc/slurm/tp",
    f"{LOG}enroot-nsenter: failed to create user namespace: denied": "the node allows no user namespace: sysctl",
    # what real steps printed, on Slurm 22.05 with Pyxis 0.24.0 and Enroot 4.1.2
    f"{NOT_MADE}Read on filesystem failed because EOF\n{E}    FATAL ERROR: File system corruption detected": (
        "the image is damaged (FATAL ERROR: File system corruption detected)"
    ),
    f"{LOG}zstd failed with error code 10\n{E}    FATAL ERROR: writer: failed to read/uncompress file /d/x.so": (
        "the image is damaged (FATAL ERROR: writer: failed to read/uncompress file /d/x.so)"
    ),
    f"{NOT_MADE}Write failed because No space left on device\n{E}    FATAL ERROR: writer: failed to write": (
        "no space on the node (Write failed because No space left on device)"
    ),
    f"{LOG}FATAL ERROR: dir_scan: failed to make directory /d, because Read-only file system": (
        "a path of Enroot is read-only (FATAL ERROR: dir_scan:"
    ),
    f"{NOT_MADE}mkdir: cannot create directory '/d': Permission denied": (
        "Enroot may not write there (cannot create directory '/d': Permission denied)"
    ),
    f"{LOG}FATAL ERROR: out of memory": "unsquashfs could not unpack the image (FATAL ERROR: out of memory)",
    f"{LOG}hook is unhappy: no license\n{E}    {HOOK}\n{E}container was not started successfully by another task": (
        "/etc/enroot/hooks.d/60-x.sh exited with 3: hook is unhappy: no license: repair what"
    ),
    f"{LOG}{HOOK}": "/etc/enroot/hooks.d/60-x.sh exited with 3: run its commands",
    f"{LOG}find: Failed to restore initial working directory: /var/log/slurm: Permission denied": (
        "Pyxis runs Enroot in slurmd's working folder /var/log/slurm"
    ),
    f"{NOT_MADE}[INFO] Extracting\n{E}    no luck, it failed\n{E}    more": (
        "no root filesystem could be created from /i/a.sqsh: no luck, it failed"
    ),
    f"{E}failed to export container pyxis_n to /s/a.sqsh\n{LOG}one\n{E}    two": (
        "pyxis_n could not be saved as /s/a.sqsh: two"
    ),
    "": "Pyxis could not start the container: Enroot printed nothing more",
}


@pytest.mark.parametrize("text", CASES)
def test_a_message_has_its_explanation_in_one_line(text: str) -> None:
    reported = str(pyxis.explain(text if "execve" in text else text + TAIL))
    assert reported.startswith(CASES[text])
    assert "\n" not in reported


NO_DEVICE = f"{E}    nvidia-container-cli: device error: 5: unknown device"


def test_what_checks_decide_by_has_a_code() -> None:
    for text, code, hook in (
        (f"{E}    {HOOK}", "hook", "/etc/enroot/hooks.d/60-x.sh"),
        (f"{NO_DEVICE}\n{E}    {HOOK}", "too_few_gpus", "/etc/enroot/hooks.d/60-x.sh"),
        (f"{E}failed to export container n to /s\n{LOG}write: Disk quota exceeded", "no_space", ""),
        ("srun: unrecognized option '--container-image=x'", "no_option", ""),
    ):
        found = pyxis.explain(text)
        assert found is not None
        assert (found.code, found.at) == (code, hook)


def test_exit_statuses_and_other_words() -> None:
    known = {pyxis.explain_exit(rc) for rc in (1, 2, 13, 137, 139, 255)}
    assert (None in known, len(known)) == (False, 6)
    assert pyxis.explain_exit(42) is None
    assert pyxis.explain("srun: error: gpu01: task 0: Exited with exit code 1") is None


def test_options() -> None:
    assert PyxisOptions().argv() == []
    own = PyxisOptions(image="r#i:t", mounts=("/a:/b:ro", "/c:/d"), workdir="/w", name="n:create", save="/s")
    names = ("image=r#i:t", "mounts=/a:/b:ro,/c:/d", "workdir=/w", "name=n:create", "save=/s")
    assert own.argv() == [f"--container-{name}" for name in names]
    off: dict[str, Any] = {"mount_home": False, "remap_root": True, "entrypoint": False, "writable": False}
    assert PyxisOptions(env=("A", "B"), **off).argv() == [
        "--container-env=A,B",
        "--no-container-mount-home",
        "--container-remap-root",
        "--no-container-entrypoint",
        "--container-readonly",
    ]
