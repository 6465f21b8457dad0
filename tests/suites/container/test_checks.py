"""Verdicts on containers: each deviation alone, and each reason not to judge."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import MONITOR, PASSED, WARNING, CounterExample
from framework_helpers import Table, decided, told
from suite_helpers import considered

from pytest_gpucluster.cluster.slurm.pyxis import unexplained
from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.kit.container.enroot import (
    NAMES,
    SEARCH,
    UNKNOWN,
    Pyxis,
    enroot_names,
    jobs_of,
    read_names,
    read_pyxis,
    read_space,
    remove_command,
)
from pytest_gpucluster.suites.container import checks
from pytest_gpucluster.suites.container import facts as container_facts
from pytest_gpucluster.suites.container.config import ContainerConfig
from pytest_gpucluster.suites.container.containers import ImageImport
from pytest_gpucluster.suites.container.facts import HOST_VALUE, MOUNTED, NO_LIST, ContainerFacts, StepFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.majority import Norm

IMAGE = ImageImport("/i.sqsh", "n", {"gpu01": 2.0}, {"gpu01": 10_000_000})
OUTSIDE = {
    "root": "8:1 /",
    "release": "debian 12",
    "uid": "1000",
    "memlock": "unlimited",
    "shm": "10 4096",
    "devices": "2",
    "gpu.GPU-1": "1",
    "gpu.GPU-2": "1",
}
INSIDE = {**OUTSIDE, "root": "8:1 /data/pyxis_x", "release": "ubuntu 24.04", "mark": "yes"}


def rank(number: int, **more: str) -> dict[str, str]:
    names = ("SLURM_PROCID", "SLURM_LOCALID", "RANK", "LOCAL_RANK")
    own = dict.fromkeys(names, str(number)) | more
    return {f"env.{name}": value for name, value in own.items()}


def hooked(number: int, **more: str) -> dict[str, str]:
    """Facts of a task where Enroot's hook 50-slurm-pytorch.sh runs: 61000 + 4537 % 4536."""
    of_slurm = {"SLURM_JOB_ID": "4537", "SLURM_NTASKS": "2"}
    of_hook = {"MASTER_ADDR": "gpu01", "MASTER_PORT": "61001", "WORLD_SIZE": "2"}
    return rank(number, **of_slurm | of_hook | more)


