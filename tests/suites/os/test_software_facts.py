"""Readers of processes, time, units, packages, sysctls and names: exact facts and each reason for none."""

from __future__ import annotations

import pytest

from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.core.probe import Answer
from pytest_gpucluster.suites.os import software_facts as probes
from pytest_gpucluster.suites.os.software_facts import (
    CommandOutput,
    Processes,
    ProcessRow,
    SystemState,
    TimeSync,
)


def answer(out: str = "", err: str = "", rc: int = 0) -> Answer:
    return Answer("gpu01", rc, out.encode(), err.encode())


def parted(**parts: tuple[str, int]) -> Answer:
    """Return sections: name=(text, exit status)."""
    return answer("".join(f"\x1e{name}\n{text}\x1e={rc}\n" for name, (text, rc) in parts.items()))


# -- processes --------------------------------------------------------------------------------------------------

ZOMBIE = ProcessRow(7, 1, "Z+", 90, "root", "a b")
ROW = "   7     1 Z+    90 root     a b\n"


@pytest.mark.parametrize(
    ("text", "total", "stuck"),
    [
        ("processes 200\n", 200, ()),
        (f"{ROW}processes 200\nprocesses 201\n{ROW}processes 202\n", 200, ()),
        (f"{ROW}processes 200\n{ROW.replace('Z+', 'Zs')}processes 201\n", 200, (ProcessRow(7, 1, "Zs", 90, "root", "a b"),)),
        (f"{ROW}processes 200\n{ROW.replace('Z+', 'D')}processes 201\n", 200, ()),
        (f"{ROW.replace('90', '-')}\nprocesses 200\n", 200, (ProcessRow(7, 1, "Z+", None, "root", "a b"),)),
        (f"{ROW}processes 200\n{ROW}", 200, (ZOMBIE,)),
    ],
)  # fmt: skip
def test_what_is_stuck_at_every_look(text: str, total: int, stuck: tuple[ProcessRow, ...]) -> None:
    assert probes.read_processes(answer(text)) == Processes(total, stuck)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (answer("processes 200"), ProbeError, "ps: the last line is cut: 'processes 200'"),
        (answer("7 1 Z+ 90root a\nprocesses 2\n"), ProbeError, "ps: not understood: '7 1 Z"),
        (answer("processes x\n"), ProbeError, "ps: not understood: 'processes x'"),
        (answer("7 x1 Z 9 u c\nprocesses 2\n"), ProbeError, "ps: not understood"),
        (answer("7 1 z 9 u c\nprocesses 2\n"), ProbeError, "ps: not understood"),
        (answer("7 1 Z 9x u c\nprocesses 2\n"), ProbeError, "ps: not understood"),
        (answer("7 1 Z 9 u \nprocesses 2\n"), ProbeError, "ps: not understood"),
        (answer("processes  visible\n"), ProbeError, "ps: not understood: 'processes  visible'"),
        (answer("processes 3 visible\n"), NotAvailable, "ps does not show process 1"),
        (answer("processes 0\n", "ps: broken"), NotAvailable, "^ps: broken$"),
        (answer("\n"), NotAvailable, "^ps lists no process$"),
    ],
)
def test_processes_that_are_not_known(given: Answer, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        probes.read_processes(given)


def test_what_is_stuck_by_its_state() -> None:
    sleeper = ProcessRow(8, 1, "D", 1, "root", "x")
    both = Processes(9, (ZOMBIE, sleeper))
    assert (both.of_state("Z"), both.of_state("D"), both.of_state("T")) == ((ZOMBIE,), (sleeper,), ())


# -- time -------------------------------------------------------------------------------------------------------

FIELDS = "A,t,3,1.0,{},a,b,c,d,e,f,g,h,{}\n"  # 14 fields


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (parted(chronyc=(FIELDS.format("-0.5", "Normal"), 0)), TimeSync(True, "chronyc", -0.5, "leap status Normal")),
        (
            parted(chronyc=(FIELDS.format("x", "Not synchronised"), 0)),
            TimeSync(False, "chronyc", None, "leap status Not synchronised"),
        ),
        (
            parted(ntpq=("leap_none, sync_ntp\noffset=+1.5, x=1\n", 0)), TimeSync(True, "ntpq", 0.0015, "leap_none"),
        ),
        (parted(ntpq=("status leap=11,\n", 0)), TimeSync(False, "ntpq", None, "leap=11")),
        (parted(ntpq=("leap_none, clk_offset=7, x\n", 0)), TimeSync(True, "ntpq", None, "leap_none")),
        (parted(ntpq=("leap_none, offset=0.5ms\n", 0)), TimeSync(True, "ntpq", 0.0005, "leap_none")),
        (parted(ntpq=("status leap_alarm, offset=-2\n", 0)), TimeSync(False, "ntpq", -0.002, "leap_alarm")),
        (
            parted(timedatectl=("NTP=yes\nNTPSynchronized=no\n", 0)),
            TimeSync(False, "timedatectl", None, "NTPSynchronized=no"),
        ),
        (
            parted(
                chronyc=("506 Cannot talk to daemon\n", 1), ntpq=("", 127),
                timedatectl=("NTPSynchronized=yes\n", 0),
            ),
            TimeSync(True, "timedatectl", None, "NTPSynchronized=yes"),
        ),
        (
            parted(chronyc=(FIELDS.format("0", "Normal"), 0), timedatectl=("NTPSynchronized=no\n", 0)),
            TimeSync(True, "chronyc", 0.0, "leap status Normal"),
        ),
    ],
)  # fmt: skip
def test_the_time_service_that_is_believed(given: Answer, expected: TimeSync) -> None:
    assert probes.read_time_sync(given) == expected


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("chronyc", FIELDS.format("0", "Normal").replace("h,", "")),  # 13 fields
        ("ntpq", "status leap=x1,"), ("ntpq", "leap_ "), ("ntpq", "leap=,"),
        ("timedatectl", "LastNTPSynchronized=yes"), ("timedatectl", "NTPSynchronized=yesterday"),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_tell_is_not_believed(tool: str, text: str) -> None:
    with pytest.raises(NotAvailable, match=f"^{tool}: "):
        probes.read_time_sync(parted(**{tool: (text + "\n", 0)}))


