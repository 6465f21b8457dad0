"""Checks of containers on a node, from the reports of tasks outside and inside of one. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucluster.cluster.slurm.pyxis import HOOK, NO_OPTION
from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import floor
from pytest_gpucluster.core.majority import differs
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.container.enroot import UNKNOWN, jobs_of, may_be_named
from pytest_gpucluster.suites.container.facts import HOST_VALUE, MOUNTED, PASSED, RANKS_PER_NODE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.container.enroot import EnrootSpace
    from pytest_gpucluster.suites.container.config import ContainerConfig
    from pytest_gpucluster.suites.container.facts import ContainerFacts, StepFacts

HOOK_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # of Enroot's hook 50-slurm-pytorch.sh
UNLIMITED = "unlimited"
SHARE = 0.5  # of a path of Enroot that is smaller than twice min_free: an empty /tmp of 1 GiB has room
INODES = 10_000  # fewer files than one image has
HOOK_FAILED = "a hook of Enroot failed, which container.hooks judges"


def _require(found: ContainerFacts, *steps: str) -> None:
    """Raise NotAvailable if nothing inside can be judged; the checks of import and plugin report the fault."""
    if found.imported.failed.get(found.node, "").startswith(HOOK):
        raise NotAvailable(HOOK_FAILED)
    if found.node in found.imported.failed:
        raise NotAvailable("the image could not be imported, which container.import judges")
    if found.contained is False:
        raise NotAvailable("the tasks ran outside of a container, which container.plugin judges")
    for name in ("outside", "plain", *steps):
        if problem := found.step(name).problem:
            raise NotAvailable(f"step {name!r}: {problem}")


@check(
    "container.plugin",
    cause="plugstack.conf of the node does not load Pyxis, or slurmd was not restarted after it was changed",
    hint="grep -r pyxis /etc/slurm/plugstack.conf*; systemctl restart slurmd; srun --help | grep container-image",
    action=Action.CONFIGURE,
)
def plugin(found: ContainerFacts) -> Judgement:
    """Judge that tasks run in a container."""
    if found.contained is False:
        yield Finding(
            "Pyxis", "the task ran on the node itself, outside of a container", "a task in the container"
        )
    elif found.step("plain").problem and found.node not in found.imported.failed:
        yield NotAvailable("no step in the container started, which container.reuse judges")
    elif found.contained is None and found.node not in found.imported.failed:
        yield Finding(
            "Pyxis", found.step("plain").problem or found.step("outside").problem, "a task in the container"
        )
    elif found.contained is None:
        why = found.imported.failed[found.node]
        if NO_OPTION in why:
            yield Finding("Pyxis", why, "--container-image is an option of srun")
        else:
            judge = "hooks" if why.startswith(HOOK) else "import"
            yield NotAvailable(f"no container started, which container.{judge} judges")


@check(
    "container.import",
    cause="the image is missing, damaged or cannot be fetched from this node, or Enroot cannot unpack it there",
    hint="on the node: a step with --container-image; enroot create of the image; df $ENROOT_DATA_PATH",
    action=Action.CONFIGURE,
    setting="container.image",
)
def imported(found: ContainerFacts) -> Judgement:
    """Judge that the image was imported; measures the time, and the MB/s of the packed image."""
    if found.contained is False:
        _require(found)
        return
    image = found.imported
    if image.failed.get(found.node, "").startswith(HOOK):
        yield NotAvailable(HOOK_FAILED)
    elif found.node in image.failed:
        yield Finding(image.image, image.failed[found.node], "imported")
    elif found.node not in image.nodes:
        yield Finding(image.image, "no report of the import", "imported")
    if found.node in image.seconds:
        yield Metric("import_time", image.seconds[found.node], "s", image.image)
    throughput = image.throughput(found.node)
    if throughput is not None:
        yield Metric("import_throughput", throughput, "MB/s", image.image)


@check(
    "container.hooks",
    cause="a script in Enroot's hooks.d ends with an error on this node, where something that it needs is missing",
    hint="on the node: a step with --container-image; run the commands of the hook (/etc/enroot/hooks.d) manually",
    action=Action.CONFIGURE,
)
def hooks(found: ContainerFacts) -> Judgement:
    """Judge that no hook of Enroot fails in any step. A failure is a fault of the site's scripts, not of the node."""
    problems = [found.imported.failed.get(found.node, ""), *(seen.problem for seen in found.seen.values())]
    failed = dict.fromkeys(text.removeprefix(HOOK) for text in problems if text.startswith(HOOK))
    for text in failed:
        hook, _, words = text.partition(" ")
        yield Finding(hook, words, "exits with 0")
    if not failed:
        _require(found, "plain")


