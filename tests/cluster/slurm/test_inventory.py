"""Reading scontrol: states, gres, hostile reasons; seen on Slurm 22.05.8, 23.11.11 and 25.11.7."""

from __future__ import annotations

import pytest

from pytest_gpucluster.cluster.slurm import inventory
from pytest_gpucluster.drain.reason import bare

NODE = (
    "NodeName=gpu03 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.00 "
    "AvailableFeatures=(null) ActiveFeatures=a,b Gres=gpu:h200:8(S:0-1),shard:32 NodeAddr=127.0.0.1 "
    "NodeHostName=vm Port=27823 Version=22.05.8 OS=Linux 6.1 #1 SMP State=FAKE  RealMemory=20000 AllocMem=0 "
    "Sockets=16 State={state} ThreadsPerCore=1 Partitions=batch,limited  BootTime=2026-11-21T05:22:43 "
    "ExtSensorsTemp=n/s{reason}\n"
)


# 25.11.7: drained by us, then switched off, inside of a reservation
REPAIRED = (
    "NodeName=gpu02 Arch=x86_64 CoresPerSocket=64  CPUAlloc=0 CPUEfctv=128 CPUTot=128 CPULoad=10.19 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h200:8 NodeAddr=127.0.0.1 NodeHostName=vm Port=28675 "
    "Version=25.11.7 OS=Linux 6.1 #1 SMP  RealMemory=2064384 AllocMem=0 FreeMem=19639 Sockets=2 Boards=1 "
    "State=DOWN+DRAIN+MAINTENANCE+RESERVED+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A Partitions=batch,debug  BootTime=2026-11-21T11:38:18 SlurmdStartTime=2026-11-21T22:04:18 "
    "LastBusyTime=2026-11-21T22:07:36 ResumeAfterTime=None CfgTRES=cpu=128,mem=2016G,billing=128 AllocTRES= "
    "CurrentWatts=0 AveWatts=0 Reason=gpucluster:gpu.count 7<8 GPUs run=20261121T220732-22476 : Not responding "
    "[root@2026-11-21T22:08:31] ReservationName=fix\n"
)


def _node(state: str = "IDLE", reason: str = "") -> inventory.NodeInfo:
    text = NODE.replace(" State=FAKE", "").format(state=state, reason=reason)
    return inventory.parse_nodes(text)["gpu03"]


def test_values() -> None:
    node = _node()
    assert (node.cpus, node.memory, node.gpus) == (16, 20000 * 2**20, 8)
    assert node.gres == {"gpu:h200": 8, "shard": 32}
    assert node.partitions == ("batch", "limited")
    assert node.features == {"a", "b"}
    assert node.available
    assert node.why_unavailable() == ""


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (" Reason=bad cable [root@2026-11-20T10:00:00]", "bad cable"),
        (
            " Reason=a = [yes] State=IDLE x [root@2026-11-20T10:00:00] Comment=my Reason=x",
            "a = [yes] State=IDLE x",
        ),
        (
            " Reason=one [a@b] [root@2026-11-20T10:00:00]        line\ttwo \x1b[31m Comment=c Extra=e",
            "one [a@b] line two [31m",
        ),
        (" Reason=x [bob@2020-01-01T00:00:00] y [root@2026-11-20T10:00:00]", "x [bob@2020-01-01T00:00:00] y"),
        (
            " Reason=x [bob@2020-01-01T00:00:00] State=IDLE [root@2026-11-20T10:00:00] Topology=tree:leaf01",
            "x [bob@2020-01-01T00:00:00] State=IDLE",
        ),
        (" Reason=cable [root@2026-11-20T10:00:00] ReservationName=fix", "cable"),  # since 23.02
        (" Reason=cable [root@2026-11-20T10:00:00] Parameters=l3cache_as_socket", "cable"),  # since 25.11
        (" Reason=cable [root@2026-11-20T10:00:00]        and fan ReservationName=fix", "cable and fan"),
        (" Reason=cable [root@2026-11-20T10:00:00] KeyOfTomorrow=7", "cable"),
    ],
)
def test_hostile_reasons(printed: str, reason: str) -> None:
    node = _node("IDLE+DRAIN", printed)
    assert node.reason == reason
    assert (node.reason_user, node.reason_time) == ("root", "2026-11-20T10:00:00")
    assert node.base_state == "IDLE"
    assert node.why_unavailable() == f'DRAINED: "{reason}" by root since 2026-11-20T10:00:00'
    assert any(reason in line for line in node.annotation())


def test_a_user_with_a_realm_a_number_and_no_user_at_all() -> None:
    for who in ("jane.doe@EXAMPLE.COM", "nobody", "1234", "EXAMPLE\\jane", "slurm"):
        node = _node("IDLE+DRAIN", f" Reason=bad dimm [{who}@2024-01-02T03:04:05] Comment=(null)")
        assert (node.reason, node.reason_user, node.reason_time) == ("bad dimm", who, "2024-01-02T03:04:05")
    node = _node("IDLE+DRAIN", " Reason=mail a@b [jane@example.com@2024-01-02T03:04:05]")
    assert (node.reason, node.reason_user) == ("mail a@b", "jane@example.com")
    assert _node("IDLE+DRAIN", " Reason=bad dimm [root@Unknown]").reason_time == "Unknown"
    bare = _node("IDLE+DRAIN", " Reason=bad dimm Comment=x")
    assert (bare.reason, bare.reason_user, bare.reason_time) == ("bad dimm", "", "")


