"""The command gpucluster: what it prints, what it writes, how it fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster import config
from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli import node_survey, run_command
from pytest_gpucluster.cluster.slurm import client
from pytest_gpucluster.cluster.transport import Completed, LocalTransport
from pytest_gpucluster.config import json_schema
from pytest_gpucluster.core.survey import Hardware
from pytest_gpucluster.kit.nccl.nccl_config import NcclConfig

if TYPE_CHECKING:
    from pytest_gpucluster.config import Cluster
    from pytest_gpucluster.core.survey import Survey

PORTS = (("InfiniBand", 50.0),) * 8
INVENTORY = "[slurm-master]\nmgmt01\n[slurm-node]\ngpu[01:04]\n"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inventory").write_text(INVENTORY)


def test_init_writes_a_file_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", "--offline", "--inventory", "inventory", "--name", "prod"]) == 0
    assert "clusters/prod.yaml: 4 nodes in 1 group." in capsys.readouterr().out
    assert config.load_cluster("prod").groups[0].nodes == "gpu[01-04]"
    assert cli.main(["init", "--offline", "--inventory", "inventory", "--output", "-"]) == 0
    assert "nodes: gpu[01-04]" in capsys.readouterr().out
    Path("far").write_text("[slurm-node]\ngpu01 ansible_host=10.0.0.1\n")
    assert cli.main(["init", "--offline", "--inventory", "far", "--access", "ssh", "--output", "far.yaml"]) == 0
    far = config.load_cluster("far.yaml")
    assert (far.access, far.hosts["gpu01"].host) == ("ssh", "10.0.0.1")
    assert [path.name for path in Path("clusters").iterdir()] == ["prod.yaml"]


def test_init_follows_no_link_and_overwrites_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("victim").write_text("nodes: mine\n")
    Path("mine.yaml").symlink_to("victim")
    init = ["init", "--inventory", "inventory", "--output"]
    assert cli.main([*init, "mine.yaml"]) == 4
    assert "mine.yaml: exists already; --force overwrites it" in capsys.readouterr().err
    assert cli.main([*init, "mine.yaml", "--force"]) == 0
    assert config.load_cluster("mine.yaml").groups[0].nodes == "gpu[01-04]"
    assert Path("victim").read_text() == "nodes: mine\n"
    assert not Path("mine.yaml").is_symlink()
    os.umask(umask := os.umask(0o022))
    assert Path("mine.yaml").stat().st_mode & 0o777 == 0o666 & ~umask
    Path("open").mkdir()
    Path("open").chmod(0o777)
    assert cli.main([*init, "open/mine.yaml"]) == 4
    assert "all users may replace files in this folder" in capsys.readouterr().err
    assert not list(Path("open").iterdir())


NODES = """\
NodeName=gpu01 Arch=x86_64 CPUTot=4 Gres=gpu:h200:8(S:0-1) RealMemory=1000 State=IDLE Partitions=batch,debug
NodeName=gpu02 Arch=x86_64 CPUTot=4 Gres=gpu:h200:8(S:0-1) RealMemory=1000 State=IDLE Partitions=batch,debug
NodeName=cpu01 Arch=x86_64 CPUTot=4 Gres=(null) RealMemory=1000 State=IDLE Partitions=debug
"""
PARTITIONS = """\
PartitionName=batch Default=YES State=UP MaxTime=1-00:00:00 Nodes=gpu[01-02]
PartitionName=debug Default=NO State=UP MaxTime=1:00:00 Nodes=gpu[01-02],cpu01
"""


def slurm_answers(monkeypatch: pytest.MonkeyPatch, partitions: str, default: str, srun: str) -> None:
    """Let Slurm's commands, and srun --mpi=list, answer so."""
    config_text = f"ClusterName = lab\nMpiDefault = {default}\n"

    def answer(_self: object, *argv: str, **_options: object) -> str:
        return NODES if "node" in argv else partitions if "partition" in argv else config_text

    def run(_self: object, argv: tuple[str, ...], **_options: object) -> Completed:
        assert argv == ("srun", "--mpi=list")
        return Completed(argv, 0, "", srun, 0.1)  # where 22.05 says it

    monkeypatch.setattr(client.Slurm, "run", answer)
    monkeypatch.setattr(LocalTransport, "run", run)


TYPES = (
    "MPI plugin types are...\n\tpmi2\n\tcray_shasta\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4\n"
)


