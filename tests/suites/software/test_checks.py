"""Verdicts of the software suite on recorded output and on changes of it."""

from __future__ import annotations

from typing import Any

import pytest
from framework_helpers import spelled
from paths import TESTS

from pytest_gpucluster.core.check import Outcome, Verdict
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.software import checks, facts
from pytest_gpucluster.suites.software.config import SoftwareConfig

DATA = TESTS / "data" / "software"
LOAD = ["alpha/1.0", "beta", "gamma/1.0", "alpha gamma", "broken", "nope/1", "leaky"]
CONFLICTS = [["alpha", "beta"], ["alpha/1.0", "gamma"]]
LMOD, TCL = "lmod-8.6.19.txt", "tcl-5.2.0.txt"
RECORDINGS = (LMOD, "lmod-9.2.9.txt", TCL)


def loaded(step: str, old: str, new: str) -> tuple[str, str]:
    """Return the replacement of the modules that are loaded after a step."""
    end = f"\n\n@@software {step}"
    return f"LOADEDMODULES={old}{end}", f"LOADEDMODULES={new}{end}"


def recorded(name: str, *replaced: tuple[str, str]) -> facts.ScriptResult:
    """Return a recording, with texts replaced that it must contain."""
    text = (DATA / name).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return facts.read_steps(Answer("gpu01", 0, text.encode()))


def modules(**changes: Any) -> SoftwareConfig:
    return SoftwareConfig.model_validate({"modules": {"load": LOAD, "conflicts": CONFLICTS, **changes}})


def conda(*, torch: dict[str, Any] | None = None, **changes: Any) -> SoftwareConfig:
    environments = {"torch": torch or {"python": "3.11", "packages": {"numpy": "1.26"}}}
    return SoftwareConfig.model_validate({"conda": {"environments": environments, **changes}})