def test_a_comment_that_holds_the_word_reason_is_no_reason() -> None:
    assert _node("IDLE", " Comment=see Reason=x [root@2024-01-02T03:04:05]").reason == ""
    assert _node("IDLE", " Extra=Reason=x").reason == ""


def test_several_lines_without_the_option_for_one() -> None:
    text = (
        "NodeName=gpu01 Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=0 CPUEfctv=32 CPUTot=32 CPULoad=1.23\n"
        "   Gres=gpu:rtxproserver6000:1\n   State=IDLE+CLOUD+DRAIN ThreadsPerCore=1\n   Partitions=compute-gpu \n"
        "   AllocTRES=\n   CurrentWatts=0 AveWatts=0\n   \n"
        "   Reason=first line [root@2026-03-11T11:05:51]\n          second line\n   Comment=c\n"
        "   InstanceId=i-0123 InstanceType=g7e.8xlarge\n\n"
        "NodeName=gpu02 CPUTot=4 State=IDLE\n   Reason=x [root@2026-03-11T11:05:51]\n   Extra=e\n\n"
    )
    first, second = inventory.parse_nodes(text).values()
    assert (first.gres, first.cpus, first.partitions) == ({"gpu:rtxproserver6000": 1}, 32, ("compute-gpu",))
    assert (first.reason, first.reason_user) == ("first line second line", "root")
    assert (second.reason, second.reason_time) == ("x", "2026-03-11T11:05:51")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("gpu:2080ti:4", {"gpu:2080ti": 4}),
        ("gpu:3090:4(S:0-1)", {"gpu:3090": 4}),
        ("gpu:1g.10gb:7", {"gpu:1g.10gb": 7}),
        ("gpu:a100_1g.5gb:14(S:0),gpu:a100:6(S:0-1)", {"gpu:a100_1g.5gb": 14, "gpu:a100": 6}),
        ("gpu:a100-40gb:3(S:0-1)", {"gpu:a100-40gb": 3}),
        ("gpu:4", {"gpu": 4}),
        ("gpu:8(S:0-1)", {"gpu": 8}),
        ("gpu", {"gpu": 1}),
        ("gpu:tesla", {"gpu:tesla": 1}),
        ("gpu:0", {"gpu": 0}),
        ("shard:nvidia_a100:32(S:0),mps:100", {"shard:nvidia_a100": 32, "mps": 100}),
        ("gpu:(null):4(IDX:0-3)", {"gpu": 4}),
        ("gpu:(null):0(IDX:N/A),mps:0", {"gpu": 0, "mps": 0}),
        ("gpu:tesla:2(IDX:0-1)", {"gpu:tesla": 2}),
        ("gpu:a:1(IDX:0,2,4),gpu:b:1(IDX:1,3)", {"gpu:a": 1, "gpu:b": 1}),
        ("gpu:a100:1(S:0),gpu:a100:3(S:1)", {"gpu:a100": 4}),
        ("shard:a100:4(4/32,0/32)", {"shard:a100": 4}),
        ("VramPerGpu:no_consume:32G", {"VramPerGpu": 32 * 2**30}),
        ("bandwidth:lustre:no_consume:4G", {"bandwidth:lustre": 4 * 2**30}),
        ("vmem:2K,disk:3M,x:1T,y:1P", {"vmem": 2048, "disk": 3 * 2**20, "x": 2**40, "y": 2**50}),
        ("(null)", {}), ("N/A", {}), ("", {}), (" ", {}),
        ("craynetwork:4,gpu:p100:1(S:0)", {"craynetwork": 4, "gpu:p100": 1}),
    ],
)  # fmt: skip
def test_gres_as_slurm_writes_it(text: str, counts: dict[str, int]) -> None:
    """20.11: src/common/gres.c; since 21.08: src/interfaces/gres.c (_build_gres_str, gres_get_node_used)."""
    assert inventory.parse_gres(text) == counts


def test_gpus_of_all_types_are_counted_and_nothing_else() -> None:
    text = "NodeName=n1 Gres=gpu:a100:6,gpu:a100_1g.5gb:14,gpufs:3,shard:a100:8 State=IDLE"
    assert inventory.parse_nodes(text)["n1"].gpus == 20


