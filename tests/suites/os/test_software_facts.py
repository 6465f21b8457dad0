"""Readers of processes, time, units, packages, sysctls and names: exact facts and each reason for none."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from os_helpers import answer, of, run, with_tools
from sandbox_helpers import wait_for

from pytest_gpucluster.core.errors import ConfigError, NotAvailable, ProbeError
from pytest_gpucluster.suites.os import software_facts as probes

ZOMBIE = probes.ProcessRow(7, 1, "Z+", 90, "root", "a b")
ROW = "   7     1 Z+    90 root     a b\n"


def test_what_is_stuck_at_every_look() -> None:
    for text, stuck in (
        ("processes 200\n", ()),
        (f"{ROW}processes 200\nprocesses 201\n{ROW}processes 202\n", ()),
        (f"{ROW}processes 200\n{ROW.replace('Z+', 'Zs')}processes 201\n", (replace(ZOMBIE, state="Zs"),)),
        (f"{ROW}processes 200\n{ROW.replace('Z+', 'D')}processes 201\n", ()),
        (f"{ROW.replace('90', '-')}\nprocesses 200\n", (probes.ProcessRow(7, 1, "Z+", None, "root", "a b"),)),
        (f"{ROW}processes 200\n{ROW}", (ZOMBIE,)),
    ):
        found = probes.read_processes(answer(text))
        assert found == probes.Processes(200, stuck)
        assert (found.of_state("Z"), found.of_state("D")) == (stuck, ())


def test_processes_that_are_not_known() -> None:
    with pytest.raises(ProbeError, match="ps: the last line is cut"):
        probes.read_processes(answer("processes 200"))
    for given, words in (
        (answer("processes 3 visible\n"), "ps does not show process 1"),
        (answer("processes 0\n", err="ps: broken"), "^ps: broken$"),
        (answer("\n"), "^ps lists no process$"),
    ):
        with pytest.raises(NotAvailable, match=words):
            probes.read_processes(given)


def test_a_real_zombie_is_found(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])  # nobody waits for it yet
    try:
        status = Path(f"/proc/{child.pid}/status")
        wait_for(lambda: "State:\tZ" in status.read_text(), "a zombie")
        path = with_tools(tmp_path, sleep="exit 0")  # without the pauses between the looks
        found = probes.PROCESSES.parse(run(probes.PROCESSES.command, PATH=path))
    finally:
        child.wait()
    assert (child.pid, os.getpid()) in [(process.pid, process.ppid) for process in found.of_state("Z")]


FIELDS = "A,t,3,1.0,{},a,b,c,d,e,f,g,h,{}\n"  # 14 fields
GOOD = FIELDS.format("0", "Normal")
LOST, SYNCED = "Not synchronised", "NTPSynchronized="
NO_TALK = ("506 Cannot talk\n", 1)


def test_the_time_service_that_is_believed() -> None:
    for given, synchronised, source, offset, detail in (
        (of(chronyc=FIELDS.format("-0.5", "Normal")), True, "chronyc", -0.5, "leap status Normal"),
        (of(chronyc=FIELDS.format("x", LOST)), False, "chronyc", None, f"leap status {LOST}"),
        (of(ntpq="leap_none, sync_ntp\noffset=+1.5, x=1\n"), True, "ntpq", 0.0015, "leap_none"),
        (of(ntpq="status leap=11,\n"), False, "ntpq", None, "leap=11"),
        (of(ntpq="status leap_alarm, offset=-2\n"), False, "ntpq", -0.002, "leap_alarm"),
        (of(timedatectl=f"NTP=yes\n{SYNCED}no\n"), False, "timedatectl", None, f"{SYNCED}no"),
        (of(chronyc=NO_TALK, timedatectl=f"{SYNCED}yes\n"), True, "timedatectl", None, f"{SYNCED}yes"),
        (of(chronyc=GOOD, timedatectl=f"{SYNCED}no\n"), True, "chronyc", 0.0, "leap status Normal"),
    ):
        assert probes.read_time_sync(given) == probes.TimeSync(synchronised, source, offset, detail)


def test_a_time_service_that_does_not_tell_is_named() -> None:
    for given, words in (
        (of(chronyc=GOOD.replace("h,", "")), "^chronyc: "),  # 13 fields
        *((of(ntpq=f"{text}\n"), "^ntpq: ") for text in ("status leap=x1,", "leap_ ", "leap=,")),
        (of(timedatectl="LastNTPSynchronized=yes\n"), "^timedatectl: "),
        (of(chronyc=NO_TALK, timedatectl=("no bus\n", 1)), "^chronyc: 506 Cannot talk; timedatectl: no bus$"),
        (of(chronyc=("", 127)), "^none of chronyc, ntpq and timedatectl is installed$"),
    ):
        with pytest.raises(NotAvailable, match=words):
            probes.read_time_sync(given)


REFUSED = "Failed to connect to bus: Connection refused"
NO_INIT = "System has not been booted with systemd as init system (PID 1). Can't operate."


def test_the_state_of_systemd() -> None:
    for given, expected in (
        (answer("running\n"), probes.SystemState("running")),
        *(
            (answer(f"{word}\n", 1), probes.SystemState(word, ""))
            for word in ("degraded", "initializing", "starting", "maintenance", "stopping", "offline")
        ),
        (answer("", 1, NO_INIT), probes.SystemState("offline")),
        (answer("unknown\n", 1, "no bus"), probes.SystemState("", "no bus")),
        (answer("unknown\n", 1), probes.SystemState("", "unknown")),
        (answer("", 1, REFUSED), probes.SystemState("", REFUSED)),
        (answer("deadline\n", 0), probes.SystemState("", "no answer, twice, within 10 s", hung=True)),
    ):
        assert probes.read_system_state(given) == expected
        assert expected.answers is bool(expected.word)


def test_a_systemd_that_may_not_be_asked_is_not_known() -> None:
    for said in ("Access Denied", "Operation not permitted", "Interactive authentication required."):
        with pytest.raises(NotAvailable, match=said):
            probes.read_system_state(answer("", 1, said))
    for read in (probes.read_system_state, probes.services(["munge"]).parse):
        with pytest.raises(NotAvailable, match=r"^systemctl: command not found$"):
            read(answer("", 127, "sh: systemctl: not found"))


def test_units_that_failed_are_named() -> None:
    units = "\u25cf a.service loaded failed failed A\n\n  b@1.mount loaded failed failed B\n\u25cfc.timer loaded\n"
    assert probes.read_failed_units(answer(units)) == ("a.service", "b@1.mount", "c.timer")
    for line in ("word", "a.service", "two words", "a.SERVICE loaded", ".service loaded", "a. loaded"):
        with pytest.raises(ProbeError, match=r"systemctl: not a unit"):
            probes.read_failed_units(answer(f"{line}\n"))


def test_services_are_reported_one_a_line() -> None:
    probe = probes.services(["a-b", "c"])
    assert probe.command == "export LC_ALL=C; exec systemctl is-active a-b c a-b.socket c.socket"
    four = answer("active\ninactive\ninactive\ninactive\n", 3)
    assert probe.parse(four) == {"a-b": "active", "c": "inactive"}
    assert probe.parse(answer("inactive\nfailed\nactive\nactive\n")) == {"a-b": "active", "c": "failed"}
    for given in (answer("active\n"), answer("", 1), answer("x y z\n", 1, "no bus")):
        with pytest.raises(NotAvailable):
            probe.parse(given)


def test_packages_sysctls_and_names_of_this_machine() -> None:
    packages = probes.packages(["bash", "surely-not-a-package"])
    found = packages.parse(run(packages.command))
    assert (found["bash"][0].isdigit(), found["surely-not-a-package"]) == (True, "")
    sysctls = probes.sysctls(["kernel.pid_max", "net.ipv4.ip_local_port_range", "no.such_name"])
    found = sysctls.parse(run(sysctls.command))
    assert found["kernel.pid_max"] == Path("/proc/sys/kernel/pid_max").read_text().strip()
    assert len(found["net.ipv4.ip_local_port_range"].split(" ")) == 2
    assert found["no.such_name"] == ""
    no_name = "x" * 64  # longer than a label may be: no name server is asked
    names = probes.resolution(["localhost", no_name])
    found = names.parse(run(names.command))
    assert found["localhost"] in ("127.0.0.1", "::1", "127.0.0.1 ::1")
    assert found[no_name] == ""


def test_packages_of_dpkg_and_rpm() -> None:
    probe = probes.packages(["a", "b.c"])
    for text, found in (
        ("a\t1.0-1\tinstall ok installed\ndpkg-query: no packages found matching b.c\n", ("1.0-1", "")),
        ("a\t1.0-1\tdeinstall ok config-files\nb.c\t2\tinstall ok installed\n", ("", "2")),
        ("package a is not installed\nb.c\t2-1.el9\tinstalled\n", ("", "2-1.el9")),
    ):
        assert probe.parse(answer(text, 1)) == dict(zip(("a", "b.c"), found, strict=True))
    with pytest.raises(ProbeError, match=r"packages: nothing about b\.c in 'bxc"):
        probe.parse(answer("a\t1\tinstalled\nbxc\t1\tinstalled\n"))
    with pytest.raises(NotAvailable, match=r"neither dpkg-query nor rpm is installed"):
        probe.parse(answer("", 127, "neither dpkg-query nor rpm is installed"))


def test_sysctls_together_and_singly() -> None:
    probe = probes.sysctls(["vm.a", "net.b"])
    assert probe.parse(of(all="1\n32768\t 60999\n")) == {"vm.a": "1", "net.b": "32768 60999"}
    absent = ("cat: /proc/sys/net/b: No such file or directory\n", 1)
    assert probe.parse(of(**{"vm.a": "1\n2\n", "net.b": absent})) == {"vm.a": "1 2", "net.b": ""}
    with pytest.raises(ProbeError, match=r"sysctl: no answer about net.b"):
        probe.parse(of(**{"vm.a": "1\n"}))
    for text, words in (("cat: Permission denied\n", "^cat: Permission denied$"), ("", "^net.b: exit 1$")):
        with pytest.raises(NotAvailable, match=words):
            probe.parse(of(**{"vm.a": "1\n", "net.b": (text, 1)}))
    for name, path in (
        ("net/ipv4/conf/eth0.1/mtu", "/proc/sys/net/ipv4/conf/eth0.1/mtu"),
        ("net.ipv4.conf.eth0/1.mtu", "/proc/sys/net/ipv4/conf/eth0.1/mtu"),
    ):
        assert path in probes.sysctls([name]).command


@pytest.mark.parametrize("name", ["", "-a", "a..b", "a;rm -rf x", "$(id)", ".a"])
def test_a_name_that_a_shell_would_read_is_refused(name: str) -> None:
    for ask in (probes.services, probes.packages, probes.sysctls, probes.resolution):
        with pytest.raises(ConfigError, match=r"invalid name"):
            ask([name])


def test_addresses_of_names() -> None:
    probe = probes.resolution(["gpu01", "gpu02"])
    lines = "10.0.0.2 gpu02.site x\n10.0.0.1 gpu01\n10.0.0.9 gpu01\n10.0.0.1 gpu01\n"
    assert probe.parse(of(**{"*": lines})) == {"gpu01": "10.0.0.1 10.0.0.9", "gpu02": "10.0.0.2"}
    of_itself = "gpu01 gpu09\n10.0.0.2 gpu02\n"  # a first word is an address, whatever it looks like
    assert probe.parse(of(**{"*": of_itself})) == {"gpu01": "", "gpu02": "10.0.0.2"}
    assert probe.parse(of(gpu01="10.0.0.1 gpu01\n\n", gpu02=("", 2))) == {"gpu01": "10.0.0.1", "gpu02": ""}
    with pytest.raises(NotAvailable, match=r"^no answer about gpu02$"):
        probe.parse(of(gpu01="10.0.0.1 gpu01\n"))
    with pytest.raises(NotAvailable, match=r"^getent: broken$"):
        probe.parse(of(gpu01=("getent: broken\n", 1)))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("10.0.0.1 a.site a\n10.0.0.2 b\n", {"a": "10.0.0.1", "b": "10.0.0.2"}),
        ("10.0.0.1 a\n10.0.0.2 other\n", {"a": "1.1.1.1", "b": "1.1.1.1"}),  # which is b? each is asked alone
        ("", {"a": "1.1.1.1", "b": "1.1.1.1"}),
    ],
)
def test_names_are_asked_together_or_alone(tmp_path: Path, said: str, found: dict[str, str]) -> None:
    (tmp_path / "said").write_text(said)
    path = with_tools(tmp_path, getent=f'[ $# = 3 ] || {{ echo "1.1.1.1 $2"; exit 0; }}\nexec cat {tmp_path}/said')
    probe = probes.resolution(["a", "b"])
    assert probe.parse(run(probe.command, PATH=path)) == found


def test_output_of_a_sites_command() -> None:
    probe = probes.command_output("ulimit -n")
    assert probe.parse(answer(" 1024 \n")) == probes.CommandOutput("1024", 0)
    assert probe.parse(answer("x", 3)) == probes.CommandOutput("x", 3)
    for rc in (126, 127):
        with pytest.raises(NotAvailable, match=r"^nothing of the kind$"):
            probe.parse(answer("", rc, "nothing of the kind"))