def good(**steps: Any) -> ContainerFacts:
    """A node where all is well. `STEP={...}` changes facts (None takes one away), a StepFacts replaces the step."""
    facts: dict[str, dict[str, str]] = {
        "outside": OUTSIDE,
        "plain": {**INSIDE, "env.GPUCLUSTER_PASSED": container_facts.PASSED, "image.V": "own", "rc": "yes"},
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
    for step, change in steps.items():
        if isinstance(change, StepFacts):
            seen[step] = change
        else:
            changed = {**facts[step], **change}
            seen[step] = StepFacts(({key: value for key, value in changed.items() if value is not None},))
    config = ContainerConfig()
    return ContainerFacts("gpu01", config, IMAGE, seen, gpus=2, override="V", token="t", token_back=True)


def site(steps: dict[str, Any], **keys: Any) -> ContainerFacts:
    """Return a node with these keys in the cluster file."""
    return replace(good(**steps), config=ContainerConfig(**keys))


def ranks(*tasks: dict[str, str]) -> ContainerFacts:
    return good(ranks=StepFacts(tasks))


def not_imported(why: Explanation, **facts: Any) -> ContainerFacts:
    return replace(good(), imported=replace(IMAGE, seconds={}, failed={"gpu01": why}), **facts)


def fleet(*releases: str) -> Norm[str]:
    return norm((f"gpu{place:02}", told) for place, told in enumerate(releases, 1))


BROKEN = StepFacts(problem=Explanation("other", "the step ended with 1"))
STOPPED_BY_HOOK = not_imported(Explanation("hook", "exited with 3: no license", "/e/hooks.d/60-x.sh"))
NOT_IMPORTED = not_imported(unexplained("no such image"))
BARE = good(plain={"root": "8:1 /", "release": "debian 12"})
NO_UUIDS: dict[str, Any] = {"gpu.GPU-1": None, "gpu.GPU-2": None}
NO_DEVICES = {**NO_UUIDS, "devices": None}


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
    assert judge(good()).outcome is Outcome.PASSED
    for step in STEPS[judge]:
        verdict = judge(good(**{step: BROKEN}))
        assert (verdict.outcome, verdict.metrics) == (Outcome.NOT_CHECKED, ())
        assert verdict.reason == f"step {step!r}: the step ended with 1"
    assert "container.import" in judge(NOT_IMPORTED).reason
    assert "container.plugin" in judge(BARE).reason
    assert "not run on this node" in judge(replace(good(), seen={})).reason


CASES: Table = {
    checks.hooks: [
        ("not checked", BARE),
        ("passed", good()),
        ("configure: /e/hooks.d/60-x.sh [3, 0]", STOPPED_BY_HOOK),
        ("not checked", NOT_IMPORTED),
    ],
    checks.environment: [
        ("configure: --container-env=V", good(turned={"env.V": "own"})),
        ("configure: V without --container-env", good(readonly={"env.V": HOST_VALUE})),
        ("passed", good(plain={"image.PATH": "/i", "path": "/p", "login_path": "/p"})),
        ("configure: PATH", good(plain={"image.PATH": "/i", "path": "/hook", "login_path": "/p"})),
        ("configure: exported variable", good(plain={"env.GPUCLUSTER_PASSED": None})),
        ("configure: PATH", good(plain={"image.PATH": "/opt"})),
        ("passed", replace(good(readonly={"env.V": "x"}, turned={"env.V": "x"}), override="")),
    ],
    checks.save: [
        ("configure: --container-save", good(back=StepFacts(({},), unsaved=unexplained("no room")))),
        ("configure: saved image [1]", good(saved=BROKEN)),
        ("configure: saved image", good(saved={"mark": "no"})),
        ("not checked", good(back=StepFacts(({},), unsaved=unexplained("no space on the node (x)")))),
        ("not checked", good(turned=BROKEN, saved={"mark": "no"})),
    ],
    checks.root: [
        ("configure: root without a flag", good(readonly={"writable": "yes"})),
        ("configure: root with --container-writable", good(turned={"marked": "no"})),
        ("not checked", STOPPED_BY_HOOK),
    ],
    checks.mounts: [
        ("configure: mount", good(mounts={"token": "u"})),
        ("configure: mount", good(mounts={"wrote": "no"})),
        ("configure: mount", replace(good(), token_back=False)),
        ("configure: mount with :ro", good(mounts={"ro_writable": "yes"})),
        ("configure: --container-mounts [1]", good(mounts=BROKEN)),
    ],
    checks.workdir: [("configure: working directory", good(mounts={"workdir": "/"}))],
    checks.home: [
        ("configure: home, without a flag", good(plain={"at_home": "yes"})),
        ("configure: home, --container-mount-home", good(turned={"at_home": "no"})),
        ("configure: home, --no-container-mount-home", good(back={"at_home": "yes"})),
    ],
    checks.remap_root: [
        ("configure: --container-remap-root [1000, 0]", good(turned={"uid": "1000"})),
        ("configure: --no-container-remap-root [0, 1000]", good(back={"uid": "0"})),
    ],
    checks.entrypoint: [
        ("configure: --container-entrypoint [1]", replace(good(entrypoint=BROKEN), entrypoint_elsewhere=True)),
        ("not applicable", good(plain={"rc": "no"})),
        ("not checked [1]", good(entrypoint=BROKEN)),
    ],
    checks.reuse: [
        ("passed [1.5]", good()),
        ("configure: container by name [1]", good(back=BROKEN)),
        ("configure: container by name [1.5]", good(back={"mark": "no"})),
        ("not checked", NOT_IMPORTED),
    ],
    checks.remove: [
        ("configure: named container", replace(good(), not_removed=Explanation("still_listed", "still listed"))),
        ("not checked", replace(good(), not_removed=Explanation(NO_LIST, UNKNOWN))),
    ],
    checks.gpus: [
        ("configure: NVIDIA_VISIBLE_DEVICES=all [1]", good(gpus=BROKEN)),
        ("configure: nvidia-smi inside [3, 2, 3]", good(gpus={"gpu.GPU-3": "1"})),
        ("configure: /dev/nvidia* [1, 2, 2]", good(gpus={"devices": "1"})),
        ("passed [2]", good(outside=NO_UUIDS)),
        ("configure: nvidia-smi inside [0, 1, 2, 2]", good(gpus=NO_UUIDS)),
        ("not applicable", replace(good(), gpus=0)),
        ("not checked [0]", good(outside=NO_DEVICES, gpus=NO_DEVICES)),
    ],
    checks.ranks: [
        ("configure: tasks [1, 2]", ranks(rank(0))),
        ("configure: rank 1 RANK [0, 1]", ranks(rank(0), rank(1, RANK="0"))),
        ("configure: rank 1 LOCAL_RANK [0, 1]", ranks(rank(0), rank(1, LOCAL_RANK="0"))),
        ("passed", ranks(hooked(0), hooked(1))),
        ("configure: rank 1 WORLD_SIZE [3, 2]", ranks(hooked(0), hooked(1, WORLD_SIZE="3"))),
        ("configure: rank 1 MASTER_PORT [61001, 0]", ranks(hooked(0), hooked(1, SLURM_JOB_ID="4_1"))),
    ],
    checks.memlock: [
        ("configure: locked memory [64]", good(plain={"memlock": "64"})),
        ("not checked", good(outside={"memlock": None})),
    ],
    checks.shm: [
        ("passed [3.8147e-05]", good()),
        ("configure: shared memory [36, 40, 3.43323e-05]", good(plain={"shm": "9 4096"})),
        ("passed [2]", good(plain={"shm": f"{2**19} 4096"})),
    ],
    checks.imported: [
        ("passed: /i.sqsh; /i.sqsh [2, 5]", good()),
        ("configure: /i.sqsh", not_imported(unexplained("damaged"))),
        ("passed", replace(good(), imported=ImageImport("/i.sqsh", "n", reused=("gpu01",)))),
        ("not checked", STOPPED_BY_HOOK),
    ],
    checks.release: [
        ("configure: os-release [24.04, 22.04]", site({}, release="ubuntu 22.04"), fleet()),
        ("configure: os-release [24.04, 2, 2, 3]", good(), fleet("a 1", "b 2", "b 2")),
        ("configure: os-release [24.04, 24.04, 2]", good(), fleet("ubuntu 24.04", "b 2")),
        ("passed", good(), fleet("ubuntu 24.04", "ubuntu 24.04")),
        ("not checked", BARE, fleet()),
    ],
    checks.plugin: [
        ("configure: Pyxis", BARE),
        ("configure: Pyxis [1]", good(outside=BROKEN)),
        ("configure: Pyxis", not_imported(Explanation("no_option", "srun has no option --x"), seen={})),
        ("not checked", good(plain=BROKEN)),
        ("not checked [1]", good(plain=BROKEN, outside=BROKEN)),  # container.reuse finds nothing there
    ],
}
test_each_case_has_its_verdict = decided(CASES, codes=False)


def test_leftovers_are_containers_of_jobs_that_are_over() -> None:
    names = ("pyxis_7_x", "pyxis_8.0", "pyxis_9_9.1", "pyxis_named", "mine")
    verdict = checks.leftovers(names, {8})
    assert told(verdict) == "monitor: pyxis_9_9.1 [9, 5]"
    assert [str(it.part) for it in verdict.advisories] == ["pyxis_7_x"]  # may be a user's name
    assert jobs_of(names) == {"pyxis_7_x": 7, "pyxis_8.0": 8, "pyxis_9_9.1": 9}


# -- what is read -----------------------------------------------------------------------------------------------


def answer(text: str, rc: int = 0, err: str = "") -> Answer:
    return Answer("gpu01", rc, text.encode(), err.encode())


def test_pyxis_is_library_and_version() -> None:
    for text, pyxis in (
        ("so /p.so\npyxis: version v0.24.0\n", Pyxis("/p.so", "0.24.0")),
        ("so /p.so\n", Pyxis("/p.so")),
        ("no plugstack.conf \n", Pyxis(absent="no plugstack.conf")),
        ("a\nb\n", Pyxis(absent="b")),
    ):
        assert read_pyxis(answer(text)) == pyxis


def test_names_are_lines() -> None:
    assert read_names(answer(" a \n\nb\n")) == ("a", "b")
    with pytest.raises(NotAvailable, match="enroot is not found on PATH"):
        read_names(answer("", 127, "sh: enroot: not found"))
    assert enroot_names(("pyxis_x", "pyxis_7_x", "pyxis_xy", "x"), "x") == ("pyxis_x", "pyxis_7_x")
    assert remove_command(("a", "b c")) == f"{SEARCH}; enroot remove -f a 'b c' </dev/null"
    assert NAMES.command == f"{SEARCH}; enroot list"  # tasks may lack the folder of enroot


# -- healthy nodes whose Enroot looks broken, and broken ones that look well (docs/how-it-decides.md) ------------------

ENROOT = "https://github.com/NVIDIA/enroot/blob/master/doc/configuration.md"
PYXIS = "https://github.com/NVIDIA/pyxis/wiki/Usage"
GIB = 2**30


def line(
    free: float = 900,
    size: float = 1000,
    what: str = "data",
    inodes: tuple[int, int] = (40_000_000, 60_000_000),
    rights: str = "rw",
) -> str:
    """Return a line of the probe: free and whole size in GiB, free and all inodes."""
    blocks = f"{int(free * GIB / 4096)} {int(size * GIB / 4096)} 4096 {inodes[0]} {inodes[1]}"
    return f"{what} {blocks} {rights} /raid/enroot\n"


def room(*lines: str) -> Callable[[], Verdict]:
    return lambda: checks.room(read_space(answer("".join(lines))), ContainerConfig())


def left(*names: str) -> Callable[[], Verdict]:
    return partial(checks.leftovers, names, (77,))


# machine, source, expected, verdict
ROWS = (
    ("an empty /tmp of 1 GiB", ENROOT, PASSED, room(line(), line(0.99, 1, "temp"))),
    ("a file system that counts no inodes", "btrfs(5)", PASSED, room(line(inodes=(0, 0)))),
    ("a shared file system, 97% used, 60 TiB free", ENROOT, PASSED, room(line(60_000, 2_000_000))),
    ("a full disk", ENROOT, MONITOR, room(line(0.2))),
    ("a full /tmp of 1 GiB", ENROOT, MONITOR, room(line(), line(0.1, 1, "temp"))),
    ("no inode is left, and 900 GiB are", "ext4", MONITOR, room(line(inodes=(0, 60_000_000)))),
    ("10,000 inodes are left", "an image has fewer", PASSED, room(line(inodes=(10_000, 60_000_000)))),
    ("the user may not write", ENROOT, MONITOR, room(line(rights="ro"))),
    ("a named container that stays, of the scope global", PYXIS, PASSED, left("pyxis_pytorch")),
    ("containers of running jobs", PYXIS, PASSED, left("pyxis_77.0", "pyxis_77_torch", "pyxis_77_77.3")),
    ("a name that begins with a number, of the scope global", PYXIS, WARNING, left("pyxis_2024_torch")),
    ("of a job that is over", PYXIS, MONITOR, left("pyxis_77.0", "pyxis_76.0")),
    ("of a step of a job that is over, of the scope job", PYXIS, MONITOR, left("pyxis_76_76.1")),
)
COUNTER_EXAMPLES = [
    CounterExample(judged().check, machine, source, expected, judged, sick=expected == MONITOR)
    for machine, source, expected, judged in ROWS
]
test_nodes_are_judged_as_a_person_would = considered(COUNTER_EXAMPLES)
