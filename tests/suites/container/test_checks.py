"""Verdicts on containers: each deviation alone with its exact text, and each reason not to judge."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.check import Action, Finding, Outcome, Verdict
from pytest_gpucluster.core.errors import NotAvailable, ProbeError
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.container.containers import ImageImport
from pytest_gpucluster.kit.container.enroot import (
    SEARCH,
    EnrootSpace,
    Pyxis,
    enroot_names,
    jobs_of,
    read_names,
    read_pyxis,
    read_space,
    remove_command,
)
from pytest_gpucluster.kit.container.enroot import UNKNOWN as NO_LIST
from pytest_gpucluster.suites.container import checks
from pytest_gpucluster.suites.container.config import ContainerConfig
from pytest_gpucluster.suites.container.facts import (
    HOST_VALUE,
    MOUNTED,
    PASSED,
    ContainerFacts,
    StepFacts,
    read_facts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.majority import Norm

from typing import TYPE_CHECKING

IMAGE = ImageImport("/i.sqsh", "n", {"gpu01": 2.0}, {"gpu01": 10_000_000})
OUTSIDE = {
    "root": "8:1 /", "release": "debian 12", "uid": "1000", "memlock": "unlimited", "shm": "10 4096",
    "devices": "2", "gpu.GPU-1": "1", "gpu.GPU-2": "1",
}  # fmt: skip
INSIDE = {**OUTSIDE, "root": "8:1 /data/pyxis_x", "release": "ubuntu 24.04", "mark": "yes"}


def rank(number: int, **more: str) -> dict[str, str]:
    name = str(number)
    return {
        "env.SLURM_PROCID": name, "env.SLURM_LOCALID": name, "env.RANK": name, "env.LOCAL_RANK": name, **more
    }  # fmt: skip


def hooked(number: int, **more: str) -> dict[str, str]:
    """Facts of a task where Enroot's hook 50-slurm-pytorch.sh runs: 61000 + 4537 % 4536."""
    return rank(number) | {
        "env.SLURM_JOB_ID": "4537", "env.SLURM_NTASKS": "2",
        "env.MASTER_ADDR": "gpu01", "env.MASTER_PORT": "61001", "env.WORLD_SIZE": "2", **more,
    }  # fmt: skip


def good(**steps: Any) -> ContainerFacts:
    """A node where all is well. `STEP={...}` changes facts (None takes one away), a StepFacts replaces the step."""
    facts: dict[str, dict[str, str]] = {
        "outside": OUTSIDE,
        "plain": {**INSIDE, "env.GPUCLUSTER_PASSED": PASSED, "image.V": "own", "rc": "yes"},
        "readonly": {**INSIDE, "writable": "no", "env.V": "own"},
        "gpus": INSIDE,
        "turned": {**INSIDE, "uid": "0", "at_home": "yes", "marked": "yes", "env.V": HOST_VALUE},
        "entrypoint": INSIDE,
        "mounts": {**INSIDE, "token": "t", "wrote": "yes", "ro_writable": "no", "workdir": MOUNTED},
        "back": INSIDE,
        "saved": INSIDE,
    }
    seen = {name: StepFacts((those,), seconds=1.5) for name, those in facts.items()}
    seen["ranks"] = StepFacts((rank(0), rank(1)))
    for name, change in steps.items():
        if isinstance(change, StepFacts):
            seen[name] = change
        else:
            changed = {**facts[name], **change}
            seen[name] = StepFacts(({key: value for key, value in changed.items() if value is not None},))
    config = ContainerConfig()
    return ContainerFacts("gpu01", config, (IMAGE,), seen, gpus=2, override="V", token="t", token_back=True)


def configured(found: ContainerFacts, **keys: Any) -> ContainerFacts:
    return replace(found, config=ContainerConfig(**keys))


def sshd(server: dict[str, str] | None = None, client: dict[str, str] | None = None) -> ContainerFacts:
    """A node where sshd ran in a container and a command was answered through it."""
    of_server = {"port": "20655", "ended": "yes"} if server is None else server
    of_client = {"rc": "0", "answer": "t ubuntu 24.04 20655 "} if client is None else client
    return configured(good(sshd=StepFacts((of_server, of_client))), sshd=True)


def fleet(*releases: str) -> Norm[str]:
    return norm((f"gpu{place:02}", told) for place, told in enumerate(releases, 1))


def lines(verdict: Verdict) -> list[str]:
    return [f"{found.part}|{found.measured}|{found.expected}" for found in verdict.findings]


BROKEN = StepFacts(problem="the step ended with 1")
HOOK_FAILED = StepFacts(problem="Enroot's hook /e/hooks.d/60-x.sh exited with 3: no license")
STOPPED_BY_HOOK = replace(
    good(), imports=(replace(IMAGE, seconds={}, failed={"gpu01": HOOK_FAILED.problem}),)
)
NOT_IMPORTED = replace(good(), imports=(replace(IMAGE, seconds={}, failed={"gpu01": "no such image"}),))
BARE = good(plain={"root": "8:1 /", "release": "debian 12"})


