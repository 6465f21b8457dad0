"""The section `accounting`: names and values that Slurm knows, and trials whose limits the file states."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.accounting.config import AccountingConfig

LIMITS = {"MaxTRESPerUser": "gres/gpu=2,cpu=500,mem=64M", "MaxJobsPU": 100, "MaxWall": "1-00:00:30"}


def trial(**limit: object) -> dict[str, Any]:
    return {"qos": {"gpus": {"limits": LIMITS}}, "trials": {"partition": "batch", "limits": [limit]}}


def of_gpus(limit: str, tres: str | None = None) -> dict[str, Any]:
    return trial(qos="gpus", limit=limit, tres=tres)


def test_users_are_a_list_or_a_map_and_preemption_is_one_trial_or_a_list() -> None:
    plain = {"accounts": {"ml": {"users": ["a", "b"]}, "ops": {"users": {"c": {"limits": {"MaxJobs": 2}}}}}}
    config = AccountingConfig.model_validate(plain)
    assert list(config.accounts["ml"].users) == ["a", "b"]
    assert config.accounts["ops"].users["c"].limits == {"MaxJobs": 2}
    for given in ({"mode": "cancel"}, [{"mode": "cancel"}]):
        config = AccountingConfig.model_validate({"trials": {"partition": "p", "preemption": given}})
        assert config.trials is not None
        assert [one.mode for one in config.trials.preemption] == ["cancel"]


def test_trial_has_the_stated_limit() -> None:
    for limit, tres, name, amount in (
        ("maxtrespu", "gres/gpu", "MaxTRESPU", 2),
        ("MaxTRESPerUser", "cpu", "MaxTRESPU", 500),
        ("MaxWallDurationPerJob", None, "MaxWall", 24 * 60),  # minutes,
    ):
        config = AccountingConfig.model_validate(of_gpus(limit, tres))
        assert config.trials is not None
        (found,) = config.trials.limits
        assert (found.limit, config.amount_of(found)) == (name, amount)


def test_mistakes_are_named() -> None:
    for plain, words in (
        (of_gpus("MaxTRESPU", "node"), "not stated"),
        (of_gpus("MaxJobsPU"), "from 1 to 8"),
        (of_gpus("MaxTRESPU"), "needs `tres`"),
        (of_gpus("GrpWall"), "no trial for this limit"),
        (of_gpus("MaxWall", "cpu"), "has no `tres`"),
        (of_gpus("MaxTRESPU", "mem"), "from 200MiB"),
        (trial(qos="gpus", account="ml", limit="MaxJobsPU"), "either"),
        (trial(limit="MaxJobsPU"), "either"),
        ({"qos": {"x": {"limits": {"MaxJobs": 1}}}}, "not a limit here"),
        ({"accounts": {"a|b": {}}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "-x"}]}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "a"}] * 201}}, "200"),
    ):
        with pytest.raises(ValidationError, match=words):
            AccountingConfig.model_validate(plain)
