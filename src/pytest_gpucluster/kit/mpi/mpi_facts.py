"""The MPI of a node, and the output of an MPI run: text -> facts. Pure.

The lines come from the folder payloads/mpi (prepare.sh, world.c, world.py); the versions from Open MPI 4.1.4,
MPICH 5.0.2 and the sources of Open MPI 5, MVAPICH 2 and Intel MPI.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.core.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.kit.mpi.mpi_errors import LaunchFailure

_LINE = re.compile(r"gpucluster-mpi (\{.*\})\s*$", re.MULTILINE)
_WHERE = re.compile(r"^gpucluster-mpi-(c|python) (\{.*\})\s*$", re.MULTILINE)
_FACT = re.compile(r"^gpucluster-mpi-fact\t(\S+)\t(.*)", re.MULTILINE)
_VERSIONS = (
    ("Open MPI", re.compile(r"Open MPI\)? v?(\d[\w.]*)")),
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?(\d{4}[\w.]*|\d+\.\d[\w.]*)")),
    ("MVAPICH", re.compile(r"MVAPICH2?(?:-\w+)? Version\s*:\s*(\S+)")),
    ("MPICH", re.compile(r"MPICH Version\s*:\s*(\S+)")),
    ("Hydra", re.compile(r"HYDRA build details.*?Version\s*:\s*(\S+)", re.DOTALL)),
)
# Hydra is the mpirun of MPICH and its derivatives
_FAMILY = {"Open MPI": "Open MPI"}
HYDRA_FAMILY = "MPICH"


# --- the MPI of a node


@dataclass(frozen=True)
class MpiVersion:
    """Name and number of an MPI: 'Open MPI', 'MPICH', 'Hydra' (the mpirun of MPICH), ...; '' if unknown."""

    name: str
    number: str

    def __str__(self) -> str:
        return f"{self.name} {self.number}".strip() or "unknown"

    @property
    def family(self) -> str:
        """The family: an mpirun starts the programs of its own family only."""
        return _FAMILY.get(self.name, HYDRA_FAMILY) if self.name else ""


def version_of(text: str) -> MpiVersion:
    """Return the version in the output of `mpirun --version` or MPI_Get_library_version."""
    for name, pattern in _VERSIONS:
        match = pattern.search(text)
        if match:
            return MpiVersion(name, match[1].rstrip(",."))
    return MpiVersion("", "")


@dataclass(frozen=True)
class MpirunPath:
    """One mpirun on PATH, and whether its folder belongs to a conda environment."""

    path: str
    conda: bool


@dataclass(frozen=True)
class InstalledMpi:
    """The MPI of one node, in the environment of the steps.

    `mpiruns`: all on PATH, in its order; `mpirun`: the one that is started ('' for none). `library`: {language:
    version text of its MPI}, `problems`: {language: why it has none, with the code of a finding}. `srun_types`: the types of `srun --mpi` that
    the MPI supports, () if unknown.
    """

    node: str
    host: str = ""
    mpiruns: tuple[MpirunPath, ...] = ()
    mpirun: str = ""
    launcher: MpiVersion = MpiVersion("", "")
    library: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, Explanation] = field(default_factory=dict)
    srun_types: tuple[str, ...] = ()

    def program(self, language: str) -> MpiVersion:
        """Return the MPI of a language's programs."""
        return version_of(self.library.get(language, ""))


def read_installed(node: str, text: str) -> InstalledMpi:
    """Return the facts in the output of prepare.sh."""
    facts = grouped((key, value.strip()) for key, value in _FACT.findall(text))
    by_language = {language: _json(line) for language, line in _WHERE.findall(text)}
    one = {key: values[0] for key, values in facts.items()}
    library = {language: str(fields.get("library", "")) for language, fields in by_language.items()}
    return InstalledMpi(
        node,
        host=next((str(fields["host"]) for fields in by_language.values() if fields.get("host")), ""),
        mpiruns=tuple(MpirunPath(p.partition(" ")[2], p.startswith("conda ")) for p in facts.get("mpirun", ())),
        mpirun=one.get("mpirun-first", ""),
        launcher=version_of(one.get("mpirun-version", "")),
        library=library,
        problems={
            language: Explanation(one.get(f"code-{language}", "not_importable"), one[f"problem-{language}"])
            for language in ("c", "python")
            if f"problem-{language}" in one
        },
        srun_types=_srun_types({version_of(text) for text in library.values()}, one),
    )


