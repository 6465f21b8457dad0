"""Pyxis's options of srun, and the meaning of its messages (Pyxis 0.24.0, Enroot 4.1.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucluster.core.command_end import CommandEnd
from pytest_gpucluster.core.finding import Explanation


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
    writable: bool | None = None
    env: tuple[str, ...] = ()

    def argv(self) -> list[str]:
        """Return srun's options."""
        options = {
            "container-image": self.image,
            "container-mounts": ",".join(self.mounts) or None,
            "container-workdir": self.workdir,
            "container-name": self.name,
            "container-save": self.save,
            "container-env": ",".join(self.env) or None,
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
        return argv


NOT_SAVED = "failed to export container"
_ERROR = re.compile(
    r"\[ERROR\]|[Ff]ail|FATAL|[Cc]annot|[Cc]an't|[Cc]ould not|[Uu]nable|[Ee]rror|denied|not permitted|[Nn]o such|[Nn]ot found"
)
# what Enroot and unsquashfs 4.5 print of work that succeeds
_PROGRESS = re.compile(
    r"(?m)^.*pyxis: {4,}(?:\[INFO\] .*|Parallel unsquashfs: .*|\d+ inodes? \(\d+ blocks?\) to write|\[[=|/\\ -].*|"
    r"created \d+ (?:files?|director(?:y|ies)|symlinks?|devices?|fifos?|sockets?|hardlinks?))\s*?(?:\n|$)"
)

_NO_SPACE = re.compile(r"no space (?:left )?on|quota exceeded|file too large", re.IGNORECASE)
_NO_CLI = "Command not found: nvidia-container-cli"
_INSTALL = "the node lacks libnvidia-container, which gives containers their GPUs: install nvidia-container-cli there"
# The first match wins: causes before consequences. Enroot's own output is indented behind "pyxis:"
_EXPLANATIONS = (
    ("image_name", r"failed to import docker image: ([^/\s]+\.sqsh)\b", r"{0} was taken for a registry image: a file needs a path with a slash, like ./{0}"),
    ("task_prolog", r"[Tt]ask_?[Pp]rolog can not be executed \((\S+)\)", r"Slurm runs TaskProlog {0} inside the container, where it does not exist: mount it (a fstab in Enroot's mounts.d)"),
    ("hook", _NO_CLI + r".*\n.*\[ERROR\] (?P<hook>\S*hooks\.d/\S+) exited with return code (\d+)", r"exited with {1}: " + _INSTALL),
    ("no_container_cli", _NO_CLI, _INSTALL),
    ("too_few_gpus", r"pyxis: {4,}(?:\[\w+\] )?(nvidia-container-cli: (?:device|detection) error.*)\n.*\[ERROR\] (?P<hook>\S*hooks\.d/\S+) exited with return code (\d+)", r"exited with {2}: {0}: repair what it needs on the node"),
    ("hook", r"pyxis: {4,}(?:\[\w+\] )?(\S.*)\n.*\[ERROR\] (?P<hook>\S*hooks\.d/\S+) exited with return code (\d+)", r"exited with {2}: {0}: repair what it needs on the node"),
    ("hook", r"\[ERROR\] (?P<hook>\S*hooks\.d/\S+) exited with return code (\d+)", r"exited with {1}: run its commands on the node"),
    ("no_space", r"pyxis: {4,}(.*No space left on device.*)", r"no space on the node ({0}): free space in ENROOT_DATA_PATH, ENROOT_TEMP_PATH, or the folder of the saved image"),
    ("read_only", r"pyxis: {4,}(.*Read-only file system.*)", r"a path of Enroot is read-only ({0}): correct the mount on the node, or ENROOT_DATA_PATH"),
    ("slurmd_folder", r"find: Failed to restore initial working directory: (.+): Permission denied", r"Pyxis runs Enroot in slurmd's working folder {0}, which users may not enter: chmod o+x, or another folder for SlurmdLogFile"),
    ("no_permission", r"pyxis: {4,}(?:mkdir: )?(.*Permission denied.*)", r"Enroot may not write there ({0}): give users their folder in ENROOT_DATA_PATH"),
    ("device_file", r"create_inode: could not create (?:character|block) device (\S+), because", r"the image has the device file {0}, which only root may create: create the image without the files in dev (mksquashfs -e dev)"),
    ("image_damaged", r"(FATAL ERROR.*(?:corruption|read|uncompress).*)", r"the image is damaged ({0}): create it again with enroot import, or check the storage that holds it"),
    ("not_unpacked", r"(FATAL ERROR.*)", r"unsquashfs could not unpack the image ({0}): see its output in the step log"),
    ("name_resolution", r"Could not resolve host: (\S+)", r"the node cannot resolve {0}: import the image to a .sqsh on a machine with network access (enroot import), or correct DNS or the proxy"),
    ("image_format", r"\[ERROR\] Invalid image format: (\S+)", r"{0} is no squashfs image: create it again with enroot import"),
    ("no_such_file", r"\[ERROR\] No such file or directory: (\S+)", r"{0} does not exist on the node: put the image on storage that every node mounts"),
    ("name_taken", r"\[ERROR\].*File (?:already )?exists", r"two steps created one container name on one node at the same time: give each its own name, or run one after the other"),
    ("no_container", r'container with name "(?:pyxis_)?([^"]+)" does not exist', r"no container named {0} on the node: it was created in another job or on other nodes; set container_image too"),
    ("no_mount_source", r"--container-mounts: source path does not exist: (\S+)", r"mount source {0} does not exist on the node: create it or correct container_mounts"),
    ("malformed_mount", r"Invalid --container-mounts argument: (\S+)", r"malformed mount {0}: write /SOURCE:/TARGET[:FLAGS]"),
    ("option_conflict", r"both --container-remap-root and --no-container-remap-root", r"--container-remap-root is set twice, on and off: remove one"),
    ("option_conflict", r"both --([\w-]+) and --([\w-]+) were specified", r"--{0} and --{1} contradict each other (PYXIS_CONTAINER_* counts too): remove one"),
    ("option_twice", r"pyxis: --([\w-]+) specified multiple times", r"--{0} is set twice with different values, perhaps by salloc or sbatch too: remove one"),
    ("container_exists", r"\"create\" flag was passed to --container-name", r"the container already exists: omit :create, or remove the container first (enroot remove -f)"),
    ("not_running", r"\"exec\" flag was passed to --container-name", r"no step runs in the container now: omit :exec"),
    ("container_mode", r"--container-name: flag must be", r"the part after the colon of container_name is auto, create, exec or no_exec"),
    ("user_namespace", r"failed to create user namespace|couldn't join user namespace|\[ERROR\] unshare", r"the node allows no user namespace: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"),
    ("option_ignored", r"ignoring --(\S+) because neither", r"--{0} has no effect without container_image or container_name"),
    ("no_workdir", r"couldn't chdir to ([^:\s]+)", r"--container-workdir {0} does not exist in the container: mount it or name another"),
    ("registry_http", r"curl: \(35\) (.*wrong version number)", r"the registry answers HTTP, not HTTPS ({0}): ENROOT_ALLOW_HTTP yes in the nodes' enroot.conf, since Pyxis ignores a job's variable"),
    ("not_fetched", r"curl: \(\d+\) (.*)", r"the image could not be fetched ({0}): check the registry, credentials and the node's network"),
    ("registry_refused", r"\[ERROR\] URL.*returned error code: (\d+)", r"the registry answered {0}: check the image's name, tag and credentials in enroot's .credentials"),
    ("not_imported", r"failed to import docker image: (\S+)", r"image {0} could not be imported: a file needs a path with a slash (./image.sqsh), a registry image its name (registry#image:tag)"),
    ("no_option", r"unrecognized option '(--(?:no-)?container-[^'=]+)", r"srun has no option {0}: Pyxis is not loaded on the submitting host (plugstack.conf), or is too old"),
    ("no_root_filesystem", r"failed to create container filesystem for image: (\S+)", r"no root filesystem could be created from {0}: {log}"),
    ("start_script", r"couldn't create enroot start configuration script", r"Pyxis could not write enroot's start configuration: check the mounts and /run/pyxis on the node"),
    ("entrypoint", r"unusual entrypoint", r"the image's entrypoint does not exec its arguments: try --no-container-entrypoint"),
    ("ended_early", r"container exited too soon", r"the container ended before the task began: the image needs a working sh"),
    ("not_saved", r"failed to export container (\S+) to (\S+)", r"{0} could not be saved as {1}: {log}"),
    ("not_started", r"spank_pyxis\.so: task_init\(\) failed", r"Pyxis could not start the container: {log}"),
    ("pmi", r"orte_ess_init failed|not built with SLURM's PMI|PMI support", r"the MPI program was built without this PMI: try --mpi=pmix or pmi2 (srun --mpi=list), or mpirun"),
    ("no_program", r"execve\(\): ([^:]+): No such file or directory", r"{0} is not found on the node or in the container: check the name and PATH"),
    ("not_executable", r"execve\(\): ([^:]+): Permission denied", r"{0} is not executable: chmod +x, or a noexec mount"),
    ("prolog", r"Prolog (?:launch failure|error|failed|hung)", r"the prolog failed there: see slurmd's log on the node"),
)  # fmt: skip


def explain(stderr: str) -> Explanation | None:
    """Return what a step's stderr means and what to do; None for unknown messages."""
    stderr = _PROGRESS.sub("", stderr)
    for code, pattern, meaning in _EXPLANATIONS:
        match = re.search(pattern, stderr)
        if match:
            text = meaning.format(*match.groups(), log=_decisive(stderr))
            return unexplained(text, code, match.groupdict().get("hook", ""))
    return None


def unexplained(line: str, code: str = "other", hook: str = "") -> Explanation:
    """Return the failure that a line states; a full disk has its own code wherever the line comes from."""
    return Explanation("no_space" if _NO_SPACE.search(line) else code, line, hook)


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
