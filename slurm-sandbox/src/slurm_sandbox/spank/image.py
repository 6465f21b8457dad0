"""A small container image for tests, built from this machine's programs and packed as squashfs."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_sandbox import commands
from slurm_sandbox.daemons import search_path
from slurm_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Collection


ID, VERSION = "sandbox-image", "1"
ENTRYPOINT = "SANDBOX_ENTRYPOINT"  # the variable that its entrypoint sets
PROGRAMS = (
    *("sh", "awk", "base64", "basename", "cat", "chmod", "cp", "cut", "date", "dd", "df", "dirname", "echo"),
    *("env", "expr", "false", "find", "getent", "grep", "head", "hostname", "id", "ls", "mkdir", "mktemp"),
    *("mount", "mv", "nproc", "printf", "ps", "pwd", "readlink", "rm", "rmdir", "sed", "seq", "sleep", "sort"),
    *("cksum", "stat", "tail", "tee", "test", "touch", "tr", "true", "uname", "wc", "xargs"),
    *("ssh", "ssh-keygen", "sshd"),
)
_answers: dict[tuple[str, ...], str] = {}  # of ldd by command: the libraries of the machine stay the same
_PARTS_OF_SSHD = ("/usr/lib/openssh/sshd-session", "/usr/lib/openssh/sshd-auth")  # from OpenSSH 9.8 and 9.9 on
_FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "srv", "sys", "tmp", "usr/bin", "var/tmp", "mnt")
_FILES = {
    "etc/os-release": f'ID={ID}\nVERSION_ID="{VERSION}"\nPRETTY_NAME="image of the sandbox"\n',
    "etc/environment": "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nSANDBOX_IMAGE=1\n",
    # as `enroot import` writes it: rc.local runs before the entrypoint
    "etc/rc": "[ ! -s /etc/rc.local ] || . /etc/rc.local\nexport " + ENTRYPOINT + '=1\nexec "$@"\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
    "sshd:x:100:65534::/run/sshd:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}


def build(target: Path) -> None:
    """Write the image, uncompressed since each sandbox builds it; SandboxError if mksquashfs fails."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        root = Path(folder) / "root"
        fill(root)
        done = commands.run(
            ["mksquashfs", str(root), str(target), "-all-root", "-noappend", "-no-progress", "-quiet", "-noD", "-noF"],
            timeout=120,
        )
    if done.rc != 0:
        raise SandboxError(f"the image for tests could not be packed: {done.stderr.strip()}")
    target.chmod(0o644)


def fill(root: Path, programs: Collection[str] = PROGRAMS) -> None:
    """Fill a root file system with programs, their libraries, and the files that mark it as an image."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):  # as the host has them
        if Path("/", link).is_symlink():
            (root / link).symlink_to(Path("/", link).readlink())
            (root / Path("/", link).readlink()).mkdir(parents=True, exist_ok=True)
        else:
            (root / link).mkdir(exist_ok=True)
    for name, text in _FILES.items():
        (root / name).write_text(text)
    found = [path for name in programs if (path := shutil.which(name, path=search_path()))]
    found += [path for path in _PARTS_OF_SSHD if "sshd" in programs and Path(path).exists()]
    for path in (*found, *_libraries(found)):
        copy = root / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            shutil.copy(path, copy)  # the target of a link, under the link's name


def _libraries(programs: Collection[str]) -> list[str]:
    argv = ("ldd", *programs)
    if argv not in _answers:
        _answers[argv] = commands.run(list(argv), timeout=60).stdout
    return list(dict.fromkeys(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", _answers[argv], re.MULTILINE)))
