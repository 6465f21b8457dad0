"""Verdicts on containers: each deviation alone with its exact text, and each reason not to judge."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from framework_helpers import Table, rows_of, told

from pytest_gpucluster.core.check import Action, Outcome, Verdict
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


CASES: Table = {
    checks.hooks: [
        ("passed", good()),
        ("configure: /e/hooks.d/60-x.sh [3, 0]", good(back=HOOK_FAILED, saved=HOOK_FAILED)),
        ("configure: /e/hooks.d/60-x.sh [3, 0]", STOPPED_BY_HOOK),
        ("not checked", NOT_IMPORTED),
        ("not checked", BARE),
    ],
    checks.environment: [
        ("passed", good()),
        ("passed", good(plain={"image.PATH": "/i", "path": "/p", "login_path": "/p"})),
        ("passed", good(plain={"image.PATH": "/i", "path": "/i", "login_path": "/p"})),
        ("configure: PATH", good(plain={"image.PATH": "/i", "path": "/hook", "login_path": "/p"})),
        ("configure: exported variable", good(plain={"env.GPUCLUSTER_PASSED": None})),
        ("configure: PATH", good(plain={"image.PATH": "/opt"})),
        ("configure: V without --container-env", good(readonly={"env.V": HOST_VALUE})),
        ("configure: V without --container-env", good(readonly={"env.V": None})),
        ("configure: --container-env=V", good(turned={"env.V": "own"})),
        ("configure: --container-env=V", good(turned={"env.V": None})),
        ("passed", replace(good(readonly={"env.V": "x"}, turned={"env.V": "x"}), override="")),
    ],
    checks.save: [
        ("passed", good()),
        ("configure: --container-save", good(back=StepFacts(({},), unsaved="no room"))),
        ("configure: saved image [1]", good(saved=BROKEN)),
        ("configure: saved image", good(saved={"mark": "no"})),
        ("not checked", good(back=StepFacts(({},), unsaved="no space on the node (x)"))),
        ("not checked", good(turned=BROKEN, saved={"mark": "no"})),
        ("not applicable", configured(good(), save=False)),
    ],
    checks.root: [
        ("passed", good()),
        ("configure: root without a flag", good(readonly={"writable": "yes"})),
        ("configure: root with --container-writable", good(turned={"marked": "no"})),
        ("not checked", STOPPED_BY_HOOK),
    ],
    checks.mounts: [
        ("passed", good()),
        ("configure: mount", good(mounts={"token": "u"})),
        ("configure: mount", good(mounts={"wrote": "no"})),
        ("configure: mount", replace(good(), token_back=False)),
        ("configure: mount with :ro", good(mounts={"ro_writable": "yes"})),
        ("configure: --container-mounts [1]", good(mounts=BROKEN)),
    ],
    checks.workdir: [
        ("passed", good()),
        ("configure: working directory", good(mounts={"workdir": "/"})),
        ("configure: working directory", good(mounts={"workdir": None})),
    ],
    checks.home: [
        ("passed", good()),
        ("configure: home, without a flag", good(plain={"at_home": "yes"})),
        ("configure: home, without a flag", configured(good(), mount_home=True)),
        ("configure: home, --container-mount-home", good(turned={"at_home": "no"})),
        ("configure: home, --no-container-mount-home", good(back={"at_home": "yes"})),
    ],
    checks.remap_root: [
        ("passed", good()),
        ("configure: --container-remap-root [1000, 0]", good(turned={"uid": "1000"})),
        ("configure: --no-container-remap-root [0, 1000]", good(back={"uid": "0"})),
        ("configure: --container-remap-root [0]", good(turned={"uid": None})),
        ("configure: --no-container-remap-root [1000]", good(outside={"uid": None})),
    ],
    checks.entrypoint: [
        (
            "configure: --container-entrypoint [1]",
            replace(good(entrypoint=BROKEN), entrypoint_elsewhere=True),
        ),
        ("configure: E, --container-entrypoint", configured(good(), entrypoint_sets="E")),
        (
            "configure: E, --no-container-entrypoint",
            configured(good(entrypoint={"env.E": "1"}, back={"env.E": "1"}), entrypoint_sets="E"),
        ),
        ("passed", configured(good(entrypoint={"env.E": "1"}), entrypoint_sets="E")),
        ("not applicable", good(plain={"rc": "no"})),
        ("not checked [1]", good(entrypoint=BROKEN)),
        ("not checked", configured(good(), entrypoint_sets="V")),
        ("not checked", configured(good(turned=BROKEN), entrypoint_sets="E")),
    ],
    checks.reuse: [
        ("passed [1.5]", good()),
        ("configure: container by name [1]", good(plain=BROKEN)),
        ("configure: container by name [1]", good(back=BROKEN)),
        ("configure: container by name [1.5]", good(back={"mark": "no"})),
        ("not checked", BARE),
        ("not checked", NOT_IMPORTED),
        ("not checked [1]", good(outside=BROKEN)),
    ],
    checks.remove: [
        ("passed", good()),
        ("configure: named container", replace(good(), saved_removed="still listed")),
        ("not checked", replace(good(), saved_removed=NO_LIST)),
        ("not applicable", configured(good(), save=False)),
    ],
    checks.gpus: [
        ("passed [2]", good()),
        ("not applicable", replace(NOT_IMPORTED, gpus=0)),
        ("configure: NVIDIA_VISIBLE_DEVICES=all [1]", good(gpus=BROKEN)),
        ("configure: nvidia-smi inside [1, 2, 2, 1]", good(gpus={"gpu.GPU-2": None})),
        ("configure: nvidia-smi inside [3, 2, 3]", good(gpus={"gpu.GPU-3": "1"})),
        ("configure: /dev/nvidia* [1, 2, 2]", good(gpus={"devices": "1"})),
        ("configure: /dev/nvidia* [2, 2]", good(gpus={"devices": None})),
        ("configure: /dev/nvidia* [2, 2]", good(outside={"devices": None})),
        ("passed [2]", good(outside={"gpu.GPU-1": None, "gpu.GPU-2": None})),
        ("not applicable", replace(good(), gpus=0)),
        (
            "not checked [0]",
            good(
                outside={"devices": None, "gpu.GPU-1": None, "gpu.GPU-2": None},
                gpus={"devices": None, "gpu.GPU-1": None, "gpu.GPU-2": None},
            ),
        ),
    ],
    checks.ranks: [
        ("configure: tasks [1, 2]", good(ranks=StepFacts((rank(0),)))),
        ("configure: rank 1: RANK [0, 1]", good(ranks=StepFacts((rank(0), rank(1, **{"env.RANK": "0"}))))),
        (
            "configure: rank 1: LOCAL_RANK [0, 1]",
            good(ranks=StepFacts((rank(0), rank(1, **{"env.LOCAL_RANK": "0"})))),
        ),
        ("configure: rank ?: RANK; rank ?: LOCAL_RANK", good(ranks=StepFacts((rank(0), {})))),
        ("passed", good(ranks=StepFacts((hooked(0), hooked(1))))),
        ("passed", configured(good(ranks=StepFacts((hooked(0), hooked(1)))), rank_hook=True)),
        ("passed", configured(good(), rank_hook=False)),
        (
            "configure: MASTER_ADDR; MASTER_PORT; WORLD_SIZE",
            configured(good(ranks=StepFacts((rank(0), hooked(1)))), rank_hook=False),
        ),
        (
            "configure: rank 1: WORLD_SIZE [3, 2]",
            good(ranks=StepFacts((hooked(0), hooked(1, **{"env.WORLD_SIZE": "3"})))),
        ),
        (
            "configure: rank 0: MASTER_PORT [1, 61001]",
            good(ranks=StepFacts((hooked(0, **{"env.MASTER_PORT": "1"}), hooked(1)))),
        ),
        ("configure: MASTER_ADDR", good(ranks=StepFacts((hooked(0), hooked(1, **{"env.MASTER_ADDR": ""}))))),
        (
            "configure: rank 1: MASTER_PORT [61001, 0]",
            good(ranks=StepFacts((hooked(0), hooked(1, **{"env.SLURM_JOB_ID": "4_1"})))),
        ),
        (
            "configure: rank 0: MASTER_PORT; rank 0: WORLD_SIZE; MASTER_ADDR; rank 1: MASTER_PORT; rank 1: WORLD_SIZE; MASTER_ADDR [61000, 61000]",
            configured(good(), rank_hook=True),
        ),
    ],
    checks.memlock: [
        ("passed", good()),
        ("configure: locked memory [64]", good(plain={"memlock": "64"})),
        ("configure: locked memory [63, 64]", configured(good(plain={"memlock": "63"}), memlock="64")),
        ("passed", configured(good(plain={"memlock": "64"}), memlock="64")),
        ("passed", configured(good(), memlock="64")),
        ("not checked", good(plain={"memlock": None})),
        ("not checked", good(outside={"memlock": None})),
    ],
    checks.shm: [
        ("passed [3.8147e-05]", good()),
        ("configure: shared memory [36, 40, 3.43323e-05]", good(plain={"shm": "9 4096"})),
        ("configure: shared memory [40, 41.02, 3.8147e-05]", configured(good(), shm=42000)),
        ("passed [3.8147e-05]", configured(good(), shm=40960)),
        ("not checked", good(plain={"shm": ""})),
        ("not checked", good(plain={"shm": "x 1"})),
        ("not checked", good(plain={"shm": "1"})),
        ("not checked", good(outside={"shm": "1 2 3"})),
    ],
    checks.imported: [
        (
            "configure: /i.sqsh",
            replace(good(), imports=(replace(IMAGE, seconds={}, failed={"gpu01": "damaged"}),)),
        ),
        (
            "configure: /j.sqsh; /i.sqsh; /i.sqsh [2, 5]",
            replace(good(), imports=(IMAGE, ImageImport("/j.sqsh", "m"))),
        ),
        ("passed", replace(good(), imports=(ImageImport("/i.sqsh", "n", reused=("gpu01",)),))),
        ("not checked", STOPPED_BY_HOOK),
        ("not checked", BARE),
    ],
    checks.release: [
        ("configure: os-release [24.04, 22.04]", configured(good(), release="ubuntu 22.04"), fleet()),
        ("configure: os-release [24.04, 2, 2, 3]", good(), fleet("a 1", "b 2", "b 2")),
        ("configure: os-release [24.04, 24.04, 2]", good(), fleet("ubuntu 24.04", "b 2")),
        ("passed", good(), fleet("ubuntu 24.04", "ubuntu 24.04")),
        ("configure: os-release", good(plain={"release": None}), fleet()),
        ("configure: os-release [2]", good(plain={"release": None}), fleet("b 2", "b 2")),
        ("not checked", BARE, fleet()),
    ],
    checks.plugin: [
        ("configure: Pyxis", BARE, Pyxis()),
        ("configure: Pyxis [1]", good(outside=BROKEN), Pyxis()),
        (
            "configure: Pyxis",
            replace(
                NOT_IMPORTED,
                seen={},
                imports=(ImageImport("/i", "n", failed={"gpu01": "srun has no option --x"}),),
            ),
            Pyxis(),
        ),
        (
            "configure: version of Pyxis [0.23, 0.24]",
            configured(good(), version="0.24"),
            Pyxis("so", "0.23.1"),
        ),
        ("passed", configured(good(), version="0.24"), Pyxis("so", "0.24.1")),
        ("not checked", good(plain=BROKEN), Pyxis()),
        ("not checked", replace(NOT_IMPORTED, seen={}), Pyxis()),
        ("not checked", configured(good(), version="0.24"), Pyxis(absent="no plugstack.conf")),
        ("not checked", configured(good(), version="0.24"), Pyxis(absent="no line")),
        ("not checked", configured(good(), version="0.24"), Pyxis("/p.so")),
        ("not checked", replace(STOPPED_BY_HOOK, seen={}), Pyxis()),
    ],
    checks.sshd: [
        ("passed", sshd()),
        ("configure: sshd", sshd({"problem": "the image has no sshd"}, {"refused": "yes"})),
        ("configure: ssh", sshd(client={"rc": "255", "message": "Permission denied"})),
        ("configure: ssh [255]", sshd(client={"rc": "255"})),
        ("configure: ssh", sshd(client={})),
        (
            "configure: answer through ssh [12, 20655, 24.04, 20655]",
            sshd(client={"rc": "0", "answer": "t debian 12 20655"}),
        ),
        ("configure: sshd", sshd({"port": "20655"})),
        ("configure: sshd [1]", configured(good(sshd=BROKEN), sshd=True)),
        ("not applicable", good()),
        ("not applicable", configured(good(plain={"uid": "0"}), sshd=True)),
        ("not checked", configured(NOT_IMPORTED, sshd=True)),
    ],
}


@pytest.mark.parametrize(("check", "given", "expected"), rows_of(CASES))
def test_each_case_has_its_verdict(check: Callable[..., Verdict], given: list[Any], expected: str) -> None:
    assert told(check(*given)) == expected


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


# -- pure checks ------------------------------------------------------------------------------------------------