# fmt: off
FOUND: list[tuple[Callable[[ContainerFacts], Verdict], ContainerFacts, list[str]]] = [
    (checks.hooks, good(), []),
    (checks.hooks, good(back=HOOK_FAILED, saved=HOOK_FAILED),
     ["/e/hooks.d/60-x.sh|exited with 3: no license|exits with 0"]),
    (checks.hooks, STOPPED_BY_HOOK,
     ["/e/hooks.d/60-x.sh|exited with 3: no license|exits with 0"]),
    (checks.environment, good(plain={"image.PATH": "/i", "path": "/p", "login_path": "/p"}), []),
    (checks.environment, good(plain={"image.PATH": "/i", "path": "/i", "login_path": "/p"}), []),
    (checks.environment, good(plain={"image.PATH": "/i", "path": "/hook", "login_path": "/p"}),
     ["PATH|/hook|the image's: /i"]),
    (checks.save, good(back=StepFacts(({},), unsaved="no room")), ["--container-save|no room|saved"]),
    (checks.root, good(readonly={"writable": "yes"}), ["root without a flag|writable|read-only"]),
    (checks.root, good(turned={"marked": "no"}), ["root with --container-writable|read-only|writable"]),
    (checks.mounts, good(mounts={"token": "u"}), ["mount|a file of the node is not read inside|read"]),
    (checks.mounts, good(mounts={"wrote": "no"}), ["mount|not writable|writable"]),
    (checks.mounts, replace(good(), token_back=False),
     ["mount|what was written inside is not read on the node|read"]),
    (checks.mounts, good(mounts={"ro_writable": "yes"}), ["mount with :ro|writable|read-only"]),
    (checks.mounts, good(mounts=BROKEN), ["--container-mounts|the step ended with 1|the step starts"]),
    (checks.workdir, good(mounts={"workdir": "/"}), ["working directory|/|/gpucluster-rw"]),
    (checks.workdir, good(mounts={"workdir": None}), ["working directory|none|/gpucluster-rw"]),
    (checks.home, good(plain={"at_home": "yes"}), ["home, without a flag|mounted|not mounted"]),
    (checks.home, configured(good(), mount_home=True), ["home, without a flag|not mounted|mounted"]),
    (checks.home, good(turned={"at_home": "no"}), ["home, --container-mount-home|not mounted|mounted"]),
    (checks.home, good(back={"at_home": "yes"}), ["home, --no-container-mount-home|mounted|not mounted"]),
    (checks.remap_root, good(turned={"uid": "1000"}), ["--container-remap-root|user 1000|user 0"]),
    (checks.remap_root, good(back={"uid": "0"}), ["--no-container-remap-root|user 0|user 1000"]),
    (checks.remap_root, good(turned={"uid": None}), ["--container-remap-root|user ?|user 0"]),
    (checks.remap_root, good(outside={"uid": None}), ["--no-container-remap-root|user 1000|user ?"]),
    (checks.environment, good(plain={"env.GPUCLUSTER_PASSED": None}), ["exported variable|absent|passed-through"]),
    (checks.environment, good(plain={"image.PATH": "/opt:/bin", "path": "/bin"}),
     ["PATH|/bin|the image's: /opt:/bin"]),
    (checks.environment, good(plain={"image.PATH": "/opt"}), ["PATH|absent|the image's: /opt"]),
    (checks.environment, good(readonly={"env.V": HOST_VALUE}),
     ["V without --container-env|gpucluster-outside|the image's: own"]),
    (checks.environment, good(readonly={"env.V": None}), ["V without --container-env|absent|the image's: own"]),
    (checks.environment, good(turned={"env.V": "own"}), ["--container-env=V|own|gpucluster-outside"]),
    (checks.environment, good(turned={"env.V": None}), ["--container-env=V|absent|gpucluster-outside"]),
    (checks.environment, replace(good(readonly={"env.V": "x"}, turned={"env.V": "x"}), override=""), []),
    (checks.environment, good(plain={"image.PATH": "/opt", "path": "/opt"}), []),
    (checks.entrypoint, replace(good(entrypoint=BROKEN), entrypoint_elsewhere=True), ["--container-entrypoint|the step ended with 1|the step starts"]),
    (checks.entrypoint, configured(good(), entrypoint_sets="E"),
     ["E, --container-entrypoint|not set|set"]),
    (checks.entrypoint, configured(good(entrypoint={"env.E": "1"}, back={"env.E": "1"}), entrypoint_sets="E"),
     ["E, --no-container-entrypoint|set|not set"]),
    (checks.entrypoint, configured(good(entrypoint={"env.E": "1"}), entrypoint_sets="E"), []),
    (checks.reuse, good(plain=BROKEN), ["container by name|the step ended with 1|the step starts"]),
    (checks.reuse, good(back=BROKEN), ["container by name|the step ended with 1|the step starts"]),
    (checks.reuse, good(back={"mark": "no"}), ["container by name|a file of an earlier step is missing|present"]),
    (checks.save, good(saved=BROKEN), ["saved image|the step ended with 1|the step starts"]),
    (checks.save, good(saved={"mark": "no"}), ["saved image|lacks a file that was written before|complete"]),
    (checks.remove, replace(good(), saved_removed="still listed"),
     ["named container|still listed|listed, then removed"]),
    (checks.gpus, good(gpus=BROKEN), ["NVIDIA_VISIBLE_DEVICES=all|the step ended with 1|the step starts"]),
    (checks.gpus, good(gpus={"gpu.GPU-2": None}), ["nvidia-smi inside|1 GPUs, without GPU-2|2 GPUs"]),
    (checks.gpus, good(gpus={"gpu.GPU-3": "1"}), ["nvidia-smi inside|3 GPUs|2 GPUs"]),
    (checks.gpus, good(gpus={"devices": "1"}), ["/dev/nvidia*|1|2"]),
    (checks.gpus, good(gpus={"devices": None}), ["/dev/nvidia*|none|2"]),
    (checks.gpus, good(outside={"devices": None}), ["/dev/nvidia*|2|none"]),
    # a host without nvidia-smi, whose image has it
    (checks.gpus, good(outside={"gpu.GPU-1": None, "gpu.GPU-2": None}), []),
    (checks.ranks, good(ranks=StepFacts((rank(0),))), ["tasks|1|2"]),
    (checks.ranks, good(ranks=StepFacts((rank(0), rank(1, **{"env.RANK": "0"})))), ["rank 1: RANK|0|1"]),
    (checks.ranks, good(ranks=StepFacts((rank(0), rank(1, **{"env.LOCAL_RANK": "0"})))), ["rank 1: LOCAL_RANK|0|1"]),
    (checks.ranks, good(ranks=StepFacts((rank(0), {}))),
     ["rank ?: RANK|not set|?", "rank ?: LOCAL_RANK|not set|?"]),
    (checks.ranks, good(ranks=StepFacts((hooked(0), hooked(1)))), []),
    (checks.ranks, configured(good(ranks=StepFacts((hooked(0), hooked(1)))), rank_hook=True), []),
    (checks.ranks, configured(good(), rank_hook=False), []),
    (checks.ranks, configured(good(ranks=StepFacts((rank(0), hooked(1)))), rank_hook=False),
     [f"{name}|set|not set: container.rank_hook is false" for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")]),
    (checks.ranks, good(ranks=StepFacts((hooked(0), hooked(1, **{"env.WORLD_SIZE": "3"})))), ["rank 1: WORLD_SIZE|3|2"]),
    (checks.ranks, good(ranks=StepFacts((hooked(0, **{"env.MASTER_PORT": "1"}), hooked(1)))),
     ["rank 0: MASTER_PORT|1|61001"]),
    (checks.ranks, good(ranks=StepFacts((hooked(0), hooked(1, **{"env.MASTER_ADDR": ""})))),
     ["MASTER_ADDR|not set|the first node of the step"]),
    (checks.ranks, good(ranks=StepFacts((hooked(0), hooked(1, **{"env.SLURM_JOB_ID": "4_1"})))),
     ["rank 1: MASTER_PORT|61001|0"]),
    (checks.ranks, configured(good(), rank_hook=True),
     [line for number in "01" for line in (
         f"rank {number}: MASTER_PORT|not set|61000", f"rank {number}: WORLD_SIZE|not set|?",
         "MASTER_ADDR|not set|the first node of the step")]),
    (checks.memlock, good(plain={"memlock": "64"}), ["locked memory|64 KiB|unlimited"]),
    (checks.memlock, configured(good(plain={"memlock": "63"}), memlock="64"), ["locked memory|63 KiB|64 KiB"]),
    (checks.memlock, configured(good(plain={"memlock": "64"}), memlock="64"), []),
    (checks.memlock, configured(good(), memlock="64"), []),
    (checks.memlock, configured(good(outside={"memlock": None}), memlock="64"), []),
    (checks.shm, good(plain={"shm": "9 4096"}), ["shared memory|36 KiB|at least 40 KiB"]),
    (checks.shm, configured(good(), shm=42000), ["shared memory|40 KiB|at least 41.02 KiB"]),
    (checks.shm, configured(good(), shm=40960), []),
    (checks.imported, replace(good(), imports=(replace(IMAGE, seconds={}, failed={"gpu01": "damaged"}),)),
     ["/i.sqsh|damaged|imported"]),
    (checks.imported, replace(good(), imports=(IMAGE, ImageImport("/j.sqsh", "m"))),
     ["/j.sqsh|no report of the import|imported"]),
    (checks.imported, replace(good(), imports=(ImageImport("/i.sqsh", "n", reused=("gpu01",)),)), []),
    (lambda found: checks.release(found, fleet()), configured(good(), release="ubuntu 22.04"),
     ["os-release|ubuntu 24.04|ubuntu 22.04"]),
    (lambda found: checks.release(found, fleet("a 1", "b 2", "b 2")), good(),
     ["os-release|ubuntu 24.04|b 2, as on 2 of 3 nodes"]),
    (lambda found: checks.release(found, fleet("ubuntu 24.04", "b 2")), good(),
     ["os-release|ubuntu 24.04|one value on all nodes; no majority: ubuntu 24.04 on gpu01, b 2 on gpu02"]),
    (lambda found: checks.release(found, fleet("ubuntu 24.04", "ubuntu 24.04")), good(), []),
    (lambda found: checks.release(found, fleet()), good(plain={"release": None}),
     ["os-release|none in the container|ID and VERSION_ID"]),
    (lambda found: checks.release(found, fleet("b 2", "b 2")), good(plain={"release": None}),
     ["os-release|none in the container|b 2"]),
    (lambda found: checks.plugin(found, Pyxis()), BARE,
     ["Pyxis|the task ran on the node itself, outside of a container|a task in the container"]),
    (lambda found: checks.plugin(found, Pyxis()), good(outside=BROKEN),
     ["Pyxis|the step ended with 1|a task in the container"]),
    (lambda found: checks.plugin(found, Pyxis()),
     replace(NOT_IMPORTED, seen={}, imports=(ImageImport("/i", "n", failed={"gpu01": "srun has no option --x"}),)),
     ["Pyxis|srun has no option --x|--container-image is an option of srun"]),
    (lambda found: checks.plugin(found, Pyxis("so", "0.23.1")), configured(good(), version="0.24"),
     ["version of Pyxis|0.23.1|0.24"]),
    (checks.sshd, sshd(), []),
    (checks.sshd, sshd({"problem": "the image has no sshd"}, {"refused": "yes"}),
     ["sshd|the image has no sshd|runs in the container"]),
    (checks.sshd, sshd(client={"rc": "255", "message": "Permission denied"}),
     ["ssh|Permission denied|runs a command in the container"]),
    (checks.sshd, sshd(client={"rc": "255"}), ["ssh|exit status 255|runs a command in the container"]),
    (checks.sshd, sshd(client={}), ["ssh|exit status unknown|runs a command in the container"]),
    (checks.sshd, sshd(client={"rc": "0", "answer": "t debian 12 20655"}),
     ["answer through ssh|t debian 12 20655|t ubuntu 24.04 20655"]),
    (checks.sshd, sshd({"port": "20655"}), ["sshd|did not end|ends with its step"]),
    (checks.sshd, configured(good(sshd=BROKEN), sshd=True), ["sshd|the step ended with 1|runs in the container"]),
    (lambda found: checks.plugin(found, Pyxis("so", "0.24.1")), configured(good(), version="0.24"), []),
]
# fmt: on


@pytest.mark.parametrize(("judge", "given", "expected"), FOUND)
def test_what_is_wrong_has_its_exact_text(
    judge: Callable[[ContainerFacts], Verdict], given: ContainerFacts, expected: list[str]
) -> None:
    verdict = judge(given)
    assert lines(verdict) == expected
    assert verdict.outcome is (Outcome.FAILED if expected else Outcome.PASSED)


NO_IMPORT = "the image could not be imported, which container.import judges"
NO_CONTAINER = "the tasks ran outside of a container, which container.plugin judges"
STEPS: dict[Callable[[ContainerFacts], Verdict], tuple[str, ...]] = {
    checks.root: ("outside", "plain", "readonly", "turned"),
    checks.workdir: ("outside", "plain", "mounts"),
    checks.home: ("outside", "plain", "turned", "back"),
    checks.remap_root: ("outside", "plain", "turned", "back"),
    checks.environment: ("outside", "plain", "readonly", "turned"),
    checks.entrypoint: ("outside", "plain", "back"),
    checks.save: ("outside", "plain", "back"),
    checks.remove: ("outside", "plain", "saved"),
    checks.ranks: ("outside", "plain", "ranks"),
    checks.memlock: ("outside", "plain"),
    checks.shm: ("outside", "plain"),
    checks.mounts: ("outside", "plain"),
    checks.gpus: ("outside", "plain"),
}


@pytest.mark.parametrize("judge", STEPS)
def test_what_needs_a_step_is_not_checked_without_it(judge: Callable[[ContainerFacts], Verdict]) -> None:
    for step in STEPS[judge]:
        verdict = judge(good(**{step: BROKEN}))
        assert (verdict.outcome, verdict.reason) == (
            Outcome.NOT_CHECKED,
            f"step {step!r}: the step ended with 1",
        )
        assert not verdict.metrics
    assert judge(NOT_IMPORTED).reason == NO_IMPORT
    assert judge(BARE).reason == NO_CONTAINER
    unknown = judge(replace(good(), seen={}))
    assert unknown.reason == "step 'outside': the step was not run on this node"


# fmt: off
UNKNOWN: list[tuple[Callable[[], Verdict], Outcome, str]] = [
    (lambda: checks.plugin(good(plain=BROKEN), Pyxis()), Outcome.NOT_CHECKED,
     "no step in the container started, which container.reuse judges"),
    (lambda: checks.plugin(replace(NOT_IMPORTED, seen={}), Pyxis()), Outcome.NOT_CHECKED,
     "no container started, which container.import judges"),
    (lambda: checks.plugin(configured(good(), version="0.24"), Pyxis(absent="no plugstack.conf")), Outcome.NOT_CHECKED,
     "the version of Pyxis is not known: no plugstack.conf"),
    (lambda: checks.plugin(configured(good(), version="0.24"), Pyxis(absent="no line")), Outcome.NOT_CHECKED,
     "the version of Pyxis is not known: no line"),
    (lambda: checks.plugin(configured(good(), version="0.24"), Pyxis("/p.so")), Outcome.NOT_CHECKED,
     "the version of Pyxis is not known: /p.so does not state it"),
    (lambda: checks.imported(STOPPED_BY_HOOK), Outcome.NOT_CHECKED,
     "a hook of Enroot failed, which container.hooks judges"),
    (lambda: checks.root(STOPPED_BY_HOOK), Outcome.NOT_CHECKED,
     "a hook of Enroot failed, which container.hooks judges"),
    (lambda: checks.plugin(replace(STOPPED_BY_HOOK, seen={}), Pyxis()), Outcome.NOT_CHECKED,
     "no container started, which container.hooks judges"),
    (lambda: checks.hooks(NOT_IMPORTED), Outcome.NOT_CHECKED, NO_IMPORT),
    (lambda: checks.hooks(BARE), Outcome.NOT_CHECKED, NO_CONTAINER),
    (lambda: checks.remove(replace(good(), saved_removed=NO_LIST)), Outcome.NOT_CHECKED, NO_LIST),
    (lambda: checks.imported(BARE), Outcome.NOT_CHECKED, NO_CONTAINER),
    (lambda: checks.release(BARE, fleet()), Outcome.NOT_CHECKED, NO_CONTAINER),
    (lambda: checks.reuse(BARE), Outcome.NOT_CHECKED, NO_CONTAINER),
    (lambda: checks.reuse(NOT_IMPORTED), Outcome.NOT_CHECKED, NO_IMPORT),
    (lambda: checks.reuse(good(outside=BROKEN)), Outcome.NOT_CHECKED, "step 'outside': the step ended with 1"),
    (lambda: checks.entrypoint(good(plain={"rc": "no"})), Outcome.NOT_APPLICABLE,
     "the image has no entrypoint (/etc/rc)"),
    # an image whose entrypoint is a program of its own, a folder without room for the packed image: no fault
    (lambda: checks.entrypoint(good(entrypoint=BROKEN)), Outcome.NOT_CHECKED,
     "the image's entrypoint starts no command (the step ended with 1); if jobs use it, name a variable that it sets: "
     "container.entrypoint_sets"),
    (lambda: checks.entrypoint(configured(good(), entrypoint_sets="V")), Outcome.NOT_CHECKED,
     "V is set without the entrypoint too: name another variable in container.entrypoint_sets"),
    (lambda: checks.entrypoint(configured(good(turned=BROKEN), entrypoint_sets="E")), Outcome.NOT_CHECKED,
     "no step could write to the container's root (see container.root), so Pyxis' /etc/rc.local still disables the entrypoint"),
    (lambda: checks.save(good(back=StepFacts(({},), unsaved="no space on the node (x)"))), Outcome.NOT_CHECKED,
     "no space on the node (x): the saved image is as large as the packed one, and no job must save it; let "
     "container.scratch name a folder with more room, or set container.save: false"),
    (lambda: checks.save(good(turned=BROKEN, saved={"mark": "no"})), Outcome.NOT_CHECKED,
     "no step could write to the container's root (see container.root): the saved image has no file to recognise it by"),
    (lambda: checks.save(configured(good(), save=False)), Outcome.NOT_APPLICABLE, "container.save is false"),
    (lambda: checks.remove(configured(good(), save=False)), Outcome.NOT_APPLICABLE,
     "container.save is false: there is no second container to remove"),
    (lambda: checks.gpus(replace(good(), gpus=0)), Outcome.NOT_APPLICABLE, "the node has no GPUs"),
    (lambda: checks.gpus(good(outside={"devices": None, "gpu.GPU-1": None, "gpu.GPU-2": None},
                      gpus={"devices": None, "gpu.GPU-1": None, "gpu.GPU-2": None})), Outcome.NOT_CHECKED,
     "no GPU is seen outside of a container either: see gpu.count"),
    (lambda: checks.memlock(good(plain={"memlock": None})), Outcome.NOT_CHECKED,
     "the image's shell does not print its limits (ulimit -l)"),
    (lambda: checks.memlock(good(outside={"memlock": None})), Outcome.NOT_CHECKED,
     "the node's shell does not print its limits (ulimit -l): set container.memlock"),
    (lambda: checks.sshd(good()), Outcome.NOT_APPLICABLE, "container.sshd is false: no sshd is started"),
    (lambda: checks.sshd(configured(good(plain={"uid": "0"}), sshd=True)), Outcome.NOT_APPLICABLE,
     "the step runs as root, whose sshd needs setgroups, which a container refuses: run as a user"),
    (lambda: checks.sshd(configured(NOT_IMPORTED, sshd=True)), Outcome.NOT_CHECKED, NO_IMPORT),
    *((functools.partial(checks.shm, good(**{step: {"shm": text}})), Outcome.NOT_CHECKED,
       "the size of /dev/shm is not known (stat is missing in the image)")
      for step, text in (("plain", ""), ("plain", "x 1"), ("plain", "1"), ("outside", "1 2 3"))),
]
# fmt: on


@pytest.mark.parametrize(("judge", "outcome", "reason"), UNKNOWN)
def test_what_is_not_judged_says_why(judge: Callable[[], Verdict], outcome: Outcome, reason: str) -> None:
    verdict = judge()
    assert (verdict.outcome, verdict.reason, verdict.findings) == (outcome, reason, ())


def test_metrics() -> None:
    assert [(it.name, it.value, it.unit, it.device) for it in checks.imported(good()).metrics] == [
        ("import_time", 2.0, "s", "/i.sqsh"),
        ("import_throughput", 5.0, "MB/s", "/i.sqsh"),
    ]
    (reuse,) = checks.reuse(good()).metrics
    assert (reuse.name, reuse.value, reuse.unit) == ("reuse_time", 1.5, "s")
    (inside,) = checks.gpus(good()).metrics
    assert (inside.name, inside.value, inside.unit) == ("gpus_inside", 2, "GPUs")
    gone: dict[str, Any] = {"gpu.GPU-1": None, "gpu.GPU-2": None}
    assert checks.gpus(good(gpus=gone)).metrics[0].value == 2.0
    assert checks.gpus(good(gpus={**gone, "devices": None})).metrics[0].value == 0.0
    (shm,) = checks.shm(good(plain={"shm": f"{2**19} 4096"})).metrics
    assert (shm.name, shm.value, shm.unit) == ("shm", 2.0, "GiB")


def test_room_of_enroot() -> None:
    config = ContainerConfig(min_free=2**30)
    enough, little = (
        EnrootSpace("data", "/d", 2**30, 2**40, writable=True),
        EnrootSpace("cache", "/c", 2**30 - 1, 2**40, writable=True),
    )
    closed = EnrootSpace("temp", "/t", 0, 2**40, writable=False)
    verdict = checks.room((enough, little, closed), config)
    assert lines(verdict) == [
        "cache path /c|1024 MiB free of 1 TiB|1 GiB",
        "temp path /t|not writable|writable",
    ]
    assert next((it.name, it.value, it.unit, it.device) for it in verdict.metrics) == (
        "enroot_free", 1.0, "GiB", "data",
    )  # fmt: skip
    assert verdict.action is Action.MONITOR


def test_leftovers_are_containers_of_jobs_that_are_over() -> None:
    names = ("pyxis_7_x", "pyxis_8.0", "pyxis_9_9.1", "pyxis_named", "mine")
    verdict = checks.leftovers(names, {8})
    assert [it.part for it in verdict.advisories] == ["pyxis_7_x"]  # may be a user's name
    assert lines(verdict) == ["pyxis_9_9.1|job 9 is over|removed with its job"]
    assert [(it.name, it.value, it.unit) for it in verdict.metrics] == [("containers", 5, "containers")]
    assert jobs_of(names) == {"pyxis_7_x": 7, "pyxis_8.0": 8, "pyxis_9_9.1": 9}


@pytest.mark.parametrize(
    ("judge", "action"),
    [(checks.root, Action.CONFIGURE), (checks.home, Action.CONFIGURE), (checks.remove, Action.CONFIGURE),
     (checks.mounts, Action.CONFIGURE), (checks.gpus, Action.CONFIGURE), (checks.workdir, Action.CONFIGURE)],
)  # fmt: skip
def test_settings_of_a_site_drain_no_node(judge: Callable[[ContainerFacts], Verdict], action: Action) -> None:
    assert judge(good()).action is action


# -- what is read -----------------------------------------------------------------------------------------------


def test_contained_is_recognised_by_root_or_release() -> None:
    assert good().contained is True
    assert BARE.contained is False
    assert good(plain={"root": "8:1 /"}).contained is True
    assert good(plain={"release": "debian 12"}).contained is True
    assert good(outside=BROKEN).contained is None
    assert good(plain=BROKEN).contained is None


def test_facts_are_lines_with_the_mark() -> None:
    assert read_facts("c|a|1\nc|b|x|y\nd|a|2\nc|a\nc|e|\n") == {"a": "1", "b": "x|y", "e": ""}


def test_throughput_needs_size_and_time() -> None:
    assert IMAGE.throughput("gpu01") == 5.0
    assert IMAGE.throughput("gpu02") is None
    assert replace(IMAGE, size={}).throughput("gpu01") is None
    assert replace(IMAGE, seconds={"gpu01": 0.0}).throughput("gpu01") is None
    assert replace(IMAGE, reused=("gpu02",)).nodes == ("gpu01", "gpu02")


def test_pyxis_is_library_and_version() -> None:
    assert read_pyxis(Answer("gpu01", 0, b"so /p.so\npyxis: version v0.24.0\n", b"")) == Pyxis(
        "/p.so", "0.24.0"
    )
    assert read_pyxis(Answer("gpu01", 0, b"so /p.so\n", b"")) == Pyxis("/p.so")
    assert read_pyxis(Answer("gpu01", 0, b"no plugstack.conf \n", b"")) == Pyxis(absent="no plugstack.conf")
    assert read_pyxis(Answer("gpu01", 0, b"a\nb\n", b"")) == Pyxis(absent="b")


def test_room_is_free_blocks_and_rights() -> None:
    assert read_space(Answer("gpu01", 0, b"data 10 20 4096 5 9 rw /d d\ntemp 1 2 512 0 0 ro /t\n", b"")) == (
        EnrootSpace("data", "/d d", 40960, 81920, writable=True, inodes=5),
        EnrootSpace("temp", "/t", 512, 1024, writable=False),
    )
    with pytest.raises(ProbeError, match="space of enroot: not understood: 'data x'"):
        read_space(Answer("gpu01", 0, b"data x\n", b""))


def test_names_are_lines() -> None:
    assert read_names(Answer("gpu01", 0, b" a \n\nb\n", b"")) == ("a", "b")
    with pytest.raises(NotAvailable, match="enroot is not found on PATH"):
        read_names(Answer("gpu01", 127, b"", b"sh: enroot: not found"))
    assert enroot_names(("pyxis_x", "pyxis_7_x", "pyxis_xy", "x"), "x") == ("pyxis_x", "pyxis_7_x")
    assert remove_command(("a", "b c")) == f"{SEARCH}; enroot remove -f a 'b c' </dev/null"


def test_what_did_not_start_is_reported_once() -> None:
    found = good(entrypoint=StepFacts(problem="refused"))
    found = replace(found, config=found.config.model_copy(update={"entrypoint_sets": "X"}))
    assert checks.entrypoint(found).findings == (
        Finding("--container-entrypoint", "refused", "the step starts"),
    )
    bare = replace(found, seen={**found.seen, "plain": StepFacts((INSIDE,))})
    assert (checks.entrypoint(bare).outcome, checks.entrypoint(bare).reason) == (
        Outcome.NOT_APPLICABLE,
        "the image has no entrypoint (/etc/rc)",
    )
    broken = replace(good(), gpus=2, imports=(replace(IMAGE, failed={"gpu01": "gone"}),))
    for verdict in (checks.gpus(broken), checks.mounts(broken), checks.reuse(broken)):
        assert (verdict.outcome, verdict.findings, verdict.metrics) == (Outcome.NOT_CHECKED, (), ())
        assert verdict.reason == "the image could not be imported, which container.import judges"
    none = checks.gpus(replace(broken, gpus=0))
    assert (none.outcome, none.reason) == (Outcome.NOT_APPLICABLE, "the node has no GPUs")
    silent = replace(good(gpus=StepFacts(problem="refused")), gpus=2)
    assert checks.gpus(silent).findings == (
        Finding("NVIDIA_VISIBLE_DEVICES=all", "refused", "the step starts"),
    )
    for step, part in (("plain", "container by name"), ("back", "container by name")):
        assert checks.reuse(good(**{step: StepFacts(problem="no")})).findings == (
            Finding(part, "no", "the step starts"),
        )


# -- pure checks ------------------------------------------------------------------------------------------------


def healthy(**changes: dict[str, str]) -> ContainerFacts:
    """Facts of a node where all is well; a change replaces facts of one step."""
    outside = {
        "root": "8:1 /",
        "release": "debian 12",
        "uid": "1000",
        "memlock": "unlimited",
        "shm": "10 4096",
    }
    outside |= {"devices": "2", "gpu.GPU-1": "1", "gpu.GPU-2": "1"}
    inside = {**outside, "root": "8:1 /data/pyxis_x", "release": "ubuntu 24.04", "mark": "yes"}
    steps = {
        "outside": outside,
        "plain": {**inside, "env.GPUCLUSTER_PASSED": PASSED, "image.V": "own", "rc": "yes"},
        "readonly": {**inside, "writable": "no", "env.V": "own"},
        "gpus": inside,
        "turned": {**inside, "uid": "0", "at_home": "yes", "marked": "yes", "env.V": "gpucluster-outside"},
        "entrypoint": inside,
        "mounts": {**inside, "token": "t", "wrote": "yes", "ro_writable": "no", "workdir": MOUNTED},
        "back": inside,
        "saved": inside,
    }
    seen = {name: StepFacts(({**facts, **changes.get(name, {})},)) for name, facts in steps.items()}
    ranks = [
        {
            "env.SLURM_PROCID": str(n),
            "env.SLURM_LOCALID": str(n),
            "env.RANK": str(n),
            "env.LOCAL_RANK": str(n),
        }
        for n in range(2)
    ]
    seen["ranks"] = StepFacts(tuple({**facts, **changes.get("ranks", {})} for facts in ranks))
    imports = (ImageImport("/i.sqsh", "n", {"gpu01": 2.0}, {"gpu01": 10_000_000}),)
    return ContainerFacts(
        "gpu01", ContainerConfig(), imports, seen, gpus=2, override="V", token="t", token_back=True
    )


PURE = {
    "container.root": (checks.root, {"readonly": {"writable": "yes"}}),
    "container.mounts": (checks.mounts, {"mounts": {"token": "other"}}),
    "container.workdir": (checks.workdir, {"mounts": {"workdir": "/"}}),
    "container.home": (checks.home, {"plain": {"at_home": "yes"}}),
    "container.remap_root": (checks.remap_root, {"back": {"uid": "0"}}),
    "container.environment": (checks.environment, {"readonly": {"env.V": "gpucluster-outside"}}),
    "container.reuse": (checks.reuse, {"back": {"mark": "no"}}),
    "container.save": (checks.save, {"saved": {"mark": "no"}}),
    "container.gpus": (checks.gpus, {"gpus": {"devices": "1"}}),
    "container.ranks": (checks.ranks, {"ranks": {"env.LOCAL_RANK": "7"}}),
    "container.memlock": (checks.memlock, {"plain": {"memlock": "64"}}),
    "container.shm": (checks.shm, {"plain": {"shm": "1 4096"}}),
}


@pytest.mark.parametrize("name", PURE)
def test_check_finds_what_is_wrong(name: str) -> None:
    function, change = PURE[name]
    assert function(healthy()).outcome is Outcome.PASSED
    bad = function(healthy(**change))
    assert (bad.check, bad.outcome) == (name, Outcome.FAILED)


@pytest.mark.parametrize("name", PURE)
def test_nothing_known_is_never_a_pass(name: str) -> None:
    unknown = ContainerFacts("gpu01", ContainerConfig(), (ImageImport("/i.sqsh", "n"),), {}, gpus=2)
    assert PURE[name][0](unknown).outcome is not Outcome.PASSED


@pytest.mark.parametrize(
    ("others", "reported", "expected", "action"),
    [
        (("ubuntu 24.04", "ubuntu 24.04"), "debian 12", "ubuntu 24.04, as on 2 of 3 nodes", Action.CONFIGURE),
        (
            ("ubuntu 24.04",),
            "debian 12",
            "one value on all nodes; no majority: debian 12 on gpu01, ubuntu 24.04 on gpu02",
            Action.CONFIGURE,
        ),
        (("ubuntu 24.04", "ubuntu 24.04"), "", "ubuntu 24.04", Action.CONFIGURE),
        ((), "", "ID and VERSION_ID", Action.CONFIGURE),
    ],
)
def test_the_release_in_the_container_is_that_of_most_nodes(
    others: tuple[str, ...], reported: str, expected: str, action: Action
) -> None:
    votes = norm((f"gpu{n:02}", value) for n, value in enumerate((reported, *others), 1))
    verdict = checks.release(healthy(plain={"release": reported}), votes)
    (found,) = verdict.findings
    assert (found.part, found.measured, found.expected, verdict.action) == (
        "os-release",
        reported or "none in the container",
        expected,
        action,
    )
    stated = replace(healthy(), config=ContainerConfig(release="ubuntu 22.04"))
    (found,) = checks.release(stated, norm([("gpu01", "ubuntu 24.04")] * 3)).findings
    assert (found.measured, found.expected) == ("ubuntu 24.04", "ubuntu 22.04")


def test_a_task_outside_is_the_plugin_s_fault() -> None:
    same = {"root": "8:1 /", "release": "debian 12"}
    found = healthy(plain=same)
    assert checks.plugin(found, Pyxis()).outcome is Outcome.FAILED
    assert checks.imported(found).outcome is Outcome.NOT_CHECKED
