"""What a suite registers: an entry point `NAME = PACKAGE` in the group pytest_gpucluster.suites, and SUITE in PACKAGE/__init__.py.

A part is named "MODULE:OBJECT", a module of the suite's folder, or of the kit by its full name, and imported where it
is first needed: a run of one suite does not pay for the modules of the others. It may also be the object itself.
"""

from __future__ import annotations

import pkgutil
import traceback
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pytest_gpucluster import SuiteError, suite_packages
from pytest_gpucluster.core import redact
from pytest_gpucluster.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KIT = "pytest_gpucluster.kit."
Part = Any  # the object itself, or its name "MODULE:OBJECT"


@dataclass(frozen=True)
class Work:
    """Work of a suite before its tests, done in runs that have a test with this fixture.

    `needs_nodes`: a test with the fixture makes the run allocate nodes. Otherwise, in a run without nodes, the fixture
    starts the work. `option`: an option of pytest (its attribute); without it the work is not done. `first`: before the
    jobs of the other suites, which would run on the nodes; work before the first test then does not wait for the nodes' answers.
    """

    fixture: str
    part: Part
    needs_nodes: bool = True
    option: str = ""
    first: bool = False

    def wanted(self, option: Any) -> bool:
        """Return whether the parsed options of pytest ask for the work."""
        return not self.option or bool(getattr(option, self.option))


# what a suite may have beside its checks -> what it is and when it is called
HOOKS = {
    "after_release": "a LateCheck, which is judged after the nodes were released",
    "before_release": "a function (run, *, hurry) that removes what steps have left on the nodes; it returns lines that say "
    "what stays. `hurry`: the run was stopped",
    "check_options": "a function of the parsed options of pytest; it raises ConfigError for a value of `options` that is "
    "refused",
    "contradictions": "a function of the run; it returns {nodes of a group: Contradiction} where all nodes contradict their "
    "profile, whose checks are then not judged",
    "draft_commands": "a function of Slurm's configuration, {key: value}; it returns the commands whose output the survey "
    "has if `gpucluster init` runs where Slurm does",
    "draft_probes": "the probes whose answers the survey has if `gpucluster init` queries the nodes",
    "idle": "a function (slurm, cluster); it returns why a run that does not select the suite by name leaves it out, since "
    "nothing on this cluster is there to be tested; '' otherwise",
    "job_pairs": "a module; what the gates of a job measure together, and which nodes are bad by it",
    "known_cause": "a function (verdict, session, node or '') of a check of any suite that did not pass; it returns the "
    "verdict with the cause that the facts of this suite give, else the same one",
    "least_limits": "a function of the cluster; it returns {limit of a process: (what nodes must have at least, a function "
    "that shows such a value)}",
    "leftover_folders": "a function of the cluster; it returns the folders, beside the temporary ones of this machine, in "
    "which a run that was killed may have left folders",
    "leftovers": "a function of the cluster; it returns a list of Leftover (cluster/slurm/leftovers.py) with what killed "
    "runs left outside of Slurm and of these folders, or raises GpuClusterError if it could not be read",
    "local_leftovers": "a function; it returns a list of Leftover, files on this machine; every run removes them",
    "node_leftovers": "a function (slurm, fleet, cluster); it returns a list of Leftover on the nodes, of jobs that have ended, and "
    "a list of what could not be read",
    "not_applicable": "a function of the cluster; it returns {check: why it does not apply there}",
    "on_request": "a module; the tests of the suite run only if a run selects them",
    "pair_results": "a function (nodes, pairs) of all pairs of a campaign that the suite has measured, each a PairResult; it "
    "returns a PairJudgement: bad nodes, bad links, pairs to measure next",
    "simulated_payload": "a function; it returns the program that the sandbox runs on simulated devices instead of the "
    "suite's payload",
    "tried": "a function (suite, section, Software of core/survey.py, GPUs); it returns what the suite would run on a node, "
    "and what is missing; by default that are the `frameworks`",
}


@dataclass(frozen=True)
class Suite:
    """One suite. The signatures of the parts and hooks are in kit/suite_work.py.

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
    options: further options of pytest, with the arguments of addoption(). again: those that a command which repeats a check keeps.
    resume: the option that goes on with the event log of a run which was stopped.
    settings: {key of the suite's section of the cluster file: function of the cluster that raises ConfigError for an
    invalid value}.
    draft: a function of the Survey; it returns a list of lines, the suite's part of a drafted cluster file.
    documentation: the address of the suite's page, where it is not shipped with this package.
    hooks: {a name of HOOKS: the part that is called there}.
    """

    package: str
    markers: tuple[str, ...]
    order: int = 100
    section: Part | None = None
    profile_rows: Part | None = None
    frameworks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    stated: str = ""
    partners: int = 0
    proof: tuple[str, ...] = ()
    by_profile: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    resume: str = ""
    settings: Mapping[str, Part] = field(default_factory=dict)
    before_allocation: Work | None = None
    before_first_test: Work | None = None
    draft: Part | None = None
    documentation: str = ""
    hooks: Mapping[str, Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a hook that nothing calls."""
        if strange := self.hooks.keys() - HOOKS.keys():
            raise SuiteError(
                f"{self.package}: no hook is called {', '.join(sorted(strange))}: {', '.join(HOOKS)}"
            )

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

    def load(self, part: Part) -> Any:
        """Import a part that is named."""
        if not isinstance(part, str):
            return part
        return pkgutil.resolve_name(part if part.startswith(KIT) else f"{self.package}.{part}")

    def hook(self, name: str) -> Any:
        """Return what the suite has for this hook, imported; None if it has nothing."""
        return self.load(self.hooks[name]) if name in self.hooks else None


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


def suite_hooks(name: str) -> Iterator[Any]:
    """Yield what suites have for this hook, in their order."""
    return (suite.hook(name) for suite in suites() if name in suite.hooks)


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
    frames = [
        it for it in traceback.extract_tb(error.__traceback__) if folder and it.filename.startswith(folder)
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
