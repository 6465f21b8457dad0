from __future__ import annotations

import math
from typing import Any

from counter_examples import CONFIGURE, DRAIN, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT, WARNING
from judged import judged
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import ALONE, answer, of, peers

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.core.finding import Explanation
from pytest_gpucluster.suites.os import facts
from pytest_gpucluster.suites.os.checks import state as checks
from pytest_gpucluster.suites.os.facts import Load
from pytest_gpucluster.suites.os.software_facts import TimeSync, read_time_sync

HUNG = Explanation("", "silent for 15 s: hung")
DAY = 86400.0
NOW = 1_795_500_000


def load(one: float, cpus: int, uptime: float = DAY) -> Verdict:
    return checks.load(Load(one, 9, 9), cpus, 0.5, uptime)


def ids(mine: str, usual: str) -> Verdict:
    return checks.user(facts.read_user(mine), peers(facts.read_user(mine), facts.read_user(usual)))


def sync(offset: float | None, error: float | None = None) -> Verdict:
    return checks.time_sync(TimeSync(synchronised=True, source="x", offset=offset, error=error))


def chrony(reference: str = "0A000001,10.0.0.1,3", uptime: float = DAY, **told: Any) -> Verdict:
    """Judge `chronyc -c tracking`; told: age, interval and leap."""
    age, leap = NOW - told.get("age", 300), told.get("leap", "Normal")
    values = f"0.00002,-0.00004,0.00005,2.286,-0.000,0.012,0.0127,0.0004,{told.get('interval', 1029.8)}"
    line = f"{reference},{age:.6f},{values},{leap}\n"
    return checks.time_sync(read_time_sync(of(now=f"{NOW}\n", chronyc=line)), uptime)


def timedatectl(synchronised: str, uptime: float = DAY) -> Verdict:
    shown = f"Timezone=UTC\nNTP=yes\nNTPSynchronized={synchronised}\n"
    found = of(now=f"{NOW}\n", chronyc=("", 127), ntpq=("", 127), timedatectl=shown)
    return checks.time_sync(read_time_sync(found), uptime)


def ntpq(dispersion: float) -> Verdict:
    """Judge `ntpq -c rv` with a dispersion in milliseconds."""
    text = f"status=0615 leap_none, sync_ntp, 1 event,\nstratum=3, rootdisp={dispersion}, offset=-0.21\n"
    return checks.time_sync(read_time_sync(of(now=f"{NOW}\n", chronyc=("", 127), ntpq=text)), DAY)


NOT_YET: dict[str, Any] = {"reference": "7F7F0101,,0", "age": NOW, "leap": "Not synchronised"}
ID = "uid=1000(ada) gid=1000(ada) groups=1000(ada),44(video)"
MACHINES: Machines = {
    ("os.load", load): [
        ("idle | uptime(1)", PASSED, 0.3, 224),
        ("booted two minutes ago: services start | systemd-analyze", NOT_CHECKED, 19, 16, 120),
        ("half as many runnable tasks as CPUs, as stated | os.max_load", PASSED, 4.0, 8),
        ("sick: a runaway daemon | top", MONITOR, 4.1, 8),
    ],
    ("os.user", ids): [
        ("another gid of a local group | render", WARNING, ID.replace("44(video)", "39(video)"), ID),
        ("a further group | docker installed on one node", WARNING, f"{ID},998(docker)", ID),
        ("SELinux context at the end | id(1)", WARNING, f"{ID} context=unconfined_u:unconfined_r:s0", ID),
        ("alike | one directory", PASSED, ID, ID),
        ("the only node | one node", NOT_APPLICABLE, lambda: checks.user(ID, ALONE)),
        ("sick: no names | SSSD offline", CONFIGURE, "uid=1000 gid=1000 groups=1000", ID),
        ("sick: another uid | local account", CONFIGURE, ID.replace("uid=1000", "uid=1001"), ID),
        ("sick: a group is missing | LDAP", CONFIGURE, ID.replace(",44(video)", ""), ID),
    ],
    ("os.responds", lambda loss: checks.responds(answer(rc=None), HUNG, loss)): [
        ("its TaskProlog fails | slurm.conf(5)", CONFIGURE, "prolog_failed"),
        ("the agent was killed for memory | oom-killer", MONITOR, "task_ended"),
        ("a wrapper ends true with 1 | script", MONITOR, lambda: checks.responds(answer("", 1))),
        ("it answers | true(1)", PASSED, lambda: checks.responds(answer(""))),
        ("sick: dead | power", REBOOT, ""),
        ("sick: lost without a word | power", REBOOT, lambda: checks.responds(answer(rc=None))),
        ("sick: lost later | power", REBOOT, lambda: checks.responds(answer(""), HUNG)),
    ],
    "os.time_sync": [
        ("polls every 36 hours | maxpoll 17", PASSED, lambda: chrony(age=4 * 131072, interval=131072)),
        ("PTP clock | refclock PHC", PASSED, lambda: chrony("50485030,PHC0,1", age=2, interval=4.0)),
        ("timesyncd | timedatectl show", PASSED, lambda: timedatectl("yes")),
        ("timesyncd, booted 40 s ago | first poll", NOT_CHECKED, lambda: timedatectl("no", uptime=40)),
        ("chrony, booted 40 s ago | iburst", NOT_CHECKED, lambda: chrony(**NOT_YET, uptime=40)),
        ("ntpd | ntpq -c rv", PASSED, lambda: ntpq(24.5)),
        ("1 s behind | tinker step", PASSED, lambda: sync(-1.0, 1.0)),
        ("no offset | timedatectl", PASSED, lambda: sync(None)),
        ("sick: it lost its servers, and shows Normal | Ref time", CONFIGURE, lambda: chrony(age=DAY + 1)),
        ("sick: ntpd lost its servers: 15 ppm in ten days | rootdisp", CONFIGURE, lambda: ntpq(12960.5)),
        ("sick: not synchronised | chronyc", CONFIGURE, lambda: chrony(**NOT_YET)),
        ("sick: ahead | offset", CONFIGURE, lambda: sync(1.5)),
        ("sick: behind | offset", CONFIGURE, lambda: sync(-1.5)),
        ("sick: no number | offset", CONFIGURE, lambda: sync(math.nan)),
        ("sick: a large error | chronyc", CONFIGURE, lambda: sync(0.0, 1.5)),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)


def test_the_remedy_for_a_node_that_does_not_respond() -> None:
    for loss, words, action in (
        ("prolog_failed", "TaskProlog", CONFIGURE),
        ("starts_no_task", "slurmd", DRAIN),
        ("task_ended", "killed", MONITOR),
        ("", "hangs", REBOOT),
    ):
        # what the channel says of the node counts more than its last answer
        for verdict in (checks.responds(answer(rc=None), None, loss), checks.responds(answer(""), HUNG, loss)):
            assert judged(verdict) == (action, ["node"])
            assert verdict.findings[0].code == (loss or "no_answer")
            assert words in verdict.cause
            assert ("power-cycle" in verdict.hint) == (action == REBOOT)
