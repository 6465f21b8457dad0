"""`gpucluster init --from-nodes`: a file drafted from running nodes, which these nodes pass."""

from __future__ import annotations

import getpass
import shutil
from typing import TYPE_CHECKING

from plugin_helpers import jobs_so_far, out_of_service, run_pytest
from ssh_helpers import HOST, sshd

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from pytest_gpucluster.sandbox import Sandbox

# fault: its check
DIFFERENT = {
    "os_drift": "release",
    "kernel_drift": "kernel",
    "sysctl": "sysctls",
    "interface_mtu": "mtu",
    "missing_mount": "mounts",
    "package_missing": "packages",
    "service_dead": "services",
}


def test_nodes_pass_what_was_drafted_from_them_except_the_different_one(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault in DIFFERENT:
        sandbox.fault(fault, "gpu04")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "--from-nodes", "--name", "lab"]) == 0
    text = (tmp_path / "clusters" / "lab.yaml").read_text()
    for line in (
        "  time_sync: required  # 4 of 4 nodes",
        "    eno1: 1500  # 3 of 4 nodes",
        "    - {path: /raid, fstype: ext4}  # 3 of 4 nodes",
        "    - nvidia-persistenced  # 3 of 4 nodes",
        "    - slurmd  # 4 of 4 nodes",
    ):
        assert f"{line}\n" in text
    assert not any(node in text.partition("groups:")[0] for node in ("gpu01", "gpu02", "gpu03", "gpu04"))
    assert cli.main(["check", "lab"]) == 0
    run = run_pytest(tmp_path, "--cluster=lab", "-m", "os", where=())
    assert run.rc == 1, run.out
    failed = {name for name, outcome in run.outcomes.items() if outcome in ("failed", "error", "not checked")}
    assert {name.rpartition("::")[2] for name in failed} == {
        f"test_{check}[gpu04]" for check in DIFFERENT.values()
    }
    sandbox.heal()
    run = run_pytest(tmp_path, "--cluster=lab", "-m", "os", where=())
    assert run.rc == 0, run.out


def test_node_out_of_service_is_named_and_counts_no_vote(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with out_of_service(sandbox, "gpu02", "DRAIN", "bad cable"):
        assert cli.main(["init", "--from-nodes", "--output", "-"]) == 0
    out, err = capsys.readouterr()
    assert "  kernel: 6.8.0-79-generic  # 3 of 3 nodes\n" in out
    assert "gpu02 was not checked: " in err


def test_without_the_option_nothing_is_allocated(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = jobs_so_far(sandbox)
    assert cli.main(["init", "--name", "lab"]) == 0
    assert jobs_so_far(sandbox) == before
    assert "# os:" in (tmp_path / "clusters" / "lab.yaml").read_text()


def test_nodes_are_queried_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home.parent))
    monkeypatch.chdir(tmp_path)
    with sshd(tmp_path / "d") as server:
        shutil.copy(server.folder / "known_hosts", home)
        key = server.folder / "id_ed25519"
        (tmp_path / "hosts.ini").write_text(
            "[slurm-node]\n"
            + "".join(f"n{number} ansible_host={HOST} ansible_port={server.port}\n" for number in (1, 2, 3))
            + f"[slurm-node:vars]\nansible_user={getpass.getuser()}\nansible_ssh_private_key_file={key}\n"
        )
        assert cli.main(["init", "--inventory", "hosts.ini", "--access", "ssh", "--from-nodes"]) == 0
    text = (tmp_path / "clusters" / "hosts.yaml").read_text()
    assert "# 3 of 3 nodes\n" in text
    assert "limits:" not in text  # those of a step are not known
    cluster = config.load_cluster("hosts")
    assert (cluster.access, cluster.hosts["n2"].port) == ("ssh", server.port)
