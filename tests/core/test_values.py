"""Types of values: what a key of the cluster file takes, and the first value that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_gpucluster.core import values


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
        (values.SallocOption, ["--no-kill", "--no-", "--no-shells", "-n", ""], ["--no-shell", "--no-s", "--no-shel"]),
        (values.FolderPath, ["/", "/scratch"], ["", "scratch", "./scratch", "~/scratch", "$HOME"]),
        (values.FolderPath, ["/" + "x" * 255, "/x" * 2047 + "/"], ["/" + "x" * 256, "/" + "\u00e9" * 128, "/x" * 2048]),
        (values.LocalPath, ["~/x", "x"], ["~no-such-user/x", "x" * 256]),
        (
            values.SystemName,
            ["sshd.service", "a@b:c_d.e+f/g\\h*-i", "vm.swappiness"],
            ["", "vm swappiness", "a..b", "-x", ".x", "a;b", "\u00e9"],
        ),
        (values.SshAddress, ["login", "me@a.b:22", "[fe80::1%e0]:22"], ["", "a b", "a:65536", "@a"]),
        (values.Program, ["python3", "/opt/x", "a b"], ["", " ", "-x", "--help"]),
        (values.Image, ["ubuntu:24.04", "nvcr.io#a/b:1", "/i/a.sqsh", "a.squash"], ["", "i/a.sqsh", "a.squashfs"]),
        (
            values.ContainerMount,
            ["/data", "/data:/data", "/data:/d:ro", "/a:/b:", "tmpfs:/x", "umount:/proc"],
            [
                *("", "data", "data:/data", "./data:/data", "/data:data"),
                *("/data:", ":/data", "tmpfs", "nfs:/x", "/a::ro"),
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