@check(
    "container.release",
    cause="another image than the requested one runs, or the container's root is the node's own",
    hint="cat /etc/os-release in a step with --container-image",
    action=Action.CONFIGURE,
)
def release(found: ContainerFacts, usual_release: Norm[str]) -> Judgement:
    """Judge the image's os-release: must be the cluster file's, else the majority's (`usual_release`: of all nodes)."""
    _require(found, "plain")
    measured = found.step("plain").facts.get("release", "")
    wanted = found.config.release
    if not measured:
        yield Finding(
            "os-release", "none in the container", wanted or usual_release.value or "ID and VERSION_ID"
        )
    elif not wanted:
        yield from usual_release.judge("os-release", measured, worse=differs)
    elif measured != wanted:
        yield Finding("os-release", measured, wanted)


@check(
    "container.root",
    cause="ENROOT_ROOTFS_WRITABLE or PYXIS_CONTAINER_WRITABLE is set for the whole site, or writing is broken",
    hint="grep ROOTFS_WRITABLE /etc/enroot/enroot.conf; env | grep PYXIS",
    action=Action.CONFIGURE,
)
def root(found: ContainerFacts) -> Judgement:
    """Judge that the root file system is read-only without --container-writable, and writable with it."""
    _require(found, "readonly", "turned")
    if found.step("readonly").facts.get("writable") != "no":
        yield Finding("root without a flag", "writable", "read-only")
    if found.step("turned").facts.get("marked") != "yes":
        yield Finding("root with --container-writable", "read-only", "writable")


@check(
    "container.mounts",
    cause="the source does not exist on this node, or its file system denies access",
    hint="on the node: ls -ld of the source; findmnt; a step with --container-mounts",
    action=Action.CONFIGURE,
)
def mounts(found: ContainerFacts) -> Judgement:
    """Judge that mounts can be read and written, that `ro` applies, and that the cluster file's mounts work."""
    if found.node in found.imported.failed or found.contained is not True:
        _require(found, "plain")
        return
    step = found.step("mounts")
    if step.problem:
        yield _step_finding("--container-mounts", step)
        return
    facts = step.facts
    if facts.get("token") != found.token:
        yield Finding("mount", "a file of the node is not read inside", "read")
    if facts.get("wrote") != "yes":
        yield Finding("mount", "not writable", "writable")
    elif not found.token_back:
        yield Finding("mount", "what was written inside is not read on the node", "read")
    if facts.get("ro_writable") != "no":
        yield Finding("mount with :ro", "writable", "read-only")


@check(
    "container.workdir",
    cause="the working directory is not reachable in the container",
    hint="pwd in a step with --container-image and --container-workdir=/tmp",
    action=Action.CONFIGURE,
)
def workdir(found: ContainerFacts) -> Judgement:
    """Judge that the task starts in --container-workdir."""
    _require(found, "mounts")
    if found.step("mounts").facts.get("workdir") != MOUNTED:
        yield Finding("working directory", found.step("mounts").facts.get("workdir", "none"), MOUNTED)


@check(
    "container.home",
    cause="ENROOT_MOUNT_HOME of enroot.conf, or a mounts.d entry, overrides the users' options",
    hint="grep -r MOUNT_HOME /etc/enroot; ls /etc/enroot/mounts.d",
    action=Action.CONFIGURE,
)
def home(found: ContainerFacts) -> Judgement:
    """Judge that home is mounted only with the flag for it."""
    _require(found, "plain", "turned", "back")
    wanted = (
        ("plain", "without a flag", False),
        ("turned", "--container-mount-home", True),
        ("back", "--no-container-mount-home", False),
    )
    for step, flag, mounted in wanted:
        seen = found.step(step).facts.get("at_home") == "yes"
        if seen != mounted:
            yield Finding(f"home, {flag}", _mounted(seen), _mounted(mounted))


def _mounted(yes: bool) -> str:
    return "mounted" if yes else "not mounted"


