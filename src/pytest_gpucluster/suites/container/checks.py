"""Checks of containers on a node, from the reports of tasks outside and inside of one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core import units
from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check, leave_to
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.fault_rules import floor
from pytest_gpucluster.core.finding import Quantity, Quote
from pytest_gpucluster.core.majority import differs
from pytest_gpucluster.core.part import Part, named
from pytest_gpucluster.core.text import count
from pytest_gpucluster.kit.container.enroot import jobs_of, may_be_named
from pytest_gpucluster.suites.container.facts import HOST_VALUE, MOUNTED, NO_LIST, PASSED, RANKS_PER_NODE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.finding import Measure
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.container.enroot import EnrootSpace
    from pytest_gpucluster.suites.container.config import ContainerConfig
    from pytest_gpucluster.suites.container.facts import ContainerFacts, StepFacts

HOOK_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # of Enroot's hook 50-slurm-pytorch.sh
UNLIMITED = "unlimited"
SHARE = 0.5  # of a path of Enroot that is smaller than twice min_free: an empty /tmp of 1 GiB has room
INODES = 10_000  # fewer files than one image has
PYXIS, OS_RELEASE = named("software", "Pyxis"), named("file", "os-release")
BY_NAME, SAVED = named("step", "container by name"), named("step", "saved image")
HOOK_FAILED = "a hook of Enroot failed"


def _require(found: ContainerFacts, *steps: str) -> None:
    """Raise NotAvailable if nothing inside can be judged; the checks of import and plugin report the fault."""
    if found.contained is False:
        leave_to(plugin(found), "the tasks ran outside of a container")
    if found.not_imported and found.not_imported.at:
        leave_to(hooks(found), HOOK_FAILED)
    elif found.not_imported:
        leave_to(imported(found), "the image could not be imported")
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
        measured = "the task ran on the node itself, outside of a container"
        yield Finding(PYXIS, measured, "a task in the container", code="outside")
    elif found.contained is None and (why := found.not_imported):
        if why.code == "no_option":
            yield why.finding(PYXIS, "--container-image is an option of srun")
            return
        leave_to(hooks(found), "no container started")
        leave_to(imported(found), "no container started")
    elif not found.not_imported and found.step("plain").problem:
        leave_to(reuse(found), "no step in the container started")
        yield NotAvailable(f"no step started, in a container or outside: {found.step('outside').problem}")
    elif found.contained is None and (why := found.step("outside").problem):
        yield why.finding(PYXIS, "a task in the container")


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
    image, why = found.imported, found.not_imported
    part = named("software", image.image)
    if why and why.at:
        leave_to(hooks(found), HOOK_FAILED)
    elif why:
        yield why.finding(part, "imported")
    elif found.node not in image.nodes:
        yield Finding(part, "no report of the import", "imported", code="no_report")
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
    problems = (found.not_imported, *(seen.problem for seen in found.seen.values()))
    failed = dict.fromkeys(why for why in problems if why and why.at)
    for why in failed:
        yield Finding(named("file", why.at), Quote(why.text), "exits with 0", code="exit_status")
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
        expected = wanted or usual_release.value or "ID and VERSION_ID"
        yield Finding(OS_RELEASE, "none in the container", expected, code="absent")
    elif not wanted:
        yield from usual_release.judge(OS_RELEASE, measured, worse=differs)
    elif measured != wanted:
        yield Finding(OS_RELEASE, Quote(measured), wanted, code="other_release")


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
        yield Finding(named("setting", "root without a flag"), "writable", "read-only", code="writable")
    if found.step("turned").facts.get("marked") != "yes":
        part = named("setting", "root with --container-writable")
        yield Finding(part, "read-only", "writable", code="read_only")


@check(
    "container.mounts",
    cause="the source does not exist on this node, or its file system denies access",
    hint="on the node: ls -ld of the source; findmnt; a step with --container-mounts",
    action=Action.CONFIGURE,
)
def mounts(found: ContainerFacts) -> Judgement:
    """Judge that mounts can be read and written, that `ro` applies, and that the cluster file's mounts work."""
    if found.not_imported or found.contained is not True:
        _require(found, "plain")
        return
    step, mount = found.step("mounts"), named("mount", "mount")
    if step.problem:
        yield step.problem.finding(named("setting", "--container-mounts"), "the step starts")
        return
    facts = step.facts
    if facts.get("token") != found.token:
        yield Finding(mount, "a file of the node is not read inside", "read", code="not_read")
    if facts.get("wrote") != "yes":
        yield Finding(mount, "not writable", "writable", code="read_only")
    elif not found.token_back:
        measured = "what was written inside is not read on the node"
        yield Finding(mount, measured, "read", code="not_read_back")
    if facts.get("ro_writable") != "no":
        yield Finding(named("mount", "mount with :ro"), "writable", "read-only", code="writable")