def test_a_time_service_that_does_not_answer_is_named() -> None:
    silent = parted(
        chronyc=("506 Cannot talk to daemon\n", 1), ntpq=("", 127), timedatectl=("a\nno bus\n", 1)
    )
    with pytest.raises(NotAvailable, match=r"^chronyc: 506 Cannot talk to daemon; timedatectl: no bus$"):
        probes.read_time_sync(silent)
    with pytest.raises(NotAvailable, match=r"^none of chronyc, ntpq and timedatectl is installed$"):
        probes.read_time_sync(parted(chronyc=("", 127)))


# -- systemd ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer("running\n"), SystemState("running")),
        *((answer(f"{word}\n", rc=1), SystemState(word, ""))
          for word in ("degraded", "initializing", "starting", "maintenance", "stopping", "offline")),
        (answer("", "System has not been booted with systemd as init system (PID 1). Can't operate.", 1), SystemState("offline")),
        (answer("unknown\n", "Failed to connect to bus", 1), SystemState("", "Failed to connect to bus")),
        (answer("unknown\n", rc=1), SystemState("", "unknown")),
        (answer("", "Failed to connect to bus: Connection refused", 1),
         SystemState("", "Failed to connect to bus: Connection refused")),
        (answer("", rc=124), SystemState("", "no answer, twice, within 10 s")),
    ],
)  # fmt: skip
def test_the_state_of_systemd(given: Answer, expected: SystemState) -> None:
    assert probes.read_system_state(given) == expected
    assert expected.answers is bool(expected.word)


@pytest.mark.parametrize(
    "said", ["Access Denied", "Operation not permitted", "Interactive authentication required."]
)
def test_a_systemd_that_may_not_be_asked_is_not_known(said: str) -> None:
    with pytest.raises(NotAvailable, match=said):
        probes.read_system_state(answer("", said, 1))


def test_a_node_without_systemctl_is_not_known() -> None:
    with pytest.raises(NotAvailable, match=r"^systemctl: command not found$"):
        probes.read_system_state(answer("", "sh: systemctl: not found", 127))
    with pytest.raises(NotAvailable, match=r"^systemctl: command not found$"):
        probes.services(["munge"]).parse(answer("", "sh: systemctl: not found", 127))


def test_units_that_failed_are_named() -> None:
    units = "\u25cf a.service loaded failed failed A\n\n  b@1.mount loaded failed failed B\n\u25cfc.timer loaded\n"
    assert probes.read_failed_units(answer(units)) == ("a.service", "b@1.mount", "c.timer")
    for line in ("word", "a.service", "two words", "a.SERVICE loaded", ".service loaded", "a. loaded"):
        with pytest.raises(ProbeError, match=r"systemctl: not a unit"):
            probes.read_failed_units(answer(f"{line}\n"))


def test_services_are_reported_one_a_line() -> None:
    probe = probes.services(["a-b", "c"])
    assert probe.command == "LC_ALL=C systemctl is-active a-b c a-b.socket c.socket"
    four = answer("active\ninactive\ninactive\ninactive\n", rc=3)
    assert probe.parse(four) == {"a-b": "active", "c": "inactive"}
    assert probe.parse(answer("inactive\nfailed\nactive\nactive\n")) == {"a-b": "active", "c": "failed"}
    for given in (answer("active\n"), answer("", rc=1), answer("x y z\n", "no bus", 1)):
        with pytest.raises(NotAvailable):
            probe.parse(given)


