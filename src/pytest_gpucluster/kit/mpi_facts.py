"""Which MPI a node has, and what a world of MPI ranks told: text -> facts. Pure.

The lines are those of the folder payloads/mpi (prepare.sh, world.c, world.py); the versions were read off Open MPI
4.1.4 and MPICH 5.0.2, and stand in the sources of Open MPI 5, MVAPICH 2 and Intel MPI.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core import safe_json as jsontext
from pytest_gpucluster.core.errors import ProbeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucluster.kit.mpi_errors import LaunchFailure

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
# Hydra is the mpirun of MPICH and of everything that is made of it
_FAMILY = {"Open MPI": "Open MPI"}
HYDRA_FAMILY = "MPICH"


# --- what a node has


@dataclass(frozen=True)
class Version:
    """Which MPI: 'Open MPI', 'MPICH', 'Hydra' (the mpirun of MPICH and its kin), ...; '' where it is not known."""

    name: str
    number: str

    def __str__(self) -> str:
        return f"{self.name} {self.number}".strip() or "unknown"

    @property
    def family(self) -> str:
        """MPIs of one family start each other's programs."""
        return _FAMILY.get(self.name, HYDRA_FAMILY) if self.name else ""


def version_of(text: str) -> Version:
    """Read the version out of `mpirun --version` or MPI_Get_library_version."""
    for name, pattern in _VERSIONS:
        match = pattern.search(text)
        if match:
            return Version(name, match[1].rstrip(",."))
    return Version("", "")


@dataclass(frozen=True)
class MpirunPath:
    """One program on PATH, and whether its folder belongs to a conda environment."""

    path: str
    conda: bool


@dataclass(frozen=True)
class InstalledMpi:
    """The MPI of one node, in the environment of the steps.

    `mpiruns` are all on PATH, in its order; `mpirun` is the one that is started ('' for none). `library` is what the
    MPI of a language's programs calls itself, `problems` why a language has none. `srun_types`: the types of `srun --mpi`
    that it understands, () where that is not known.
    """

    node: str
    host: str = ""
    mpiruns: tuple[MpirunPath, ...] = ()
    mpirun: str = ""
    launcher: Version = Version("", "")
    library: Mapping[str, str] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    srun_types: tuple[str, ...] = ()

    def program(self, language: str) -> Version:
        """Return the MPI of a language's programs."""
        return version_of(self.library.get(language, ""))