@check(
    "container.remap_root",
    cause="user namespaces are limited on the node, or Enroot's configuration overrides the flags",
    hint="sysctl user.max_user_namespaces kernel.unprivileged_userns_clone; grep REMAP_ROOT /etc/enroot/enroot.conf",
    action=Action.CONFIGURE,
)
def remap_root(found: ContainerFacts) -> Judgement:
    """Judge the user inside: root with --container-remap-root, the job's user with --no-container-remap-root."""
    _require(found, "outside", "turned", "back")
    own = found.step("outside").facts.get("uid", "?")
    for step, flag, uid in (
        ("turned", "--container-remap-root", "0"),
        ("back", "--no-container-remap-root", own),
    ):
        inside = found.step(step).facts.get("uid", "?")
        if inside != uid:
            yield Finding(flag, f"user {inside}", f"user {uid}")


@check(
    "container.environment",
    cause="Enroot's environ.d or a hook changes what users export",
    hint="ls /etc/enroot/environ.d /etc/enroot/hooks.d; a step with --container-env",
    action=Action.CONFIGURE,
)
def environment(found: ContainerFacts) -> Judgement:
    """Judge that exports arrive, that the image's values override them, and that --container-env reverses this.

    PATH is the image's, possibly changed by a login shell of the image: ENROOT_LOGIN_SHELL is on by default.
    """
    _require(found, "plain", "readonly", "turned")
    plain = found.step("plain").facts
    if plain.get("env.GPUCLUSTER_PASSED") != PASSED:
        yield Finding("exported variable", plain.get("env.GPUCLUSTER_PASSED", "absent"), PASSED)
    own, path = plain.get("image.PATH"), plain.get("path")
    if own and path not in {own, plain.get("login_path") or own}:
        yield Finding("PATH", path or "absent", f"the image's: {own}")
    name = found.override
    if not name:
        return
    of_image = plain.get(f"image.{name}", "")
    value = found.step("readonly").facts.get(f"env.{name}", "absent")
    if value != of_image:
        yield Finding(f"{name} without --container-env", value, f"the image's: {of_image}")
    value = found.step("turned").facts.get(f"env.{name}", "absent")
    if value != HOST_VALUE:
        yield Finding(f"--container-env={name}", value, HOST_VALUE)


@check(
    "container.entrypoint",
    cause="the image's entrypoint fails or does not exec its arguments, or Pyxis runs it although it was disabled",
    hint="a step with --container-image, --container-entrypoint and --container-entrypoint-log",
    action=Action.CONFIGURE,
    setting="the image",
)
def entrypoint(found: ContainerFacts) -> Judgement:
    """Judge that a step starts with and without the entrypoint.

    Pyxis starts `sh` through the entrypoint. An image whose entrypoint is a program that ignores its arguments is as good.
    """
    _require(found, "plain", "back")
    if found.step("plain").facts.get("rc") != "yes":
        raise NotApplicable("the image has no entrypoint (/etc/rc)")
    problem = found.step("entrypoint").problem
    if problem and not found.entrypoint_elsewhere:
        raise NotAvailable(f"the image's entrypoint starts no command ({problem})")
    elif problem:
        yield _step_finding("--container-entrypoint", found.step("entrypoint"))


def _was_written(found: ContainerFacts) -> bool:
    """Return whether the step with --container-writable could write its file into the container's root."""
    return found.step("turned").facts.get("marked") == "yes"


_UNWRITTEN = "no step could write to the container's root (see container.root)"
_NO_ROOM = re.compile(r"no space (?:left )?on|quota exceeded|file too large", re.IGNORECASE)


@check(
    "container.reuse",
    cause="the node does not keep the container's name: container_scope, or an epilog that removes it",
    hint="enroot list on the node, as the same user; grep container_scope /etc/slurm/plugstack.conf*",
    action=Action.CONFIGURE,
)
def reuse(found: ContainerFacts) -> Judgement:
    """Judge that a later step finds the container by its name, with the files of an earlier step."""
    if found.node in found.imported.failed or found.contained is False or found.step("outside").problem:
        _require(found)
        return
    for step in ("plain", "back"):
        if found.step(step).problem:
            yield _step_finding("container by name", found.step(step))
            return
    yield Metric("reuse_time", found.step("plain").seconds, "s")
    if found.step("back").facts.get("mark") != "yes":
        yield Finding("container by name", "a file of an earlier step is missing", "present")


