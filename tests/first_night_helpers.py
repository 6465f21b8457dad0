"""Play one site: draft its cluster file, check it, run it healthy and with one sick node, always as a dry-run drain."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
import yaml
from first_night_sites import ACCEPTED, EXIT, REJECTED, UNPROVED, WAIVED, Site, stranger
from plugin_helpers import Run
from sandbox_helpers import sandbox_folder

from pytest_gpucluster.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from _pytest.mark import ParameterSet

ALWAYS = ("plain",)
PATIENCE = 1200  # seconds; a run takes a tenth of it at most
VERDICTS = (ACCEPTED, WAIVED, REJECTED, UNPROVED)


class Boxes:
    """The sandbox of the present site; sites with the same one follow each other."""

    def __init__(self) -> None:
        self._stack, self._box, self._sandbox = contextlib.ExitStack(), "", Sandbox()

    def of(self, site: Site) -> Sandbox:
        """Return a running, healthy sandbox for the site."""
        if self._box != site.box:
            self.close()
            folder = self._stack.enter_context(sandbox_folder())
            folder.chmod(0o755)
            self._sandbox, self._box = Sandbox(folder / "s"), site.box
            self._sandbox.up(**json.loads(site.box))
        self._sandbox.heal()
        return self._sandbox

    def close(self) -> None:
        """Take the sandbox down."""
        self._stack.close()
        self._box = ""


class Night:
    """One site in its sandbox, in a folder that is also the operator's HOME."""

    def __init__(self, site: Site, sandbox: Sandbox, folder: Path) -> None:
        self.site, self.sandbox, self.folder = site, sandbox, folder

    def call(self, module: str, *words: str) -> Run:
        """Run a module of Python as the operator does."""
        env = stranger(self.site, self.folder, self.sandbox.env["SLURM_CONF"])
        argv = [sys.executable, "-m", module, *words]
        done = forked.run(argv, cwd=self.folder, env=env, timeout=PATIENCE)
        assert "Traceback" not in done.stderr, done.stderr[-3000:]
        return Run(done.returncode, done.stdout, done.stderr, self.folder)

    def suites(self, *words: str) -> Run:
        """Run the suites, and print what would be drained."""
        options = ("-p", "no:hypothesispytest", "--cluster=prod", "--drain=dry-run", *words)
        return self.call("pytest", *options, "--pyargs", "pytest_gpucluster.suites")

    def draft(self) -> str:
        """Draft the cluster file with `gpucluster init`, and add what the operator adds; return the draft."""
        made = self.call("pytest_gpucluster", "init", "--name", "prod", *self.site.init)
        assert made.rc == 0, made.out + made.err
        path = self.folder / "clusters" / "prod.yaml"
        text = path.read_text()
        edit = json.loads(json.dumps(self.site.edit).replace("{state}", str(self.sandbox.layout.root)))
        plain = merged(yaml.safe_load(text), {"sandbox": True, **edit})
        path.write_text(yaml.safe_dump(plain, sort_keys=False) if self.site.edit else text + "\nsandbox: true\n")
        return text


def cases(sites: Sequence[Site]) -> list[ParameterSet]:
    """Return the cases of a test of these sites: a few, or all of them for `make corpus SITES=1`."""
    every = "GPUCLUSTER_EVERY_SITE" in os.environ
    return [pytest.param(site, id=site.name) for site in sites if every or site.name in ALWAYS]


def merged(old: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with the keys of `new`; None removes a key; a profile belongs to each group."""
    found = dict(old)
    for key, value in new.items():
        if value is None:
            found.pop(key, None)
        elif key == "profile":
            found.pop("profile", None)
            found["groups"] = [{**group, "profile": value} for group in old.get("groups", [])]
            if not found["groups"]:
                found = {**{k: v for k, v in found.items() if k != "groups"}, "profile": value}
        elif isinstance(value, dict) and isinstance(old.get(key), dict):
            found[key] = merged(old[key], value)
        else:
            found[key] = value
    return found


def verdict(run: Run) -> str:
    """Return the verdict that the run printed; '' without one."""
    lines = [line for line in run.out.splitlines() if line.startswith(VERDICTS)]
    return next((word for word in VERDICTS if lines and lines[-1].startswith(word)), "")


def would_drain(run: Run) -> set[str]:
    """Return the nodes that the dry run would take out of service."""
    found: set[str] = set()
    for line in run.out.splitlines():
        if "would be drained" in line:
            found |= set(re.findall(r"\bgpu\d+\b", line.partition("would be drained")[2].partition("(")[0]))
    return found


def failed_on(run: Run) -> set[tuple[str, str]]:
    """Return (check, node) of each failed item."""
    results = [event for event in run.events if event["event"] == "result" and event["outcome"] == "failed"]
    return {(str(event["check"]), str(event["node"])) for event in results}


def play(site: Site, sandbox: Sandbox, folder: Path) -> None:
    """Fail where the product does not print what the site expects."""
    night = Night(site, sandbox, folder)
    with site.world(sandbox) if site.world else contextlib.nullcontext():
        draft = night.draft()
        for pattern in site.drafted:
            assert re.search(pattern, draft), draft
        tried = night.call("pytest_gpucluster", "check", "prod", "--try")
        assert tried.rc in ((0,) if site.healthy == ACCEPTED else (0, 1, 4)), f"exit {tried.rc}: {tried.out}{tried.err}"
        run = night.suites(*site.select)
        screen = f"{draft}\n{run.out}{run.err}"
        assert not would_drain(run), f"drained for the configuration of the site\n{screen}"
        wanted = (site.healthy,) if isinstance(site.healthy, str) else site.healthy
        assert verdict(run) in wanted, f"verdict {verdict(run)!r}, expected {wanted}\n{screen}"
        assert run.rc == EXIT[verdict(run)], screen
        for pattern in site.prints:
            assert re.search(pattern, run.out), f"does not print {pattern}\n{screen}"
        for pattern in site.never:
            assert not re.search(pattern, draft + run.out), f"prints {pattern}\n{screen}"
        quiet = failed_on(run)
        sick = site.sick
        sandbox.fault(sick.fault, sick.node, **sick.options)
        try:
            run = night.suites(*site.select)
        finally:
            sandbox.heal(sick.node, kind=sick.fault)
        assert (sick.check, sick.node) in failed_on(run), f"the sick node was not found\n{run.out}{run.err}"
        assert verdict(run) == REJECTED, run.out
        assert run.rc == 1
        assert would_drain(run) == ({sick.node} if sick.repair else set()), run.out
        others = {node for _, node in failed_on(run) - quiet} - {sick.node, ""}
        assert not others, f"{others} fail because of {sick.node}\n{run.out}"


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A fresh HOME that its user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="night-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
