"""The drafted section: networked file systems that most nodes have mounted, as a comment."""

from __future__ import annotations

import yaml

from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.core.survey import Survey
from pytest_gpucluster.suites.storage import draft
from pytest_gpucluster.suites.storage.config import StorageConfig

NODES = ("gpu01", "gpu02", "gpu03")
MOUNTS = "server:/home /home nfs4 rw 0 0\n10.0.0.1@o2ib:/fs /lustre lustre rw,flock 0 0\n/dev/md0 /raid ext4 rw 0 0\nx /with\\040blank nfs rw 0 0\n"


def drafted(*texts: str) -> list[str]:
    answers = {node: Answer(node, 0, text.encode()) for node, text in zip(NODES, texts, strict=False)}
    return draft.lines(Survey(groups=(NODES,), answers={draft.NETWORKED_MOUNTS.command: answers}))


def test_file_systems_of_servers_that_most_nodes_have_are_drafted_and_load_again() -> None:
    lines = drafted(MOUNTS, MOUNTS, "/dev/sda / ext4 rw 0 0\n")
    assert lines[-1].endswith("# lustre, 2 of 3 nodes")
    text = "\n".join(line.removeprefix("# ") for line in lines)
    loaded = StorageConfig.model_validate(yaml.safe_load(text)["storage"])
    assert [it.path for it in loaded.filesystems] == ["/home", "/lustre"]
