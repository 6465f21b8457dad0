"""What a suite registers: an entry point `NAME = PACKAGE` in the group pytest_gpucluster.suites, and SUITE in PACKAGE/__init__.py.

A part is the object itself or its name "MODULE:OBJECT", imported where it is read: a run of one suite does not pay for
the modules of the others.
"""

from __future__ import annotations

import pkgutil
import traceback
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pytest_gpucluster import SuiteError, suite_packages
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucluster.cluster.channel.channel import Channel
    from pytest_gpucluster.cluster.slurm.client import Slurm
    from pytest_gpucluster.cluster.slurm.leftovers import Leftover
    from pytest_gpucluster.config.models import Cluster
    from pytest_gpucluster.core.check import Verdict
    from pytest_gpucluster.core.probe import Probe
    from pytest_gpucluster.core.survey import Software, Survey
    from pytest_gpucluster.core.values import ProfileRow, SuiteSection
    from pytest_gpucluster.kit.suite_work import (
        BeforeRelease,
        Contradiction,
        JobPairs,
        LateCheck,
        Leftovers,
        Limit,
        OnRequest,
        PairJudgement,
        PairResult,
        Submission,
    )
    from pytest_gpucluster.run.session import ClusterSession

KIT = "pytest_gpucluster.kit."
T = TypeVar("T")


@dataclass(frozen=True)
class Work(Generic[T]):
    """Work of a suite before its tests, done in runs that have a test with this fixture.

    `needs_nodes`: a test with the fixture makes the run allocate nodes. Otherwise, in a run without nodes, the fixture
    starts the work. `option`: an option of pytest (its attribute); without it the work is not done. `first`: before the
    jobs of the other suites, which would run on the nodes; work before the first test then does not wait for the nodes' answers.
    """

    fixture: str
    part: T | str
    needs_nodes: bool = True
    option: str = ""
    first: bool = False

    def wanted(self, option: Namespace) -> bool:
        """Return whether the parsed options of pytest ask for the work."""
        return not self.option or bool(getattr(option, self.option))


class SuitePart(Generic[T]):
    """An argument of `Suite` that may be a name, "MODULE:OBJECT": read as an attribute, it is imported."""

    def __set_name__(self, _: type[Suite], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, suite: None, _: type[Suite]) -> None: ...
    @overload
    def __get__(self, suite: Suite, _: type[Suite]) -> T | None: ...
    def __get__(self, suite: Suite | None, _: type[Suite]) -> T | None:
        part: T | str | None = vars(suite)[self._name] if suite is not None else None
        return suite.load(part) if suite is not None and part is not None else None

    def __set__(self, suite: Suite, part: T | str | None) -> None:
        vars(suite)[self._name] = part


