"""Reading scontrol: states, gres, hostile reasons; seen on Slurm 22.05.8, 23.11.11 and 25.11.7."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.slurm import inventory
from pytest_gpucluster.cluster.slurm.inventory import NodeInfo, parse_nodes

NODE = (
    "NodeName=gpu03 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.00 "
    "AvailableFeatures=(null) ActiveFeatures=a,b Gres=gpu:h200:8(S:0-1),shard:32 NodeAddr=127.0.0.1 "
    "NodeHostName=vm Port=27823 Version=22.05.8 OS=Linux 6.1 #1 SMP  RealMemory=20000 AllocMem=0 "
    "Sockets=16 State={state} ThreadsPerCore=1 Partitions=batch,limited  BootTime=2026-11-21T05:22:43 "
    "ExtSensorsTemp=n/s{reason}\n"
)
WHEN = "2026-11-20T10:00:00"
MARK = f"[root@{WHEN}]"


def _node(state: str = "IDLE", reason: str = "") -> NodeInfo:
    return parse_nodes(NODE.format(state=state, reason=reason))["gpu03"]


def _reason(printed: str) -> tuple[str, str, str]:
    node = _node("IDLE+DRAIN", f" Reason={printed}")
    return node.reason, node.reason_user, node.reason_time


def test_a_node_with_every_value_and_one_of_which_nothing_is_known() -> None:
    text = (
        "NodeName=gpu01 CPUAlloc=3 CPUTot=16 ActiveFeatures=a,b Gres=gpu:h200:8 NodeAddr=10.0.0.1 NodeHostName=vm "
        "Version=23.11.11 RealMemory=20 State=MIXED+PLANNED Partitions=batch,debug BootTime=2026-11-21T05:22:43 "
        f"CPUTot=99 Reason=bad cable {MARK}\n"
    )
    node = parse_nodes(text)["gpu01"]
    assert (node.name, node.state, node.flags) == ("gpu01", "MIXED", frozenset({"PLANNED"}))
    assert (node.gres, node.cpus, node.cpus_allocated, node.memory) == ({"gpu:h200": 8}, 16, 3, 20 * 2**20)
    assert (node.features, node.partitions) == (frozenset({"a", "b"}), ("batch", "debug"))
    assert (node.boot_time, node.version) == ("2026-11-21T05:22:43", "23.11.11")
    assert (node.address, node.hostname) == ("10.0.0.1", "vm")
    assert node.annotation() == ("MIXED+PLANNED", f'"bad cable" by root since {WHEN}')
    unset = "NodeName=n1 CPUTot=x RealMemory=N/A ActiveFeatures=(null) Partitions= Gres=(null) CPUAlloc=-1"
    for text in ("NodeName=n1", unset):
        assert parse_nodes(text) == {"n1": NodeInfo("n1", "UNKNOWN")}
    assert NodeInfo("n1", "UNKNOWN").annotation() == ("UNKNOWN", "")


def test_several_lines_without_the_option_for_one() -> None:
    text = (
        "NodeName=gpu01 Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=1.23\n"
        "   Gres=gpu:rtxproserver6000:1\n   State=IDLE+CLOUD+DRAIN ThreadsPerCore=1\n   Partitions=compute-gpu \n"
        "   AllocTRES=\n   CurrentWatts=0 AveWatts=0\n   \n"
        f"   Reason=first line {MARK}\n          second line\n   Comment=c\n"
        "   InstanceId=i-0123 InstanceType=g7e.8xlarge\n\n"
        f"NodeName=gpu02 CPUTot=4 State=IDLE\n   Reason=x {MARK}\n   Extra=e\n\n"
        f"NodeName=gpu03 State=IDLE+DRAIN Reason=one\ntwo {MARK}  \nNodeName=gpu04 State=IDLE"
    )
    first, second, third, fourth = parse_nodes(text).values()
    assert (first.gres, first.cpus, first.partitions) == ({"gpu:rtxproserver6000": 1}, 32, ("compute-gpu",))
    assert (first.reason, first.reason_user) == ("first line second line", "root")
    assert (second.reason, second.reason_time) == ("x", WHEN)
    assert (third.reason, third.reason_user, fourth.reason) == ("one two", "root", "")


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("a = [yes] State=IDLE Gres=gpu:8 MARK Comment=my Reason=x", "a = [yes] State=IDLE Gres=gpu:8"),
        ("one [a@b] MARK        line\ttwo \x1b[31m Comment=c Extra=e", "one [a@b] line two [31m"),
        ("a\x00\x1f\x7f\x9fb   c MARK", "a b c"),
        ("x [bob@2020-01-01T00:00:00] y MARK", "x [bob@2020-01-01T00:00:00] y"),
        ("cable MARK        and fan    Comment=x ReservationName=fix", "cable and fan"),
        ("cable MARK K=7", "cable"),
        ("a [bob@Unknown] B MARK KeyOfTomorrow=7 [c@Unknown] d", "a [bob@Unknown] B"),
        ("a [bob@Unknown] 7=8 MARK", "a [bob@Unknown] 7=8"),
        ("a TLSCert=b MARK", "a TLSCert=b"),
        # what only looks like Slurm's mark: USER@TIME in brackets, with a blank before it and a known key behind it
        ("x [a b@2020-01-01T00:00:00] MARK", "x [a b@2020-01-01T00:00:00]"),
        ("x[bob@2020-01-01T00:00:00] Comment=c MARK", "x[bob@2020-01-01T00:00:00] Comment=c"),
        ("x [bob@2020-a1-01T00:00:00] Comment=c MARK", "x [bob@2020-a1-01T00:00:00] Comment=c"),
    ],
)
def test_hostile_reasons(printed: str, reason: str) -> None:
    node = _node("IDLE+DRAIN", f" Reason={printed.replace('MARK', MARK)}")
    assert (node.reason, node.reason_user, node.reason_time) == (reason, "root", WHEN)
    assert node.state == "IDLE"
    assert node.why_unavailable() == f'DRAINED: "{reason}" by root since {WHEN}'


@pytest.mark.parametrize("gap", [" ", "    "])
def test_the_keys_behind_a_reason_end_it(gap: str) -> None:
    since_23 = ("ReservationName", "TLSCertLastRenewal", "Parameters", "Topology")
    for key in ("Comment", "Extra", "InstanceId", "InstanceType", *since_23):
        assert _reason(f"a [b@c] [root@Unknown]{gap}{key}=x y") == ("a [b@c]", "root", "Unknown")
        assert _reason(f"bare words{gap}{key}=x y") == ("bare words", "", "")


def test_a_user_with_a_realm_a_number_and_no_user_at_all() -> None:
    for who in ("jane.doe@EXAMPLE.COM", "nobody", "1234", "EXAMPLE\\jane"):
        assert _reason(f"mail a@b [{who}@{WHEN}] Comment=(null)") == ("mail a@b", who, WHEN)
    for odd in ("@2020-01-01T00:00:00", *(f"bob@{WHEN[:at]}a{WHEN[at + 1 :]}" for at in range(len(WHEN)))):
        assert _reason(f"x [{odd}]") == (f"x [{odd}]", "", "")
    assert parse_nodes("NodeName=n1 Arch=x x86State=DOWN X=1 State=IDLE")["n1"].state == "IDLE"
    for comment in (f" Comment=see Reason=x {MARK}", " Extra=Reason=x"):
        assert _node("IDLE", comment).reason == ""


@pytest.mark.parametrize(
    ("text", "counts", "gpus"),
    [
        ("gpu:a100_1g.5gb:14(S:0),gpu:a100:6(S:0-1)", {"gpu:a100_1g.5gb": 14, "gpu:a100": 6}, 20),
        ("gpu:8(S:0-1),gpufs:3,shard:a100:8", {"gpu": 8, "gpufs": 3, "shard:a100": 8}, 8),
        ("gpu:T", {"gpu:T": 1}, 1),
        ("gpu:(null):4(IDX:0-3)", {"gpu": 4}, 4),
        ("gpu:(null):0(IDX:N/A),mps:0", {"gpu": 0, "mps": 0}, 0),
        ("gpu:a100:1(S:0),gpu:a100:3(S:1)", {"gpu:a100": 4}, 4),
        ("bandwidth:lustre:no_consume:4G", {"bandwidth:lustre": 4 * 2**30}, 0),
        ("vmem:2K,disk:3M,x:1T,y:1P", {"vmem": 2048, "disk": 3 * 2**20, "x": 2**40, "y": 2**50}, 0),
        (" gpu:a100:2(S:0,1) , shard:3 ", {"gpu:a100": 2, "shard": 3}, 2),
        (" ", {}, 0),
    ],
)
def test_gres_as_slurm_writes_it(text: str, counts: dict[str, int], gpus: int) -> None:
    """20.11: src/common/gres.c; since 21.08: src/interfaces/gres.c (_build_gres_str, gres_get_node_used)."""
    assert inventory.parse_gres(text) == counts
    assert parse_nodes(f"NodeName=n1 Gres={text} State=IDLE")["n1"].gpus == gpus


@pytest.mark.parametrize(
    ("text", "full"),
    [
        # 20.11: node_state_string(), with COMPLETING, DRAIN, FAIL, POWER and CLOUD behind a plus
        ("MAINT*+CLOUD", "IDLE+CLOUD+MAINTENANCE+NOT_RESPONDING"),
        ("REBOOT*", "IDLE+NOT_RESPONDING+REBOOT_REQUESTED"),
        ("IDLE*+CLOUD+POWER", "IDLE+CLOUD+NOT_RESPONDING+POWERED_DOWN"),
        ("ALLOCATED$", "ALLOCATED+MAINTENANCE"),
        ("MIXED#+CLOUD", "MIXED+CLOUD+POWERING_UP"),
        # since 21.08: node_state_string_complete(), flags in full
        ("AVAILABLE", "AVAILABLE"),  # a word of a version to come
        # sinfo
        ("mix+drain", "MIXED+DRAIN"),
        ("drained*", "IDLE+DRAIN+NOT_RESPONDING"),
        ("draining", "ALLOCATED+DRAIN"),
        ("inval", "IDLE+INVALID_REG"),
        ("resv", "IDLE+RESERVED"),
        ("idle~%", "IDLE+POWERED_DOWN+POWERING_DOWN"),
        ("idle@^", "IDLE+REBOOT_ISSUED+REBOOT_REQUESTED"),
        ("idle-!", "IDLE+PLANNED+POWER_DOWN"),
    ],
)
def test_states_of_all_versions(text: str, full: str) -> None:
    assert _node(text).full_state == full


KEEPS_AWAY = {
    "DRAIN": "no reason given",
    "FAIL": "no reason given",
    "NOT_RESPONDING": "no reason given",
    "INVALID_REG": "slurmctld's log",
    "POWERING_DOWN": "SuspendProgram",
    "POWER_DOWN": "SuspendTime",
    "REBOOT_ISSUED": "it reboots",
    "REBOOT_REQUESTED": "it will reboot when its jobs have ended",
    "MAINTENANCE": "held by a reservation",
    "RESERVED": "held by a reservation",
    "EXTERNAL": "State=EXTERNAL",
}


@pytest.mark.parametrize(
    "flag", [*KEEPS_AWAY, "PLANNED", "POWERED_DOWN", "POWERING_UP", "COMPLETING", "PERFCTRS", "BLOCKED"]
)
def test_a_flag_that_keeps_jobs_away_says_why_and_others_do_not(flag: str) -> None:
    assert inventory.parse_state(flag) == ("IDLE", frozenset({flag}))  # as 20.11 and sinfo write it
    node = _node(f"IDLE+{flag}")
    assert node.in_service is (flag not in KEEPS_AWAY)
    assert flag not in KEEPS_AWAY or KEEPS_AWAY[flag] in node.why_unavailable()


@pytest.mark.parametrize(
    ("state", "label", "available", "schedulable", "responding", "why"),
    [
        ("IDLE+DYNAMIC_NORM+PLANNED", "IDLE", True, True, True, ""),
        ("IDLE+POWER_DOWN+POWERING_UP", "IDLE+POWER_DOWN", False, False, True, "about to switch it off"),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE", True, True, False, ""),
        ("IDLE+NOT_RESPONDING+POWERED_DOWN", "IDLE+NOT_RESPONDING", False, False, False, "no reason given"),
        ("ALLOCATED+COMPLETING", "ALLOCATED", False, True, True, "in use by other jobs"),
        ("IDLE+BLOCKED", "IDLE", False, True, True, "IDLE+BLOCKED: in use by other jobs"),
        # its epilog does not end: it is not in use
        ("IDLE+COMPLETING", "IDLE", False, True, True, "COMPLETING: a job has ended there"),
        ("ALLOCATED+DRAIN", "DRAINING", False, False, True, "no reason given"),
        ("DOWN+DRAIN", "DOWN+DRAIN", False, False, True, "no reason given"),
        ("DOWN", "DOWN", False, False, True, "DOWN: no reason given"),
        ("UNKNOWN", "UNKNOWN", False, False, False, "UNKNOWN: it has not registered"),
        ("FUTURE", "FUTURE", False, False, False, "FUTURE: slurm.conf reserves it for later"),
    ],
)
def test_what_a_state_means(
    state: str, label: str, available: bool, schedulable: bool, responding: bool, why: str
) -> None:
    node = _node(state)
    assert node.label == label
    assert (node.available, node.schedulable, node.responding) == (available, schedulable, responding)
    assert bool(node.why_unavailable()) is not available
    assert why in node.why_unavailable()


@pytest.mark.parametrize(
    ("what", "states", "others"),
    [
        (
            "away",
            "IDLE~ IDLE# MIXED+POWERING_UP+NOT_RESPONDING IDLE+POWERING_DOWN IDLE+REBOOT_ISSUED REBOOT* REBOOT*+DRAIN",
            "IDLE DOWN+CLOUD+POWERED_DOWN DOWN+REBOOT_ISSUED IDLE* IDLE+REBOOT_REQUESTED",
        ),
        (
            "busy",
            "ALLOCATED MIXED IDLE+COMPLETING IDLE+BLOCKED IDLE+PERFCTRS DOWN+COMPLETING",
            "IDLE DOWN IDLE+DRAIN ERROR",
        ),
        ("reserved", "RESERVED MAINT MIXED+MAINTENANCE+RESERVED", "IDLE DOWN+RESERVED IDLE+DRAIN+MAINTENANCE"),
    ],
)
def test_which_states_are_away_busy_or_reserved(what: str, states: str, others: str) -> None:
    assert [state for state in states.split() if not getattr(_node(state), what)] == []
    assert [state for state in others.split() if getattr(_node(state), what)] == []
    assert NodeInfo("n", "IDLE", cpus_allocated=1).busy


def test_a_node_in_service_has_no_reason_to_be_out() -> None:
    reason = f" Reason=Node start up {MARK}"
    assert (_node("IDLE+CLOUD", reason).reason, _node("IDLE+CLOUD", reason).why_out) == ("Node start up", "")
    assert _node("IDLE+DRAIN", reason).why_out == "Node start up"
    for user, when, by in (("", "", ""), ("root", "", " by root"), ("", "Unknown", " since Unknown")):
        node = NodeInfo("n", "DOWN", reason="bad", reason_user=user, reason_time=when)
        assert node.why_unavailable() == f'DOWN: "bad"{by}'


def test_a_reservation_alone_holds_a_node_and_not_from_inside() -> None:
    assert "held by a reservation" in _node("IDLE+RESERVED", f" Reason=old {MARK}").why_unavailable()
    flags = frozenset({"MAINTENANCE", "RESERVED", "PLANNED"})
    nodes = {name: NodeInfo(name, "IDLE", flags) for name in ("n1", "n2")}
    seen = inventory.seen_from_inside(nodes, {"n1"})
    assert {name: info.flags for name, info in seen.items()} == {"n1": {"PLANNED"}, "n2": flags}


@pytest.mark.parametrize(
    ("state", "reason", "responding"),
    [
        ("DOWN", "Not responding", False),
        ("DOWN", "gpucluster:gpu.count 7<8 GPUs run=r : Not responding", False),  # 23.02: behind another one
        ("DOWN", "x : Not responding to mail", True),
        ("DOWN", "it was Not responding to pings", True),
        ("IDLE+DRAIN", "Not responding", True),  # it has come back since
    ],
)
def test_a_node_that_slurm_has_set_down_is_silent(state: str, reason: str, responding: bool) -> None:
    assert _node(state, f" Reason={reason} [slurm@{WHEN}]").responding is responding


def test_rubbish_is_no_empty_cluster() -> None:
    assert parse_nodes(" \n") == parse_nodes("No nodes in the system\n") == {}
    for text, printed in (
        (f" {'x' * 90}\n", f"no node in scontrol's answer: '{'x' * 80}'"),
        (f"NodeName=-{'x' * 90} State=IDLE", f"no name of a node: '-{'x' * 59}'"),
    ):
        with pytest.raises(ValueError, match=printed):
            parse_nodes(text)


@pytest.mark.parametrize(
    ("cpus", "reserved", "for_jobs"),
    [
        ("CPUEfctv=10 CPUTot=12", "CoreSpecCount=2 CPUSpecList=5,11 MemSpecLimit=10240", 10),
        ("CPUTot=128", "CoreSpecCount=1 CPUSpecList=0,64-65", 125),  # before 22.05
        ("CPUTot=128", "", 128),
    ],
)
def test_cpus_reserved_for_the_system_are_not_requested(cpus: str, reserved: str, for_jobs: int) -> None:
    system = "Linux 6.8.0-59 #61~22.04.1 SMP"
    text = f"NodeName=gpu01 Arch=x86_64 CPUAlloc=0 {cpus} CPULoad=0.92 OS={system} {reserved} State=IDLE"
    info = parse_nodes(text)["gpu01"]
    assert (info.job_cpus, info.arch, info.system) == (for_jobs, "x86_64", system)


def test_reservations() -> None:
    text = (
        "ReservationName=fix StartTime=2026-11-21T00:00:00 EndTime=2026-11-22T00:00:00 Nodes=gpu[01-02] NodeCnt=2 "
        "Flags=MAINT,IGNORE_JOBS State=ACTIVE\n"
        "ReservationName=none Nodes=(null) Flags=(null)\n"
    )
    flags = frozenset({"MAINT", "IGNORE_JOBS"})
    assert inventory.parse_reservations(text) == {
        "fix": inventory.ReservationInfo("fix", "ACTIVE", ("gpu01", "gpu02"), flags, "2026-11-21T00:00:00"),
        "none": inventory.ReservationInfo("none", ""),
    }
    assert inventory.parse_reservations("No reservations in the system\n") == {}


def test_steps() -> None:
    text = (  # 25.11.7 with SlurmctldParameters=enable_stepmgr, where squeue -s shows 10.extern alone
        "StepId=10.extern UserId=0 StartTime=2026-11-21T22:41:42 State=RUNNING NodeList=gpu[01-02] Nodes=2 Name=extern\n"
        "StepId=10.0 UserId=0 StartTime=2026-11-21T22:41:42 TimeLimit=UNLIMITED State=RUNNING Partition=batch "
        "NodeList=gpu02 Nodes=1 CPUs=2 Tasks=2 Name=a b=c Network=(null) TRES=cpu=2,mem=0,node=2 ResvPorts=(null)\n"
        "StepId=7.0 NodeList=(null)\n"
    )
    assert inventory.parse_steps(text) == (
        inventory.StepInfo("10.extern", "extern", ("gpu01", "gpu02")),
        inventory.StepInfo("10.0", "a b=c", ("gpu02",)),
        inventory.StepInfo("7.0", ""),
    )
    assert inventory.parse_steps("No steps in the system\n") == ()


def test_which_lines_are_configuration() -> None:
    text = (
        "Configuration data as of X\nSlurmctldParameters = a=b,c\nTaskPluginParam[0] = x\nslurmd_x2 = 1\nA = 7\n"
        "Prolog                  = (null)\nKillWait = 30 sec\nKillWait = 60 sec\nCgroup Support:\n"
        "two words = 3\n9lives = 4\n= 5\nno value\nEmpty =\nA-b = 6\n"
    )
    assert inventory.parse_config(text) == {
        "SlurmctldParameters": "a=b,c",
        "TaskPluginParam[0]": "x",
        "slurmd_x2": "1",
        "A": "7",
        "Prolog": "",
        "KillWait": "30 sec",
        "Empty": "",
    }
    for unset in ("N/A", "None", "NONE", "none"):
        found = inventory.parse_config(f"Prolog = {unset}\nEpilog = {unset}x\n")
        assert found == {"Prolog": "", "Epilog": f"{unset}x"}
