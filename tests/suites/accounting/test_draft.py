"""The drafted section: what it states, what it leaves out because the check would fail, and that it can be read."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pytest_gpucluster.core.survey import Survey
from pytest_gpucluster.suites.accounting import draft
from pytest_gpucluster.suites.accounting.config import ASSOCIATION_LIMITS, QOS_LIMITS, AccountingConfig

CONFIG = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "associations,limits",
    "ClusterName": "prod",
    "PreemptType": "preempt/qos",
    "PriorityType": "priority/multifactor",
    "PriorityWeightFairShare": "1000",
    "SchedulerType": "sched/backfill",
    "PriorityWeightTRES": "(null)",
}
PARTITION = "PartitionName={} AllowGroups=ALL AllowAccounts={} AllowQos=ALL Default=NO Nodes=gpu01 State=UP\n"
ASSOCIATIONS = {
    "root||||1|normal": {},
    "ml|||root|10|high,normal": {"GrpTRES": "gres/gpu=8,mem=1T", "MaxWall": "1-00:00:00"},
    "ml|yes|||1|high,normal": {"MaxWall": "1-00:00:00"},
    "ml|bob|||parent|normal": {"MaxJobs": "2", "MaxWall": "1-00:00:00"},
    "ops|||root|1|normal": {},
    "ops|1e3|||1|normal": {},
    "a b|||root|1|normal": {},
}
QOS = {"high|10|normal|DenyOnLimit": {"MaxJobsPU": "3"}, "normal|0||": {}}


def rows(kinds: dict[str, str], table: dict[str, dict[str, str]]) -> str:
    """Return the rows of sacctmgr: the first columns, and the limits."""
    return "".join("|".join([first, *(of.get(it, "") for it in kinds)]) + "\n" for first, of in table.items())


def survey(private: str = "none", level: str = "None", user: str = "eve", **changes: str) -> Survey:
    config = CONFIG | changes
    *_, qos, associations = draft.commands(config)
    return Survey(
        outputs={
            ("scontrol", "show", "config"): "".join(f"{key} = {value}\n" for key, value in config.items()),
            ("scontrol", "show", "partition", "-o", "-a"): PARTITION.format("p", "ml") + PARTITION.format("q", "ALL"),
            ("id", "-un"): f"{user}\n",
            (*["sacctmgr", "-nP", "show", "user"], "format=User,AdminLevel"): f"root|Administrator\neve|{level}\n",
            ("sacctmgr", "show", "configuration"): f"\nSlurmDBD configuration:\nPrivateData = {private}\n",
            qos: rows(QOS_LIMITS, QOS),
            associations: rows(ASSOCIATION_LIMITS, ASSOCIATIONS),
        }
    )


def drafted(found: Survey) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load("\n".join(draft.lines(found)))["accounting"]
    AccountingConfig.model_validate(section)
    return section


def test_accounts_qos_partitions_and_settings_are_stated_as_they_are() -> None:
    section = drafted(survey())
    assert section["accounts"] == {
        "ml": {
            "parent": "root",
            "users": {"bob": {"fairshare": "parent", "qos": ["normal"], "limits": {"MaxJobs": 2}}, "yes": {}},
            "fairshare": 10,
            "qos": ["high", "normal"],
            "limits": {"GrpTRES": "gres/gpu=8,mem=1TiB", "MaxWall": "1-00:00:00"},
        },
        "ops": {"parent": "root", "users": ["1e3"], "fairshare": 1, "qos": ["normal"]},
    }
    high = {"priority": 10, "preempt": ["normal"]}
    assert section["qos"] == {
        "high": {**high, "flags": ["DenyOnLimit"], "limits": {"MaxJobsPU": 3}},
        "normal": {"priority": 0, "preempt": []},
    }
    assert section["partitions"]["p"]["allow_accounts"] == ["ml"]
    assert section["partitions"]["q"]["allow_accounts"] == ["ALL"]
    assert section["settings"]["PriorityWeightFairShare"] == 1000
    assert "PriorityWeightTRES" not in section["settings"]
    assert "# left out: names with blanks, commas, | or =" in draft.lines(survey())


def test_what_slurm_does_not_enforce_is_left_out_with_the_reason() -> None:
    found = survey(AccountingStorageEnforce="none", PreemptType="preempt/none", PriorityWeightFairShare="0")
    section = drafted(found)
    assert not {"limits", "fairshare"} & section["accounts"]["ml"].keys()
    assert section["qos"]["high"].keys() == {"priority", "flags"}
    assert list(section["partitions"]) == ["q"]
    notes = [line for line in draft.lines(found) if line.startswith("# left out: ")]
    left_out = {line.split(": ")[1] for line in notes}
    assert {"limits", "shares", "QoS to preempt", "accounts of partitions"} <= left_out


@pytest.mark.parametrize(
    ("level", "user", "seen"), [("None", "eve", False), ("Operator", "eve", True), ("None", "root", True)]
)
def test_accounts_that_private_data_hides_are_left_out(level: str, user: str, seen: bool) -> None:
    lines = draft.lines(survey("users,jobs", level, user))
    assert ("  accounts:" in lines) is seen
    assert any("PrivateData=users hides some" in line for line in lines) is not seen


def test_without_slurmdbd_or_without_an_answer_there_is_an_example_only() -> None:
    assert draft.commands({"AccountingStorageType": "accounting_storage/none"}) == []
    assert draft.lines(Survey()) == draft.EXAMPLE
    outputs = survey().outputs
    needed = [command for command in outputs if command[-1] != "format=User,AdminLevel"]
    for command in needed[1:]:
        lines = draft.lines(Survey(outputs={key: outputs[key] for key in outputs if key != command}))
        assert all(line.startswith("#") for line in lines if line)
        assert lines[1] == f"# the accounting could not be read: {command[0]} failed"
    garbled = draft.lines(Survey(outputs={**outputs, list(outputs)[-1]: "a|b\n"}))
    assert "# the accounting could not be read: sacctmgr show assoc: a row has" in "\n".join(garbled)