@dataclass(frozen=True, eq=False)
class Suite:
    """What a suite is, and what else it does than to check. Types of the parts: kit/suite_work.py.

    markers: lines "NAME: meaning" as pytest takes them; a literal, since the plugin reads it without an import.
    order: the place among the suites; a literal too. Suites of the same order stand by name.
    section: the model of the suite's section of the cluster file, a `SuiteSection` of core/values.py, itself or as a
    part; its module is imported with the configuration, so it imports nothing but core and other sections.
    profile_rows: the model of the rows that a profile has as a list under the name of the suite, a `ProfileRow`, itself or as a part;
    `profile.rows(MODEL)` returns them.
    frameworks: the modules under test, which only payloads import.
    needs: what `gpucluster init` must find on a node before it writes the section: modules of python3, programs, and
    "2 nodes" in each partition; without it the drafted file has a comment that says what is missing.
    stated: what else the section needs, that only its operator can state; the draft is then a comment.
    partners: the number of other nodes that a campaign tests each node with, in pairs; 0: it tests the node alone.
    proof: whole names of checks (fnmatch), like 'gpu.count', without whose results the suite has proved nothing about a node.
    by_profile: whole names of checks (fnmatch) that judge against the hardware profile without the fact `profile` or one made of
    it, and are not checked where the profile is of other hardware.
    options: further options of pytest, with the arguments of addoption(); `again`: those that a command which repeats a check keeps.
    resume: the option that goes on with the event log of a run which was stopped.
    settings: {key of the suite's section of the cluster file: function of the cluster that raises ConfigError for an
    invalid value}.
    draft: a function of the Survey; it returns a list of lines, the suite's part of a drafted cluster file.
    trade: who repairs what the suite finds on a part that is neither cable nor switch: like 'storage'.
    lists_parts: the check whose items list the parts of a node by serial number.
    documentation: the address of the suite's page, where it is not shipped with this package.
    after_release: judged after the nodes were released.
    before_release: removes what steps have left on the nodes; returns lines that say what stays.
    check_options: raises ConfigError for a value of `options` that is refused.
    contradictions: returns {nodes of a group: Contradiction} where all nodes contradict their profile, whose checks are then
    not judged.
    draft_commands: takes Slurm's configuration; returns the commands whose output the survey has if `gpucluster init` runs
    where Slurm does.
    draft_probes: the probes whose answers the survey has if `gpucluster init` queries the nodes.
    idle: returns why a run that does not select the suite by name leaves it out, since nothing on this cluster is there to be
    tested; '' otherwise.
    job_pairs: what the gates of a job measure together, and which nodes are bad by it.
    known_cause: takes the verdict of a check of any suite that did not pass, and its node or ''; returns it with the cause that
    the facts of this suite give, else as it is.
    least_limits: returns {limit of a process: (what nodes must have at least, a function that shows such a value)}.
    leftover_folders: returns the folders, beside the temporary ones of this machine, in which a run that was killed may have
    left folders.
    leftovers: returns what killed runs left outside of Slurm and of these folders; GpuClusterError if it cannot be read.
    local_leftovers: returns files on this machine, which every run removes.
    node_leftovers: returns what ended jobs left on the nodes, and what could not be read.
    not_applicable: returns {check: why it does not apply to the cluster}.
    on_request: the tests of the suite run only if a run selects them.
    pair_results: takes the nodes and all pairs of a campaign that the suite has measured.
    simulated_payload: returns the program that the sandbox runs on simulated devices instead of the suite's payload.
    planned_cables: returns {(node, adapter): the words for its planned cable}.
    tried: takes the suite, its section, the software and the GPUs of a node; returns what the suite would run there, and what
    is missing; by default that are the `frameworks`.
    """

    package: str
    markers: tuple[str, ...]
    order: int = 100
    section: SuitePart[type[SuiteSection]] = SuitePart()
    profile_rows: SuitePart[type[ProfileRow]] = SuitePart()
    frameworks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    stated: str = ""
    partners: int = 0
    proof: tuple[str, ...] = ()
    by_profile: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    resume: str = ""
    settings: Mapping[str, Callable[[Cluster], object] | str] = field(default_factory=dict)
    before_allocation: Work[Callable[[Slurm, Cluster], Submission | None]] | None = None
    before_first_test: Work[Callable[[ClusterSession], object]] | None = None
    draft: SuitePart[Callable[[Survey], Sequence[str]]] = SuitePart()
    trade: str = ""
    lists_parts: str = ""
    documentation: str = ""

    after_release: SuitePart[LateCheck] = SuitePart()
    before_release: SuitePart[BeforeRelease] = SuitePart()
    check_options: SuitePart[Callable[[Namespace], None]] = SuitePart()
    contradictions: SuitePart[Callable[[ClusterSession], Mapping[str, Contradiction]]] = SuitePart()
    draft_commands: SuitePart[Callable[[Mapping[str, str]], Iterable[tuple[str, ...]]]] = SuitePart()
    draft_probes: SuitePart[Sequence[Probe[Any]]] = SuitePart()
    idle: SuitePart[Callable[[Slurm, Cluster], str]] = SuitePart()
    job_pairs: SuitePart[JobPairs] = SuitePart()
    known_cause: SuitePart[Callable[[Verdict, ClusterSession, str], Verdict]] = SuitePart()
    least_limits: SuitePart[Callable[[Cluster], Mapping[str, Limit]]] = SuitePart()
    leftover_folders: SuitePart[Callable[[Cluster], Iterable[Path]]] = SuitePart()
    leftovers: SuitePart[Callable[[Cluster], list[Leftover]]] = SuitePart()
    local_leftovers: SuitePart[Callable[[], list[Leftover]]] = SuitePart()
    node_leftovers: SuitePart[Callable[[Slurm, Channel, Cluster], Leftovers]] = SuitePart()
    not_applicable: SuitePart[Callable[[Cluster], Mapping[str, str]]] = SuitePart()
    on_request: SuitePart[OnRequest] = SuitePart()
    pair_results: SuitePart[Callable[[Sequence[str], Sequence[PairResult]], PairJudgement]] = SuitePart()
    planned_cables: SuitePart[Callable[[Cluster], Mapping[tuple[str, str], str]]] = SuitePart()
    simulated_payload: SuitePart[Callable[[], str]] = SuitePart()
    tried: SuitePart[Callable[[Suite, Any, Software, int], tuple[str, list[str]]]] = SuitePart()

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that the suite needs on a node."""
        return tuple(word for word in self.needs if word not in self.frameworks and " " not in word)

    @cached_property
    def name(self) -> str:
        """The name of the entry point, of the first marker and of the section of the cluster file."""
        names = (name for name, package in suite_packages().items() if package == self.package)
        return next(names, self.package.rpartition(".")[2])

    @property
    def page(self) -> str:
        """The documentation page."""
        return self.documentation or f"docs/suites/{self.name.replace('_', '-')}.md"

    def load(self, part: T | str) -> T:
        """Import a part that is named "MODULE:OBJECT", a module of the suite's folder, or of the kit by its full name."""
        if not isinstance(part, str):
            return part
        found: T = pkgutil.resolve_name(part if part.startswith(KIT) else f"{self.package}.{part}")
        return found


