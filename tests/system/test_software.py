"""The software suite on virtual nodes: real Environment Modules, a stand-in for conda; one node deviates at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework_helpers import ends, message, run_suite
from software_helpers import environment, init_file, module_tree, stand_in_conda

if TYPE_CHECKING:
    from pathlib import Path

    from plugin_helpers import Run

    from pytest_gpucluster.sandbox import Sandbox

NODES = "gpu[01-03]"
BAD = "gpu02"


def software(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write a module tree and a conda for each node below `folder`; return a section that states them."""
    for node in ("gpu01", BAD, "gpu03"):
        module_tree(folder / node / "modules", changes if node == BAD else None)
        stand_in_conda(folder / node / "conda")
    init_file(folder, f"{folder}/$SLURMD_NODENAME/modules")
    modules = {
        "load": ["alpha/1.0", "alpha gamma", "beta/1.0"],
        "output": {"alpha/1.0": {"echo home $ALPHA_HOME": "home /opt/alpha"}},
    }
    # a launcher chooses the conda of the node
    launcher = folder / "conda"
    launcher.write_text(f'#!/bin/sh\nexec {folder}/$SLURMD_NODENAME/conda/bin/conda "$@"\n')
    launcher.chmod(0o755)
    environments = {"torch": {"python": "3.11", "packages": {"numpy": "1.26"}}}
    return {"modules": modules, "conda": {"command": str(launcher), "environments": environments}}


def judged(sandbox: Sandbox, folder: Path, section: dict[str, Any]) -> Run:
    constants = {"software": {"find_module": f". {folder}/init.sh"}}
    return run_suite(sandbox, folder, "test_software.py", nodes=NODES, software=section, constants=constants)


def failed(run: Run) -> set[str]:
    return {item for item, end in ends(run).items() if end == "failed"}


def test_modulefiles_and_environments_of_one_node_deviate(sandbox: Sandbox, tmp_path: Path) -> None:
    leak = "if {[module-info mode load]} {prepend-path PATH /opt/leak/bin}\nsetenv ALPHA_HOME /opt/other\n"
    changes = {"alpha/1.0": leak, "beta/1.0": "prepend-path PATH /opt/beta/bin\n", "gamma/1.0": None}
    section = software(tmp_path, **changes)
    environment(tmp_path / BAD / "conda", "torch", {"python": "3.11.2", "numpy": "2.0.0"})
    section["conda"]["environments"]["data"] = {}
    for node in ("gpu01", "gpu03"):
        environment(tmp_path / node / "conda", "data", {"python": "3.12.1"})
    run = judged(sandbox, tmp_path, section)
    said = {
        "modules": "gamma: ERROR: Unable to locate a modulefile for 'gamma'",
        "module_output": "home /opt/other",
        "module_unload": "PATH: /opt/leak/bin left after unload",
        "conda": "data: EnvironmentNameNotFound",
        "conda_packages": "torch: numpy: 2.0.0",
    }
    assert failed(run) == {f"test_{what}[{BAD}]" for what in said}, run.out
    assert {end for item, end in ends(run).items() if BAD not in item} == {"passed"}
    for what, text in said.items():
        assert text in message(run, f"test_{what}[{BAD}]")
