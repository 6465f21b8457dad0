"""Types of values: what a key of the cluster file takes, and the first value that it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from pytest_gpucluster import config
from pytest_gpucluster.core import values
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (values.AnyDuration, ["0", "0s", "90", "2147483640"], ["2147483641", "-1", -1, "soon"]),
        (values.Duration, ["1ms", "90", "2147483640"], ["0", "0s", "0:00:00", "2147483641", -1]),
        (values.Count, ["0", "7"], ["-1", "٣"]),
        (values.Nodes, ["1", "65536"], ["0", "-3", "65537"]),
        (values.Tasks, ["1", "65533"], ["0", "-3", "65534"]),
        (values.Port, ["1", "65535"], ["0", "65536"]),
        (values.Text, ["a"], [""]),
        (values.Version, ["12", "12.2", "535.104.05"], ["", "twelve", "12.x", "12.", "v12", "١٢"]),
        (values.Variable, ["A", "_a1", "NCCL_DEBUG"], ["", "1A", "A B", "A=1", "A-B", "Ä"]),
        (
            values.SallocOption,
            ["--no-kill", "--no-", "--no-shells", "-n", ""],
            ["--no-shell", "--no-s", "--no-shel"],
        ),
        (values.FolderPath, ["/", "/scratch"], ["", "scratch", "./scratch", "~/scratch", "$HOME"]),
        (
            values.FolderPath,
            ["/" + "x" * 255, "/x" * 2047 + "/"],
            ["/" + "x" * 256, "/" + "\u00e9" * 128, "/x" * 2048],
        ),
        (values.LocalPath, ["~/x", "x"], ["~no-such-user/x", "x" * 256]),
        (
            values.SystemName,
            ["sshd.service", "a@b:c_d.e+f/g\\h*-i", "vm.swappiness"],
            ["", "vm swappiness", "a..b", "-x", ".x", "a;b", "\u00e9"],
        ),
        (values.Program, ["python3", "/opt/x", "a b"], ["", " ", "-x", "--help"]),
        (
            values.Image,
            ["ubuntu:24.04", "nvcr.io#a/b:1", "/i/a.sqsh", "a.squash"],
            ["", "i/a.sqsh", "a.squashfs"],
        ),
        (
            values.ContainerMount,
            ["/data", "/data:/data", "/data:/d:ro", "/a:/b:", "tmpfs:/x", "umount:/proc"],
            [
                "",
                "data",
                "data:/data",
                "./data:/data",
                "/data:data",
                "/data:",
                ":/data",
                "tmpfs",
                "nfs:/x",
                "/a::ro",
            ],
        ),
    ],
)
def test_what_a_value_may_be(kind: Any, good: list[str], bad: list[Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for text in good:
        read = adapter.validate_python(text)
        assert read == text or isinstance(read, (int, float))
    for text in bad:
        with pytest.raises(ValueError, match="error"):
            adapter.validate_python(text)


# one key of each type of value, and each rule that a model has of its own
WRONG = {
    "slurm: {time: 0}": "slurm.time: must be greater than 0",
    "slurm: {time: 40000000m}": "slurm.time: '40000000m' is longer than Slurm can count",
    "slurm: {account: ''}": "slurm.account: must be text",
    "slurm: {bin: bin}": "slurm.bin: must be an absolute path",
    "slurm: {extra_args: [--no-shell]}": "slurm.extra_args[0]: --no-shell would leave the nodes allocated",
    "mpi: {launchers: []}": "mpi.launchers: is empty",
    "environments: {x: {exports: {A B: x}}}": "environments.x.exports.A B: must be the name of an environment variable",
    "burnin: {expect: {hbm: inf}}": "burnin.expect.hbm: must be a finite number",
    "os: {mounts: [{path: home}]}": "os.mounts[0].path: must be an absolute path",
    "isolation: {private_folders: [dev/x]}": "isolation.private_folders[0]: must be an absolute path",
    "environments: {x: {container_mounts: ['data:/d']}}": "container_mounts[0]: must be SOURCE:TARGET",
    "profile: {gpu: {count: 1, name: x, cuda: twelve}}": "profile.gpu.cuda: must be a version",
    "profile: {fabric: {mtu: 9}}": "profile.fabric: rate and mtu have no effect without link_layer",
    "thresholds: [{size: 0, busbw: 1, source: x}]": "thresholds[0].size: must be greater than 0",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_setting_that_means_nothing_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(f"nodes: gpu01\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        config.load_cluster(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert WRONG[text] in str(caught.value)
    path.write_text("nodes: a\nprofile: {extends: dgx-h100, fabric: {link_layer: none}}\n")
    assert config.load_cluster(path).groups[0].profile.fabric.hcas  # a profile may take the network away
    assert "\n" not in str(caught.value)