@pytest.mark.parametrize(
    ("text", "base", "flags"),
    [
        # 20.11: node_state_string(), with COMPLETING, DRAIN, FAIL, POWER and CLOUD behind a plus
        ("RESERVED", "IDLE", {"RESERVED"}),
        ("MAINT", "IDLE", {"MAINTENANCE"}),
        ("MAINT*+CLOUD", "IDLE", {"MAINTENANCE", "NOT_RESPONDING", "CLOUD"}),
        ("REBOOT*", "IDLE", {"REBOOT_REQUESTED", "NOT_RESPONDING"}),
        ("PERFCTRS", "IDLE", {"PERFCTRS"}),
        ("IDLE+CLOUD+POWER", "IDLE", {"CLOUD", "POWERED_DOWN"}),
        ("IDLE*+CLOUD+POWER", "IDLE", {"CLOUD", "POWERED_DOWN", "NOT_RESPONDING"}),
        ("ALLOCATED$", "ALLOCATED", {"MAINTENANCE"}),
        ("ALLOCATED+", "ALLOCATED", set()),
        ("DOWN*+DRAIN", "DOWN", {"NOT_RESPONDING", "DRAIN"}),
        ("MIXED#+CLOUD", "MIXED", {"POWERING_UP", "CLOUD"}),
        # since 21.08: node_state_string_complete(), flags in full
        ("IDLE+MAINTENANCE+RESERVED", "IDLE", {"MAINTENANCE", "RESERVED"}),
        ("IDLE+PLANNED", "IDLE", {"PLANNED"}),
        ("IDLE+DYNAMIC_NORM", "IDLE", {"DYNAMIC_NORM"}),
        ("IDLE+DRAIN+INVALID_REG", "IDLE", {"DRAIN", "INVALID_REG"}),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", "MIXED", {"CLOUD", "NOT_RESPONDING", "POWERING_UP"}),
        ("FUTURE", "FUTURE", set()),
        ("UNKNOWN+NOT_RESPONDING", "UNKNOWN", {"NOT_RESPONDING"}),
        ("AVAILABLE", "AVAILABLE", set()),  # a word of a version to come
        # sinfo
        ("mix-", "MIXED", {"PLANNED"}), ("mix~", "MIXED", {"POWERED_DOWN"}), ("alloc", "ALLOCATED", set()),
        ("drained*", "IDLE", {"DRAIN", "NOT_RESPONDING"}), ("draining", "ALLOCATED", {"DRAIN"}),
        ("down$", "DOWN", {"MAINTENANCE"}), ("inval", "IDLE", {"INVALID_REG"}), ("resv", "IDLE", {"RESERVED"}),
        ("comp", "COMP", set()), ("completing*", "IDLE", {"COMPLETING", "NOT_RESPONDING"}),
        ("unk*", "UNKNOWN", {"NOT_RESPONDING"}), ("futr", "FUTURE", set()), ("maint", "IDLE", {"MAINTENANCE"}),
        ("blocked", "IDLE", {"BLOCKED"}), ("planned", "IDLE", {"PLANNED"}), ("err", "ERROR", set()),
    ],
)  # fmt: skip
def test_states_of_all_versions(text: str, base: str, flags: set[str]) -> None:
    assert inventory.parse_state(text) == (base, frozenset(flags))


RESERVATION = "held by a reservation (scontrol show reservation); --set slurm.reservation=NAME runs within it"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("RESERVED", f"IDLE+RESERVED: {RESERVATION}"),
        ("IDLE+MAINTENANCE+RESERVED", f"IDLE+MAINTENANCE+RESERVED: {RESERVATION}"),
        ("IDLE+POWERING_DOWN", "IDLE+POWERING_DOWN: Slurm switches it off to save power (SuspendProgram)"),
        (
            "IDLE+POWER_DOWN",
            "IDLE+POWER_DOWN: Slurm is about to switch it off (scontrol power down, SuspendTime)",
        ),
        ("IDLE+REBOOT_ISSUED", "IDLE+REBOOT_ISSUED: it reboots (scontrol reboot)"),
        ("REBOOT", "IDLE+REBOOT_REQUESTED: it will reboot when its jobs have ended (scontrol reboot)"),
        (
            "IDLE+EXTERNAL",
            "IDLE+EXTERNAL: slurm.conf has State=EXTERNAL: Slurm runs no slurmd and no step there",
        ),
        (
            "IDLE+INVALID_REG",
            "IDLE+INVALID_REG: slurmd registered with less than slurm.conf states: see slurmctld's log",
        ),
        ("IDLE+BLOCKED", "IDLE+BLOCKED: in use by other jobs"),
        ("PERFCTRS", "IDLE+PERFCTRS: in use by other jobs"),
        ("MIXED+CLOUD", "MIXED: in use by other jobs"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", "IDLE+NOT_RESPONDING: no reason given"),
        ("AVAILABLE", "AVAILABLE: no reason given"),
        ("ERROR", "ERROR: no reason given"),
        ("IDLE+DRAIN", "DRAINED: no reason given"),
        ("IDLE+FAIL", "IDLE+FAIL: no reason given"),
        (
            "UNKNOWN",
            "UNKNOWN: it has not registered since the start of slurmctld: wait a moment, or check its slurmd",
        ),
        (
            "FUTURE",
            "FUTURE: slurm.conf reserves it for later (State=FUTURE): slurmctld does not contact its slurmd yet",
        ),
        ("IDLE+CLOUD", ""),
        ("IDLE+CLOUD+POWERED_DOWN", ""),
        ("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", ""),  # after scontrol power down force
        ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", ""),
        ("IDLE+DYNAMIC_NORM+PLANNED", ""),
    ],
)
def test_what_is_printed_of_a_node_without_a_reason(state: str, why: str) -> None:
    node = _node(state)
    assert node.why_unavailable() == why
    assert node.available is not bool(why)


