from __future__ import annotations

from counter_examples import CONFIGURE, MONITOR, NOT_APPLICABLE, NOT_CHECKED, PASSED, REBOOT
from machine_helpers import Machines, examples, verdicts_of_a_person
from os_helpers import answer, peers

from pytest_gpucluster.core.check import Verdict
from pytest_gpucluster.kit.node.kernel_log import KernelLog
from pytest_gpucluster.kit.node.peers import norm
from pytest_gpucluster.suites.os import software_facts as facts
from pytest_gpucluster.suites.os.checks import software as checks
from pytest_gpucluster.suites.os.software_facts import Processes, SystemState

DAY = 86400.0


def processes(*samples: str) -> Processes:
    """Read samples of ps: lines `PID PPID STAT ETIMES USER COMM`; one sample stands for three."""
    rows = samples if len(samples) > 1 else samples * 3
    return facts.read_processes(answer("".join(f"{one}\nprocesses 400\n" for one in rows)))


def dstate(*samples: str) -> Verdict:
    return checks.dstate(processes(*samples))


def services(service: str, socket: str = "inactive", uptime: float = DAY) -> Verdict:
    """Judge `systemctl is-active ssh ssh.socket`."""
    found = facts.services(["ssh"]).parse(answer(f"{service}\n{socket}\n", 3))
    return checks.services(found, ("ssh",), uptime)


def units(text: str, stated: tuple[str, ...] = ()) -> Verdict:
    return checks.failed_units(facts.read_failed_units(answer(f"{text}\n")), stated)


def systemd(out: str, err: str = "", rc: int = 0, uptime: float = DAY) -> Verdict:
    mine = facts.read_system_state(answer(out, rc, err))
    return checks.systemd(mine, peers(mine.answers, usual=True), uptime)


def silent(*answers: bool, word: str = "") -> Verdict:
    state = SystemState(word, "" if word else "refused")
    return checks.systemd(state, norm({f"n{n}": it for n, it in enumerate(answers, 1)}))


NO_SYSTEMD = "System has not been booted with systemd as init system (PID 1). Can't operate."
MACHINES: Machines = {
    ("os.zombies", lambda most, *samples: checks.zombies(processes(*samples), most)): [
        ("a child that is reaped between samples | ps", PASSED, 0, "7 3 Z 0 root sh", "", ""),
        ("two accepted | os.max_zombies", PASSED, 2, "7 3 Z 900 root sh\n8 3 Z 900 root sh"),
        ("none | ps", PASSED, 0, "9 3 D 900 root dd"),
        ("sick: a daemon does not reap | ps", MONITOR, 1, "7 3 Z 900 root sh\n8 3 Z 900 root sh"),
    ],
    ("os.dstate", dstate): [
        ("md resyncs an array | md_do_sync of md0_resync", PASSED, "812 2 D 7000 root md0_resync"),
        ("fstrim was woken | FITRIM", PASSED, *(f"@{n} 7 1 D 900 root fstrim" for n in (1, 2, 3))),
        ("mkfs began a minute ago | hung_task_timeout_secs", PASSED, "@7 79 1 D 119 root mkfs.ext4"),
        ("sick: it hangs in a dead mount | no switch between samples", MONITOR, "@40 80 1 D 7200 ada dd"),
        ("sick: its switch count is not readable | hidepid", MONITOR, "81 1 D 120 ada dd"),
    ],
    ("os.services", services): [
        ("reloading | systemctl(1) is-active", PASSED, "reloading"),
        ("activating, booted a minute ago | systemd", NOT_CHECKED, "activating", "inactive", 60),
        ("ssh.service starts with its socket | Ubuntu 22.10: ssh.socket", PASSED, "inactive", "active"),
        ("none stated | cluster file", NOT_APPLICABLE, lambda: checks.services({}, ())),
        ("sick: inactive, without a socket | systemctl", CONFIGURE, "inactive"),
        ("sick: failed, its socket listens | systemctl", CONFIGURE, "failed", "active"),
        ("sick: failed, booted a minute ago | systemctl", CONFIGURE, "failed", "inactive", 60),
    ],
    ("os.failed_units", units): [
        ("the session of a user failed | oom-killer", PASSED, "user@1001.service loaded failed failed User"),
        ("a transient unit of systemd-run | run-rbc3e.scope", PASSED, "run-rbc3e.scope loaded failed failed"),
        ("judged elsewhere | os.services", PASSED, "chrony.service loaded failed failed NTP", ("chrony",)),
        ("a timer that is stated | os.services", PASSED, "b.timer loaded failed failed", ("b.timer",)),
        ("sick: a timer of that name | systemd", MONITOR, "a.timer loaded failed failed", ("a",)),
    ],
    ("os.systemd", systemd): [
        ("degraded | systemctl is-system-running", PASSED, "degraded\n", "", 1),
        ("a container without systemd | soperator", NOT_APPLICABLE, "", NO_SYSTEMD, 1),
        ("D-Bus was restarted | systemctl as a user", MONITOR, "", "Connection refused", 1),
        ("no answer yet, booted a minute ago | systemd", NOT_CHECKED, "deadline", "", 0, 60),
        ("shutting down for scontrol reboot | systemd", NOT_CHECKED, "stopping\n", "", 1),
        ("most others do not answer either | D-Bus", NOT_CHECKED, lambda: silent(False, False, True)),
        ("the only node | D-Bus", NOT_CHECKED, lambda: silent(False)),
        ("the only one that answers | D-Bus", PASSED, lambda: silent(True, False, False, word="running")),
        ("sick: does not answer within 10 s | timeout(1)", REBOOT, "deadline", "", 0),
        ("sick: rescue mode | maintenance", MONITOR, "maintenance\n", "", 1),
    ],
    ("os.kernel_log_start", lambda at: checks.kernel_log_start(KernelLog("dmesg", 900, at, None))): [
        ("a log since boot | dmesg", PASSED, 0.0),
        ("a virtual machine whose first line has a later time | kvm-clock", PASSED, 2.5),
        ("a kernel that writes no times | printk.time=0", NOT_CHECKED, None),
        ("sick: a flood of lines hid the boot | AER", NOT_CHECKED, 86_400.0),
    ],
}
COUNTER_EXAMPLES = examples(MACHINES)
test_each_machine_gets_the_verdict_of_a_person = verdicts_of_a_person(COUNTER_EXAMPLES)