def findings(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_loads(recording: str) -> None:
    verdict = checks.modules(recorded(recording), modules())
    assert [it.part for it in verdict.findings] == ["broken", "nope/1"]
    assert "invalid command name" in verdict.findings[0].measured
    assert "`module avail` does not list it" in verdict.findings[1].measured
    assert len(verdict.metrics) == len(LOAD)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_healthy_modules_pass(recording: str) -> None:
    config = modules(load=LOAD[:4], conflicts=[], output={"alpha/1.0": {"echo $ALPHA_HOME": "/opt/alpha"}})
    found = recorded(recording)
    assert checks.module_command(found).outcome is Outcome.PASSED
    for check in (checks.modules, checks.module_output, checks.module_unload):
        assert check(found, config).outcome is Outcome.PASSED, check.name


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_conflicts(recording: str) -> None:
    verdict = checks.module_conflicts(recorded(recording), modules())
    assert findings(verdict) == ["alpha/1.0 and gamma: loaded together: alpha/1.0, gamma/1.0"]


def test_a_conflict_is_not_proved_by_a_module_that_does_not_load() -> None:
    gone = recorded(TCL, loaded("alone 8", "beta/1.0", ""))
    verdict = checks.module_conflicts(gone, modules(conflicts=CONFLICTS))
    assert findings(verdict)[0] == "beta: does not load alone"


def test_a_module_that_replaces_its_rival_is_no_conflict() -> None:
    # family() of Lmod and conflicts of Tcl Modules 5.1 with conflict_unload: the other module is taken out
    swapped = recorded(LMOD, loaded("both 8", "alpha/1.0", "beta/1.0"))
    assert len(checks.module_conflicts(swapped, modules()).findings) == 1  # of the other pair


def test_what_an_unload_leaves_is_named() -> None:
    verdict = checks.module_unload(recorded(TCL), modules(load=LOAD))
    assert "leaky: PATH: /opt/leaky/bin left after unload" in findings(verdict)
    end = ":/bin\nLD_LIBRARY_PATH=\nPYTHONPATH=\n\n@@software paths_unloaded 3"
    lost = recorded(TCL, (f"PATH=/usr/bin{end}", f"PATH={end[1:]}"))
    verdict = checks.module_unload(lost, modules(load=LOAD[:4]))
    assert findings(verdict) == ["gamma/1.0: PATH: /usr/bin removed by unload"]


def test_an_unload_is_not_judged_where_the_load_replaced_a_default_module() -> None:
    default = recorded(LMOD, loaded("before 1", "", "delta/2"))
    verdict = checks.module_unload(default, modules(load=LOAD[:1], conflicts=[["a", "b"]]))
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert "replaced delta/2" in verdict.reason


def test_a_module_that_stays_loaded_fails() -> None:
    stays = recorded(LMOD, loaded("unloaded 1", "", "alpha/1.0"))
    verdict = checks.module_unload(stays, modules(load=LOAD[:1]))
    assert findings(verdict) == ["alpha/1.0: alpha/1.0 still loaded"]


def test_an_alias_loads_a_module_of_another_name() -> None:
    verdict = checks.modules(recorded(TCL), modules(load=["alpha/default", *LOAD[1:4]]))
    assert verdict.outcome is Outcome.PASSED


def test_modules_3_2_ends_with_0_after_an_error() -> None:
    quiet = recorded(TCL, ("@@software load 5 1", "@@software load 5 0"))
    (broken, _) = checks.modules(quiet, modules()).findings
    assert "invalid command name" in broken.measured


def test_a_hidden_module_is_an_advisory() -> None:
    hidden = recorded(TCL, ("/opt/modulefiles:\nbeta/1.0\n", ""))
    verdict = checks.modules(hidden, modules(load=LOAD[:4]))
    assert verdict.outcome is Outcome.PASSED
    assert [it.part for it in verdict.advisories] == ["beta"]


def test_a_module_that_list_does_not_show_fails() -> None:
    end = "\n\n@@software list 2"
    none = recorded(LMOD, (f"beta/1.0{end}", f"No modules loaded{end}"))
    verdict = checks.modules(none, modules(load=LOAD[:4]))
    assert findings(verdict) == ["beta: module list: No modules loaded"]


def test_load_time_and_output() -> None:
    slow = checks.modules(recorded(TCL), modules(load=LOAD[:1], max_load_time="0.001s"))
    assert [it.expected for it in slow.findings] == ["at most 0.001 s"]
    output = {"alpha/1.0": {"echo $ALPHA_HOME": "/opt/beta"}}
    verdict = checks.module_output(recorded(TCL), modules(output=output))
    assert spelled(verdict)[2] == ["alpha/1.0: echo $ALPHA_HOME: /opt/alpha / /opt/beta"]


def test_a_node_without_module_is_one_failure_and_never_a_pass() -> None:
    text = b"bash: line 1: module: command not found\n@@software version 0 127 1\n@@software end 0 0 0\n"
    found = facts.read_steps(Answer("gpu01", 0, text + b"@@software ended - 0 0\n"))
    assert findings(checks.module_command(found)) == ["module: bash: line 1: module: command not found"]
    config = modules(output={"beta": {"x": "y"}})
    for check in (checks.modules, checks.module_output, checks.module_unload, checks.module_conflicts):
        verdict = check(found, config)
        assert verdict.outcome is Outcome.NOT_CHECKED


def test_a_module_that_hangs_fails_and_later_ones_are_not_checked() -> None:
    text = (DATA / TCL).read_text()
    begin = text[: text.index("@@software load 2")] + "\n@@software ended - 124 0\n"
    found = facts.read_steps(Answer("gpu01", 0, begin.encode()))
    verdict = checks.modules(found, modules(load=LOAD[:3]))
    assert findings(verdict) == ["beta: did not end within the time limit"]
    assert verdict.reason == "gamma/1.0: the time limit was reached before"
    assert checks.module_unload(found, modules(load=LOAD[:3])).outcome is Outcome.NOT_CHECKED
    assert checks.module_conflicts(found, modules(load=LOAD[:3])).outcome is Outcome.NOT_CHECKED


def test_sections_that_are_absent_are_not_applicable() -> None:
    empty = SoftwareConfig()
    for verdict in (
        checks.module_command(None),
        *(check(None, empty) for check in (checks.modules, checks.module_output, checks.module_unload)),
        checks.module_conflicts(None, empty),
        checks.conda(None, empty),
        checks.conda_packages(None, empty),
        checks.module_conflicts(recorded(TCL), modules(conflicts=[])),
        checks.modules(recorded(TCL), modules(load=[])),
        checks.module_output(recorded(TCL), modules()),
    ):
        assert verdict.outcome is Outcome.NOT_APPLICABLE


def test_recorded_conda() -> None:
    found = recorded("conda-26.7.txt")
    assert checks.conda(found, conda()).outcome is Outcome.PASSED
    assert checks.conda_packages(found, conda()).outcome is Outcome.PASSED
    config = conda(environments={"torch": {}, "nope": {"packages": {"numpy": "1"}}})
    (missing,) = findings(checks.conda(found, config))
    assert missing.startswith("nope: EnvironmentNameNotFound: ")
    assert checks.conda_packages(found, config).reason == "nope was not activated: see software.conda"


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"python": "3.1"}, "python of torch: 3.11.2 / 3.1"),
        ({"packages": {"numpy": "1.2"}}, "torch: numpy: 1.26.4 / 1.2"),
        ({"packages": {"Numpy": "1.26.4", "torch": "2.4"}}, "torch: torch: not installed / 2.4"),
    ],
)
def test_versions(stated: dict[str, Any], expected: str) -> None:
    assert spelled(checks.conda_packages(recorded("conda-26.7.txt"), conda(torch=stated)))[2] == [expected]