@pytest.mark.parametrize(
    ("default", "types", "mpi", "launcher", "printed"),
    [
        ("none", TYPES, "pmix", "srun", "pmi2, cray_shasta, pmix, pmix_v4; MpiDefault=none"),
        ("none", "MPI plugin types are...\n\tpmi2\n\tnone\n", "pmi2", "srun", "pmi2; MpiDefault=none"),
        ("none", "MPI plugin types are...\n\tnone\n", None, "mpirun", "nccl"),
        ("pmix", TYPES, None, "srun", "MpiDefault=pmix, which starts the ranks of nccl-tests"),
        ("none", "srun: fatal: no configuration\n", None, "srun", "like nccl: {mpi: pmix}"),
    ],
)
def test_init_drafts_how_ranks_are_started(
    monkeypatch: pytest.MonkeyPatch, default: str, types: str, mpi: str | None, launcher: str, printed: str
) -> None:
    slurm_answers(monkeypatch, PARTITIONS, default, types)
    assert cli.main(["init", "--offline"]) == 0
    assert printed in Path("clusters/lab.yaml").read_text()
    nccl = config.load_cluster("lab").section(NcclConfig)
    assert (nccl.mpi, nccl.launcher) == (mpi, launcher)


ALL = "PartitionName=all Default={} State=UP MaxTime=1-00:00:00 Nodes=gpu01\n"
WIDE = "PartitionName=wide Default=NO State=UP MaxTime=1-00:00:00 Nodes=gpu[01-02]\n"


@pytest.mark.parametrize(("default", "chosen"), [("YES", "all"), ("NO", "wide")])
def test_init_takes_default_or_largest(monkeypatch: pytest.MonkeyPatch, default: str, chosen: str) -> None:
    monkeypatch.setitem(globals(), "NODES", NODES.splitlines()[0].replace("batch,debug", "all,wide") + "\n")
    slurm_answers(monkeypatch, ALL.format(default) + WIDE, "none", TYPES)
    assert cli.main(["init", "--offline"]) == 0
    assert config.load_cluster("lab").slurm.partition == chosen


def test_init_from_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_answers(monkeypatch, PARTITIONS, "none", TYPES)
    monkeypatch.setenv("SLURM_CONF", "/srv/lab/slurm.conf")
    assert cli.main(["init", "--offline"]) == 0
    cluster = config.load_cluster("lab")
    assert cluster.slurm.conf == "/srv/lab/slurm.conf"
    groups = {group.nodes: (group.partition, group.profile.name) for group in cluster.groups}
    assert groups == {"gpu[01-02]": ("batch", "generic"), "cpu01": ("debug", "generic")}
    assert cluster.slurm.time == 3600
    slurm_answers(monkeypatch, PARTITIONS.replace("1:00:00 Nodes", "10:00 Nodes"), "none", TYPES)
    assert cli.main(["init", "--offline", "--force"]) == 0
    assert config.load_cluster("lab").slurm.time == 600  # of debug


def test_init_reads_one_node_per_group_unless_it_is_offline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(cluster: Cluster, known: Survey, _say: object, nodes: str | None) -> Survey:
        queried.append(("look", cluster.name, nodes))
        h200 = Hardware((("NVIDIA H200", 143771 * 2**20),) * 8, (18,) * 8, frozenset({"NV18"}), ports=PORTS)
        return replace(known, hardware={"gpu01": h200})

    def query(cluster: Cluster, nodes: str | None, known: Survey, _say: object) -> Survey:
        queried.append((cluster.access, cluster.name, nodes))
        return known

    queried: list[Any] = []
    slurm_answers(monkeypatch, PARTITIONS, "none", TYPES)
    monkeypatch.setattr(node_survey, "survey", query)
    monkeypatch.setattr(node_survey, "read_nodes", read)
    assert cli.main(["init", "--offline"]) == 0
    assert cli.main(["init", "--from-nodes"]) == 4  # the file exists
    assert queried == []
    assert cli.main(["init", "--force", "--nodes", "gpu01"]) == 0
    assert queried == [("look", "lab", "gpu01")]
    groups = {group.nodes: group.profile.name for group in config.load_cluster("lab").groups}
    assert groups == {"gpu[01-02]": "h200-8", "cpu01": "generic"}
    queried.clear()
    assert cli.main(["init", "--from-nodes", "--access", "ssh", "--name", "far"]) == 0
    assert queried == [("look", "far", None), ("ssh", "far", None)]
    assert config.load_cluster("far").access == "ssh"
    assert cli.main(["init", "--offline", "--nodes", "gpu01", "--force"]) == 4
    assert "--nodes: has no effect with --offline" in capsys.readouterr().err


