"""Readers of the accounting suite: output of Slurm 22.05.8 and 25.11.7."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.core.errors import ProbeError
from pytest_gpucluster.suites.accounting import facts
from pytest_gpucluster.suites.accounting.config import QOS_LIMITS, stated_limits, written

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {"GrpTRES": "tres", "MaxJobs": "count"}


def test_associations_and_qos_with_their_limits() -> None:
    text = "root||||1|normal||\nml|||root|10|high,low|gres/gpu=2,mem=100G|4\nml|daemon|||parent|high||\n"
    root, account, user = facts.parse_associations(text, KINDS)
    assert (root.account, root.parent) == ("root", "")
    assert account.limits == {"GrpTRES": {"gres/gpu": 2, "mem": 100 << 30}, "MaxJobs": 4}
    assert (account.parent, account.qos, user.user) == ("root", frozenset({"high", "low"}), "daemon")
    assert (user.fairshare, user.limits) == ("parent", {"GrpTRES": None, "MaxJobs": None})
    text = "normal|0|||\nhigh|1000|low,scavenge|DenyOnLimit|1-00:00:00\n"
    found = facts.parse_qos(text, {"MaxWall": "time"})["high"]
    preempted, flags = frozenset({"low", "scavenge"}), frozenset({"DenyOnLimit"})
    expected = facts.QosInfo("high", 1000, preempted, flags, {"MaxWall": 86400.0})
    assert found == expected


def test_jobs_of_sacct() -> None:
    ran, waited = facts.parse_records(
        "10|root|ml|batch|COMPLETED|2026-11-23T14:45:44|2026-11-23T14:45:44|2026-11-23T14:46:04|0:0|cpu=1|gpu01\n"
        "6|root|ml|batch|CANCELLED by 0|2026-11-23T14:45:44|None|2026-11-23T14:46:24|0:0||None assigned\n"
    )
    assert (ran.state, ran.started, ran.nodes) == ("COMPLETED", "2026-11-23T14:45:44", "gpu01")
    assert (waited.state, waited.started, waited.ended) == ("CANCELLED", "", "2026-11-23T14:46:24")


PRIVATE = "PrivateData            = jobs\n\nSlurmDBD configuration:\nPrivateData            = %s\n"
ROWS = ("ml|||root|10|high||", "root||||1|normal", "root||||1|normal||many", "root||||1|normal|gres/gpu|")


@pytest.mark.parametrize(
    "read",
    [
        lambda: facts.parse_associations("", KINDS),
        *(lambda row=row: facts.parse_associations(f"{row}\n", KINDS) for row in ROWS),
        lambda: facts.parse_qos("", {}),
        lambda: facts.parse_records("10|root|ml\n"),
        lambda: facts.parse_private_data("PrivateData            = none\n"),
    ],
)
def test_what_is_cut_or_not_understood_is_no_fact(read: Callable[[], object]) -> None:
    with pytest.raises(ProbeError):
        read()


def test_private_data_is_that_of_slurmdbd_and_its_queue_not_that_of_slurmctld() -> None:
    assert facts.parse_private_data(PRIVATE % "accounts,users") == {"accounts", "users"}
    assert facts.parse_private_data(PRIVATE % "none") == set()
    assert facts.parse_queue_size("Agent queue size:     3\nDBD Agent queue size: 12\n") == 12
    assert facts.parse_queue_size("Agent queue size:     3\n") is None


def test_refusals_for_the_user_differ_from_all_others() -> None:
    for text, kind in (
        ("allocation failure: Invalid account or account/partition combination specified\n", "refused"),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: Job violates accounting/QOS policy "
            "(job submit limit, user's size and/or time limits)\n",
            "limit",
        ),
        ("sbatch: error: invalid: nope\nallocation failure: Invalid partition name specified", "unclear"),
        ("", "unclear"),
    ):
        answer = facts.read_refusal(text)
        assert answer.result == kind
        assert not answer.message.startswith(("sbatch", "allocation failure"))


def test_limits_of_a_file_have_the_names_of_sacctmgr() -> None:
    stated = {"maxtresperuser": "gres/gpu=8,mem=1024", "MaxWall": "2d", "MaxJobsPU": -1}
    found = stated_limits(stated, QOS_LIMITS)
    assert found == {"MaxTRESPU": {"gres/gpu": 8, "mem": 1 << 30}, "MaxWall": 172800.0, "MaxJobsPU": None}
    assert [written(value) for value in found.values()] == ["gres/gpu=8,mem=1GiB", "2-00:00:00", "no limit"]
    assert stated_limits({"GrpTRES": "node=-1"}, QOS_LIMITS) == {"GrpTRES": None}
    assert stated_limits({"GrpTRES": {"node": 2}}, QOS_LIMITS) == {"GrpTRES": {"node": 2}}
    for wrong in ({"MaxGPUs": 1}, {"MaxTRESPU": "8"}, {"MaxJobsPU": "many"}, {"MaxWall": "long"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            stated_limits(wrong, QOS_LIMITS)
