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


def row(kinds: dict[str, str], *first: str, **limits: str) -> str:
    return "|".join([*first, *(limits.get(name, "") for name in kinds)]) + "\n"


def association(*first: str, **limits: str) -> str:
    return row(ASSOCIATION_LIMITS, *first, **limits)


ASSOCIATIONS = (
    association("root", "", "", "", "1", "normal")
    + association(
        "ml", "", "", "root", "10", "high,normal", GrpTRES="gres/gpu=8,mem=1T", MaxWall="1-00:00:00"
    )
    + association("ml", "yes", "", "", "1", "high,normal", MaxWall="1-00:00:00")
    + association("ml", "bob", "", "", "parent", "normal", MaxJobs="2", MaxWall="1-00:00:00")
    + association("ops", "", "", "root", "1", "normal")
    + association("ops", "1e3", "", "", "1", "normal")
    + association("a b", "", "", "root", "1", "normal")
)
QOS = row(QOS_LIMITS, "high", "10", "normal", "cluster", "00:01:00", "DenyOnLimit", MaxJobsPU="3") + row(
    QOS_LIMITS, "normal", "0", "", "gang,suspend", "00:00:00", ""
)


def survey(private: str = "none", level: str = "None", user: str = "eve", **changes: str) -> Survey:
    config = CONFIG | changes
    shown = "".join(f"{key} = {value}\n" for key, value in config.items())
    *_, qos, associations = draft.commands(config)
    outputs = {
        ("scontrol", "show", "config"): shown,
        ("scontrol", "show", "partition", "-o", "-a"): PARTITION.format("p", "ml")
        + PARTITION.format("q", "ALL"),
        ("id", "-un"): f"{user}\n",
        ("sacctmgr", "-nP", "show", "user", "format=User,AdminLevel"): f"root|Administrator\neve|{level}\n",
        (
            "sacctmgr",
            "show",
            "configuration",
        ): f"\nSlurmDBD configuration:\nPrivateData            = {private}\n",
        qos: QOS,
        associations: ASSOCIATIONS,
    }
    return Survey(outputs=outputs)


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
    assert section["qos"] == {
        "high": {
            "priority": 10,
            "preempt": ["normal"],
            "preempt_mode": "cluster",
            "grace_time": "60s",
            "flags": ["DenyOnLimit"],
            "limits": {"MaxJobsPU": 3},
        },
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
    assert "limits" not in section["accounts"]["ml"]
    assert "fairshare" not in section["accounts"]["ml"]
    assert section["qos"]["high"].keys() == {"priority", "preempt_mode", "grace_time", "flags"}
    assert list(section["partitions"]) == ["q"]
    notes = [line for line in draft.lines(found) if line.startswith("# left out: ")]
    left_out = {line.split(": ")[1] for line in notes}
    assert {"limits", "shares", "QoS to preempt", "accounts of partitions"} <= left_out


@pytest.mark.parametrize(
    ("level", "user", "seen"), [("None", "eve", False), ("Operator", "eve", True), ("None", "root", True)]
)
def test_accounts_that_private_data_hides_are_left_out(level: str, user: str, seen: bool) -> None:
    found = survey("users,jobs", level, user)
    assert ("accounts" in drafted(found)) is seen
    assert any("PrivateData=users hides some" in line for line in draft.lines(found)) is not seen


def test_without_slurmdbd_or_without_an_answer_there_is_an_example_only() -> None:
    assert draft.commands({"AccountingStorageType": "accounting_storage/none"}) == []
    assert draft.lines(Survey()) == draft.EXAMPLE
    found = survey()
    needed = [command for command in found.outputs if command[-1] != "format=User,AdminLevel"]
    for command in needed[1:]:
        lines = draft.lines(
            Survey(outputs={key: value for key, value in found.outputs.items() if key != command})
        )
        assert all(line.startswith("#") for line in lines if line)
        assert lines[1] == f"# the accounting could not be read: {command[0]} failed"
    garbled = Survey(outputs={**found.outputs, list(found.outputs)[-1]: "a|b\n"})
    assert "# the accounting could not be read: sacctmgr show assoc: a row has" in "\n".join(
        draft.lines(garbled)
    )