def read_installed(node: str, text: str) -> InstalledMpi:
    """Read what prepare.sh told of a node."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in _FACT.findall(text):
        said[key].append(value.strip())
    told = {language: _json(line) for language, line in _WHERE.findall(text)}
    one = {key: values[0] for key, values in said.items()}
    library = {language: str(fields.get("library", "")) for language, fields in told.items()}
    return InstalledMpi(
        node,
        host=next((str(fields["host"]) for fields in told.values() if fields.get("host")), ""),
        mpiruns=tuple(MpirunPath(p.partition(" ")[2], p.startswith("conda ")) for p in said["mpirun"]),
        mpirun=one.get("mpirun-first", ""),
        launcher=version_of(one.get("mpirun-version", "")),
        library=library,
        problems={key.removeprefix("problem-"): v for key, v in one.items() if key.startswith("problem-")},
        srun_types=_srun_types({version_of(text) for text in library.values()}, one),
    )


def _srun_types(libraries: set[Version], said: Mapping[str, str]) -> tuple[str, ...]:
    if len(libraries) != 1:
        return ()  # ompi_info and mpichversion are of one of them, and nothing says of which
    (library,) = libraries
    if library.name == "Open MPI":
        clients = said.get("ompi-pmi", "").split()  # components of its pmix framework
        if library.number.split(".")[0].isdigit() and int(library.number.split(".")[0]) >= 5:  # PMIx only
            return ("pmix",)
        known = {"s1": "pmi1", "s2": "pmi2"}
        types = [
            known.get(name, "pmix") for name in clients if name in known or "ext" in name or "pmix" in name
        ]
        return tuple(dict.fromkeys(types))
    if library.family == HYDRA_FAMILY and "mpich" in said:
        return ("pmix",) if re.search(r"--with-(?:pmi=)?pmix", said["mpich"]) else ("pmi2",)
    return ()


# --- a world of ranks


@dataclass(frozen=True)
class MpiRank:
    """One rank, as it sees itself. `wrong` of `elements` of the all-reduce differ from the closed form."""

    rank: int
    size: int
    host: str
    node: str
    threads: str
    wrong: int
    elements: int
    library: str


@dataclass(frozen=True)
class RankPair:
    """Two ranks on two nodes: seconds one way of 8 bytes, bytes a second one way of 4 MiB."""

    ranks: tuple[int, int]
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class MpiWorld:
    """What all the ranks of a run told."""

    ranks: tuple[MpiRank, ...] = ()
    pairs: tuple[RankPair, ...] = ()

    @property
    def nodes(self) -> dict[int, str]:
        """Rank -> node."""
        return {rank.rank: rank.node for rank in self.ranks}


@dataclass(frozen=True)
class MpiRun:
    """A run that ended: who was asked for, what was told, and why it is not as it should be.

    `launcher` in words ('mpirun', 'srun --mpi=pmi2'); `problem`: it hung or could not be started; `failures`: known
    messages; `said`: its first words where it failed.
    """

    launcher: str
    language: str
    nodes: tuple[str, ...]
    ntasks_per_node: int
    world: MpiWorld
    rc: int | None = 0
    problem: str = ""
    failures: tuple[LaunchFailure, ...] = ()
    said: str = ""

    @property
    def size(self) -> int:
        """How many ranks were asked for."""
        return len(self.nodes) * self.ntasks_per_node


def read_world(text: str, node: str = "") -> MpiWorld:
    """Read the lines of world.c or world.py among others. `node`: where they all come from, if that is known.

    ProbeError for a line of ours that is not understood: ranks may not get lost.
    """
    ranks, pairs = [], []
    for line in _LINE.findall(text):
        fields = _json(line)
        try:
            if fields["kind"] == "rank":
                ranks.append(_rank(fields, node))
            elif fields["kind"] == "pair":
                first, other = fields["ranks"]
                pairs.append(
                    RankPair((int(first), int(other)), float(fields["latency"]), float(fields["bandwidth"]))
                )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProbeError(f"no line of an MPI world: {line[:120]} ({error})") from error
    return MpiWorld(tuple(sorted(ranks, key=lambda rank: rank.rank)), tuple(pairs))


def join_worlds(worlds: Iterable[MpiWorld]) -> MpiWorld:
    """Put together what was read task by task."""
    known = list(worlds)
    ranks = sorted((rank for world in known for rank in world.ranks), key=lambda rank: rank.rank)
    return MpiWorld(tuple(ranks), tuple(pair for world in known for pair in world.pairs))


def with_nodes(world: MpiWorld, hosts: Mapping[str, str]) -> MpiWorld:
    """Return the world with each rank's node found by its host name; `hosts` is {host name: node}.

    Names that several nodes share (virtual nodes of one machine) tell nothing: there SLURMD_NODENAME does.
    """

    def place(rank: MpiRank) -> MpiRank:
        return replace(rank, node=hosts.get(rank.host) or (rank.host if hosts else rank.node) or rank.host)

    return replace(world, ranks=tuple(map(place, world.ranks)))


def hosts_of(installed: Iterable[InstalledMpi]) -> dict[str, str]:
    """Return {host name: node}; {} where nodes share a host name."""
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
    )


def _json(text: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = jsontext.loads(text)  # of a text in braces
    except ValueError as error:
        raise ProbeError(f"no line of an MPI world: {text[:120]} ({error})") from error
    return fields