def _srun_types(libraries: set[MpiVersion], facts: Mapping[str, str]) -> tuple[str, ...]:
    if len(libraries) != 1:
        return ()  # ompi_info and mpichversion belong to one of them, it is unknown to which
    (library,) = libraries
    if library.name == "Open MPI":
        clients = facts.get("ompi-pmi", "").split()  # components of its pmix framework
        if library.number.split(".")[0].isdigit() and int(library.number.split(".")[0]) >= 5:  # PMIx only
            return ("pmix",)
        known = {"s1": "pmi1", "s2": "pmi2"}
        used = [name for name in clients if name in known or "ext" in name or "pmix" in name]
        return tuple(dict.fromkeys(known.get(name, "pmix") for name in used))
    if library.family == HYDRA_FAMILY and "mpich" in facts:
        return ("pmix",) if re.search(r"--with-(?:pmi=)?pmix", facts["mpich"]) else ("pmi2",)
    return ()


# --- the ranks of a run


@dataclass(frozen=True)
class MpiRank:
    """One rank, as it reports itself. `wrong` of `elements` of the all-reduce differ from the closed form.

    `cpus`: the CPUs that it may use, as the kernel lists them; '' if unknown. `variables`: those of its environment
    that select or limit transports, like UCX_TLS=tcp.
    """

    rank: int
    size: int
    host: str
    node: str
    threads: str
    wrong: int
    elements: int
    library: str
    cpus: str = ""
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankPair:
    """Two ranks on two nodes: latency of 8 bytes in seconds, bandwidth of 4 MiB in bytes per second, in one direction."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class MpiWorld:
    """The ranks of a run and the measured pairs."""

    ranks: tuple[MpiRank, ...] = ()
    pairs: tuple[RankPair, ...] = ()

    @property
    def nodes(self) -> dict[int, str]:
        """{rank: node}."""
        return {rank.rank: rank.node for rank in self.ranks}


@dataclass(frozen=True)
class MpiRun:
    """A run that ended: the requested nodes and ranks, the result, and the problems.

    `launcher`: 'mpirun' or 'srun --mpi=pmi2'; `problem`: it hung or could not be started; `failures`: known messages;
    `first_error`: the first error message if it failed.
    """

    launcher: str
    language: str
    nodes: tuple[str, ...]
    ntasks_per_node: int
    world: MpiWorld
    rc: int | None = 0
    problem: str = ""
    failures: tuple[LaunchFailure, ...] = ()
    first_error: str = ""

    @property
    def size(self) -> int:
        """The requested number of ranks."""
        return len(self.nodes) * self.ntasks_per_node


def read_world(text: str, node: str = "") -> MpiWorld:
    """Return the ranks and pairs in the output of world.c or world.py. `node`: the node of all lines, if known.

    ProbeError for a damaged line of the program: no rank may be missed.
    """
    ranks, pairs = [], []
    for line in _LINE.findall(text):
        fields = _json(line)
        try:
            if fields["kind"] == "rank":
                ranks.append(_rank(fields, node))
            elif fields["kind"] == "pair":
                first, other = map(int, fields["ranks"])
                pairs.append(RankPair((first, other), float(fields["latency"]), float(fields["bandwidth"])))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProbeError(f"line of the MPI program not understood: {line[:120]} ({error})") from error
    return MpiWorld(tuple(sorted(ranks, key=lambda rank: rank.rank)), tuple(pairs))


def join_worlds(worlds: Iterable[MpiWorld]) -> MpiWorld:
    """Return one world from those of the tasks."""
    known = list(worlds)
    ranks = sorted((rank for world in known for rank in world.ranks), key=lambda rank: rank.rank)
    return MpiWorld(tuple(ranks), tuple(pair for world in known for pair in world.pairs))


def with_nodes(world: MpiWorld, hosts: Mapping[str, str]) -> MpiWorld:
    """Return the world with the node of each rank; `hosts` is {host name: node}.

    Where nodes share a host name (virtual nodes of one machine), `hosts` is {} and SLURMD_NODENAME names the node.
    """
    nodes = (hosts.get(it.host) or (it.host if hosts else it.node) or it.host for it in world.ranks)
    ranks = (replace(rank, node=node) for rank, node in zip(world.ranks, nodes, strict=True))
    return replace(world, ranks=tuple(ranks))


def hosts_of(installed: Iterable[InstalledMpi]) -> dict[str, str]:
    """Return {host name: node}; {} if nodes share a host name."""
    known = [(facts.host, facts.node) for facts in installed if facts.host]
    hosts = dict(known)
    return hosts if len(hosts) == len(known) else {}


def _rank(fields: dict[str, Any], node: str) -> MpiRank:
    return MpiRank(
        rank=int(fields["rank"]),
        size=int(fields["size"]),
        host=str(fields["host"]),
        node=node or str(fields["node"]),
        threads=str(fields["threads"]),
        wrong=int(fields["wrong"]),
        elements=int(fields["of"]),
        library=str(fields["library"]),
        cpus=str(fields.get("cpus", "")),
        variables=tuple(str(fields.get("variables", "")).split()),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = jsontext.loads(text)
    except ValueError as error:
        raise ProbeError(f"line of the MPI program not understood: {text[:120]} ({error})") from error
    return fields
