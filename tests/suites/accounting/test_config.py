"""The section `accounting`: names and values that Slurm knows, and trials whose limits the file states."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.accounting.config import AccountingConfig

QOS = {"gpus": {"limits": {"MaxTRESPerUser": "gres/gpu=2", "MaxJobsPU": 100}}}


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


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (trials(qos="gpus", limit="MaxTRESPU", tres="node"), "not stated"),
        (trials(qos="gpus", limit="MaxJobsPU"), "from 1 to 8"),
        (trials(qos="gpus", limit="MaxTRESPU"), "needs `tres`"),
        (trials(qos="gpus", limit="MaxWall"), "no trial for this limit"),
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
