"""The section `accounting`: names and values that Slurm knows, and trials whose limits the file states."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.accounting.config import AccountingConfig

QOS = {
    "gpus": {
        "limits": {"MaxTRESPerUser": "gres/gpu=2,cpu=500,mem=64M", "MaxJobsPU": 100, "MaxWall": "1-00:00:30"}
    }
}


def trials(**limit: object) -> dict[str, Any]:
    return {"qos": QOS, "trials": {"partition": "batch", "limits": [limit]}}


def test_users_are_a_list_or_a_map() -> None:
    plain = {"accounts": {"ml": {"users": ["a", "b"]}, "ops": {"users": {"c": {"limits": {"MaxJobs": 2}}}}}}
    config = AccountingConfig.model_validate(plain)
    assert list(config.accounts["ml"].users) == ["a", "b"]
    assert config.accounts["ops"].users["c"].limits == {"MaxJobs": 2}


def test_trial_has_the_stated_limit() -> None:
    config = AccountingConfig.model_validate(trials(qos="gpus", limit="maxtrespu", tres="gres/gpu"))
    assert config.trials is not None
    (trial,) = config.trials.limits
    assert (trial.limit, config.amount_of(trial)) == ("MaxTRESPU", 2)


def test_trial_of_cpus_and_of_time_takes_any_amount() -> None:
    for limit, amount in (
        ({"limit": "MaxTRESPerUser", "tres": "cpu"}, 500),
        ({"limit": "MaxWallDurationPerJob"}, 24 * 60),  # minutes
    ):
        config = AccountingConfig.model_validate(trials(qos="gpus", **limit))
        assert config.trials is not None
        (trial,) = config.trials.limits
        assert config.amount_of(trial) == amount


def test_preemption_is_one_trial_or_a_list() -> None:
    for given in ({"mode": "cancel"}, [{"mode": "cancel"}]):
        config = AccountingConfig.model_validate({"trials": {"partition": "p", "preemption": given}})
        assert config.trials is not None
        assert [trial.mode for trial in config.trials.preemption] == ["cancel"]


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (trials(qos="gpus", limit="MaxTRESPU", tres="node"), "not stated"),
        (trials(qos="gpus", limit="MaxJobsPU"), "from 1 to 8"),
        (trials(qos="gpus", limit="MaxTRESPU"), "needs `tres`"),
        (trials(qos="gpus", limit="GrpWall"), "no trial for this limit"),
        (trials(qos="gpus", limit="MaxWall", tres="cpu"), "has no `tres`"),
        (trials(qos="gpus", limit="MaxTRESPU", tres="mem"), "from 200MiB"),
        (trials(qos="gpus", limit="MaxTRES", tres="mem"), "not stated"),
        (trials(qos="gpus", account="ml", limit="MaxJobsPU"), "either"),
        (trials(limit="MaxJobsPU"), "either"),
        ({"qos": {"x": {"limits": {"MaxJobs": 1}}}}, "not a limit here"),
        ({"accounts": {"a|b": {}}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "-x"}]}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "a"}] * 201}}, "200"),
    ],
)
def test_mistakes_are_named(plain: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        AccountingConfig.model_validate(plain)
