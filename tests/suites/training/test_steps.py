"""Which nodes train together, and what remains of a checkpoint whose step was stopped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from suite_helpers import allocation_of, cluster_of
from training_helpers import NODES, NONE, of_rank, recorded

from pytest_gpucluster.cluster.slurm.step import StepRequest
from pytest_gpucluster.core.run_mark import mark_in
from pytest_gpucluster.kit.framework.payload_result import PayloadResult
from pytest_gpucluster.suites.training.config import TrainingConfig
from pytest_gpucluster.suites.training.payload import FOLDER
from pytest_gpucluster.suites.training.steps import Training

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = TrainingConfig(checkpoint="/shared")


def runner(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[StepRequest], PayloadResult]
) -> tuple[Training, list[Any]]:
    """Return a runner whose steps have these results, and the requests that it makes."""
    requests: list[Any] = []

    def run(_: Training, request: StepRequest) -> PayloadResult:
        requests.append(request)
        return NONE if request.argv[3] == "remove" else answer(request)

    monkeypatch.setattr(Training, "run", run)
    monkeypatch.setattr(Training, "fit_nodes", NODES)
    return Training(allocation_of(), cluster_of(simulated=True), {}, CONFIG, NODES), requests


def test_step_that_removed_its_checkpoint_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, requests = runner(monkeypatch, lambda it: recorded("together" if "together" in it.argv else "alone"))
    assert steps.widest.ntasks == 4
    alone, together = requests
    assert (alone.argv[3], together.argv[3], FOLDER in alone.env) == ("alone", "together", False)
    folder = together.env[FOLDER]
    assert re.fullmatch(r"/shared/gpucluster-training-.*-[0-9a-f]{32}", folder)
    assert mark_in(folder.removeprefix("/shared/")), "gpucluster clean must recognise it"
    assert not any(folder in word for word in together.argv), "other users can read a command line"


@pytest.mark.parametrize("stop", [True, False])
def test_checkpoint_of_a_stopped_step_is_removed(monkeypatch: pytest.MonkeyPatch, *, stop: bool) -> None:
    def answer(request: StepRequest) -> PayloadResult:
        if "alone" in request.argv:
            return recorded("alone")
        if stop:
            raise KeyboardInterrupt
        return recorded("together", lambda it: it if it["rank"] or it["training"] != "checkpoint" else None)

    steps, requests = runner(monkeypatch, answer)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            _ = steps.together
    else:
        assert steps.together.ntasks == 4
    *_, together, removal = requests
    assert (removal.argv[3:5], removal.nodes) == (("remove", "PAYLOAD"), ("gpu01",))
    assert removal.env[FOLDER] == together.env[FOLDER]


def test_node_with_wrong_results_does_not_train_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"digest": "00", "losses": ["5.7"]}
    steps, requests = runner(monkeypatch, lambda _: recorded("alone", of_rank(3, kind="replayed", runs=[other, other])))
    assert steps.sound_nodes == ("gpu01",)
    assert steps.together.ntasks == 0
    assert len(requests) == 1