def test_a_node_that_is_off_or_reboots_is_away() -> None:
    away = ("IDLE~", "IDLE#", "MIXED+POWERING_UP+NOT_RESPONDING", "IDLE+POWERING_DOWN", "IDLE+REBOOT_ISSUED")
    assert all(_node(state).away for state in (*away, "REBOOT*+DRAIN"))
    here = ("IDLE", "DOWN+CLOUD+POWERED_DOWN", "DOWN+REBOOT_ISSUED", "IDLE*", "IDLE+REBOOT_REQUESTED")
    assert not any(_node(state).away for state in here)


def test_a_node_in_service_has_no_reason_to_be_out() -> None:
    reason = " Reason=Node start up [root@2026-03-11T11:05:51]"
    assert (_node("IDLE+CLOUD", reason).reason, _node("IDLE+CLOUD", reason).why_out) == ("Node start up", "")
    assert _node("IDLE+DRAIN", reason).why_out == "Node start up"


def test_a_reservation_alone_holds_a_node() -> None:
    assert all(_node(state).reserved for state in ("RESERVED", "MAINT", "MIXED+MAINTENANCE+RESERVED"))
    assert not any(_node(state).reserved for state in ("IDLE", "DOWN+RESERVED", "IDLE+DRAIN+MAINTENANCE"))
    stale = _node("IDLE+RESERVED", " Reason=old [root@2026-11-20T10:00:00]")
    assert stale.why_unavailable() == f"IDLE+RESERVED: {RESERVATION}"
    inside = inventory.seen_from_inside({"gpu03": stale}, {"gpu03"})["gpu03"]
    assert (inside.reserved, inside.available) == (False, True)


@pytest.mark.parametrize(
    ("text", "base", "flag"),
    [
        ("IDLE+DRAIN", "IDLE", "DRAIN"),
        ("DOWN*+DRAIN", "DOWN", "NOT_RESPONDING"),
        ("idle*", "IDLE", "NOT_RESPONDING"),
        ("idle~", "IDLE", "POWERED_DOWN"),
        ("idle#", "IDLE", "POWERING_UP"),
        ("idle%", "IDLE", "POWERING_DOWN"),
        ("idle$", "IDLE", "MAINTENANCE"),
        ("idle@", "IDLE", "REBOOT_REQUESTED"),
        ("idle^", "IDLE", "REBOOT_ISSUED"),
        ("idle-", "IDLE", "PLANNED"),
        ("idle!", "IDLE", "POWER_DOWN"),
    ],
)
def test_states(text: str, base: str, flag: str) -> None:
    assert inventory.parse_state(text)[0] == base
    assert flag in inventory.parse_state(text)[1]


@pytest.mark.parametrize(
    ("state", "available", "schedulable", "responding"),
    [
        ("IDLE", True, True, True),
        ("IDLE+PLANNED", True, True, True),
        ("ALLOCATED", False, True, True),
        ("MIXED", False, True, True),
        ("IDLE+COMPLETING", False, True, True),
        ("ALLOCATED+DRAIN", False, False, True),
        ("IDLE*", False, False, False),
        ("DOWN*", False, False, False),
        ("DOWN", False, False, True),
        ("INVAL", False, False, True),
        ("IDLE+MAINTENANCE", False, False, True),
    ],
)
def test_what_a_state_means(state: str, available: bool, schedulable: bool, responding: bool) -> None:
    node = _node(state)
    assert (node.available, node.schedulable, node.responding) == (available, schedulable, responding)
    assert bool(node.why_unavailable()) is not available


@pytest.mark.parametrize(
    ("reason", "responding"),
    [
        ("Not responding", False),
        (
            "gpucluster:gpu.count 7<8 GPUs run=r : Not responding",
            False,
        ),  # 23.02: behind a reason that is there
        ("bad cable", True),
        ("it was Not responding to pings", True),
    ],
)
def test_a_node_that_slurm_itself_has_set_down_does_not_respond(reason: str, responding: bool) -> None:
    assert _node("DOWN", f" Reason={reason} [slurm@2026-11-20T10:00:00]").responding is responding


def test_a_node_of_a_newer_slurm() -> None:
    (node,) = inventory.parse_nodes(REPAIRED).values()
    assert (node.state, node.gpus, node.cpus, node.version) == ("DOWN", 8, 128, "25.11.7")
    assert node.flags == {"DRAIN", "MAINTENANCE", "RESERVED", "NOT_RESPONDING"}
    assert (node.reason_user, node.reason_time) == ("root", "2026-11-21T22:08:31")
    assert bare(node.reason) == "gpucluster:gpu.count 7<8 GPUs run=20261121T220732-22476"


def test_rubbish_is_no_empty_cluster() -> None:
    with pytest.raises(ValueError, match="no node"):
        inventory.parse_nodes("\x00\x01 rubbish")


def test_partitions() -> None:
    text = (
        "PartitionName=limited Default=NO DefaultTime=00:10:00 MaxNodes=1 MaxTime=02:00:00 Nodes=gpu[01-02] State=UP\n"
        "PartitionName=batch Default=YES DefaultTime=NONE MaxNodes=UNLIMITED "
        "MaxTime=UNLIMITED Nodes=(null) State=DOWN\n"
    )
    found = inventory.parse_partitions(text)
    assert found["limited"].max_time == 7200
    assert found["limited"].default_time == 600
    assert found["limited"].nodes == ("gpu01", "gpu02")
    assert found["batch"].default
    assert found["batch"].max_time is None
    assert found["batch"].state == "DOWN"


