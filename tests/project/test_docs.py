"""Every command of the documentation is run or held against the real parsers; code compiles, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from docs_helpers import PAGES, ROOT, Block, anchors, blocks, commands, links, name_of
from sandbox_helpers import environment

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli import reference as cli_reference
from pytest_gpucluster.cli.command import parser_of
from pytest_gpucluster.cluster.calling_shell import unpassed
from pytest_gpucluster.config.models import ClusterFile
from pytest_gpucluster.plugin.collection import without_section

if TYPE_CHECKING:
    from pytest_gpucluster.sandbox import Sandbox

DEADLINE = 600  # seconds, on a machine that others use with all their might
TUTORIAL = "docs/tutorial.md"

STAND_IN = {"NAME": "prod", "gpu[01-16]": "gpu[01-02]", "gpu[07,12]": "gpu[01,02]", "gpu07": "gpu01"}
SECTIONS = {  # those that may not be empty
    "software": "{conda: {environments: {base: {}}}}",
    "storage": "{filesystems: [{path: /tmp}]}",
}
PLAIN = str.maketrans("", "", "[]")

# need what a command before them has left, so that collecting alone ends with 4; run elsewhere
RUN_IN_TURN = {
    "pytest --cluster=prod -m nccl --baseline=prod.baseline.yaml",  # test_documents.py
    "pytest --cluster=prod -m burnin --burnin-resume=reports/latest-rerun/events.jsonl",  # test_burnin_suite.py
    "pytest --cluster=prod --punchlist",  # tests/system/test_punchlist.py
}


def stood_in(text: str) -> str:
    """Return a command with nodes and names that the sandbox has."""
    for word, ours in STAND_IN.items():
        text = text.replace(word, ours)
    return text


ALL = list(commands())
OF_PYTEST = sorted({stood_in(one.text) for one in ALL if one.words[0] == "pytest"})
assert set(OF_PYTEST) >= RUN_IN_TURN
OF_GPUCLUSTER = sorted({one.text for one in ALL if one.words[0] == "gpucluster"})


def command_environment(folder: Path, sandbox: Sandbox) -> dict[str, str]:
    """Return an environment in which the sandbox is the cluster `prod`, and pytest and gpucluster are on PATH."""
    for name, module in (("pytest", "pytest"), ("gpucluster", "pytest_gpucluster")):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        path.chmod(0o755)
    shell = environment(
        **{
            **sandbox.env,
            "PATH": os.pathsep.join([str(folder / "bin"), sandbox.env.get("PATH", os.environ["PATH"])]),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "GPUCLUSTER_SANDBOX": str(sandbox.cluster_file.parent),
        }
    )
    named = unpassed(config.load_cluster("local"), shell)  # `gpucluster check` would warn of these
    return {name: value for name, value in shell.items() if name not in named}


def python(*words: object, cwd: Path, env: dict[str, str], typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=env,
        input=typed,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def checkout(folder: Path) -> Path:
    """Return a folder that looks like the root of the project to who types a command there."""
    for name in ("suites", "examples", "pyproject.toml", "conftest.py", "src"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.thorough
def test_every_pytest_command_collects_items(sandbox: Sandbox, tmp_path: Path) -> None:
    env = command_environment(tmp_path, sandbox)
    clusters = tmp_path / "config" / "pytest-gpucluster" / "clusters"
    clusters.mkdir(parents=True)
    prod = clusters / "prod.yaml"
    prod.write_text(sandbox.cluster_file.read_text())
    # a suite without a section is deselected: NAME stands for a file that has one
    keys = without_section(config.load_cluster(prod)).values()
    prod.write_text(prod.read_text() + "".join(f"{key}: {SECTIONS.get(key, '{}')}\n" for key in keys))
    words = [shlex.split(text, comments=True)[1:] for text in OF_PYTEST]
    words.append(["--cluster=prod", "--no-such-option"])
    words.append(["--cluster=prod", "-m", "no_such_marker"])
    program = ROOT / "tests" / "collect_many.py"
    done = python(program, cwd=checkout(tmp_path), env=env, typed=json.dumps(words))
    *found, unknown, unmarked = json.loads(done.stdout)
    assert (unknown[0], unmarked[0]) == (4, 4)
    pairs = zip(OF_PYTEST, found, strict=True)
    assert [f"{text}: {status}: {said}" for text, (status, said) in pairs if status and text not in RUN_IN_TURN] == []


def test_every_gpucluster_command_parses(capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of(cli.commands())
    refused = []
    for text in OF_GPUCLUSTER:
        words = shlex.split(text.translate(PLAIN).replace("EVENTS...", "EVENTS"), comments=True)[1:]
        try:
            parser.parse_args(["3" if word == "N" else word for word in words])
        except SystemExit as left:  # --version leaves with 0
            if left.code:
                refused.append(f"{text}: {capsys.readouterr().err[-300:]}")
    assert refused == []
    with pytest.raises(SystemExit):
        parser.parse_args(["history", "--no-such-option"])


# --- what the pages show


@pytest.mark.thorough
def test_the_shown_failure_is_what_a_run_prints(sandbox: Sandbox, tmp_path: Path) -> None:
    """The faults are those of `make demo`."""
    sandbox.fault("remap_failure", "gpu02")
    sandbox.fault("nvlink_down", "gpu03")
    sandbox.fault("ib_down", "gpu04")
    words = ("-m", "pytest", "-p", "no:cacheprovider", f"--cluster={sandbox.cluster_file}")
    env = {**command_environment(tmp_path, sandbox), "COLUMNS": "80"}
    run = python(*words, "-m", "gpu or fabric or os or slurm", cwd=checkout(tmp_path), env=env)
    assert run.returncode == 1
    said = run.stdout.replace(f"env SLURM_CONF={sandbox.env['SLURM_CONF']} ", "")
    said = re.sub(r" SIMULATED hardware: this run says nothing\s+about real GPUs\.", "", said)
    said = said.replace(f"--cluster={sandbox.cluster_file}", "--cluster=prod")
    printed = {undated(line) for line in said.splitlines()}
    shown = [it for it in blocks("") if re.match(r"gpu.nvlink_state on gpu03|nodes +controller", it.text)]
    assert [block.page for block in shown] == ["README.md", "README.md", TUTORIAL]
    for block in shown:
        assert [line for line in block.text.splitlines() if undated(line) not in printed] == [], said


def undated(line: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "DATE", line).rstrip()


# --- code in the pages


@pytest.mark.parametrize("page", sorted({block.page for block in blocks("yaml")}))
def test_yaml_in_pages_is_a_cluster_file(page: str, tmp_path: Path) -> None:
    known = {field.alias or name for name, field in ClusterFile.model_fields.items()}
    for number, block in enumerate(blocks("yaml", page)):
        plain = yaml.safe_load(block.text)
        if not isinstance(plain, dict) or not set(plain) & known:
            continue  # rules of Prometheus
        assert set(plain) <= known, (page, set(plain) - known)
        load_completed(plain, block, tmp_path / f"c{number}.yaml")


def load_completed(plain: dict[str, Any], block: Block, path: Path) -> None:
    """Load the part of a cluster file that a page shows, with what it leaves out."""
    text = block.text
    own = "nodes" in (plain.get("kubernetes") or {})
    if not own and not {"nodes", "groups", "inventory"} & set(plain):
        text += "\nnodes: gpu[01-16]\n"
    if "inventory" in plain:
        path.with_name("inventory").write_text("[slurm-node]\ngpu01\n")
        text = text.replace(plain["inventory"], "inventory")
    missing = {n for n in re.findall(r"environment: (\w+)", text) if n not in plain.get("environments", {})}
    if missing and "environments" not in plain:
        text += "\nenvironments: {" + ", ".join(f"{name}: {{modules: [cuda]}}" for name in sorted(missing)) + "}\n"
    path.write_text(text)
    config.load_cluster(path)


@pytest.mark.thorough
def test_the_suite_of_a_site_is_what_the_page_shows(sandbox: Sandbox, tmp_path: Path) -> None:
    """The pieces of docs/writing-checks.md, put together, run on every node as examples/site_suite does."""
    heads = """