@check(
    "container.workdir",
    cause="the working directory is not reachable in the container",
    hint="pwd in a step with --container-image and --container-workdir=/tmp",
    action=Action.CONFIGURE,
)
def workdir(found: ContainerFacts) -> Judgement:
    """Judge that the task starts in --container-workdir."""
    _require(found, "mounts")
    folder = found.step("mounts").facts.get("workdir", "none")
    if folder != MOUNTED:
        yield Finding(named("setting", "working directory"), Quote(folder), MOUNTED, code="other_folder")


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
            words, part = ("not mounted", "mounted"), named("setting", f"home, {flag}")
            yield Finding(part, words[seen], words[mounted], code="mounted" if seen else "not_mounted")


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
    for step, flag, uid in (("turned", "--container-remap-root", "0"), ("back", "--no-container-remap-root", own)):
        inside = found.step(step).facts.get("uid", "?")
        if inside != uid:
            yield Finding(named("setting", flag), f"user {inside}", f"user {uid}", code="other_user")


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
    yield from _differing("exported variable", plain.get("env.GPUCLUSTER_PASSED"), PASSED)
    own, path = plain.get("image.PATH"), plain.get("path")
    if own and path != (plain.get("login_path") or own):
        yield from _differing("PATH", path or None, own, f"the image's: {own}")
    name = found.override
    if not name:
        return
    of_image = plain.get(f"image.{name}", "")
    without, with_option = (found.step(step).facts.get(f"env.{name}") for step in ("readonly", "turned"))
    yield from _differing(f"{name} without --container-env", without, of_image, f"the image's: {of_image}")
    yield from _differing(f"--container-env={name}", with_option, HOST_VALUE)


def _differing(
    name: str, value: str | None, wanted: str, expected: str = "", *, of: Part | None = None
) -> Iterator[Finding]:
    """Yield a finding if a variable, with the value that a task printed, differs."""
    if value != wanted:
        code = "absent" if value is None else "other_value"
        measured = "absent" if value is None else Quote(value)
        yield Finding(Part("setting", name=name, of=of), measured, expected or wanted, code=code)


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
        yield problem.finding(named("setting", "--container-entrypoint"), "the step starts")


_UNWRITTEN = "no step could write to the container's root (see container.root)"


@check(
    "container.reuse",
    cause="the node does not keep the container's name: container_scope, or an epilog that removes it",
    hint="enroot list on the node, as the same user; grep container_scope /etc/slurm/plugstack.conf*",
    action=Action.CONFIGURE,
)
def reuse(found: ContainerFacts) -> Judgement:
    """Judge that a later step finds the container by its name, with the files of an earlier step."""
    if found.not_imported or found.contained is False or found.step("outside").problem:
        _require(found)
        return
    for step in ("plain", "back"):
        if problem := found.step(step).problem:
            yield problem.finding(BY_NAME, "the step starts")
            return
    yield Metric("reuse_time", found.step("plain").seconds, "s")
    if found.step("back").facts.get("mark") != "yes":
        yield Finding(BY_NAME, "a file of an earlier step is missing", "present", code="no_file")


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
    unsaved, problem = found.step("back").unsaved, found.step("saved").problem
    refused = unsaved or problem
    if refused and refused.code == "no_space":
        raise NotAvailable(
            f"{refused}: the saved image is as large as the packed one, and no job must save it; make room in /tmp"
        )
    elif unsaved:
        part = named("setting", "--container-save")
        yield unsaved.finding(part, "saved")
    elif problem:
        yield problem.finding(SAVED, "the step starts")
    elif found.step("turned").facts.get("marked") != "yes":
        raise NotAvailable(f"{_UNWRITTEN}: the saved image has no file to recognise it by")
    elif found.step("saved").facts.get("mark") != "yes":
        yield Finding(SAVED, "lacks a file that was written before", "complete", code="no_file")


