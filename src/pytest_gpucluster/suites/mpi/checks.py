"""MPI: the installations on the nodes, and the speed of a world of ranks between nodes. Pure.

kit/mpi/mpi_world.py judges the world itself; the checks of sums and speeds apply to valid worlds only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Finding, Metric, Outcome, check, leave_to
from pytest_gpucluster.core.errors import NotApplicable, NotAvailable
from pytest_gpucluster.core.finding import Explanation, Quantity
from pytest_gpucluster.core.majority import differs, norm
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.part import pair as pair_part
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.kit.framework.between import judge_between
from pytest_gpucluster.kit.mpi import mpi_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.core.common_cause import PeerGroup
    from pytest_gpucluster.core.majority import Norm
    from pytest_gpucluster.kit.framework.between import Reach
    from pytest_gpucluster.kit.mpi.mpi_config import MpiConfig
    from pytest_gpucluster.kit.mpi.mpi_facts import InstalledMpi, MpiRun, RankPair

LEVELS = ("single", "funneled", "serialized", "multiple")
MICRO = 1e6
GIGA = 1e9
NO_ANSWER = Explanation("no_answer", "no answer")
_PARTS = {"c": "MPI of C programs", "python": "mpi4py"}


# --- the installation of each node


@check(
    "mpi.installed",
    cause="the MPI was not installed on the node, or its folder, module or mount is missing there",
    hint="srun -w NODE sh -c 'command -v mpirun mpicc'; install it as on the others, or name its module or image under "
    "`environments` and that under mpi.environment",
    action=Action.CONFIGURE,
    setting="mpi.environment",
)
def installed(installed: InstalledMpi, config: MpiConfig, in_container: bool = False) -> Judgement:
    """Judge that the node, or its image, has the required launcher and a working MPI of each required language.

    An image needs no mpirun: srun is the launcher there.
    """
    if "mpirun" in config.launchers and not in_container and not installed.mpirun:
        yield Finding(named("software", config.mpirun), "not on PATH", "on PATH", code="not_on_path")
    for language in config.languages:
        if why := installed.problems.get(language, None if language in installed.library else NO_ANSWER):
            yield why.finding(named("software", _PARTS[language]), "a program that compiles and starts")


@check(
    "mpi.path",
    cause="an activated conda environment has its own MPI, first on PATH",
    hint="conda deactivate before the job, remove the MPI from the environment (conda remove mpi), or call the "
    "mpirun of the site by its path",
    action=Action.CONFIGURE,
)
def path(host_installed: InstalledMpi, config: MpiConfig, conda_environment: bool) -> Judgement:
    """Judge that the first mpirun on PATH is that of the site, not that of a conda environment."""
    if not host_installed.mpirun:
        leave_to(installed(host_installed, config), f"no {config.mpirun} on PATH")
        raise NotApplicable(f"no {config.mpirun} on PATH, and `mpi.launchers` does not name it")
    first = next((found for found in host_installed.mpiruns if found.path == host_installed.mpirun), None)
    others = [found.path for found in host_installed.mpiruns if not found.conda]
    if first is not None and first.conda and not conda_environment:
        behind = f" in front of {others[0]}" if others else ""
        expected = others[0] if others else "the site's mpirun"
        measured = f"{first.path} of conda ({host_installed.launcher}){behind}"
        yield Finding(named("software", "mpirun"), measured, expected, code="of_conda")


@check(
    "mpi.matches",
    cause="two MPIs are on PATH or LD_LIBRARY_PATH: the launcher belongs to one, the programs to the other",
    hint="load one module only; `command -v mpirun mpicc` must name one folder; for mpi4py that of the "
    "MPI which it was built against (MPI4PY_LIBMPI, MPI4PY_MPIABI)",
    action=Action.CONFIGURE,
)
def matches(host_installed: InstalledMpi, config: MpiConfig) -> Judgement:
    """Judge that mpirun belongs to the MPI of the programs; otherwise each starts as a world of one rank."""
    if "mpirun" not in config.launchers:
        raise NotApplicable("mpi.launchers does not contain mpirun")
    if not host_installed.launcher.name or not host_installed.library:
        raise NotAvailable("the version of mpirun or of the library is not known")
    for language in host_installed.library:
        library = host_installed.program(language)
        launcher = host_installed.launcher
        other = library.name == launcher.name and library.number != launcher.number
        if not library.name:
            printed = one_line(host_installed.library[language], 80)
            yield NotAvailable(f"{_PARTS[language]}: the version is not known from {printed!r}")
        elif library.family != launcher.family or other:
            expected = f"{launcher}, as {host_installed.mpirun}"
            yield Finding(named("software", _PARTS[language]), str(library), expected, code="other_mpi")


@check(
    "mpi.alike",
    cause="the node missed an upgrade, or has another MPI first on PATH",
    hint="compare `command -v mpirun; mpirun --version` with a good node",
    action=Action.CONFIGURE,
)
def alike(installed: InstalledMpi, installed_norms: Mapping[str, Norm[str]]) -> Judgement:
    """Judge that the node has the MPI of most nodes of its kind: what the cluster file uses of it, path and version."""
    if all(usual.total < 2 for usual in installed_norms.values()):
        yield NotApplicable("there is no other node of its group, partition and architecture to compare with")
    parts = dict(_parts(installed))
    for part, usual in installed_norms.items():
        if part in parts:  # mpi.installed judges what is missing
            yield from usual.judge(named("software", part), parts[part], worse=differs)


def norms(fleet: Mapping[str, InstalledMpi], config: MpiConfig | None = None) -> dict[str, Norm[str]]:
    """Return {part: its most common value}: the launcher and the library of each language, if the cluster file uses it."""
    used = {"mpirun", *_PARTS.values()}
    if config is not None:
        used = {_PARTS[language] for language in config.languages}
        used |= {"mpirun"} if "mpirun" in config.launchers else set()
    votes: dict[str, list[tuple[str, str]]] = {}
    for node, facts in fleet.items():
        for part, value in _parts(facts):
            if part in used:
                votes.setdefault(part, []).append((node, value))
    return {part: norm(pairs) for part, pairs in votes.items()}


def norms_of_groups(
    fleet: Mapping[str, InstalledMpi], config: MpiConfig, groups: Iterable[PeerGroup]
) -> dict[str, dict[str, Norm[str]]]:
    """Return {nodes of a group: the norms of their MPI}: nodes of different groups are not compared."""
    return {
        group.nodes: norms({node: fleet[node] for node in group.names if node in fleet}, config) for group in groups
    }


def _parts(facts: InstalledMpi) -> list[tuple[str, str]]:
    libraries = [(_PARTS[language], facts.library[language]) for language in sorted(facts.library)]
    return [("mpirun", f"{facts.mpirun} ({facts.launcher})" if facts.mpirun else "none"), *libraries]


@check(
    "mpi.pmi",
    cause="Slurm was built without this type, or its plugin's library is not installed; or the MPI was built "
    "without it",
    hint="srun --mpi=list; install libpmix and Slurm's mpi_pmix plugin on every node, or set mpi.launchers to a type "
    "that Slurm and the MPI support",
    action=Action.CONFIGURE,
    setting="mpi.launchers",
)
def pmi(pmi_types: Sequence[str], required_types: Sequence[str], installed: InstalledMpi | None) -> Judgement:
    """Judge that Slurm on the node has the required types of --mpi, and that the MPI supports them."""
    if not required_types:
        raise NotApplicable("mpi.launchers contains no `srun --mpi=TYPE`")
    for pmi_type in required_types:
        part = named("setting", f"srun --mpi={pmi_type}")
        if pmi_type not in pmi_types:
            yield Finding(part, f"Slurm has {', '.join(pmi_types)}", pmi_type, code="not_in_slurm")
        elif installed and installed.srun_types and pmi_type.partition("_")[0] not in installed.srun_types:
            library = next((installed.program(language) for language in installed.library), "the MPI")
            supported = f"{library} supports {', '.join(installed.srun_types)}"
            yield Finding(part, supported, pmi_type, code="not_in_mpi")


# --- one world


world, allreduce = mpi_world.world, mpi_world.allreduce  # their place in the order of items


@check(
    "mpi.threads",
    cause="the MPI was built without this thread level, or its transport does not support it",
    hint="ompi_info | grep -i thread, or mpichversion; rebuild the library with threads",
    action=Action.CONFIGURE,
    each="valid_runs",
)
def threads(run: MpiRun, wanted_threads: str) -> Judgement:
    """Judge the thread level that MPI_Init_thread provides for a request of MPI_THREAD_MULTIPLE."""
    if not run.world.ranks:
        raise NotAvailable("no rank reported its thread level")
    for level in dict.fromkeys(rank.threads for rank in run.world.ranks):
        number = LEVELS.index(level) if level in LEVELS else -1
        if number < LEVELS.index(wanted_threads):
            part = mpi_world.some_ranks(rank.rank for rank in run.world.ranks if rank.threads == level)
            wanted = f"MPI_THREAD_{wanted_threads.upper()}"
            yield Finding(part, f"MPI_THREAD_{level.upper()}", wanted, code="lower_level")


# --- between nodes


@check(
    "mpi.between",
    cause="partitions, or the key mpi.nodes, leave the node without another one",
    hint="test nodes of one partition together: --nodes, mpi.nodes",
    action=Action.CONFIGURE,
)
def between(node_name: str, reach: Reach, own_runs: Sequence[MpiRun]) -> Judgement:
    """Judge that ranks of the node summed with ranks of other nodes, by each launcher in each language."""
    exchanged = [_exchanged(run) for run in own_runs]
    nodes = frozenset.intersection(*exchanged) if exchanged else frozenset()
    yield from judge_between(node_name, reach, nodes, "mpi.installed, mpi.world and mpi.allreduce")


def _exchanged(run: MpiRun) -> frozenset[str]:
    """Return the nodes of a valid world whose sums over all ranks are right."""
    right = mpi_world.world(run).outcome is Outcome.PASSED and not any(
        rank.wrong or not rank.elements for rank in run.world.ranks
    )
    return frozenset(rank.node for rank in run.world.ranks) if right else frozenset()


@check(
    "mpi.latency",
    cause="messages use a slow transport (TCP instead of InfiniBand), or the CPU or adapter of the node is in a power-"
    "saving state",
    hint="ucx_info -d or ompi_info list the transports; UCX_LOG_LEVEL=info shows the chosen one; CPU governor",
    action=Action.MONITOR,
    each="timed",
)
def latency(run: MpiRun, max_latency: float | None) -> Judgement:
    """Judge the latency of 8 bytes, in one direction, between neighbours of a ring of the nodes."""
    yield from _speed(run, "mpi_latency", "us", lambda pair: pair.latency * MICRO, max_latency, "mpi.max_latency")


@check(
    "mpi.bandwidth",
    cause="messages use a slow transport, or a link, cable or adapter runs below its rate",
    hint="ibstat and the error counters of both nodes (-m fabric); UCX_LOG_LEVEL=info shows the chosen transport",
    action=Action.MONITOR,
    each="timed",
)
def bandwidth(run: MpiRun, min_bandwidth: float | None) -> Judgement:
    """Judge the bandwidth of 4 MiB, in one direction, between neighbours of a ring of the nodes."""
    yield from _speed(
        run, "mpi_bandwidth", "GB/s", lambda pair: pair.bandwidth / GIGA, min_bandwidth, "mpi.min_bandwidth"
    )


def _speed(
    run: MpiRun, name: str, unit: str, value: Callable[[RankPair], float], limit: float | None, key: str
) -> Judgement:
    if not run.world.pairs:
        if len(run.nodes) < 2:
            raise NotApplicable("a pair needs two nodes")
        raise NotAvailable("no pair of nodes was measured")
    nodes = run.world.nodes
    for pair in run.world.pairs:
        yield Metric(name, value(pair), unit, "-".join(_ends(pair, nodes)))
    if limit is None:
        raise NotApplicable(f"the cluster file does not set {key}; the figures are recorded")
    least = unit == "GB/s"
    bound = Quantity(limit, unit, f"at {'least' if least else 'most'} {limit:g} {unit} ({key})")
    wrong = [
        pair
        for pair in run.world.pairs
        if not value(pair) > 0 or (value(pair) < limit if least else value(pair) > limit)
    ]
    blamed = _blamed(run.world.pairs, wrong, nodes)
    for pair in wrong:
        guilty = [node for node in _ends(pair, nodes) if node in blamed]
        slow = f" ({', '.join(guilty)} with every neighbour)" if guilty else ""
        measured = Quantity(value(pair), unit, f"{value(pair):.4g} {unit}{slow}")
        code = "slow_with_every_neighbour" if guilty else "slow" if value(pair) > 0 else "no_value"
        yield Finding(pair_part(*_ends(pair, nodes)), measured, bound, code=code)


def _ends(pair: RankPair, nodes: Mapping[int, str]) -> tuple[str, str]:
    first, other = (nodes.get(rank, f"rank {rank}") for rank in pair.ranks)
    return first, other


def _blamed(pairs: Sequence[RankPair], wrong: Sequence[RankPair], nodes: Mapping[int, str]) -> set[str]:
    """Return the nodes whose pairs are all bad while their neighbours have good pairs."""
    total = Counter(node for pair in pairs for node in _ends(pair, nodes))
    bad = Counter(node for pair in wrong for node in _ends(pair, nodes))
    return {node for node in bad if bad[node] == total[node] > 1 and len(wrong) < len(pairs)}