def import_checks() -> None:
    """Import every module that may declare a check: core.check.CHECKS has all of them then."""
    for suite in suites():
        for one in pkgutil.iter_modules(import_module(suite.package).__path__):
            if not one.name.startswith(("payload", "test_")):
                import_module(f"{suite.package}.{one.name}")


@cache
def suites() -> tuple[Suite, ...]:
    """Return the suites in their order. SuiteError for one that cannot be imported."""
    found = [_suite(name, package) for name, package in suite_packages().items()]
    return tuple(sorted(found, key=lambda suite: (suite.order, suite.name)))


def parts_of_suites(read: Callable[[Suite], T | None]) -> Iterator[T]:
    """Yield a part of each suite that has it, in their order: `parts_of_suites(lambda suite: suite.idle)`."""
    return (part for suite in suites() if (part := read(suite)) is not None)


def _suite(name: str, package: str) -> Suite:
    try:
        suite = import_module(package).SUITE
    except (Exception, SystemExit) as error:  # by whatever stands in its modules
        what = one_line(redact.text(str(error).partition("\n")[0])) or type(error).__name__
        raise SuiteError(
            f"the suite {name!r} of {package} cannot be imported: {what}{_line_of(error, package)}"
        ) from error
    if not isinstance(suite, Suite):
        raise SuiteError(f"the suite {name!r} of {package} must be a Suite; its SUITE is {suite!r}")
    return suite


def _line_of(error: BaseException, package: str) -> str:
    """Return the last line of the package that the error came through; '' if it came through none."""
    spec = find_spec(package)
    folder = (spec.submodule_search_locations or [""])[0] if spec is not None else ""
    frames = [it for it in traceback.extract_tb(error.__traceback__) if folder and it.filename.startswith(folder)]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
