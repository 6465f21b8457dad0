"""Folders of killed runs: only those of this user, of this cluster and of ended jobs, by their marker."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from suite_helpers import Jobs, cluster_of

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.storage import leftovers, payload
from pytest_gpucluster.suites.storage.config import StorageConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

STEM = "gpucluster-storage-0123abcd-1-2-"


class Node:
    """A node on which commands really run."""

    def ask(self, command: str) -> Mapping[str, Answer]:
        return {"gpu01": self.ask_node("gpu01", command), "gpu02": Answer("gpu02", None, problem="node lost: gone")}

    def ask_node(self, node: str, command: str, **_options: Any) -> Answer:
        done = subprocess.run(("sh", "-c", command), capture_output=True, check=False)
        return Answer(node, done.returncode, done.stdout, done.stderr)


SLURM: Any = Jobs()


def cluster(*systems: dict[str, str]) -> Any:
    section = StorageConfig.model_validate({"filesystems": list(systems)}) if systems else None
    return cluster_of(storage=section)


def folder(parent: Path, word: str, marker: object) -> Path:
    path = parent / (STEM + word)
    path.mkdir()
    (path / payload.MARKER).write_text(json.dumps(marker))
    return path


def test_folders_of_ended_jobs_on_local_file_systems_are_listed_and_removed(tmp_path: Path) -> None:
    ended = folder(tmp_path, "aa", {"cluster": "lab", "job": 6})
    stay = [
        folder(tmp_path, "bb", {"cluster": "lab", "job": 7}),
        folder(tmp_path, "cc", {"cluster": "other", "job": 6}),
        folder(tmp_path, "dd", "x"),
    ]
    (tmp_path / (STEM + "ee")).symlink_to(ended)
    other = tmp_path / "gpucluster-storage-my data"
    other.mkdir()
    node: Any = Node()
    found, problems = leftovers.on_nodes(SLURM, node, cluster({"path": str(tmp_path), "kind": "local"}))
    assert [one.what for one in found] == [f"folder {ended} on gpu01, whose job 6 has ended"]
    assert problems == ["gpu02 was not checked: node lost: gone"]
    assert found[0].remove is not None
    found[0].remove()
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {other, *stay}


def test_a_folder_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    folder(tmp_path, "aa", {"cluster": "lab", "job": 6})
    node: Any = Node()
    (one,), _ = leftovers.on_nodes(SLURM, node, cluster({"path": str(tmp_path), "kind": "local"}))
    node.ask_node = lambda name, _command, **_options: Answer(name, 1, b"", b"rm: Permission denied\n")
    assert one.remove is not None
    with pytest.raises(GpuClusterError, match="Permission denied"):
        one.remove()


def test_shared_folders_are_those_of_this_machine_and_without_a_section_there_are_none() -> None:
    both = cluster({"path": "/shared"}, {"path": "/raid", "kind": "local"})
    assert leftovers.folders(both) == [Path("/shared")]
    assert leftovers.folders(cluster()) == []
    nothing: Any = None
    assert leftovers.on_nodes(SLURM, nothing, cluster()) == ([], [])