def test_a_shown_profile_has_units_and_is_read_back_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    for name in config.profile_names():
        assert cli.main(["profiles", "show", name]) == 0
        shown = capsys.readouterr().out
        Path("shown.yaml").write_text(shown)
        assert config.load_profile("./shown.yaml") == config.load_profile(name)
    cli.main(["profiles", "show", "h200-8"])
    shown = capsys.readouterr().out
    for value in ("memory: 143771MiB", "nvlink_speed: 26.562 GB/s", "power_limit: 700.0  # watts", "size: 16GiB"):
        assert f"  {value}\n" in shown
    assert cli.main(["profiles"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert listed == list(config.profile_names())
    assert cli.main(["profiles", "show", "h200vm"]) == 4
    assert "did you mean 'h200-vm'?" in capsys.readouterr().err


def test_schema_writes_a_file_and_the_marked_parts_of_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema", "profile", "--output", "p.json"]) == 0
    assert json.loads(Path("p.json").read_text()) == json_schema.schema("profile")
    assert cli.main(["schema", "--pages", "."]) == 4
    assert "no page below . has marks" in capsys.readouterr().err
    Path("os.md").write_text("<!-- checks: gpucluster schema --pages . -->\n<!-- end of the checks -->")
    assert cli.main(["schema", "--pages", "."]) == 0
    assert capsys.readouterr().out == "os.md: written\n"
    assert "kernel_log" in Path("os.md").read_text()


def test_each_fault_of_the_sandbox_is_listed_with_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sandbox", "fault", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["faults"]
    assert ("mce", "os.kernel_log") in [(one["fault"], one["check"]) for one in listed]


def test_without_slurm_sandbox_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [it for it in sys.modules if it.startswith(("slurm_sandbox", "pytest_gpucluster.sandbox"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "slurm_sandbox", None)
    for words in (["up", "--nodes", "2"], ["fault", "--list"]):
        assert cli.main(["sandbox", *words]) == run_command.FAILED
        assert "pip install 'pytest-gpucluster[sandbox]'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        cli.main(["sandbox", "--help"])
    assert caught.value.code == 0
    assert "pip install 'pytest-gpucluster[sandbox]'" in capsys.readouterr().out
    assert not cli._of_simulated_sandbox("/nowhere/etc/slurm.conf")
    assert cli.main(["check", "sandbox"]) == run_command.FAILED
    assert "the sandbox is not installed" in capsys.readouterr().err


def test_interrupt_has_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(json_schema, "reference", interrupted)
    assert cli.main(["schema", "--markdown"]) == 130
    assert capsys.readouterr().err == "gpucluster: error: interrupted\n"


@pytest.mark.thorough
def test_a_closed_pipe_has_no_traceback() -> None:
    command = f"set -o pipefail; '{sys.executable}' -m pytest_gpucluster schema | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_slurm_that_answers_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert cli.main(["init", "--offline"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpucluster: error: ")
    assert "--inventory FILE" in line
    over_ssh = tmp_path / "far.yaml"
    over_ssh.write_text("nodes: gpu01\ntransport: {host: 127.0.0.1, port: 9}\n")
    assert cli.main(["drains", "--cluster", str(over_ssh)]) == run_command.FAILED
    assert "ssh to 127.0.0.1" in capsys.readouterr().err
    assert cli.main(["drains", "--cluster", "local"]) == run_command.WRONG_CONFIG
    assert "cluster local has no Slurm" in capsys.readouterr().err


def test_drains_names_held_jobs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    node = "NodeName=gpu02 CPUTot=4 State=IDLE+DRAIN Partitions=b Reason=Prolog error [root@2026-11-29T19:32:09]\n"
    printed = {"scontrol": node, "squeue": "6|ann|launch failed requeued held\n7|bob|Priority\n"}
    monkeypatch.setattr(client.Slurm, "run", lambda _self, program, *_: printed[program])
    assert cli.main(["drains"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"gpu02 +DRAINED +\(Prolog\) +Prolog error +2026-11-29T19:32:09 +root", out)
    assert "slurmd's log has the line of a gate that it ran\n" in out
    assert out.endswith("job 6 of ann: launch failed requeued held; after the repair: scontrol release 6\n")
    assert cli.main(["drains", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["held"]
    assert job["job"] == "6"


def test_wrong_usage_is_exit_2() -> None:
    for words in ("", "nonsense", "sandbox", "sandbox up --nodes 257", "sandbox up --gpus x"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(words.split())