def test_empty_lists_ask_nothing() -> None:
    for probe, name in (
        (probes.services([]), "services"), (probes.packages([]), "packages"), (probes.sysctls([]), "sysctls"),
    ):  # fmt: skip
        assert (probe.name, probe.command, probe.parse(answer())) == (name, "true", {})


# -- packages, sysctls, names -------------------------------------------------------------------------------------


def test_packages_of_dpkg_and_rpm() -> None:
    probe = probes.packages(["a", "b.c"])
    dpkg = "a\t1.0-1\tinstall ok installed\ndpkg-query: no packages found matching b.c\n"
    assert probe.parse(answer(dpkg, rc=1)) == {"a": "1.0-1", "b.c": ""}
    removed = "a\t1.0-1\tdeinstall ok config-files\nb.c\t2\tinstall ok installed\n"
    assert probe.parse(answer(removed)) == {"a": "", "b.c": "2"}
    rpm = "package a is not installed\nb.c\t2-1.el9\tinstalled\n"
    assert probe.parse(answer(rpm, rc=1)) == {"a": "", "b.c": "2-1.el9"}
    with pytest.raises(ProbeError, match=r"packages: nothing about b\.c in 'bxc"):
        probe.parse(answer("a\t1\tinstalled\nbxc\t1\tinstalled\n"))
    with pytest.raises(NotAvailable, match=r"neither dpkg-query nor rpm is installed"):
        probe.parse(answer("", "neither dpkg-query nor rpm is installed", 127))


def test_sysctls_together_and_singly() -> None:
    probe = probes.sysctls(["vm.a", "net.b"])
    assert probe.parse(parted(all=("1\n32768\t 60999\n", 0))) == {"vm.a": "1", "net.b": "32768 60999"}
    missing = {"vm.a": ("1\n2\n", 0), "net.b": ("cat: /proc/sys/net/b: No such file or directory\n", 1)}
    assert probe.parse(parted(**missing)) == {"vm.a": "1 2", "net.b": ""}
    with pytest.raises(ProbeError, match=r"sysctl: no answer about net.b"):
        probe.parse(parted(**{"vm.a": ("1\n", 0)}))
    with pytest.raises(NotAvailable, match=r"^cat: Permission denied$"):
        probe.parse(parted(**{"vm.a": ("1\n", 0), "net.b": ("cat: Permission denied\n", 1)}))
    with pytest.raises(NotAvailable, match=r"^net.b: exit 1$"):
        probe.parse(parted(**{"vm.a": ("1\n", 0), "net.b": ("", 1)}))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("vm.swappiness", "/proc/sys/vm/swappiness"),
        ("net/ipv4/conf/eth0.1/mtu", "/proc/sys/net/ipv4/conf/eth0.1/mtu"),
        ("net.ipv4.conf.eth0/1.mtu", "/proc/sys/net/ipv4/conf/eth0.1/mtu"),
    ],
)
def test_the_file_of_a_sysctl(name: str, path: str) -> None:
    assert path in probes.sysctls([name]).command


@pytest.mark.parametrize("name", ["", "-a", "a..b", "a;rm -rf x", "$(id)", ".a"])
def test_a_name_that_a_shell_would_read_is_refused(name: str) -> None:
    for ask in (probes.services, probes.packages, probes.sysctls, probes.resolution):
        with pytest.raises(ConfigError, match=r"invalid name"):
            ask([name])


def test_addresses_of_names() -> None:
    probe = probes.resolution(["gpu01", "gpu02"])
    lines = "10.0.0.2 gpu02.site x\n10.0.0.1 gpu01\n10.0.0.9 gpu01\n10.0.0.1 gpu01\n"
    assert probe.parse(parted(**{"*": (lines, 0)})) == {"gpu01": "10.0.0.1 10.0.0.9", "gpu02": "10.0.0.2"}
    of_itself = "gpu01 gpu09\n10.0.0.2 gpu02\n"  # a first word is an address, whatever it looks like
    assert probe.parse(parted(**{"*": (of_itself, 0)})) == {"gpu01": "", "gpu02": "10.0.0.2"}
    singly = {"gpu01": ("10.0.0.1 gpu01\n\n", 0), "gpu02": ("", 2)}
    assert probe.parse(parted(**singly)) == {"gpu01": "10.0.0.1", "gpu02": ""}
    with pytest.raises(NotAvailable, match=r"^no answer about gpu02$"):
        probe.parse(parted(gpu01=("10.0.0.1 gpu01\n", 0)))
    with pytest.raises(NotAvailable, match=r"^getent: broken$"):
        probe.parse(parted(gpu01=("getent: broken\n", 1)))


def test_output_of_a_sites_command() -> None:
    probe = probes.command_output("ulimit -n")
    assert probe.parse(answer(" 1024 \n")) == CommandOutput("1024", 0)
    assert probe.parse(answer("x", rc=3)) == CommandOutput("x", 3)
    for rc in (126, 127):
        with pytest.raises(NotAvailable, match=r"^nothing of the kind$"):
            probe.parse(answer("", "nothing of the kind", rc))