@check(
    "container.remove",
    cause="Enroot cannot list or delete the user's containers on the node",
    hint="enroot list; enroot remove -f on the node; ls -ld $ENROOT_DATA_PATH",
    action=Action.CONFIGURE,
)
def remove(found: ContainerFacts) -> Judgement:
    """Judge that a named container is listed, and no longer listed after its removal."""
    _require(found, "saved")
    why = found.not_removed
    if why and why.code == NO_LIST:
        raise NotAvailable(str(why))
    elif why:
        part = named("step", "named container")
        yield why.finding(part, "listed, then removed")


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
    if found.not_imported or found.contained is not True:
        _require(found, "plain")
        return
    if problem := found.step("gpus").problem:
        yield problem.finding(named("setting", "NVIDIA_VISIBLE_DEVICES=all"), "the step starts")
        return
    outside, inside = found.step("outside").facts, found.step("gpus").facts
    before, after = _uuids(outside), _uuids(inside)
    files, files_inside = (int(facts.get("devices", 0)) for facts in (outside, inside))
    yield Metric("gpus_inside", len(after) or files_inside, "GPUs")
    if not before and not files:
        yield NotAvailable("no GPU is seen outside of a container either: see gpu.count")
    elif before != after and before:
        lost = sorted(before - after)
        without = f"{count(len(after), 'GPU')}, without {lost[0]}" if lost else ""
        measured = Quantity(len(after), "GPUs", without)
        part = named("software", "nvidia-smi inside")
        yield Finding(part, measured, Quantity(len(before), "GPUs"), code="other_gpus")
    if files_inside != files:
        measured, expected = Quantity(files_inside, "files"), Quantity(files, "files")
        yield Finding(named("file", "/dev/nvidia*"), measured, expected, code="other_devices")


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
        measured, expected = Quantity(len(tasks), "tasks"), Quantity(RANKS_PER_NODE, "tasks")
        yield Finding(named("step", "tasks"), measured, expected, code="other_count")
    for facts in tasks:
        procid, localid = facts.get("env.SLURM_PROCID", "?"), facts.get("env.SLURM_LOCALID", "?")
        yield from _differing_ranks(facts, {"RANK": procid, "LOCAL_RANK": localid})
    hook = {name for name in HOOK_VARIABLES if any(f"env.{name}" in facts for facts in tasks)}
    if hook:
        for facts in tasks:
            job, ranks = facts.get("env.SLURM_JOB_ID", "0"), facts.get("env.SLURM_NTASKS", "?")
            port = 61000 + int(job) % 4536 if job.isdigit() else 0  # the hook's own rule
            yield from _differing_ranks(facts, {"MASTER_PORT": str(port), "WORLD_SIZE": ranks})
            if not facts.get("env.MASTER_ADDR"):
                part = named("setting", "MASTER_ADDR")
                yield Finding(part, "absent", "the first node of the step", code="absent")


def _differing_ranks(facts: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Finding]:
    rank = facts.get("env.SLURM_PROCID", "")
    part = Part("rank", int(rank) if rank.isdigit() else None)
    for name, value in wanted.items():
        yield from _differing(name, facts.get(f"env.{name}"), value, of=part)


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
    elif inside != UNLIMITED and not (inside.isdigit() and wanted.isdigit() and int(inside) >= int(wanted)):
        part = named("setting", "locked memory")
        yield Finding(part, _limit(inside), _limit(wanted), code="below_node")


def _limit(text: str) -> Measure:
    return Quantity(int(text), "KiB") if text.isdigit() else Quote(text)


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
        measured = Quantity(inside, "bytes", units.format_size(inside))
        least = Quantity(wanted, "bytes", f"at least {units.format_size(wanted)}")
        yield Finding(named("mount", "shared memory"), measured, least, code="below_node")


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
        part = named("mount", f"{path.what} path {path.path}")
        yield Metric("enroot_free", path.free / 2**30, "GiB", path.what)
        if not path.writable:
            yield Finding(part, "not writable", "writable", code="read_only")
        elif path.free < (least := floor(config.min_free, path.size, SHARE)):
            free = f"{units.format_size(path.free)} free of {units.format_size(path.size)}"
            expected = Quantity(least, "bytes", units.format_size(least))
            yield Finding(part, Quantity(path.free, "bytes", free), expected, code="no_space")
        elif path.inodes is not None and path.inodes < INODES:
            measured = Quantity(path.inodes, "inodes", f"{path.inodes} inodes free")
            yield Finding(part, measured, Quantity(INODES, "inodes", f">= {INODES}"), code="no_inodes")


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
        part, expected = Part("container", name=name), "removed with its job"
        if may_be_named(name):
            perhaps = f"job {job} is over, if the name is not a user's"
            yield Advisory(part, perhaps, expected, code="perhaps_left")
        else:
            yield Finding(part, f"job {job} is over", expected, code="left")
