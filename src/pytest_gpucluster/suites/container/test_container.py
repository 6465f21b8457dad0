"""Pyxis and Enroot do on every node what a job in a container needs: images, names, mounts, home, root, environment.

The image is imported once a node; a handful of steps that re-use it by name are judged by many tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ConfigError, ProbeError
from pytest_gpucluster.core.majority import norm
from pytest_gpucluster.kit import enroot
from pytest_gpucluster.kit.containers import NamedContainers
from pytest_gpucluster.suite import claimed, probed
from pytest_gpucluster.suites.container import checks
from pytest_gpucluster.suites.container.config import ContainerConfig
from pytest_gpucluster.suites.container.steps import ContainerExam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node
    from pytest_gpucluster.suites.container.facts import Found

pytestmark = [pytest.mark.container, pytest.mark.usefixtures("claim")]

room = probed(enroot.SPACE)
names_before = probed(enroot.NAMES)

claim = claimed(ContainerConfig, "containers")


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show progress between the results, where there is a terminal to show it on."""
    plugins = request.config.pluginmanager
    reporter, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
    if reporter is None or capture is None:  # a worker of xdist
        return lambda _line: None

    def show(line: str) -> None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"container: {line}")

    return show


@pytest.fixture(scope="session")
def found(
    gpucluster_session: ClusterSession,
    allocation: Allocation,  # not applicable without a scheduler
    claim: ContainerConfig,
    say: Callable[[str], None],
) -> Iterator[dict[str, Found]]:
    """Everything that the steps have shown, by node; what they imported is removed at the end."""
    session = gpucluster_session
    environment = session.cluster.environments.get(claim.environment or "")
    image = claim.image or (environment.container_image if environment else None)
    if image is None:
        raise ConfigError(
            f"cluster {session.cluster.name}: the cluster file lacks container.image: a .sqsh path or a registry image"
        )
    told: dict[str, Found] = {}
    stores = []
    for held in session.allocations:
        nodes = session.without_problem(held.nodes)[: claim.nodes]
        profiles = {session.nodes[node].profile.gpu is not None for node in nodes}
        gpus = min((session.inventory[node].gpus for node in nodes), default=0) if profiles == {True} else 0
        store = NamedContainers(
            held.slurm, held, session.need_channel(), deadline=claim.deadline, keep=claim.keep, report=say
        )
        stores.append(store)
        try:
            told |= ContainerExam(held.slurm, held, store, claim, image, nodes, gpus).found if nodes else {}
        except BaseException:
            store.close()
            raise
    yield told
    for store in stores:
        store.close()


@pytest.fixture
def here(found: dict[str, Found], node: Node) -> Found:
    """What the steps have shown of this node."""
    if node.name not in found:
        pytest.skip("not applicable: container.nodes leaves this node out")
    return found[node.name]


@pytest.fixture(scope="session")
def live_jobs(gpucluster_session: ClusterSession, allocation: Allocation) -> set[int]:
    """The jobs that Slurm knows."""
    slurm = allocation.slurm
    listed = slurm.run("squeue", "-h", "-a", "-o", "%A").split()
    return {int(job) for job in listed if job.isdigit()} | {
        held.job_id for held in gpucluster_session.allocations
    }


def test_plugin(here: Found, node: Node, gpucluster_session: ClusterSession, expect: Expect) -> None:
    """Pyxis is loaded: the task runs in a container, and the plugin has the version of the cluster file."""
    try:
        pyxis = gpucluster_session.facts(node.name, enroot.PYXIS)
    except ProbeError as error:
        expect(checks.plugin(here, str(error)))
    else:
        expect(checks.plugin(here, pyxis))


def test_import(here: Found, expect: Expect) -> None:
    """Every image is imported; time and throughput are recorded."""
    expect(checks.imported(here))


def test_hooks(here: Found, expect: Expect) -> None:
    """No hook of Enroot fails as a container starts."""
    expect(checks.hooks(here))


def test_release(here: Found, found: dict[str, Found], expect: Expect) -> None:
    """The operating system of the image is what runs."""
    told = (
        (node, one.step("plain").facts.get("release", "")) for node, one in found.items() if one.contained
    )
    expect(checks.release(here, norm(told)))


def test_root(here: Found, expect: Expect) -> None:
    """The root file system is read-only unless --container-writable is given."""
    expect(checks.root(here))


def test_mounts(here: Found, expect: Expect) -> None:
    """Mounts are read and written in both directions, `ro` holds, and the cluster file's mounts are there."""
    expect(checks.mounts(here))


def test_workdir(here: Found, expect: Expect) -> None:
    """--container-workdir is where the task starts."""
    expect(checks.workdir(here))


def test_home(here: Found, expect: Expect) -> None:
    """Home is mounted where it is asked for, and only there."""
    expect(checks.home(here))


def test_remap_root(here: Found, expect: Expect) -> None:
    """One is root with --container-remap-root, and oneself with --no-container-remap-root."""
    expect(checks.remap_root(here))


def test_environment(here: Found, expect: Expect) -> None:
    """Exports pass through, the image's values win, and --container-env turns that round."""
    expect(checks.environment(here))


def test_entrypoint(here: Found, expect: Expect) -> None:
    """Steps start through the image's entrypoint, and without it."""
    expect(checks.entrypoint(here))


def test_reuse(here: Found, expect: Expect) -> None:
    """A later step finds the container by its name, with what was written in it."""
    expect(checks.reuse(here))


def test_save(here: Found, expect: Expect) -> None:
    """A saved container starts as an image."""
    expect(checks.save(here))


def test_remove(here: Found, expect: Expect) -> None:
    """A named container is listed, and gone once it is removed."""
    expect(checks.remove(here))


def test_gpus(here: Found, expect: Expect) -> None:
    """The GPUs seen inside are those seen outside."""
    expect(checks.gpus(here))


def test_ranks(here: Found, expect: Expect) -> None:
    """RANK, LOCAL_RANK and what Enroot's hook adds are Slurm's own values."""
    expect(checks.ranks(here))


def test_memlock(here: Found, expect: Expect) -> None:
    """The limit on locked memory is no lower inside."""
    expect(checks.memlock(here))


def test_shm(here: Found, expect: Expect) -> None:
    """The shared memory (/dev/shm) is no smaller inside."""
    expect(checks.shm(here))


def test_room(room: tuple[enroot.EnrootSpace, ...], claim: ContainerConfig, expect: Expect) -> None:
    """Enroot's data, cache and temporary paths have room, and may be written."""
    expect(checks.room(room, claim))


def test_leftovers(names_before: tuple[str, ...], live_jobs: set[int], expect: Expect) -> None:
    """No container of a job that is over is left on the node."""
    expect(checks.leftovers(names_before, live_jobs))
