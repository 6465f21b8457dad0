"""What may be drained or resumed, and what stands in the reason: pure."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from drain_helpers import summed

from pytest_gpucluster.cluster.slurm.inventory import (
    NodeInfo,
    parse_nodes,
)
from pytest_gpucluster.core.finding import Action, Finding
from pytest_gpucluster.drain import Budget, Grounds, fit_for_retest, read_reason, write_reason
from pytest_gpucluster.drain.policy import (
    NAMES,
    own_reason,
    ranked,
    reaches,
    reason_for,
    why_not_drain,
    why_not_passed,
    why_not_resume,
)
from pytest_gpucluster.drain.reason import LIMIT, PART, Reason, deviation

RUN = "20261121T020000-4711"
OURS = summed(f"gpucluster:gpu.count 7<8 GPUs run={RUN}")
OTHER = "its reason has changed: "
FOREIGN = "it has another reason: "


def node(state: str = "IDLE", *flags: str, reason: str = "", name: str = "gpu01", user: str = "") -> NodeInfo:
    return NodeInfo(name, state, frozenset(flags), reason=reason, reason_user=user, partitions=("batch",))


# --- the reason


def test_the_deviation_in_short() -> None:
    for measured, expected, text in (
        ("7", "8 GPUs", "7<8 GPUs"),
        ("17 active links (inactive: link 7)", "18", "17<18 active links"),
        ("91 C", "<= 85 C", "91>85 C"),
        ("12.5 GB/s", "at least 48 GB/s", "12.5<48 GB/s"),
        ("535.1.2", "550.90", "535.1.2!=550.90"),
        ("8 GiB", "512 MiB", "8 GiB!=512 MiB"),
        ("", "a driver", "!=a driver"),
        ("8", "8 GPUs", "8!=8 GPUs"),
        ("9 GPUs here", "8 GPUs there", "9>8 GPUs there"),
        ("-1.5", "2.25", "-1.5<2.25"),
        *(("7", "up to 5", "7>5"), ("7", "at most 5", "7>5"), ("7", ">=8", "7<8"), ("7.", "8", "7.!=8")),
        ("7", "around 8", "7!=around 8"),
        ("50%", "60%", "50<60 %"),
        ("2199023255552", "1.000001", "2199023255552>1.000001"),
        *(("1" * 14, "2", "1" * 14 + "!=2"), ("1.0000001", "2", "1.0000001!=2")),
        ("\"a\" 'b' `c` \\d |e $f", "[x]=y", "a b c d e f!=(x):y"),
        ("a  b\n\tc", "\xe9\x00\x7f", "a b c!=???"),
        ("x" * 40, "y" * 41, "x" * 40 + "!=" + "y" * 37 + "..."),
    ):
        assert deviation(Finding("", measured, expected)) == text
    # the part replaces a missing unit
    assert deviation(Finding("GPU 4 (GPU-c12)", "17 links", "18")) == "17<18 links"
    assert deviation(Finding("GPU 4 (GPU-c12)", " 7 ", " 8 ")) == "7<8 GPU 4"


def read(text: str, name: str = "gpu01") -> Reason:
    found = read_reason(name, text)
    assert found is not None
    return found


def test_a_reason_has_its_check_first_and_is_read_again() -> None:
    text = write_reason("gpu01", ["gpu.count", "gpu.names", "gpu.count"], Finding("GPUs", "7", "8"), RUN)
    assert text == f"gpucluster:gpu.count 7<8 GPUs also=gpu.names run={RUN} sum=ad70a871"
    assert read(text) == Reason(("gpu.count", "gpu.names"), "7<8 GPUs", RUN)


HOSTILE = (
    *("7\nNodeName=ALL State=RESUME", "7 run=of-another also=nothing", "\x1b[31m7\x07\x00", "7\u202e\u2028"),
    *("'; rm -rf / #\"`$(id)`", "7 [root@2026-11-21T08:00:00]", "x" * 100_000, "1" * 1000, "1." + "0" * 1000),
)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_output_of_a_node_breaks_the_reason(hostile: str) -> None:
    text = write_reason("gpu01", ["gpu.count"], Finding("", hostile, hostile), RUN)
    assert (text.isascii(), text.isprintable(), len(text) <= LIMIT) == (True, True, True)
    assert not set("\"'`\\|$[]") & set(text)
    assert (read(text).checks, read(text).run) == (("gpu.count",), RUN)
    shown = (
        f"NodeName=gpu01 State=IDLE+DRAIN Partitions=batch \n   Reason={text} [root@2026-11-21T08:53:55]\n"
    )
    assert parse_nodes(shown)["gpu01"].reason == text


def test_a_long_list_of_checks_is_shortened_to_one_that_asks_for_more() -> None:
    short = Finding("", "1", "2")
    text = write_reason("gpu01", ["os.memory", *(f"gpu.check_number_{n}" for n in range(20))], short, RUN)
    assert (read(text).checks, len(text) <= LIMIT) == (("os.memory", "gpu.*"), True)
    wide = write_reason("gpu01", [f"suite{n}_of_long_name.what" for n in range(40)], short, RUN)
    assert read(wide).checks[1:] == ("*",)
    longest = write_reason("gpu01", ["x" * 500], Finding("", "y" * 500, "z" * 500), "r" * 500)
    y, z = "y" * (PART - 3), "z" * (PART - 3)
    assert longest == summed(f"gpucluster:{'x' * 80} {y}...!={z}... run={'r' * 48}")
    assert (len(longest), read(longest).repair) == (LIMIT - 15, "")
    most = Finding("", "-" + "1" * 13 + ".5" + "0" * 5, "2" * 13 + " " + "u" * 500)
    digits = write_reason("gpu01", ["x" * 500, "y" * 500], most, "r" * 500)
    assert f" also=* run={'r' * 48} sum=" in digits
    assert len(digits) <= LIMIT


@pytest.mark.parametrize("over", [0, 1])
def test_the_further_checks_are_exact_as_long_as_slurms_accounting_keeps_them(over: int) -> None:
    """slurmdbd keeps 255 bytes of a reason (TINYTEXT)."""
    start, tail = "gpucluster:gpu.count 7<8 GPUs", f" run={RUN} sum=12345678"
    room = 255 - len(start) - len(tail) - len(" also=os.a,")
    other = "gpu." + "x" * (room - len("gpu.") + over)
    text = write_reason("gpu01", ["gpu.count", "os.a", other], Finding("", "7", "8 GPUs"), RUN)
    assert text == summed(f"{start} also={'os.*,gpu.*' if over else f'os.a,{other}'} run={RUN}")
    assert len(text) == 255 or over


# with a right sum, but not as write_reason writes it
WRONG_REASONS = (
    *("gpu.* 1<2 run=r", "gpu.count run=r", "gpu.count 1=2 run=r", "gpu.count 1<2\nx run=r", " 1<2 run=r"),
    *("gpu.count 1<2\x7f run=r", "gpu.count 1<2\x1f run=r", "gpu.count 1<2 also=x also=y run=r"),
    *("gpu.count 1<2 also=,a run=r", "gpu.count 1<2 also=a,*,b run=r", "gpu.count 1<2 run=q run=r"),
    *("gpu.count 1<2 run=", "gpu.count 1<2 run=r x", "gpu,count 1<2 run=r"),
)


def test_what_is_read_of_a_reason() -> None:
    for text, reason in (
        ("gpu.count a b!=c ~ run=r", Reason(("gpu.count",), "a b!=c ~", "r")),
        ("gpu.count 1<2 also=* run=r-1_2.3", Reason(("gpu.count", "*"), "1<2", "r-1_2.3")),
        ("a-b_c.D9 1<2 also=a,b.*,c run=r", Reason(("a-b_c.D9", "a", "b.*", "c"), "1<2", "r")),
    ):
        assert read(summed(f"gpucluster:{text}")) == reason
    for text in (*(f"gpucluster:{wrong}" for wrong in WRONG_REASONS), "xgpucluster:gpu.count 1<2 run=r"):
        assert read_reason("gpu01", summed(text)) is None


EDITED = (
    OURS.replace("GPUs", "GPUs - bob: keep out, ticket 4711"),
    *(OURS.replace("7<8", "6<8"), OURS.replace(RUN, RUN[:-1] + "2"), OURS.replace(" run=", " also=* run=")),
    *(OURS.replace(" run=", "  run="), OURS[:-1] + ("0" if OURS[-1] != "0" else "1"), OURS[:-1]),
    *(OURS.upper(), OURS + "\n", " " + OURS),
    OURS.rpartition(" sum=")[0],  # as earlier versions wrote it, or a hand does
    OURS + " : gres/gpu count reported lower than configured (7 < 8)",
    *(OURS + " : Not responding - bob: keep out", OURS + " : bob: Not responding"),
)


@pytest.mark.parametrize("edited", EDITED)
def test_a_reason_that_a_person_has_edited_is_that_persons(edited: str) -> None:
    assert read_reason("gpu01", OURS) is not None
    assert read_reason("gpu01", edited) is None
    drained = node("IDLE", "DRAIN", reason=edited)
    assert own_reason(drained) is None
    assert why_not_drain(drained) == f'{FOREIGN}"{edited}"'
    assert not fit_for_retest(drained)


def test_a_reason_concerns_the_checks_that_it_names() -> None:
    for patterns, check, concerned in (
        (("gpu.count",), "gpu.count", True),
        (("gpu.count",), "gpu.counts", False),
        (("os.x", "gpu.*"), "gpu.count", True),
        (("gpu.*",), "gpus.count", False),
        (("*",), "anything", True),
    ):
        assert Reason(patterns, "", "").concerns(check) is concerned


def test_the_text_that_slurm_adds_for_a_node_switched_off_for_repair_keeps_the_reason_own() -> None:
    """Slurm 23.02 and later appends them (node_mgr.c, set_node_reason); 22.05 left the reason as it was."""
    for added in (
        "Not responding",
        "reboot issued : reboot complete",
        "Not responding : ResumeTimeout reached",
    ):
        text = f"{OURS} : {added}"
        assert read(text) == Reason(("gpu.count",), "7<8 GPUs", RUN)
        drained = node("IDLE", "DRAIN", reason=text)
        assert fit_for_retest(drained)
        assert why_not_resume(drained, text) == ""


# --- drain


def test_every_other_node_is_left_alone() -> None:
    for info, why in (
        (None, "Slurm does not know this node"),
        (node("IDLE", "DRAIN", reason="bad cable", user="bob"), f'{FOREIGN}"bad cable" by bob'),
        # ours no more: somebody undrained it and left the reason
        (node("IDLE", reason=OURS), f'{FOREIGN}"{OURS}"'),
        (node("IDLE", "DRAIN"), "another user drained it without a reason"),
        (node("DOWN", "DRAIN", reason=OURS), f"drained by gpucluster already, in run {RUN}"),
        (node("IDLE", "FAIL"), "its state is IDLE+FAIL: an administrator must check it"),
    ):
        assert why_not_drain(info) == why


VALUES = ("configure", "monitor", "reset gpu", "reboot", "drain", "return to vendor")


def test_an_action_reaches_its_own_class_and_milder_ones() -> None:
    assert tuple(action.value for action in Action) == VALUES
    repairs = ("reset-gpu", "reboot", "drain", "return-to-vendor")  # of --drain-min-action
    assert {name: action.value for name, action in NAMES.items()} == dict(
        zip(repairs, VALUES[2:], strict=True)
    )
    for at, action in enumerate(VALUES):
        reached = [least for least in VALUES if reaches(Action(action), Action(least))]
        assert reached == (list(VALUES[: at + 1]) if at > 1 else []), action


def test_the_worst_go_first_and_the_unconfirmed_not_at_all() -> None:
    def of(name: str, check: str, action: Action = Action.DRAIN, unconfirmed: str = "") -> Grounds:
        return Grounds(name, check, action, Finding("", "1", "2"), unconfirmed=unconfirmed)

    rows = ranked(
        [
            of("gpu05", "gpu.count", unconfirmed="passed afresh"),
            *(
                of("gpu03", "gpu.names"),
                of("gpu03", "gpu.count"),
                of("gpu02", "gpu.count"),
                of("gpu01", "gpu.count"),
            ),
            *(of("gpu04", "gpu.a", Action.REBOOT), of("gpu04", "gpu.b", Action.VENDOR)),
        ]
    )
    assert [(name, [one.check for one in mine]) for name, mine in rows] == [
        ("gpu04", ["gpu.b", "gpu.a"]),
        ("gpu03", ["gpu.count", "gpu.names"]),
        ("gpu01", ["gpu.count"]),
        ("gpu02", ["gpu.count"]),
    ]


def test_the_budget() -> None:
    for text, nodes, allowed in (
        *(("10%", 10, 1), ("10%", 19, 1), ("10%", 0, 0), ("0%", 10, 0), ("0", 10, 0), ("3", 10, 3)),
        ("10%", 4, 1),  # at least one
        ("29%", 100, 29),  # 0.29 * 100 is below 29 in floating point
        *(
            ("2.5%", 200, 5),
            ("1", 0, 1),
            ("1%", 199, 1),
            ("1%", 200, 2),
            ("100%", 7, 7),
            ("999999", 10, 999999),
        ),
    ):
        assert Budget.parse(f" {text}\t").of(nodes) == allowed
        assert str(Budget.parse(text)) == text


WRONG = ",-1,10 %,100.%,1.x%,100.01%,999%,1000%,1e3,nan%,%,.5%,1000000,1.5,\u0663"


@pytest.mark.parametrize("text", WRONG.split(","))
def test_a_wrong_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"like 10%, not {text!r}")):
        Budget.parse(text)


def test_the_reason_of_a_node_is_of_its_hardest_grounds() -> None:
    count = Grounds("gpu01", "gpu.count", Action.DRAIN, Finding("GPUs", "7", "8"))
    memory = Grounds("gpu01", "gpu.memory", Action.VENDOR, Finding("GPU 4", "3 errors", "0 errors"))
    assert reason_for((memory, count), RUN) == summed(
        f"gpucluster:gpu.memory 3>0 errors also=gpu.count repair=return-to-vendor run={RUN}"
    )
    text = reason_for([count], RUN)
    assert text == summed(f"gpucluster:gpu.count 7<8 GPUs repair=drain run={RUN}")
    # as an earlier version wrote it
    assert read(text) == replace(read(OURS), repair="drain")
    assert read(OURS).repair == ""


@pytest.mark.parametrize("action", [action for action in Action if action.is_repair])
def test_every_repair_fits_into_the_longest_reason_and_is_read_back(action: Action) -> None:
    checks = [f"{'x' * 80}.{number}" for number in range(9)]
    grounds = [Grounds("gpu01", check, action, Finding("", "y" * 99, "z" * 99)) for check in checks]
    text = reason_for(grounds, "r" * 60)
    assert len(text) <= 255
    assert read(text).repair == action.value.replace(" ", "-")


# --- resume


def test_only_what_our_reason_left_is_resumed() -> None:
    drained = node("IDLE", "DRAIN", reason=OURS)
    for info, why in (
        (drained, ""),
        (replace(drained, state="DOWN"), "its state is DOWN+DRAIN: an administrator must check it"),
        (None, "Slurm does not know this node"),
        (node("IDLE", reason=OURS), "it is not drained any more"),
        (node("IDLE", "DRAIN", reason="bad cable", user="bob"), f'{OTHER}"bad cable" by bob'),
        (node("IDLE", "DRAIN"), f'{OTHER}""'),
    ):
        assert why_not_resume(info, OURS) == why


@pytest.mark.parametrize(
    ("count", "names", "worse", "why"),
    [
        (["passed"], ["passed"], [], ""),
        (["passed"], None, [], "gpu.names did not run"),
        (["passed"], [], [], "gpu.names did not run"),
        (["passed", "failed"], ["passed"], [], "gpu.count ended as failed"),
        (["not checked"], ["passed"], [], "gpu.count ended as not checked"),
        (["not applicable"], ["passed"], [], "gpu.count ended as not applicable"),
        (["waived"], ["passed"], [], "gpu.count ended as waived"),
        (["failed"], ["passed"], ["os.memory"], "gpu.count ended as failed"),
        (["passed"], ["passed"], ["os.a", "os.b"], "os.a did not pass either"),
    ],
)
def test_a_node_passes_what_drained_it(
    count: list[str], names: list[str] | None, worse: list[str], why: str
) -> None:
    reason = read(summed(f"gpucluster:gpu.count 7<8 GPUs also=gpu.names run={RUN}"))
    outcomes = {"gpu.count": count, "os.x": ["failed"]} | ({} if names is None else {"gpu.names": names})
    assert why_not_passed(reason, outcomes, worse) == why  # os.x did not drain it


def test_a_shortened_list_asks_for_the_whole_suite() -> None:
    reason = read(summed(f"gpucluster:os.memory 1<2 also=gpu.* run={RUN}"))
    memory = {"os.memory": ["passed"]}
    good = {**memory, "gpu.count": ["passed"], "gpu.mig": ["not applicable"]}
    assert why_not_passed(reason, good, ()) == ""
    assert why_not_passed(reason, memory, ()) == "gpu.* did not run"
    assert why_not_passed(reason, {**good, "gpu.names": ["not checked"]}, ()) == "gpu.* ended as not checked"
    assert why_not_passed(reason, {**memory, "gpu.count": ["not applicable"]}, ()) == "gpu.* did not run"


def test_only_a_quiet_node_of_ours_goes_on_trial() -> None:
    fit = [node("IDLE", "DRAIN", *flags, reason=OURS) for flags in ((), ("MAINTENANCE", "RESERVED"))]
    unfit = [node(state, "DRAIN", reason=OURS) for state in ("ALLOCATED", "DOWN", "MIXED")]
    unfit += [node("IDLE", reason=OURS), node("IDLE", "DRAIN", reason="bad cable")]
    unfit.append(node("IDLE", "DRAIN", "COMPLETING", reason=OURS))
    assert [*map(fit_for_retest, [*fit, *unfit])] == [True] * 2 + [False] * 6
