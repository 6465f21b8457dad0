"""Verdicts of the software suite on recorded output and on changes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from counter_examples import CONFIGURE, NOT_APPLICABLE, NOT_CHECKED, PASSED, WARNING, result
from judged import judged
from paths import TESTS

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.software import checks, facts
from pytest_gpucluster.suites.software.config import SoftwareConfig

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = TESTS / "data" / "software"
LOAD = ["alpha/1.0", "beta", "gamma/1.0", "alpha gamma", "broken", "nope/1", "leaky"]
SOUND = LOAD[:4]
LMOD, TCL, CONDA = "lmod-8.6.19.txt", "tcl-5.2.0.txt", "conda-26.7.txt"
ENV = "/opt/conda/envs/torch"


def read(text: str) -> facts.ScriptResult:
    return facts.read_steps(Answer("gpu01", 0, text.encode()))


def recorded(name: str, *replaced: tuple[str, str]) -> facts.ScriptResult:
    """Return a recording, with texts replaced that it must contain."""
    text = (DATA / name).read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return read(text)


def loaded(step: str, old: str, new: str) -> tuple[str, str]:
    """Return the replacement of the modules that are loaded after a step."""
    end = f"\n\n@@software {step}"
    return f"LOADEDMODULES={old}{end}", f"LOADEDMODULES={new}{end}"


def modules(**changes: Any) -> SoftwareConfig:
    return SoftwareConfig.model_validate({"modules": {"load": LOAD, **changes}})


def conda(*, torch: dict[str, Any] | None = None, **changes: Any) -> SoftwareConfig:
    environments = {"torch": torch or {"python": "3.11", "packages": {"numpy": "1.26"}}}
    return SoftwareConfig.model_validate({"conda": {"environments": environments, **changes}})


def findings(verdict: Verdict) -> list[str]:
    return [f"{it.part}: {it.measured}" for it in verdict.findings]


@pytest.mark.parametrize("recording", [LMOD, "lmod-9.2.9.txt", TCL])
def test_recordings(recording: str) -> None:
    found = recorded(recording)
    verdict = checks.modules(found, modules())
    assert judged(verdict) == (CONFIGURE, ["broken", "nope/1"])
    assert [it.code for it in verdict.findings] == ["not_loaded", "absent"]
    assert "invalid command name" in str(verdict.findings[0].measured)
    assert len(verdict.metrics) == len(LOAD)
    config = modules(load=SOUND, output={"alpha/1.0": {"echo $ALPHA_HOME": "/opt/alpha"}})
    assert result(checks.module_command(found)) == PASSED
    for check in (checks.modules, checks.module_output, checks.module_unload):
        assert result(check(found, config)) == PASSED, check.name


PATHS = ":/bin\nLD_LIBRARY_PATH=\nPYTHONPATH=\n\n@@software paths_unloaded 3"
NOT_LISTED = "\n\n@@software list 2"
STAYS = loaded("unloaded 1", "", "alpha/1.0")
STATED = modules(load=SOUND)
LOSES_A_PATH = (f"PATH=/usr/bin{PATHS}", f"PATH={PATHS[1:]}")
UNSEEN = (f"beta/1.0{NOT_LISTED}", f"No modules loaded{NOT_LISTED}")
CASES = [
    (checks.module_unload, TCL, LOSES_A_PATH, STATED, ["gamma/1.0: PATH: /usr/bin removed by unload"]),
    (checks.module_unload, LMOD, STAYS, modules(load=LOAD[:1]), ["alpha/1.0: alpha/1.0 still loaded"]),
    (checks.modules, TCL, (), modules(load=["alpha/default", *LOAD[1:4]]), []),  # an alias
    (checks.modules, LMOD, UNSEEN, STATED, ["beta: module list: No modules loaded"]),
    (checks.conda, CONDA, (), conda(), []),
    (checks.conda, CONDA, (f"{ENV}/bin/python", "/bin/python"), conda(), ["torch: python is /bin/python"]),
    (checks.conda, CONDA, (f"{ENV}\n", "/opt/conda\n"), conda(), ["torch: CONDA_PREFIX is /opt/conda"]),
    (checks.conda, CONDA, (ENV, "/opt/conda"), conda(environments={"base": {}}), []),
    (checks.conda_packages, CONDA, (), conda(), []),
    (checks.conda_packages, CONDA, (), conda(torch={"python": "3.1"}), ["python of torch: 3.11.2"]),
    (checks.conda_packages, CONDA, (), conda(torch={"packages": {"numpy": "1.2"}}), ["torch: numpy: 1.26.4"]),
    (checks.conda_packages, CONDA, (), conda(torch={"packages": {"Numpy": "1.26.4"}}), []),
    (checks.conda_packages, CONDA, (), conda(torch={"packages": {"x": "2"}}), ["torch: x: not installed"]),
]


@pytest.mark.parametrize(("check", "recording", "replaced", "config", "expected"), CASES)
def test_each_recording_has_its_findings(
    check: Callable[..., Verdict], recording: str, replaced: Any, config: SoftwareConfig, expected: list[str]
) -> None:
    verdict = check(recorded(recording, *([replaced] if replaced else [])), config)
    assert findings(verdict) == expected
    assert result(verdict) == (CONFIGURE if expected else PASSED)


def test_what_an_unload_leaves_is_named() -> None:
    verdict = checks.module_unload(recorded(TCL), modules(load=LOAD))
    assert "leaky: PATH: /opt/leaky/bin left after unload" in findings(verdict)
    # it is not judged where the load replaced a default module
    default = recorded(LMOD, loaded("before 1", "", "delta/2"))
    verdict = checks.module_unload(default, modules(load=LOAD[:1]))
    assert result(verdict) == NOT_CHECKED
    assert "replaced delta/2" in verdict.reason


def test_modules_3_2_ends_with_0_after_an_error_and_a_hidden_module_is_a_warning() -> None:
    quiet = recorded(TCL, ("@@software load 5 1", "@@software load 5 0"))
    (broken, _) = checks.modules(quiet, modules()).findings
    assert "invalid command name" in str(broken.measured)
    hidden = recorded(TCL, ("/opt/modulefiles:\nbeta/1.0\n", ""))
    assert judged(checks.modules(hidden, modules(load=SOUND))) == (WARNING, ["beta"])


def test_other_output_than_is_stated_is_found() -> None:
    output = {"alpha/1.0": {"echo $ALPHA_HOME": "/opt/beta"}}
    found = judged(checks.module_output(recorded(TCL), modules(output=output)))
    assert found == (CONFIGURE, ["alpha/1.0: echo $ALPHA_HOME"])


def test_a_node_without_the_command_is_one_failure_and_never_a_pass() -> None:
    end = "@@software version 0 {} 1\n@@software end 0 0 0\n@@software ended - 0 0\n"
    found = read("bash: line 1: module: command not found\n" + end.format(127))
    assert findings(checks.module_command(found)) == ["module: bash: line 1: module: command not found"]
    config = modules(output={"beta": {"x": "y"}})
    for check in (checks.modules, checks.module_output, checks.module_unload):
        assert result(check(found, config)) == NOT_CHECKED
    found = read("timeout: failed\nconda: command not found\n" + end.format(127))
    assert findings(checks.conda(found, conda())) == ["conda: conda: command not found"]
    assert result(checks.conda_packages(found, conda())) == NOT_CHECKED
    assert findings(checks.conda(read(end.format(3)), conda())) == ["conda: no output (exit 3)"]


def test_a_module_that_hangs_fails_and_later_ones_are_not_checked() -> None:
    text = (DATA / TCL).read_text()
    found = read(text[: text.index("@@software load 2")] + "\n@@software ended - deadline 0\n")
    config = modules(load=LOAD[:3])
    verdict = checks.modules(found, config)
    assert findings(verdict) == ["beta: did not end within the time limit"]
    assert verdict.reason == "gamma/1.0: the time limit was reached before"
    assert result(checks.module_unload(found, config)) == NOT_CHECKED


def test_sections_that_are_absent_are_not_applicable() -> None:
    empty = SoftwareConfig()
    for check in (
        *(checks.modules, checks.module_output, checks.module_unload),
        *(checks.conda, checks.conda_packages),
    ):
        assert result(check(None, empty)) == NOT_APPLICABLE
    for verdict in (checks.module_command(None), checks.module_output(recorded(TCL), modules())):
        assert result(verdict) == NOT_APPLICABLE


def test_an_environment_or_a_list_that_is_not_there() -> None:
    found = recorded(CONDA)
    config = conda(environments={"torch": {}, "nope": {"packages": {"numpy": "1"}}})
    (missing,) = findings(checks.conda(found, config))
    assert missing.startswith("nope: EnvironmentNameNotFound: ")
    assert checks.conda_packages(found, config).reason == "nope was not activated: see software.conda"
    garbled = recorded(CONDA, ('[\n  {\n    "base_url"', 'oops [\n  {\n    "base_url"'))
    verdict = checks.conda_packages(garbled, conda())
    assert result(verdict) == NOT_CHECKED
    assert verdict.reason.startswith("torch: ")