STEPS = (  # 25.11.7 with SlurmctldParameters=enable_stepmgr, where squeue -s shows 10.extern alone
    "StepId=10.extern UserId=0 StartTime=2026-11-21T22:41:42 TimeLimit=UNLIMITED State=RUNNING Partition=batch "
    "NodeList=gpu[01-02] Nodes=2 CPUs=0 Tasks=2 Name=extern Network=(null) TRES=(null) ResvPorts=(null) "
    "CPUFreqReq=Default SrunHost:Pid=(null):0\n"
    "StepId=10.0 UserId=0 StartTime=2026-11-21T22:41:42 TimeLimit=UNLIMITED State=RUNNING Partition=batch "
    "NodeList=gpu02 Nodes=1 CPUs=2 Tasks=2 Name=a b=c Network=(null) TRES=cpu=2,mem=0,node=2 ResvPorts=(null) "
    "CPUFreqReq=Default Dist=Cyclic SrunHost:Pid=vm:11225\n"
)


def test_steps() -> None:
    assert inventory.parse_steps(STEPS) == (
        inventory.StepInfo("10.extern", "extern", ("gpu01", "gpu02")),
        inventory.StepInfo("10.0", "a b=c", ("gpu02",)),
    )


def test_config() -> None:
    text = (
        "Configuration data as of X\nProlog                  = (null)\nKillWait = 30 sec\nCgroup Support:\n"
    )
    assert inventory.parse_config(text) == {"Prolog": "", "KillWait": "30 sec"}


@pytest.mark.parametrize("state", ["IDLE+RESERVED", "IDLE+MAINTENANCE+RESERVED"])
def test_a_reservation_is_the_reason_where_no_other_is_given(state: str) -> None:
    assert "held by a reservation (scontrol show reservation)" in _node(state).why_unavailable()


def test_a_node_whose_epilog_does_not_end_is_not_reported_as_in_use() -> None:
    (stuck,) = inventory.parse_nodes("NodeName=gpu03 CPUAlloc=0 CPUTot=4 State=IDLE+COMPLETING").values()
    assert stuck.why_unavailable().startswith(
        "COMPLETING: a job has ended there, its epilog or its processes"
    )
    (busy,) = inventory.parse_nodes("NodeName=gpu03 CPUAlloc=4 CPUTot=4 State=ALLOCATED+COMPLETING").values()
    assert busy.why_unavailable() == "ALLOCATED: in use by other jobs"


# --- exactly


def test_a_node_with_every_value() -> None:
    text = (
        "NodeName=gpu01 CPUAlloc=3 CPUTot=16 ActiveFeatures=a,b Gres=gpu:h200:8 NodeAddr=10.0.0.1 NodeHostName=vm "
        "Version=23.11.11 RealMemory=20 State=MIXED+PLANNED Partitions=batch,debug BootTime=2026-11-21T05:22:43 "
        "CPUTot=99 Reason=bad cable [root@2026-11-20T10:00:00]\n"
    )
    node = inventory.NodeInfo(
        name="gpu01",
        state="MIXED",
        flags=frozenset({"PLANNED"}),
        gres={"gpu:h200": 8},
        reason="bad cable",
        reason_user="root",
        reason_time="2026-11-20T10:00:00",
        cpus=16,
        memory=20 * 2**20,
        features=frozenset({"a", "b"}),
        partitions=("batch", "debug"),
        boot_time="2026-11-21T05:22:43",
        version="23.11.11",
        cpus_allocated=3,
        address="10.0.0.1",
        hostname="vm",
    )
    assert inventory.parse_nodes(text) == {"gpu01": node}
    assert (node.base_state, node.full_state) == ("MIXED", "MIXED+PLANNED")
    assert node.annotation() == (
        "Slurm state: MIXED+PLANNED",
        'reason: "bad cable" by root since 2026-11-20T10:00:00',
    )


def test_a_node_of_which_nothing_is_known() -> None:
    for text in (
        "NodeName=n1",
        "NodeName=n1 CPUTot=x RealMemory=N/A ActiveFeatures=(null) Partitions= Gres=(null) CPUAlloc=-1",
    ):
        (node,) = inventory.parse_nodes(text).values()
        assert node == inventory.NodeInfo("n1", "UNKNOWN")
    plain = inventory.NodeInfo("n1", "UNKNOWN")
    assert vars(plain) == {
        "name": "n1",
        "state": "UNKNOWN",
        "flags": frozenset(),
        "gres": {},
        "reason": "",
        "reason_user": "",
        "reason_time": "",
        "cpus": 0,
        "memory": 0,
        "features": frozenset(),
        "partitions": (),
        "boot_time": "",
        "version": "",
        "cpus_allocated": 0,
        "cpus_effective": 0,
        "address": "",
        "hostname": "",
        "arch": "",
        "system": "",
        "stuck": None,
        "ending_unseen": False,
    }
    assert plain.annotation() == ("Slurm state: UNKNOWN",)


