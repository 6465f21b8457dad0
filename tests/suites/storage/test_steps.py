"""The step: what it passes to the payload, and the folders of a step that could not remove them itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from suite_helpers import NODES, allocation_of, cluster_of

from pytest_gpucluster.core import run_mark
from pytest_gpucluster.core.errors import StepError
from pytest_gpucluster.kit.framework.payload_result import PayloadResult, PayloadTask
from pytest_gpucluster.kit.payloads.prelude import SECRET
from pytest_gpucluster.suites.storage.config import StorageConfig
from pytest_gpucluster.suites.storage.payload import FOLDER
from pytest_gpucluster.suites.storage.steps import Storage

if TYPE_CHECKING:
    from pytest_gpucluster.cluster.slurm.step import StepRequest

CONFIG = StorageConfig.model_validate({"filesystems": [{"path": "/shared"}]})


class Recorded(Storage):
    """A runner whose steps end with these facts."""

    __module__ = Storage.__module__  # its payload is beside it

    def __init__(self, kinds: dict[str, dict[str, object]] | None) -> None:
        super().__init__(allocation_of(), cluster_of(), {}, CONFIG, NODES)
        self.kinds, self.requests = kinds, list["StepRequest"]()

    def run(self, request: StepRequest) -> PayloadResult:
        self.requests.append(request)
        if self.kinds is None:
            raise StepError("stopped")
        tasks = []
        for rank, node in enumerate(NODES):
            facts = [{"storage": kind, "rank": rank, "node": node, **it} for kind, it in self.kinds.items()]
            tasks.append(PayloadTask(rank, node, 0, None, tuple(facts)))
        return PayloadResult("storage", NODES, 2, tuple(tasks))


ENDED: dict[str, dict[str, object]] = {"end": {"removed": True}, "done": {}}


def test_a_step_that_removed_its_folders_needs_no_other() -> None:
    runner = Recorded(ENDED)
    assert len(runner.result.facts("done")) == 2
    (request,) = runner.requests
    assert run_mark.mark_in(request.env[FOLDER])
    assert request.env[SECRET] not in " ".join(request.argv)
    options = json.loads(request.argv[4])
    assert options["jobs"] == [7]
    assert (options["cluster"], options["phase"], options["address"]) == ("lab", 45.0, "gpu01")


@pytest.mark.parametrize("kinds", [{"end": {"removed": False}, "done": {}}, {"end": {"removed": True}}, {}])
def test_a_step_that_left_folders_is_followed_by_their_removal(kinds: dict[str, dict[str, object]]) -> None:
    runner = Recorded(kinds)
    assert runner.result.ntasks == 2
    assert [request.argv[3] for request in runner.requests] == ["run", "remove"]
    assert runner.requests[0].env[FOLDER] == runner.requests[1].env[FOLDER]


def test_a_step_that_is_stopped_is_followed_by_their_removal_too() -> None:
    runner = Recorded(None)
    with pytest.raises(StepError):
        _ = runner.result
    assert [request.argv[3] for request in runner.requests] == ["run", "remove"]