@check(
    "container.save",
    cause="no space or no permission in the folder of the saved image, or mksquashfs is missing on the node",
    hint="a step with --container-name and --container-save; which mksquashfs; df /tmp",
    action=Action.CONFIGURE,
    setting="the image",
)
def save(found: ContainerFacts) -> Judgement:
    """Judge that a saved container starts as an image, with the files that were written in it."""
    _require(found, "back")
    refused = found.step("back").unsaved or found.step("saved").problem
    if _NO_ROOM.search(refused):
        raise NotAvailable(
            f"{refused}: the saved image is as large as the packed one, and no job must save it; make room in /tmp"
        )
    elif found.step("back").unsaved:
        yield Finding("--container-save", found.step("back").unsaved, "saved")
    elif found.step("saved").problem:
        yield _step_finding("saved image", found.step("saved"))
    elif not _was_written(found):
        raise NotAvailable(f"{_UNWRITTEN}: the saved image has no file to recognise it by")
    elif found.step("saved").facts.get("mark") != "yes":
        yield Finding("saved image", "lacks a file that was written before", "complete")


@check(
    "container.remove",
    cause="Enroot cannot list or delete the user's containers on the node",
    hint="enroot list; enroot remove -f on the node; ls -ld $ENROOT_DATA_PATH",
    action=Action.CONFIGURE,
)
def remove(found: ContainerFacts) -> Judgement:
    """Judge that a named container is listed, and no longer listed after its removal."""
    _require(found, "saved")
    if found.saved_removed == UNKNOWN:
        raise NotAvailable(UNKNOWN)
    if found.saved_removed:
        yield Finding("named container", found.saved_removed, "listed, then removed")


@check(
    "container.gpus",
    cause="libnvidia-container or Enroot's hook 98-nvidia.sh is missing on the node, or hides devices",
    hint="nvidia-container-cli info; ls /etc/enroot/hooks.d; NVIDIA_VISIBLE_DEVICES=all srun ... nvidia-smi -L",
    action=Action.CONFIGURE,
)
def gpus(found: ContainerFacts) -> Judgement:
    """Judge that a task has the same GPUs inside as outside."""
    if not found.gpus:
        raise NotApplicable("the node has no GPUs")
    if found.node in found.imported.failed or found.contained is not True:
        _require(found, "plain")
        return
    if found.step("gpus").problem:
        yield _step_finding("NVIDIA_VISIBLE_DEVICES=all", found.step("gpus"))
        return
    outside, inside = found.step("outside").facts, found.step("gpus").facts
    before, after = _uuids(outside), _uuids(inside)
    yield Metric("gpus_inside", len(after) or float(inside.get("devices", 0)), "GPUs")
    if not before and outside.get("devices", "0") == "0":
        yield NotAvailable("no GPU is seen outside of a container either: see gpu.count")
    elif before != after and before:
        lost = sorted(before - after)
        what = count(len(after), "GPU") + (f", without {lost[0]}" if lost else "")
        yield Finding("nvidia-smi inside", what, count(len(before), "GPU"))
    if inside.get("devices") != outside.get("devices"):
        yield Finding("/dev/nvidia*", inside.get("devices", "none"), outside.get("devices", "none"))


def _uuids(facts: Mapping[str, str]) -> set[str]:
    return {key.removeprefix("gpu.") for key in facts if key.startswith("gpu.")}


@check(
    "container.ranks",
    cause="Enroot's hook 50-slurm-pytorch.sh is not in hooks.d, or does not set Slurm's values",
    hint="ls /etc/enroot/hooks.d; cp /usr/share/enroot/hooks.d/50-slurm-pytorch.sh /etc/enroot/hooks.d on every node",
    action=Action.CONFIGURE,
)
def ranks(found: ContainerFacts) -> Judgement:
    """Judge RANK and LOCAL_RANK of Pyxis, and the variables of Enroot's hook for PyTorch, in every task."""
    _require(found, "ranks")
    tasks = found.step("ranks").tasks
    if len(tasks) != RANKS_PER_NODE:
        yield Finding("tasks", str(len(tasks)), str(RANKS_PER_NODE))
    for facts in tasks:
        rank = facts.get("env.SLURM_PROCID", "?")
        yield from _differing(f"rank {rank}", facts, _own_ranks(facts))
    hook = {name for name in HOOK_VARIABLES if any(f"env.{name}" in facts for facts in tasks)}
    if hook:
        for facts in tasks:
            yield from _differing(f"rank {facts.get('env.SLURM_PROCID', '?')}", facts, _hook_values(facts))
            if not facts.get("env.MASTER_ADDR"):
                yield Finding("MASTER_ADDR", "not set", "the first node of the step")


def _own_ranks(facts: Mapping[str, str]) -> dict[str, str]:
    return {"RANK": facts.get("env.SLURM_PROCID", "?"), "LOCAL_RANK": facts.get("env.SLURM_LOCALID", "?")}