@pytest.mark.parametrize(
    ("state", "label"),
    [
        ("IDLE+DRAIN", "DRAINED"),
        ("ALLOCATED+DRAIN", "DRAINING"),
        ("IDLE+DRAIN+COMPLETING", "DRAINING"),
        ("IDLE+DRAIN+BLOCKED", "DRAINING"),
        ("DOWN+DRAIN", "DOWN+DRAIN"),
        ("IDLE+PLANNED+FAIL+NOT_RESPONDING", "IDLE+FAIL+NOT_RESPONDING"),
        ("IDLE", "IDLE"),
    ],
)
def test_one_word_for_people(state: str, label: str) -> None:
    assert _node(state).label == label


def test_a_node_is_busy_by_its_state_its_flags_or_its_cpus() -> None:
    for state in (
        "ALLOCATED",
        "MIXED",
        "IDLE+COMPLETING",
        "IDLE+BLOCKED",
        "IDLE+PERFCTRS",
        "DOWN+COMPLETING",
    ):
        assert _node(state).busy
    for state in ("IDLE", "DOWN", "IDLE+DRAIN", "ERROR"):
        assert _node(state).busy is False
    assert inventory.NodeInfo("n", "IDLE", cpus_allocated=1).busy


def test_who_is_heard() -> None:
    for state in ("UNKNOWN", "FUTURE", "IDLE*", "UNKNOWN+NOT_RESPONDING"):
        assert _node(state).responding is False
    for state in ("IDLE", "DOWN", "ERROR", "IDLE+POWERED_DOWN"):
        assert _node(state).responding
    silent = " Reason=Not responding [slurm@2026-11-20T10:00:00]"
    assert _node("IDLE+DRAIN", silent).responding  # it has come back since


def test_a_reason_without_who_or_when() -> None:
    for user, when, by in (
        ("", "", ""),
        ("root", "", " by root"),
        ("", "Unknown", " since Unknown"),
        ("root", "Unknown", " by root since Unknown"),
    ):
        node = inventory.NodeInfo("n", "DOWN", reason="bad", reason_user=user, reason_time=when)
        assert node.why_unavailable() == f'DOWN: "bad"{by}'
        assert node.annotation()[1] == f'reason: "bad"{by}'


def test_a_node_that_a_job_holds_too_long() -> None:
    stuck = inventory.StuckJob("77", "jane", 600.0, 300.0)
    node = inventory.NodeInfo("n", "IDLE", frozenset({"COMPLETING"}), stuck=stuck)
    assert node.why_unavailable() == (
        "COMPLETING for 10 min (at most 5 min): job 77 of jane has ended there, its epilog or its processes have not "
        "(slurmd's log there)"
    )
    assert (node.schedulable, node.in_service, node.available) == (False, True, False)
    drained = inventory.NodeInfo("n", "IDLE", frozenset({"DRAIN"}), reason="bad", stuck=stuck)
    assert drained.why_unavailable() == 'DRAINED: "bad"'
    ending = inventory.NodeInfo("n", "IDLE", frozenset({"COMPLETING"}))
    assert ending.why_unavailable() == (
        "COMPLETING: a job has ended there, its epilog or its processes have not (squeue -t CG; slurmd's log there)"
    )


def test_the_states_that_keep_jobs_away() -> None:
    for flag in (
        *("DRAIN", "FAIL", "NOT_RESPONDING", "INVALID_REG", "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED"),
        *("REBOOT_REQUESTED", "MAINTENANCE", "RESERVED", "EXTERNAL"),
    ):
        assert inventory.parse_state(flag) == ("IDLE", frozenset({flag}))  # as 20.11 and sinfo write it
        assert _node(f"IDLE+{flag}").in_service is False
    for flag in ("PLANNED", "POWERED_DOWN", "POWERING_UP", "CLOUD", "COMPLETING"):
        assert _node(f"IDLE+{flag}").in_service
    for flag in ("POWERED_DOWN", "POWERING_UP", "COMPLETING", "PERFCTRS", "BLOCKED", "PLANNED"):
        assert inventory.parse_state(flag) == ("IDLE", frozenset({flag}))
    assert inventory.parse_state("CLOUD") == ("CLOUD", frozenset())
    assert inventory.parse_state("NO_RESPOND") == ("IDLE", frozenset({"NOT_RESPONDING"}))
    assert _node("IDLE+NOT_RESPONDING+POWERING_UP+DRAIN").label == "DRAINED"
    assert _node("IDLE+NOT_RESPONDING+POWERING_UP").in_service
    assert _node("IDLE+POWER_DOWN+POWERED_DOWN").in_service
    assert _node("IDLE+NOT_RESPONDING+POWERED_DOWN").in_service is False
    assert _node("IDLE+POWER_DOWN+POWERING_UP").in_service is False


def test_what_is_printed_of_an_answer_without_nodes() -> None:
    assert inventory.parse_nodes(" \n") == {}
    assert inventory.parse_nodes("No nodes in the system\n") == {}
    for text, printed in (
        (f" {'x' * 90}\n", f"no node in scontrol's answer: '{'x' * 80}'"),
        (f"NodeName=-{'x' * 90} State=IDLE", f"no name of a node: '-{'x' * 59}'"),
    ):
        with pytest.raises(ValueError, match=r"^no n") as caught:
            inventory.parse_nodes(text)
        assert str(caught.value) == printed


