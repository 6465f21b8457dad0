"""`gpucluster evidence`: the table of cases, and the archive of one, with names replaced and sums that hold."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from typing import TYPE_CHECKING

import pytest
from report_helpers import GPU_4, a_run, event, failing, write_run

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.core.part import gpu
from pytest_gpucluster.evidence.capture import Capture, ToolOutput, stored

if TYPE_CHECKING:
    from pathlib import Path

LOG = b"gpu02.site.example.com kernel: alice@login07 on prod, GPU02, gpu021\n"
TOOLS = (
    ToolOutput("kernel-log", LOG, "0", 0.1),
    ToolOutput("nvidia-bug-report.log.gz", gzip.compress(b"host gpu02"), "0", 1.0),
    ToolOutput("mlxlink", b"", "absent", 0.0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "20261121T020000-1"
    found = failing("gpu02", part=GPU_4, logs=["steps/1.log"])
    second = failing("gpu02", check="gpu.xid", part=gpu(5, address="0000:a0:00.0"))
    read = stored(Capture("gpu02", TOOLS), tmp_path / "read")
    start = {"host": "login07", "user": "alice"}
    events = a_run([found, second, event("evidence", **read)], start=start, finish=1)
    write_run(root, *events)
    (tmp_path / "read/evidence").rename(root / "evidence")
    return root


def run(*words: object) -> int:
    return cli.main(["evidence", *map(str, words)])


def test_the_table_names_each_part_and_a_case_is_chosen_by_its_words(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["gpu02", "GPU", "0000:9d:00.0"],
        ["gpu02", "GPU", "0000:a0:00.0"],
    ]
    assert run(folder, "gpu02", "0000:A0:00.0") == 0
    assert "gpu.xid (drain)" in capsys.readouterr().out
    assert run(folder, "gpu02", "gpu 4", "--form=dcgm-json") == 0
    assert json.loads(capsys.readouterr().out)["DCGM Diagnostic"]
    for words, message in ((("gpu07",), "nodes with a case: gpu02"), (("gpu02", "x"), "its cases are 'GPU 0000:9d:00.0'"),
                           (("gpu02", "--output=a.tar.gz"), "--output takes the case of one part")):  # fmt: skip
        assert run(folder, *words) == 4
        assert message in capsys.readouterr().err


def test_what_leaves_the_site_is_listed_and_has_no_names_if_that_is_wanted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder.parent / "case.tar.gz"
    assert run(folder, "gpu02", "GPU 4", "--anonymous", f"--output={path}") == 0
    listed = capsys.readouterr().out
    with tarfile.open(path) as archive:
        files = {name.removeprefix("case/"): archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    assert all(name in listed for name in files)
    assert {
        "case.txt",
        "case.json",
        "kernel-log.txt",
        "nvidia-bug-report.log.gz",
        "1.log",
        "SHA256SUMS",
    } == files.keys()
    plain = {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in files.items()}
    assert plain["kernel-log.txt"] == b"node002 kernel: user@host on cluster, node002, gpu021\n"
    for text in plain.values():
        assert not any(name in text for name in (b"gpu02 ", b"gpu02.", b"alice", b"login07", b"prod"))
    sums = {line.split("  ")[1]: line.split("  ")[0] for line in files["SHA256SUMS"].decode().splitlines()}
    assert all(hashlib.sha256(files[name]).hexdigest() == it for name, it in sums.items())
    assert {it["name"]: it["sha256"] for it in json.loads(files["case.json"])["files"]}.items() <= sums.items()


def test_a_file_that_was_changed_or_is_elsewhere_does_not_leave_the_site(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("gpu02", "GPU 4", f"--output={folder.parent / 'case.tar.gz'}")
    log = folder / "evidence/gpu02/kernel-log.txt"
    whole = log.read_bytes()
    log.write_bytes(b"nicer")
    assert run(folder, *words) == 1
    assert "is not as the run has written it" in capsys.readouterr().err
    log.unlink()
    log.symlink_to("/etc/passwd")
    assert run(folder, *words) == 1
    log.unlink()
    log.write_bytes(whole)
    assert run(folder, *words) == 0
