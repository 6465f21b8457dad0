"""The section `accounting`: names and values that Slurm knows."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pytest_gpucluster.suites.accounting.config import AccountingConfig


def test_users_are_a_list_or_a_map() -> None:
    plain = {"accounts": {"ml": {"users": ["a", "b"]}, "ops": {"users": {"c": {"limits": {"MaxJobs": 2}}}}}}
    config = AccountingConfig.model_validate(plain)
    assert list(config.accounts["ml"].users) == ["a", "b"]
    assert config.accounts["ops"].users["c"].limits == {"MaxJobs": 2}


def test_mistakes_are_named() -> None:
    for plain, words in (
        ({"qos": {"x": {"limits": {"MaxJobs": 1}}}}, "not a limit here"),
        ({"accounts": {"a|b": {}}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "-x"}]}}, "one name of Slurm"),
        ({"access": {"may": [{"user": "a"}] * 201}}, "200"),
    ):
        with pytest.raises(ValidationError, match=words):
            AccountingConfig.model_validate(plain)