def test_partitions_with_every_value() -> None:
    text = (
        "PartitionName=limited AllowGroups=ops,dev AllowAccounts=a,b AllowQos=high DenyAccounts=c DenyQos=low "
        "Default=YES DefaultTime=00:10:00 MaxNodes=7 MaxTime=1-00:00:00 Nodes=gpu[01-02] OverSubscribe=EXCLUSIVE "
        "State=UP Nodes=gpu09\n"
        "PartitionName=open AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL DenyAccounts=(null) Default=NO "
        "DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED Nodes=(null)\n"
        "PartitionName=bare\n"
    )
    assert inventory.parse_partitions(text) == {
        "limited": inventory.PartitionInfo(
            name="limited",
            state="UP",
            nodes=("gpu01", "gpu02"),
            default=True,
            max_time=86400.0,
            default_time=600.0,
            max_nodes=7,
            over_subscribe="EXCLUSIVE",
            allow_groups=("ops", "dev"),
            allow_accounts=("a", "b"),
            deny_accounts=("c",),
            allow_qos=("high",),
            deny_qos=("low",),
        ),
        "open": inventory.PartitionInfo("open", ""),
        "bare": inventory.PartitionInfo("bare", ""),
    }
    bare = inventory.PartitionInfo("bare", "")
    assert (bare.nodes, bare.default, bare.max_time, bare.default_time, bare.max_nodes) == (
        (),
        False,
        *(None,) * 3,
    )
    assert (bare.over_subscribe, bare.allow_groups, bare.allow_accounts, bare.deny_accounts) == (
        "",
        (),
        (),
        (),
    )
    assert (bare.allow_qos, bare.deny_qos) == ((), ())


def test_reservations() -> None:
    text = (
        "ReservationName=fix StartTime=2026-11-21T00:00:00 EndTime=2026-11-22T00:00:00 Nodes=gpu[01-02] NodeCnt=2 "
        "Flags=MAINT,IGNORE_JOBS State=ACTIVE\n"
        "ReservationName=none Nodes=(null) Flags=(null)\n"
    )
    assert inventory.parse_reservations(text) == {
        "fix": inventory.ReservationInfo(
            name="fix",
            state="ACTIVE",
            nodes=("gpu01", "gpu02"),
            flags=frozenset({"MAINT", "IGNORE_JOBS"}),
            start="2026-11-21T00:00:00",
        ),
        "none": inventory.ReservationInfo("none", ""),
    }
    bare = inventory.ReservationInfo("none", "")
    assert (bare.nodes, bare.flags, bare.start) == ((), frozenset(), "")
    assert inventory.parse_reservations("No reservations in the system\n") == {}


def test_a_step_of_which_nothing_is_known() -> None:
    (step,) = inventory.parse_steps("StepId=7.0 NodeList=(null)\n")
    assert step == inventory.StepInfo("7.0", "", ()) == inventory.StepInfo("7.0", "")
    assert inventory.parse_steps("No steps in the system\n") == ()


def test_which_lines_are_configuration() -> None:
    text = (
        "SlurmctldParameters = a=b,c\nTaskPluginParam[0] = x\nslurmd_x2 = 1\nA = 7\n"
        "KillWait = 30 sec\nKillWait = 60 sec\n"
        "two words = 3\n9lives = 4\n= 5\nno value\nEmpty =\nUnset = N/A\nA-b = 6\n"
    )
    assert inventory.parse_config(text) == {
        "SlurmctldParameters": "a=b,c",
        "TaskPluginParam[0]": "x",
        "slurmd_x2": "1",
        "A": "7",
        "KillWait": "30 sec",
        "Empty": "",
        "Unset": "",
    }


@pytest.mark.parametrize("unset", ["(null)", "N/A", "None", "NONE", "none"])
def test_words_for_what_is_not_set(unset: str) -> None:
    assert inventory.parse_config(f"Prolog = {unset}\n") == {"Prolog": ""}
    assert inventory.parse_config(f"Prolog = {unset}x\n") == {"Prolog": f"{unset}x"}


def test_a_reason_that_looks_like_slurms_mark() -> None:
    """Only USER@TIME in brackets with a blank before it, and a known key, further lines or the end behind it."""
    for reason in (
        "x [a b@2020-01-01T00:00:00]",
        "x[bob@2020-01-01T00:00:00] Comment=c",
        "x [bob@20-01-01T00:00:00] Comment=c",
        "x [bob@2020-a1-01T00:00:00] Comment=c",
    ):
        node = _node("IDLE+DRAIN", f" Reason={reason} [root@2026-11-20T10:00:00]")
        assert node.reason == reason
        assert (node.reason_user, node.reason_time) == ("root", "2026-11-20T10:00:00")
    for odd in (
        *("2020-1a-01T00:00:00", "2020-01-a1T00:00:00", "2020-01-1aT00:00:00", "202a-01-01T00:00:00"),
        *("2020-01-01Ta0:00:00", "2020-01-01T0a:00:00", "2020-01-01T00:a0:00", "2020-01-01T00:0a:00"),
        *("2020-01-01T00:00:a0", "2020-01-01T00:00:0a", "unknown", "2020-a1-01T00:00:00"),
    ):
        node = _node("IDLE+DRAIN", f" Reason=x [bob@{odd}]")
        assert (node.reason, node.reason_user, node.reason_time) == (f"x [bob@{odd}]", "", "")