def test_activation() -> None:
    config = conda(max_activation_time="1s")
    late = checks.conda(recorded("conda-26.7.txt"), config)
    assert spelled(late)[2:] == (
        ["torch: activated in 3.1 s / at most 1 s"],
        ["conda_activate 3.059 s torch"],
    )
    other = recorded("conda-26.7.txt", ("/opt/conda/envs/torch/bin/python", "/usr/bin/python"))
    assert findings(checks.conda(other, conda())) == ["torch: python is /usr/bin/python"]
    base = recorded("conda-26.7.txt", ("/opt/conda/envs/torch\n", "/opt/conda\n"))
    assert findings(checks.conda(base, conda())) == ["torch: CONDA_PREFIX is /opt/conda"]
    base = recorded("conda-26.7.txt", ("/opt/conda/envs/torch", "/opt/conda"))
    assert checks.conda(base, conda(environments={"base": {}})).outcome is Outcome.PASSED


def test_no_conda_is_one_failure() -> None:
    text = b"timeout: failed\nconda: command not found\n@@software version 0 127 1\n@@software end 0 0 0\n"
    found = facts.read_steps(Answer("gpu01", 0, text + b"@@software ended - 0 0\n"))
    assert findings(checks.conda(found, conda())) == ["conda: conda: command not found"]
    assert checks.conda_packages(found, conda()).outcome is Outcome.NOT_CHECKED
    text = b"@@software version 0 3 1\n@@software end 0 0 0\n@@software ended - 0 0\n"
    found = facts.read_steps(Answer("gpu01", 0, text))
    assert findings(checks.conda(found, conda())) == ["conda: no output (exit 3)"]


def test_a_list_that_conda_does_not_print_is_not_checked() -> None:
    found = recorded("conda-26.7.txt", ('[\n  {\n    "base_url"', 'oops [\n  {\n    "base_url"'))
    verdict = checks.conda_packages(found, conda())
    assert verdict.outcome is Outcome.NOT_CHECKED
    assert verdict.reason.startswith("torch: ")
