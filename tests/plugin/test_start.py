"""What is refused or warned of at the start of a run: files in unsafe places, and the shell that runs pytest."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

import pytest
from plugin_helpers import a_cluster, run_pytest

from pytest_gpucluster.config.models import TransportConfig
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.kit.node.os_config import OsConfig
from pytest_gpucluster.plugin import open_session as start
from pytest_gpucluster.plugin import run_outputs as outputs
from pytest_gpucluster.plugin.open_session import inherited_limits, shell_warning
from pytest_gpucluster.report.history.store import History
from pytest_gpucluster.suites.nccl import baseline

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the folder be another user's; return what is said of it."""
    if os.geteuid() == 0:  # only root can give it away
        os.chown(tmp_path, 54321, -1)
        return "the folder belongs to another user (54321)"
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    return f"the folder belongs to another user ({os.getuid()})"


# --- the start of a run


def test_the_start_of_a_run_names_what_the_cluster_file_has_and_nothing_uses(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\nnodes: localhost\nslurm: {scheduler: none}\n"
        "environments:\n  trainig: {exports: {A: '1'}}\nthresholds: []\n"
    )
    run = run_pytest(tmp_path, f"--cluster={path}", "-m", "versions", "--collect-only", where=())
    assert f"{path}:5: environments.trainig: no section uses this environment" in run.out
    assert f"{path}:6: thresholds: is empty" in run.out


def test_the_file_of_pytest_is_private_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "x.xml").symlink_to("precious")
    for path in (tmp_path / "x.xml", tmp_path / "deep" / "x.xml"):
        start.make_private(path, os.getegid())
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("", 0o640)
    assert (tmp_path / "precious").read_text() == "precious"
    os.mkfifo(tmp_path / "pipe")
    start.make_private(tmp_path / "pipe", None)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(ConfigError) as caught:
        start.make_private(tmp_path / "precious" / "x.xml", None)
    assert f"{tmp_path}/precious/x.xml: Not a directory" in str(caught.value)


def test_folders_of_others_are_refused(tmp_path: Path, foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for refused in (
        lambda: start.make_private(tmp_path / "x.xml", None),
        lambda: baseline.check_option("record"),
        lambda: outputs.refuse(tmp_path / "x.prom"),
        lambda: History(tmp_path / "h.db", create=True),
    ):
        with pytest.raises(GpuClusterError, match=re.escape(foreign)):
            refused()
    assert list(tmp_path.iterdir()) == []


# --- the history


def test_a_history_is_for_its_user_or_a_group_as_well_and_keeps_its_mode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        History(tmp_path / "no" / "where" / "h.db", create=True)
    assert list(tmp_path.iterdir()) == []
    for name, group in (("own", None), ("shared", os.getegid())):
        History(tmp_path / name, create=True, group=group).close()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("own", "shared")] == [0o600, 0o640]
    (tmp_path / "own").chmod(0o664)
    History(tmp_path / "own", create=True).close()
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o664


def test_a_history_is_no_link(tmp_path: Path) -> None:
    History(tmp_path / "h.db", create=True).close()
    (tmp_path / "link").symlink_to("h.db")
    (tmp_path / "nowhere").symlink_to("absent")
    for name in ("link", "nowhere"):
        with pytest.raises(ConfigError, match=f"{name}: is not a plain file of this user's own"):
            History(tmp_path / name, create=True)
    assert not (tmp_path / "absent").exists()


# --- limits of the shell


@pytest.mark.parametrize(
    ("config", "inherited"),
    [
        ({}, True),
        ({"PropagateResourceLimits": "ALL", "PropagateResourceLimitsExcept": "(null)"}, True),
        ({"PropagateResourceLimits": "NONE"}, False),
        ({"PropagateResourceLimits": "MEMLOCK,NOFILE"}, True),
        ({"PropagateResourceLimits": "MEMLOCK"}, False),
        ({"PropagateResourceLimits": "(null)", "PropagateResourceLimitsExcept": "NOFILE"}, False),
        ({"PropagateResourceLimits": "(null)", "PropagateResourceLimitsExcept": "MEMLOCK"}, True),
    ],
)
def test_limits_that_jobs_inherit_are_those_of_slurm_conf(config: dict[str, str], inherited: bool) -> None:
    assert ("nofile" in inherited_limits(config)) is inherited
    wanting = a_cluster().model_copy(update={"os": OsConfig(limits={"nofile": "4096"})})
    found = shell_warning(wanting, config, {"nofile": 1024.0, "memlock": math.inf})
    assert ("nofile 1024 (os.limits: 4096)" in found.get("text", "")) is inherited
    assert shell_warning(wanting, config, {"nofile": 4096.0}) == {}
    far = wanting.model_copy(update={"transport": TransportConfig(host="login")})
    low = {"nofile": 1.0}
    assert shell_warning(far, config, low) == {} == shell_warning(a_cluster(access="ssh"), config, low)