def test_the_keys_behind_a_reason() -> None:
    for key in (
        *(
            "Comment",
            "Extra",
            "InstanceId",
            "InstanceType",
            "ReservationName",
            "TLSCertLastRenewal",
            "Topology",
        ),
        "Parameters",
    ):
        for gap in (" ", "    "):
            node = _node("IDLE+DRAIN", f" Reason=a [b@c] [root@Unknown]{gap}{key}=x y")
            assert (node.reason, node.reason_user) == ("a [b@c]", "root")
            assert _node("IDLE+DRAIN", f" Reason=bare words{gap}{key}=x y").reason == "bare words"
    assert _node("IDLE+DRAIN", " Reason=a TLSCert=b [root@Unknown]").reason == "a TLSCert=b"
    assert _node("IDLE+DRAIN", " Reason=a TLSCert=b").reason == "a TLSCert=b"
    node = _node("IDLE+DRAIN", " Reason=a [root@Unknown]        b    Comment=x Extra=y")
    assert node.reason == "a b"
    node = _node("IDLE+DRAIN", " Reason=a [bob@Unknown] B [root@Unknown] KeyOfTomorrow=7 [c@Unknown] d")
    assert (node.reason, node.reason_user) == ("a [bob@Unknown] B", "root")
    node = _node("IDLE+DRAIN", " Reason=a [bob@Unknown] 7=8 [root@Unknown]")
    assert (node.reason, node.reason_user) == ("a [bob@Unknown] 7=8", "root")


def test_control_characters_and_blanks_of_a_reason() -> None:
    assert _node("IDLE+DRAIN", " Reason=a\x00\x1f\x7f\x9fb   c [root@Unknown]").reason == "a b c"
    text = "NodeName=n1 State=IDLE+DRAIN Reason=one\ntwo [root@Unknown]  \nNodeName=n2 State=IDLE"
    first, second = inventory.parse_nodes(text).values()
    assert (first.reason, first.reason_user, second.reason) == ("one two", "root", "")


def test_what_almost_is_a_mark_a_key_or_a_count() -> None:
    drained, when = "IDLE+DRAIN", "[root@2026-11-20T10:00:00]"
    assert _node(drained, " Reason=x [@2020-01-01T00:00:00]").reason == "x [@2020-01-01T00:00:00]"
    assert _node(drained, f" Reason=cable {when} K=7").reason == "cable"
    assert _node("DOWN", f" Reason=x : Not responding to mail {when}").responding
    (node,) = inventory.parse_nodes("NodeName=n1 Arch=x x86State=DOWN X=1 State=IDLE X=1").values()
    assert (node.name, node.state) == ("n1", "IDLE")
    (node,) = inventory.parse_nodes(f"NodeName=n1 State=IDLE+DRAIN Reason=a Gres=gpu:8 {when}").values()
    assert (node.reason, node.gres) == ("a Gres=gpu:8", {})
    assert inventory.parse_gres("gpu:T") == {"gpu:T": 1}
    assert inventory.parse_gres("gpu:2T,disk:3") == {"gpu": 2 * 2**40, "disk": 3}
    assert inventory.parse_state("mix+drain") == ("MIXED", frozenset({"DRAIN"}))
    assert _node("REBOOT*").away


def test_parts_of_gres_with_blanks_and_brackets() -> None:
    assert inventory.parse_gres(" gpu:a100:2(S:0,1) , shard:3 ") == {"gpu:a100": 2, "shard": 3}
    assert inventory.parse_gres("a:(null):no_consume:5") == {"a": 5}
    assert inventory.parse_gres("gpu:a100:2X") == {"gpu:a100:2X": 1}
    assert inventory.parse_gres("4") == {"4": 1}


def test_only_its_own_members_see_a_reservation_from_inside() -> None:
    flags = frozenset({"MAINTENANCE", "RESERVED", "PLANNED"})
    nodes = {name: inventory.NodeInfo(name, "IDLE", flags) for name in ("n1", "n2")}
    seen = inventory.seen_from_inside(nodes, {"n1"})
    assert {name: info.flags for name, info in seen.items()} == {"n1": {"PLANNED"}, "n2": flags}


@pytest.mark.parametrize(
    ("cpus", "reserved", "for_jobs"),
    [
        ("CPUEfctv=10 CPUTot=12", "CoreSpecCount=2 CPUSpecList=5,11 MemSpecLimit=10240", 10),
        ("CPUTot=128", "CoreSpecCount=2 CPUSpecList=0-1,64-65 MemSpecLimit=1024", 124),  # before 22.05
        ("CPUTot=128", "", 128),
    ],
)
def test_cpus_that_are_reserved_for_the_system_are_not_requested(
    cpus: str, reserved: str, for_jobs: int
) -> None:
    text = f"NodeName=gpu01 Arch=x86_64 CPUAlloc=0 {cpus} CPULoad=0.92 OS=Linux 6.8.0-59 #61~22.04.1 SMP {reserved} State=IDLE"
    info = inventory.parse_nodes(text)["gpu01"]
    assert (info.job_cpus, info.arch, info.system) == (for_jobs, "x86_64", "Linux 6.8.0-59 #61~22.04.1 SMP")
