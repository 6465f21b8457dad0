"""Modules load, are listed and unload as stated; conda environments have the stated software. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucluster.core.check import Action, Advisory, Finding, Metric, check
from pytest_gpucluster.core.errors import NOT_STATED, NotApplicable, NotAvailable, ProbeError
from pytest_gpucluster.core.finding import Quote
from pytest_gpucluster.core.part import named
from pytest_gpucluster.core.probe import NOT_EXECUTABLE, NOT_FOUND, last_line
from pytest_gpucluster.core.sanitize import one_line
from pytest_gpucluster.core.text import listed
from pytest_gpucluster.suites.software.facts import ScriptResult, is_environment, read_packages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucluster.core.check import Judgement
    from pytest_gpucluster.suites.software.config import CondaConfig, ModulesConfig, SoftwareConfig
    from pytest_gpucluster.suites.software.facts import CommandStep

NO_MODULES = "the cluster file has no `software.modules`"
NO_CONDA = "the cluster file has no `software.conda`"
_ABSENT = "the node's python, module tree or shared file system differs from the other nodes"


@check(
    "software.module_command",
    cause="no package of environment modules on this node, or `module` is defined for login shells only",
    hint="ls /etc/profile.d; a file there, or /etc/profile, must define `module`",
    action=Action.CONFIGURE,
)
def module_command(modules: ScriptResult | None) -> Judgement:
    """The shell of a step has the command `module`."""
    if modules is None:
        raise NotApplicable(NO_MODULES)
    if modules.unknown(0):
        yield _without_end(modules, 0, "module --version")
    elif modules.of(0, "version")[0].rc in (NOT_FOUND, NOT_EXECUTABLE):
        measured = Quote(_first_error(modules.text(0, "version")))
        yield Finding(named("software", "module"), measured, "a command of the shell", code="no_command")


@check(
    "software.modules",
    cause="the modulefile or the folder of modules is missing on this node, or another version is installed",
    hint="module avail; echo $MODULEPATH; df of the folder of modules; compare with a good node",
    action=Action.CONFIGURE,
)
def modules(modules: ScriptResult | None, section: SoftwareConfig) -> Judgement:
    """Each stated module loads within the limit, and `module avail` and `module list` show it."""
    for config, facts, number, item in _items(modules, section):
        if facts.unknown(number):
            yield _without_end(facts, number, item)
        else:
            yield from _loaded(config, facts, number, item)


def _loaded(config: ModulesConfig, facts: ScriptResult, number: int, item: str) -> Judgement:
    loads = facts.of(number, "load")
    before, after = (facts.loaded(number, step) for step in ("before", "after"))
    yield Metric("module_load", sum(step.seconds for step in loads), "s", item)
    gained = [name for name in after if name not in before]
    missing = [
        (name, step, avail)
        for name, step, avail in zip(item.split(), loads, facts.of(number, "avail"), strict=True)
        # an alias or a symbolic version loads a module of another name
        if not _has(after, name) and (step.rc != 0 or not gained)
    ]
    for name, step, avail in missing:
        known = _has(avail.text.split(), name)
        code, also = ("not_loaded", "") if known else ("absent", " (`module avail` does not list it)")
        yield Finding(named("software", name), Quote(f"{_first_error(step.text)}{also}"), "loads", code=code)
    if missing:
        return
    if not any(name in facts.text(number, "list") for name in (*gained, *item.split())):
        measured = Quote(f"module list: {_first_error(facts.text(number, 'list'))}")
        yield Finding(named("software", item), measured, f"shows {listed(gained)}", code="not_in_list")
    for name, avail in zip(item.split(), facts.of(number, "avail"), strict=True):
        if not avail.text.strip():
            text, expected = "loads, and `module avail` does not list it", "listed, unless it is hidden"
            yield Advisory(named("software", name), text, expected, code="not_in_avail")


@check(
    "software.module_output",
    cause="another version is installed on this node, or the modulefile leads to another folder",
    hint="the same commands on the node; module show; compare with a good node",
    action=Action.CONFIGURE,
)
def module_output(modules: ScriptResult | None, section: SoftwareConfig) -> Judgement:
    """Commands of a loaded module print what the cluster file states."""
    if section.modules and not section.modules.output:
        raise NotApplicable("the cluster file has no `software.modules.output`")
    for config, facts, number, item in _items(modules, section):
        wanted = config.output.get(item, {})
        if not wanted:
            continue
        if facts.unknown(number):
            yield NotAvailable(f"{item}: {facts.unknown(number)}: see software.modules")
        else:
            for (command, text), step in zip(wanted.items(), facts.of(number, "output"), strict=True):
                if text not in step.text:
                    part = named("software", f"{item}: {command}")
                    yield Finding(part, Quote(_failure(step)), text, code="other_output")


@check(
    "software.module_unload",
    cause="the modulefile changes a variable so that `module unload` cannot restore it",
    hint="module show; env before the load and after the unload",
    action=Action.CONFIGURE,
)
def module_unload(modules: ScriptResult | None, section: SoftwareConfig) -> Judgement:
    """Unloading leaves the modules, PATH, LD_LIBRARY_PATH and PYTHONPATH as they were.

    The folders of a path are compared, not their order and repetition: Lmod removes repeated folders from a path that it
    changes, and moves a folder that a module prepends again (LMOD_DUPLICATE_PATHS).
    """
    for _, facts, number, item in _items(modules, section):
        if facts.unknown(number):
            yield NotAvailable(f"{item}: {facts.unknown(number)}: see software.modules")
        else:
            yield from _unloaded(facts, number, item)


def _unloaded(facts: ScriptResult, number: int, item: str) -> Judgement:
    before, after, unloaded = (facts.loaded(number, step) for step in ("before", "after", "unloaded"))
    if not set(after) - set(before):
        yield NotAvailable(f"{item} was not loaded: see software.modules")
    elif replaced := [name for name in before if name not in after]:
        why = "the environment differs for that reason"
        yield NotAvailable(f"loading {item} replaced {listed(replaced)}: {why}")
    elif left := [name for name in unloaded if name not in before]:
        why = last_line(facts.text(number, "unload"))
        measured = Quote(f"{listed(left)} still loaded{f': {_first_error(why)}' if why else ''}")
        yield Finding(named("software", item), measured, "unloaded", code="still_loaded")
    else:
        yield from _restored(facts, number, item)


def _restored(facts: ScriptResult, number: int, item: str) -> Judgement:
    was, now = (_paths(facts.text(number, step)) for step in ("paths_before", "paths_unloaded"))
    for name in sorted(was):
        part = named("software", f"{item}: {name}")
        if added := [folder for folder in now.get(name, ()) if folder not in was[name]]:
            yield Finding(part, f"{listed(added)} left after unload", "as before", code="left")
        if lost := [folder for folder in was[name] if folder not in now.get(name, ())]:
            yield Finding(part, f"{listed(lost)} removed by unload", "as before", code="removed")


def _paths(text: str) -> dict[str, tuple[str, ...]]:
    lines = (line.partition("=") for line in text.splitlines())
    return {name: tuple(filter(None, value.split(":"))) for name, is_, value in lines if is_}


@check(
    "software.conda",
    cause="conda or the environment is missing on this node, or its folder is not mounted",
    hint="conda env list; conda activate on the node; df of the folder; `software.conda.command`",
    action=Action.CONFIGURE,
)
def conda(conda: ScriptResult | None, section: SoftwareConfig) -> Judgement:
    """Each stated conda environment can be activated, within the limit, and its python comes first."""
    if conda is None or section.conda is None:
        raise NotApplicable(NO_CONDA)
    if conda.hung == 0:
        yield _without_end(conda, 0, "conda --version")
        return
    if reason := conda.unknown(0):
        raise NotAvailable(reason)
    if (version := conda.of(0, "version")[0]).rc != 0:
        yield Finding(named("software", "conda"), Quote(_failure(version)), "runs", code="does_not_run")
        return
    for number, name in enumerate(section.conda.environments, 1):
        if conda.unknown(number):
            yield _without_end(conda, number, name)
        else:
            yield from _activated(section.conda, conda, number, name)


def _activated(config: CondaConfig, facts: ScriptResult, number: int, name: str) -> Judgement:
    (step,), part = facts.of(number, "activate"), named("software", name)
    if step.rc != 0:
        yield Finding(part, Quote(_failure(step)), "can be activated", code="not_activated")
        return
    prefix, python = (*facts.text(number, "place").splitlines(), "", "")[:2]
    yield Metric("conda_activate", step.seconds, "s", name)
    if not is_environment(prefix, name):
        measured = f"CONDA_PREFIX is {prefix or 'not set'}"
        yield Finding(part, measured, "the folder of the environment", code="other_prefix")
    elif config.environments[name].python and python != f"{prefix}/bin/python":
        measured = f"python is {python or 'not found'}"
        yield Finding(part, measured, f"{prefix}/bin/python", code="other_python")


@check(
    "software.conda_packages",
    cause="the environment was changed or installed differently on this node",
    hint="conda list -n and conda run -n with the environment; compare with a good node",
    action=Action.CONFIGURE,
)
def conda_packages(conda: ScriptResult | None, section: SoftwareConfig) -> Judgement:
    """The python and the packages of each conda environment have the stated versions."""
    if conda is None or section.conda is None:
        raise NotApplicable(NO_CONDA)
    environments = section.conda.environments
    if not any(wanted.python or wanted.packages for wanted in environments.values()):
        raise NotApplicable("the cluster file states no versions in `software.conda.environments`", NOT_STATED)
    for number, (name, wanted) in enumerate(environments.items(), 1):
        if conda.unknown(number) or not any(step.rc == 0 for step in conda.of(number, "activate")):
            yield NotAvailable(f"{name} was not activated: see software.conda")
            continue
        if wanted.python:
            yield from _python(conda, number, name, wanted.python)
        if wanted.packages:
            yield from _packages(conda, number, name, wanted.packages)


def _python(facts: ScriptResult, number: int, name: str, stated: str) -> Judgement:
    (step,) = facts.of(number, "python")
    line = last_line(step.text)
    found = line.removeprefix("Python ") if step.rc == 0 and line.startswith("Python ") else ""
    if not found or not _is_version(found, stated):
        part, code = named("software", f"python of {name}"), "other_version" if found else "does_not_run"
        yield Finding(part, Quote(found or _failure(step)), stated, code=code)


def _packages(facts: ScriptResult, number: int, name: str, stated: Mapping[str, str]) -> Judgement:
    try:
        found = read_packages(facts.text(number, "packages"))
    except ProbeError as error:
        yield NotAvailable(f"{name}: {one_line(error)}")
        return
    for package, version in stated.items():
        known = found.get(package.lower(), "")
        if not _is_version(known, version):
            part, code = named("software", f"{name}: {package}"), "other_version" if known else "absent"
            yield Finding(part, Quote(known or "not installed"), version, code=code)


def _is_version(found: str, stated: str) -> bool:
    return found == stated or found.startswith(f"{stated}.")


def _items(
    modules: ScriptResult | None, section: SoftwareConfig
) -> Iterator[tuple[ModulesConfig, ScriptResult, int, str]]:
    """Yield (config, facts, number, item) of each item of `load`; NotApplicable without items."""
    if modules is None or section.modules is None:
        raise NotApplicable(NO_MODULES)
    if not section.modules.load:
        raise NotApplicable("the cluster file has no `software.modules.load`")
    version = modules.of(0, "version")
    if not version or version[0].rc in (NOT_FOUND, NOT_EXECUTABLE):
        raise NotAvailable("the node has no command `module`: see software.module_command")
    for number, item in enumerate(section.modules.load, 1):
        yield section.modules, modules, number, item


def _without_end(facts: ScriptResult, entry: int, item: str) -> Finding | NotAvailable:
    if facts.hung == entry:
        measured = "did not end within the time limit"
        return Finding(named("software", item), measured, "ends", code="timed_out")
    return NotAvailable(f"{item}: {facts.unknown(entry)}")


def _has(loaded: Sequence[str], name: str) -> bool:
    """Return whether a module is among others, by its name or with a version that was not stated."""
    return any(one == name or one.startswith(f"{name}/") for one in loaded)


def _failure(step: CommandStep) -> str:
    """Return a command's text from its first error on, or its exit status if it printed nothing."""
    return _first_error(step.text) if step.text.strip() else f"no output (exit {step.rc})"


def _first_error(text: str) -> str:
    """Return a tool's text from its first error on, else from its beginning."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = (at for at, line in enumerate(lines) if "error" in line.lower() or "not found" in line.lower())
    return one_line(" ".join(lines[next(wrong, 0) :]) or "no message", 160)