def _hook_values(facts: Mapping[str, str]) -> dict[str, str]:
    job = facts.get("env.SLURM_JOB_ID", "0")
    port = 61000 + int(job) % 4536 if job.isdigit() else 0  # the hook's own rule
    return {"MASTER_PORT": str(port), "WORLD_SIZE": facts.get("env.SLURM_NTASKS", "?")}


def _differing(part: str, facts: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Finding]:
    for name, value in wanted.items():
        found = facts.get(f"env.{name}", "not set")
        if found != value:
            yield Finding(f"{part}: {name}", found, value)


@check(
    "container.memlock",
    cause="slurmd's own limit (LimitMEMLOCK of its unit) or PropagateResourceLimits lowers the limit",
    hint="systemctl show slurmd -p LimitMEMLOCK; grep PropagateResourceLimits /etc/slurm/slurm.conf",
    action=Action.CONFIGURE,
)
def memlock(found: ContainerFacts) -> Judgement:
    """Judge the limit of locked memory inside: at least that of the node."""
    _require(found, "outside", "plain")
    inside = found.step("plain").facts.get("memlock", "")
    wanted = found.step("outside").facts.get("memlock", "")
    if not inside:
        raise NotAvailable("the image's shell does not print its limits (ulimit -l)")
    elif not wanted:
        raise NotAvailable("the node's shell does not print its limits (ulimit -l)")
    elif not _enough(inside, wanted):
        yield Finding("locked memory", f"{inside} KiB", wanted if wanted == UNLIMITED else f"{wanted} KiB")


def _enough(limit: str, wanted: str) -> bool:
    if limit == UNLIMITED:
        return True
    return wanted.isdigit() and limit.isdigit() and int(limit) >= int(wanted)


@check(
    "container.shm",
    cause="/dev/shm is a separate small file system of the container, or is small on the node",
    hint="df -h /dev/shm inside and outside; /etc/enroot/mounts.d/10-system.fstab",
    action=Action.CONFIGURE,
)
def shm(found: ContainerFacts) -> Judgement:
    """Judge the size of /dev/shm inside: at least that of the node."""
    _require(found, "outside", "plain")
    inside, wanted = (_size(found.step(name)) for name in ("plain", "outside"))
    if inside is None or wanted is None:
        raise NotAvailable("the size of /dev/shm is not known (stat is missing in the image)")
    yield Metric("shm", inside / 2**30, "GiB")
    if inside < wanted:
        yield Finding("shared memory", units.format_size(inside), f"at least {units.format_size(wanted)}")


def _size(seen: StepFacts) -> int | None:
    words = seen.facts.get("shm", "").split()
    return int(words[0]) * int(words[1]) if len(words) == 2 and all(map(str.isdigit, words)) else None


@check(
    "container.room",
    cause="images fill Enroot's paths, or the user may not write there",
    hint="enroot list -f; du -sh $ENROOT_DATA_PATH/*; enroot remove of old containers; ls -ld the path",
    action=Action.MONITOR,
)
def room(room: tuple[EnrootSpace, ...], config: ContainerConfig) -> Judgement:
    """Judge free space and write permission on Enroot's data, cache and temporary paths."""
    for path in room:
        yield Metric("enroot_free", path.free / 2**30, "GiB", path.what)
        if not path.writable:
            yield Finding(f"{path.what} path {path.path}", "not writable", "writable")
        elif path.free < (least := floor(config.min_free, path.size, SHARE)):
            free = f"{units.format_size(path.free)} free of {units.format_size(path.size)}"
            yield Finding(f"{path.what} path {path.path}", free, units.format_size(least))
        elif path.inodes is not None and path.inodes < INODES:
            yield Finding(f"{path.what} path {path.path}", f"{path.inodes} inodes free", f">= {INODES}")


@check(
    "container.leftovers",
    cause="a job was killed before Pyxis could clean up, or the node was rebooted during a job",
    hint="enroot list; enroot remove -f on the node; consider an epilog that does so",
    action=Action.MONITOR,
)
def leftovers(names_before: tuple[str, ...], live_jobs: Collection[int]) -> Judgement:
    """Judge that the node has no container of a job that Slurm no longer knows."""
    yield Metric("containers", len(names_before), "containers")
    for name, job in jobs_of(names_before).items():
        if job in live_jobs:
            continue
        if may_be_named(name):
            yield Advisory(name, f"job {job} is over, if the name is not a user's", "removed with its job")
        else:
            yield Finding(name, f"job {job} is over", "removed with its job")


def _step_finding(part: str, seen: StepFacts) -> Finding:
    return Finding(part, seen.problem, "the step starts")
