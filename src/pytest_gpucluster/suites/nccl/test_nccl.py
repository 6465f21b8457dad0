"""NCCL moves data right and fast: each node alone, pairs of nodes, the whole; and the bad part is named.

Ranks, devices, transports and data are proved before a number is judged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.check import Outcome
from pytest_gpucluster.core.errors import NotAvailable
from pytest_gpucluster.kit.nccl_config import NcclConfig
from pytest_gpucluster.suites.nccl import baseline as nccl_baseline
from pytest_gpucluster.suites.nccl import fleet as checks
from pytest_gpucluster.suites.nccl.stages import NcclProof
from pytest_gpucluster.suites.nccl.steps import NcclRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucluster.cluster.slurm.allocation import Allocation
    from pytest_gpucluster.config.models import Cluster, NcclThreshold
    from pytest_gpucluster.plugin.expect import Expect
    from pytest_gpucluster.plugin.session import ClusterSession, Node

pytestmark = [pytest.mark.nccl]


@pytest.fixture(scope="session")
def baseline(request: pytest.FixtureRequest) -> tuple[NcclThreshold, ...]:
    """The rows of --baseline=FILE; none where it was not given, or is being recorded."""
    asked = request.config.option.baseline
    return nccl_baseline.load(Path(asked)) if asked and asked != "record" else ()


@pytest.fixture(scope="session")
def proofs(
    gpucluster_session: ClusterSession,
    allocation: Allocation,  # not applicable without a scheduler
    baseline: tuple[NcclThreshold, ...],
) -> Iterator[list[NcclProof]]:
    """One proof an allocation: its nodes share a partition and a number of GPUs."""
    session, made = gpucluster_session, []
    for held in session.allocations:
        profile = session.nodes[held.nodes[0]].profile
        if profile.gpu is None:
            continue
        gpus = session.inventory[held.nodes[0]].gpus or profile.gpu.count
        runner = NcclRunner(
            held.slurm, held, session.cluster, session.need_channel(), session.inventory, gpus_per_node=gpus
        )
        try:
            runner.prepare_image()
            _ = runner.runner
        except NotAvailable as error:
            pytest.skip(f"not checked: {error}")
        nodes = session.without_problem(held.nodes)
        own = session.nodes[held.nodes[0]].group.thresholds
        made.append(NcclProof(runner, nodes, profile, (*baseline, *own), held.slurm))
    if not made:
        pytest.skip("not applicable: no profile of the cluster has GPUs")
    yield made
    for proof in made:
        proof.runner.clean_up()


@pytest.fixture
def proof(proofs: list[NcclProof], node: Node) -> NcclProof:
    """The proof that this item's node is part of."""
    found = next((proof for proof in proofs if node.name in proof.nodes), None)
    if found is None:
        pytest.skip("not applicable: the node has no GPUs")
    return found


@pytest.fixture
def believed(proof: NcclProof, node: Node) -> NcclProof:
    """The proof, where the ranks of this node alone are believed; test_alone says why where they are not."""
    verdict = proof.alone.verdicts[node.name]
    if verdict.outcome is not Outcome.PASSED:
        pytest.skip(
            f"not applicable: the node's own run is not believed, see nccl.alone: {verdict.findings[0].measured}"
        )
    return proof


@pytest.fixture
def judged(request: pytest.FixtureRequest) -> None:
    """Bandwidth is not judged while a baseline is recorded."""
    if request.config.option.baseline == "record":
        pytest.skip("not applicable: --baseline=record records bandwidth, it judges none")


def test_alone(proof: NcclProof, node: Node, expect: Expect) -> None:
    """Within the node: each rank once, on a device of its own, over NVLink where there is one, with right data."""
    expect(proof.alone.verdicts[node.name])


@pytest.fixture
def several(proof: NcclProof) -> None:
    """The node has something to reduce with."""
    if proof.runner.gpus < 2:  # one GPU
        pytest.skip("not applicable: one GPU alone has no bus bandwidth")


@pytest.mark.usefixtures("judged", "several")
def test_alone_bandwidth(believed: NcclProof, node: Node, expect: Expect) -> None:
    """Within the node: bus bandwidth at every size that a threshold names."""
    expect(believed.alone_bandwidth(node.name))


@pytest.mark.usefixtures("several")
def test_outlier(believed: NcclProof, node: Node, expect: Expect) -> None:
    """The node's bandwidth is that of its fleet, also where it is above the threshold."""
    values, what = believed.alone_values()
    expect(checks.outlier(node.name, values, what))


def test_pairs(believed: NcclProof, node: Node, expect: Expect) -> None:
    """The node is as fast with its partners as they are with others."""
    if len(believed.nodes) < 2:  # a pair
        expect.not_applicable("one node alone makes no pair")
    expect(believed.pairs(node.name))


def test_links(proofs: list[NcclProof], expect: Expect) -> None:
    """Every link and leaf switch is as fast as the others; what cannot be told apart is said."""
    for proof in proofs:
        expect(proof.links())


def test_whole(proofs: list[NcclProof], collective: str, expect: Expect, curve: Callable[..., None]) -> None:
    """Over all nodes: each rank once, on the nodes asked for, over the fabric that the profile expects, right data."""
    for proof in proofs:
        if len(proof.usable) < 2:  # a fabric
            expect.not_applicable("fewer than two nodes could be used together")
        stage = proof.whole(collective)
        curve(f"{collective}, {len(proof.usable)} nodes x {proof.runner.gpus} GPUs", stage.runs.values())
        expect(proof.whole_validity(collective))


@pytest.mark.usefixtures("judged")
def test_whole_bandwidth(proofs: list[NcclProof], collective: str, expect: Expect) -> None:
    """Over all nodes: bus bandwidth at every size that a threshold names."""
    for proof in proofs:
        if len(proof.usable) < 2:  # a fabric
            expect.not_applicable("fewer than two nodes could be used together")
        if not proof.whole(collective).runs:
            expect.not_applicable("the run is not believed: see nccl.whole")
        expect(proof.whole_bandwidth(collective))


def test_baseline(
    request: pytest.FixtureRequest, proofs: list[NcclProof], cluster: Cluster, expect: Expect
) -> None:
    """--baseline=record: everything again, and the cluster's own thresholds written to a file."""
    if request.config.option.baseline != "record":
        expect.not_applicable("asked for with --baseline=record")
    written = nccl_baseline.record(proofs, cluster)
    print(written)  # shown by -s and -rP


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item a collective of the cluster file."""
    from pytest_gpucluster.plugin.fixtures import SESSION  # only where a cluster was asked for

    if "collective" in metafunc.fixturenames:
        metafunc.parametrize(
            "collective", metafunc.config.stash[SESSION].cluster.section(NcclConfig).collectives
        )