import json, re
from pathlib import Path
import pytest
from pytest_gpucluster.api import Action, Finding, Metric, check, differs, norm
from pytest_gpucluster.core.errors import ProbeError, StepError
from pytest_gpucluster.core.probe import Probe, text_of
from pytest_gpucluster.cluster.slurm.step import StepRequest, run_step
from site_parts import *
"""
    shown = "\n\n".join(block.text for block in blocks("python", "docs/writing-checks.md"))
    (tmp_path / "test_page.py").write_text(heads + shown)
    site = (ROOT / "examples" / "site_suite" / "test_site.py").read_text()
    path = str(ROOT / "examples" / "site_suite" / "copy_speed.py")
    parts = site[: site.index("OPEN_FILES = Probe")].replace("def test_", "def example_")
    (tmp_path / "site_parts.py").write_text(f"{parts}\nPAYLOAD = Path({path!r})\n")
    run = python(
        *("-m", "pytest", "-p", "no:cacheprovider", f"--cluster={sandbox.cluster_file}", "--nodes=gpu[01-02]"),
        *("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-v", "--report-dir", tmp_path / "reports"),
        *(tmp_path, ROOT / "examples" / "site_suite"),
        cwd=tmp_path,
        env=command_environment(tmp_path, sandbox),
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert "18 passed" in run.stdout  # five tests of the page and four of the site, on two nodes
    assert "copy_speed" in run.stdout


# --- the pages themselves

SUITES = sorted((ROOT / "suites").glob("*/test_*.py"))


def test_the_generated_parts_are_up_to_date() -> None:
    made = cli_reference.pages(ROOT / "docs", cli.commands())
    assert len(made) > len(SUITES)
    behind = [name_of(page) for page, text in made.items() if page.read_text() != text]
    assert behind == [], "these pages are behind the code: gpucluster schema --pages docs"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)}: {target}"
        # GitHub serves nothing below a link
        assert there == Path(os.path.normpath(page.parent / path)) or not path, f"{name_of(page)}: {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(page)}: {target}: no such heading"


def test_every_page_is_linked() -> None:
    """From the README, over any number of pages."""
    seen, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        seen.add(page)
        there = [(page.parent / target.partition("#")[0]).resolve() for target in links(page)]
        queue += [path for path in there if path.suffix == ".md" and path not in seen]
    assert [name_of(page) for page in PAGES if page not in seen] == []


# --- examples


def test_the_profile_of_the_examples_loads(tmp_path: Path) -> None:
    profile = ROOT / "examples" / "profile-h100-custom.yaml"
    (tmp_path / "c.yaml").write_text(f"nodes: gpu[01-04]\nprofile: {profile}\n")
    (group,) = config.load_cluster(tmp_path / "c.yaml").groups
    assert group.profile.gpu is not None
    assert group.profile.gpu.count == 8
