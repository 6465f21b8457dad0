"""Files for people who contribute or report: templates, the security policy, hooks of commits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from docs_helpers import HOME, ROOT

if TYPE_CHECKING:
    from pathlib import Path

GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


def fields(name: str) -> dict[str, dict[str, Any]]:
    """Return the fields of an issue form by their ids."""
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    return {one["id"]: one for one in form["body"] if "id" in one}


def required(name: str) -> set[str]:
    return {key for key, one in fields(name).items() if one.get("validations", {}).get("required")}


def test_a_commit_runs_make_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    (hook,) = repository["hooks"]
    assert (hook["entry"], hook["language"]) == ("make lint", "system")
    assert (hook["pass_filenames"], hook["always_run"]) == (False, True)
    assert re.search(r"^lint:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_bug_report_has_what_is_needed_to_repeat_it() -> None:
    assert {"version", "slurm", "command", "happened"} <= required("bug")
    assert "Secrets" in fields("bug")["events"]["attributes"]["description"]


def test_a_wrong_verdict_has_the_check_and_the_output_of_its_tool() -> None:
    assert {"kind", "check", "version", "output"} <= required("wrong-verdict")
    assert fields("wrong-verdict")["kind"]["attributes"]["options"] == ["false alarm", "missed fault"]


@pytest.mark.parametrize("path", [*FORMS, GITHUB / "pull_request_template.md"], ids=lambda path: path.name)
def test_links_of_templates_lead_into_the_repository(path: Any) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", path.read_text())
    assert targets
    for target in targets:
        name = re.fullmatch(rf"{HOME}/blob/main/([^#]+)(#.*)?", target)
        assert name, target
        assert (ROOT / name[1]).is_file(), target


def test_the_security_policy_names_a_private_channel_and_the_supported_version() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    assert f"{HOME}/security/advisories/new" in policy
    (contact,) = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / "config.yml").read_text())["contact_links"]
    assert contact["url"] in policy


def test_a_checkout_with_changes_is_not_released(tmp_path: Path) -> None:
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text("#!/bin/sh\n[ \"$*\" = 'status --porcelain' ] && echo '?? stray.txt'\n")
    git.chmod(0o755)
    (tmp_path / "checkout").mkdir()
    done = subprocess.run(
        [str(ROOT / "tools" / "release"), sys.executable],
        cwd=tmp_path / "checkout",
        env={**os.environ, "PATH": f"{git.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "?? stray.txt" in done.stderr
    assert not list((tmp_path / "checkout").iterdir())
