"""Pyxis's options of srun, and the meaning of its messages (Pyxis 0.24.0, Enroot 4.1.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.core.command_end import CommandEnd


@dataclass(frozen=True)
class PyxisOptions:
    """Options of a step in a container, named as Pyxis names them; None leaves Pyxis's (or the site's) default.

    `name` may have Pyxis's mode: 'nccl:exec'. `env` names variables whose outer value overrides that of the image.
    """

    image: str | None = None
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    name: str | None = None
    save: str | None = None
    mount_home: bool | None = None
    remap_root: bool | None = None
    entrypoint: bool | None = None
    entrypoint_log: bool = False
    writable: bool | None = None
    env: tuple[str, ...] = ()
    unshare: tuple[str, ...] = ()
    image_mode: str | None = None

    def argv(self) -> list[str]:
        """Return srun's options."""
        options = {
            "container-image": self.image,
            "container-mounts": ",".join(self.mounts) or None,
            "container-workdir": self.workdir,
            "container-name": self.name,
            "container-save": self.save,
            "container-env": ",".join(self.env) or None,
            "container-unshare": ",".join(self.unshare) or None,
            "container-image-mode": self.image_mode,
        }
        switches = {
            "container-mount-home": self.mount_home,
            "container-remap-root": self.remap_root,
            "container-entrypoint": self.entrypoint,
        }
        argv = [f"--{key}={value}" for key, value in options.items() if value is not None]
        argv += [f"--{key}" if on else f"--no-{key}" for key, on in switches.items() if on is not None]
        if self.writable is not None:
            argv.append("--container-writable" if self.writable else "--container-readonly")
        if self.entrypoint_log:
            argv.append("--container-entrypoint-log")
        return argv


HOOK = "Enroot's hook "
NO_OPTION = "srun has no option "
NOT_SAVED = "failed to export container"
_ERROR = re.compile(
    r"\[ERROR\]|[Ff]ail|FATAL|[Cc]annot|[Cc]an't|[Cc]ould not|[Uu]nable|[Ee]rror|denied|not permitted|[Nn]o such|[Nn]ot found"
)
# what Enroot and unsquashfs 4.5 print of work that succeeds
_PROGRESS = re.compile(
    r"(?m)^.*pyxis: {4,}(?:\[INFO\] .*|Parallel unsquashfs: .*|\d+ inodes? \(\d+ blocks?\) to write|\[[=|/\\ -].*|"
    r"created \d+ (?:files?|director(?:y|ies)|symlinks?|devices?|fifos?|sockets?|hardlinks?))\s*?(?:\n|$)"
)

_NO_CLI = "Command not found: nvidia-container-cli"
_INSTALL = "the node lacks libnvidia-container, which gives containers their GPUs: install nvidia-container-cli there"
# The first match wins: causes before consequences. Enroot's own output is indented behind "pyxis:"
_EXPLANATIONS = (
    (r"failed to import docker image: ([^/\s]+\.sqsh)\b", r"{0} was taken for a registry image: a file needs a path with a slash, like ./{0}"),
    (r"[Tt]ask_?[Pp]rolog can not be executed \((\S+)\)", r"Slurm runs TaskProlog {0} inside the container, where it does not exist: mount it (a fstab in Enroot's mounts.d)"),
    (_NO_CLI + r".*\n.*\[ERROR\] (\S*hooks\.d/\S+) exited with return code (\d+)", HOOK + r"{0} exited with {1}: " + _INSTALL),
    (_NO_CLI, _INSTALL),
    (r"pyxis: {4,}(?:\[\w+\] )?(\S.*)\n.*\[ERROR\] (\S*hooks\.d/\S+) exited with return code (\d+)", HOOK + r"{1} exited with {2}: {0}: repair what it needs on the node"),
    (r"\[ERROR\] (\S*hooks\.d/\S+) exited with return code (\d+)", HOOK + r"{0} exited with {1}: run its commands on the node"),
    (r"pyxis: {4,}(.*No space left on device.*)", r"no space on the node ({0}): free space in ENROOT_DATA_PATH, ENROOT_TEMP_PATH, or the folder of the saved image"),
    (r"pyxis: {4,}(.*Read-only file system.*)", r"a path of Enroot is read-only ({0}): correct the mount on the node, or ENROOT_DATA_PATH"),
    (r"find: Failed to restore initial working directory: (.+): Permission denied", r"Pyxis runs Enroot in slurmd's working folder {0}, which users may not enter: chmod o+x, or another folder for SlurmdLogFile"),
    (r"pyxis: {4,}(?:mkdir: )?(.*Permission denied.*)", r"Enroot may not write there ({0}): give users their folder in ENROOT_DATA_PATH"),
    (r"create_inode: could not create (?:character|block) device (\S+), because", r"the image has the device file {0}, which only root may create: create the image without the files in dev (mksquashfs -e dev)"),
    (r"(FATAL ERROR.*(?:corruption|read|uncompress).*)", r"the image is damaged ({0}): create it again with enroot import, or check the storage that holds it"),
    (r"(FATAL ERROR.*)", r"unsquashfs could not unpack the image ({0}): see its output in the step log"),
    (r"Could not resolve host: (\S+)", r"the node cannot resolve {0}: import the image to a .sqsh on a machine with network access (enroot import), or correct DNS or the proxy"),
    (r"\[ERROR\] Invalid image format: (\S+)", r"{0} is no squashfs image: create it again with enroot import"),
    (r"\[ERROR\] No such file or directory: (\S+)", r"{0} does not exist on the node: put the image on storage that every node mounts"),
    (r"\[ERROR\].*File (?:already )?exists", r"two steps created one container name on one node at the same time: give each its own name, or run one after the other"),
    (r'container with name "(?:pyxis_)?([^"]+)" does not exist', r"no container named {0} on the node: it was created in another job or on other nodes; set container_image too"),
    (r"--container-mounts: source path does not exist: (\S+)", r"mount source {0} does not exist on the node: create it or correct container_mounts"),
    (r"Invalid --container-mounts argument: (\S+)", r"malformed mount {0}: write /SOURCE:/TARGET[:FLAGS]"),
    (r"both --container-remap-root and --no-container-remap-root", r"--container-remap-root is set twice, on and off: remove one"),
    (r"both --([\w-]+) and --([\w-]+) were specified", r"--{0} and --{1} contradict each other (PYXIS_CONTAINER_* counts too): remove one"),
    (r"pyxis: --([\w-]+) specified multiple times", r"--{0} is set twice with different values, perhaps by salloc or sbatch too: remove one"),
    (r"\"create\" flag was passed to --container-name", r"the container already exists: omit :create, or remove the container first (enroot remove -f)"),
    (r"\"exec\" flag was passed to --container-name", r"no step runs in the container now: omit :exec"),
    (r"--container-name: flag must be", r"the part after the colon of container_name is auto, create, exec or no_exec"),
    (r"failed to create user namespace|couldn't join user namespace|\[ERROR\] unshare", r"the node allows no user namespace: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"),
    (r"ignoring --(\S+) because neither", r"--{0} has no effect without container_image or container_name"),
    (r"couldn't chdir to ([^:\s]+)", r"--container-workdir {0} does not exist in the container: mount it or name another"),
    (r"curl: \(35\) (.*wrong version number)", r"the registry answers HTTP, not HTTPS ({0}): ENROOT_ALLOW_HTTP yes in the nodes' enroot.conf, since Pyxis ignores a job's variable"),
    (r"curl: \(\d+\) (.*)", r"the image could not be fetched ({0}): check the registry, credentials and the node's network"),
    (r"\[ERROR\] URL.*returned error code: (\d+)", r"the registry answered {0}: check the image's name, tag and credentials in enroot's .credentials"),
    (r"failed to import docker image: (\S+)", r"image {0} could not be imported: a file needs a path with a slash (./image.sqsh), a registry image its name (registry#image:tag)"),
    (r"unrecognized option '(--(?:no-)?container-[^'=]+)", NO_OPTION + r"{0}: Pyxis is not loaded on the submitting host (plugstack.conf), or is too old"),
    (r"failed to create container filesystem for image: (\S+)", r"no root filesystem could be created from {0}: {log}"),
    (r"couldn't create enroot start configuration script", r"Pyxis could not write enroot's start configuration: check the mounts and /run/pyxis on the node"),
    (r"unusual entrypoint", r"the image's entrypoint does not exec its arguments: try --no-container-entrypoint"),
    (r"container exited too soon", r"the container ended before the task began: the image needs a working sh"),
    (r"failed to export container (\S+) to (\S+)", r"{0} could not be saved as {1}: {log}"),
    (r"spank_pyxis\.so: task_init\(\) failed", r"Pyxis could not start the container: {log}"),
    (r"orte_ess_init failed|not built with SLURM's PMI|PMI support", r"the MPI program was built without this PMI: try --mpi=pmix or pmi2 (srun --mpi=list), or mpirun"),
    (r"execve\(\): ([^:]+): No such file or directory", r"{0} is not found on the node or in the container: check the name and PATH"),
    (r"execve\(\): ([^:]+): Permission denied", r"{0} is not executable: chmod +x, or a noexec mount"),
    (r"Prolog (?:launch failure|error)", r"the prolog failed there: see slurmd's log on the node"),
)  # fmt: skip


def explain(stderr: str) -> str | None:
    """Return in one line what a step's stderr means and what to do; None for unknown messages."""
    stderr = _PROGRESS.sub("", stderr)
    for pattern, meaning in _EXPLANATIONS:
        match = re.search(pattern, stderr)
        if match:
            return meaning.format(*match.groups(), log=_decisive(stderr))
    return None


def _decisive(stderr: str) -> str:
    """Return the most specific line of Enroot's log: its first error, else its last line."""
    _, _, log = stderr.partition("pyxis: printing enroot log file:")
    lines: list[str] = [line.strip() for line in re.findall(r"pyxis: {4,}(.*\S)", log)]
    errors = [line for line in lines if _ERROR.search(line)]
    if errors:
        return errors[0]
    return lines[-1] if lines else "Enroot printed nothing more: see the step log"


# exit statuses of srun without a message; a task's own status passes through
_EXITS = {
    1: "the container did not start, or the task ended with 1: see the output before",
    2: "the command is not found in the container (execve: ENOENT), or the task ended with 2",
    13: "the command is not executable in the container (execve: EACCES), or the task ended with 13",
    126: "the shell found the command, but may not execute it",
    127: "the shell cannot find the command: check PATH, which comes from the image",
    255: "srun refused its options, or could not reach the controller",
}


def explain_exit(rc: int) -> str | None:
    """Return the meaning of an exit status of srun, in one line; None for a task's own status."""
    end = CommandEnd(rc)
    return f"the task was {end}" if end.signal else _EXITS.get(rc)
