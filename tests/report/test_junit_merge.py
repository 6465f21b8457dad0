"""JUnit files become one: every end is counted, no red one is lost. Files of runs of the plugin are in test_junit.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from junitparser import xunit2

from pytest_gpucluster.cli import main as cli
from pytest_gpucluster.cli import run_command
from pytest_gpucluster.report.machine.junit_merge import Merged, merge

if TYPE_CHECKING:
    from pathlib import Path

RED = "<failure message='m'>why</failure>"
BROKEN = "<error message='e'/>"
SKIPPED = "<skipped message='s'/>"


def case(name: str = "t", inside: str = "", of: str = "gpucluster.gpu.gpu01") -> str:
    return f"<testcase classname='{of}' name='{name}'>{inside}</testcase>"


def written(path: Path, shard: str, head: str = "", stamp: str = "2026-11-20T00:00:00") -> Path:
    path.write_text(f"<testsuites><testsuite name='x' timestamp='{stamp}'>{head}{shard}</testsuite></testsuites>")
    return path


def merged(
    tmp_path: Path, *shards: str, heads: tuple[str, ...] = (), stamps: tuple[str, ...] = ()
) -> tuple[Merged, list[Any], str]:
    """Merge files of these testcases; return what it says, the testcases, and the text of the file.

    Without `stamps` a file is later than the one before it, and the merge gets the latest first.
    """
    paths = [
        written(
            tmp_path / f"{place}.xml",
            shard,
            heads[place] if heads else "",
            stamps[place] if stamps else f"2026-11-2{place}T00:00:00",
        )
        for place, shard in enumerate(shards)
    ]
    told = merge(paths if stamps else paths[::-1], tmp_path / "out.xml")
    read: Any = xunit2.JUnitXml.fromfile(str(tmp_path / "out.xml"))
    return told, [one for suite in read for one in suite], (tmp_path / "out.xml").read_text()


def ends(one: Any) -> tuple[list[str], list[str], dict[str, str]]:
    return (
        [type(it).__name__ for it in one.result],
        [type(it).__name__ for it in one.interim_result],
        {it.name: it.value for it in one.properties()},
    )


def test_every_end_is_counted(tmp_path: Path) -> None:
    kinds = {"f": (RED, 4), "e": (BROKEN, 3), "s": (SKIPPED, 2), "p": ("", 1)}
    shard = [case(f"{kind}{n}", inside) for kind, (inside, count) in kinds.items() for n in range(count)]
    told, found, text = merged(tmp_path, "".join(shard))
    assert told == Merged(files=1, passed=1, failed=4, errors=3, skipped=2, flaky=0)
    assert [one.name for one in found] == ["f0", "f1", "f2", "f3", "e0", "e1", "e2", "s0", "s1", "p0"]
    for part in ('tests="10"', '<testsuites name="pytest tests"', '<testsuite name="pytest"'):
        assert part in text


FLAKY = "<flakyFailure message='m' type='x'/>"


@pytest.mark.parametrize(
    ("files", "decided", "others", "listed"),
    [
        (("",), "", "", ""),
        ((RED, ""), "", "FlakyFailure", "failed, passed"),
        ((BROKEN, RED, ""), "", "FlakyError FlakyFailure", "error, failed, passed"),
        ((RED, RED), "Failure", "RerunFailure", "failed, failed"),
        (("", RED), "Failure", "", "passed, failed"),
        ((BROKEN, RED), "Failure", "RerunError", "error, failed"),
        ((RED, SKIPPED), "Failure", "", "failed, skipped"),
        ((SKIPPED, ""), "", "", "skipped, passed"),
        ((FLAKY + SKIPPED, SKIPPED), "Skipped", "FlakyFailure", "skipped, skipped"),
    ],
)
def test_what_was_once_red_stays_visible(
    tmp_path: Path, files: tuple[str, ...], decided: str, others: str, listed: str
) -> None:
    _, (one,), _ = merged(tmp_path, *(case(inside=inside) for inside in files))
    properties = {"attempts": listed} if listed else {}
    assert ends(one) == (decided.split(), others.split(), properties)


def test_a_merged_case_keeps_the_text_of_every_attempt(tmp_path: Path) -> None:
    rerun = "<rerunFailure message='first &lt;1>' type='rerun'><stackTrace>long</stackTrace><system-out>0</system-out></rerunFailure>"
    shards = [
        f"<system-out>note</system-out>{rerun}<failure message='7 &lt;a>'>why</failure>",
        "<error message='8'/>",
        "<failure/>",
        "",
    ]
    _, (one,), _ = merged(tmp_path, *(case(inside=inside) for inside in shards))
    told = [(type(it).__name__, it.message, it.type, it.stack_trace, it.system_out) for it in one.interim_result]
    assert told == [
        ("RerunFailure", "first <1>", "rerun", "long", "0"),
        ("FlakyFailure", "7 <a>", "failed", "why", "note"),
        ("FlakyError", "8", "error", None, None),
        ("FlakyFailure", None, "failed", None, None),
    ]


@pytest.mark.parametrize(
    ("stamps", "order"),
    [
        (("2026-11-21T02:00:00Z", "2026-11-21T02:30:00+01:00"), "passed, failed"),
        (("2026-11-21T02:00:00", "2026-11-21T02:30:00+01:00"), "passed, failed"),  # no zone: UTC
        (("2026-11-21T01:00:00", "2026-11-21T02:00:00"), "failed, passed"),
        (("2026-11-21T02:00:00", "2026-11-21T02:00:00"), "failed, passed"),  # the order of the files
        (("2026-11-21T02:00:00", "yesterday"), "failed, passed"),
        (("2026-11-21T02:00:00", ""), "failed, passed"),
    ],
)
def test_attempts_are_ordered_by_timestamps(tmp_path: Path, stamps: tuple[str, ...], order: str) -> None:
    _, (one,), text = merged(tmp_path, case(inside=RED), case(), stamps=stamps)
    assert ends(one)[2] == {"attempts": order}
    assert f'timestamp="{min(filter(None, stamps))}"' in text


def test_a_testcase_without_a_name_is_one_of_its_own(tmp_path: Path) -> None:
    told, found, _ = merged(
        tmp_path, f"<testcase>{RED}</testcase>", f"<testcase classname='x' name='x'/>{case('', '', 'x')}"
    )
    assert (told.failed, told.passed) == (1, 2)
    assert [ends(one)[0] for one in found] == [["Failure"], [], []]
    told, _, _ = merged(tmp_path, f"<testcase name='t'>{RED}</testcase>", "<testcase name='t'/>")
    assert (told.passed, told.flaky) == (1, 1)


def test_the_worst_of_one_name_in_one_file_stands_with_what_else_is_red(tmp_path: Path) -> None:
    for order in (("", BROKEN, RED), (RED, "", BROKEN), (BROKEN, RED, ""), (SKIPPED, RED, BROKEN)):
        told, (one,), _ = merged(tmp_path, "".join(case(inside=inside) for inside in order))
        assert (told.failed, ends(one)) == (1, (["Failure"], [], {}))
        assert one.result[0].text == "why\n--- again in this run\ne"
    for other, text in (("<error>two</error>", "two"), ("<error/>", "")):
        _, (one,), _ = merged(tmp_path, case(inside=BROKEN) + case(inside=other))
        assert one.result[0].text == f"\n--- again in this run\n{text}"


OUT = case("test_available", BROKEN, "gpucluster.run.gpu01")


OTHER, NO_CLASS = (case("test_other", BROKEN, "gpucluster.run.gpu01"), case("test_available", BROKEN, "gpu01"))


def test_a_node_that_was_judged_has_come_back(tmp_path: Path) -> None:
    back = {"attempts": "error, passed"}
    # one of two that were skipped: it was there
    for second in (case(inside=SKIPPED) + case(), case() + case(inside=SKIPPED), case(inside=RED)):
        assert ends(merged(tmp_path, OUT, second)[1][0]) == ([], ["FlakyError"], back)
    others = [OUT + case(), case(inside=SKIPPED), case(of="gpucluster.gpu.gpu02")]
    others.append(case(of="own.gpu01"))  # another program's class
    for first, second in (*((OUT, other) for other in others), (OTHER, case()), (NO_CLASS, case())):
        assert ends(merged(tmp_path, first, second)[1][0])[0] == ["Error"]


def test_a_node_with_a_long_name_has_come_back_but_not_by_what_was_judged_before(tmp_path: Path) -> None:
    far = "gpu01.east.site.example"
    out, judged = case("test_available", BROKEN, f"gpucluster.run.{far}"), case(of=f"gpucluster.gpu.{far}")
    assert merged(tmp_path, out, judged)[0].errors == 0
    assert merged(tmp_path, judged, out)[0].errors == 1


def of(nodes: str) -> str:
    return f"<properties><property name='other' value='o'/><property name='nodes' value='{nodes}'/></properties>"


def test_runs_on_other_nodes_are_scopes_of_which_the_worst_decides(tmp_path: Path) -> None:
    whole, flaky = "gpucluster.nccl.cluster", {"attempts": "failed, passed"}
    _, (one,), text = merged(tmp_path, case(inside=RED, of=whole), case(of=whole), heads=("", of("gpu01")))
    assert ends(one) == (["Failure"], [], {"scopes": "?: failed; gpu01: passed"})
    assert text.count('<property name="other" value="o"') == 1
    for name, heads in ((whole, ()), ("gpucluster.x", ("", of("gpu01"))), ("own.cluster", ("", of("gpu01")))):
        _, (one,), _ = merged(tmp_path, case(inside=RED, of=name), case(of=name), heads=heads)
        assert ends(one) == ([], ["FlakyFailure"], flaky)
    shards = [case(inside=inside, of=whole) for inside in (SKIPPED, BROKEN, "", RED)]
    _, (one,), _ = merged(tmp_path, *shards, heads=tuple(map(of, "abbc")))
    assert ends(one) == (["Failure"], ["FlakyError"], {"scopes": "c: failed; a: skipped; b: passed"})
    both = case(inside="<error>broke</error>", of=whole), case(inside=RED, of=whole)
    _, (one,), _ = merged(tmp_path, *both, heads=(of("gpu01"), ""))
    assert one.result[0].text == "why\n--- nodes gpu01\nbroke"
    # a repeat on one node clears the items of that node alone
    first, second = (case(inside=inside, of=whole) + case(inside=inside) for inside in (RED, ""))
    _, found, _ = merged(tmp_path, first, second, heads=(of("gpu[01-02]"), of("gpu01")))
    assert [ends(one)[:2] for one in found] == [(["Failure"], []), ([], ["FlakyFailure"])]


def test_what_cannot_be_merged_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path / "good.xml", case())
    bad, out = tmp_path / "bad.xml", tmp_path / "out.xml"
    for text, complaint in (
        (None, "cannot be read"),
        ("<testsuites><testsuite name='x' tests='0'/></testsuites>", "holds no testcase"),
        ("<testsuites><testsuite><testcase name='a'", "is not JUnit"),
        ("<html/>", "is not JUnit"),
    ):
        if text is not None:
            bad.write_text(text)
        assert cli.main(["junit", "merge", str(out), str(good), str(bad)]) == run_command.FAILED
        told = capsys.readouterr().err
        assert told.startswith(f"gpucluster: error: {bad}: {complaint}")
        assert (told.count("\n"), out.exists()) == (1, False)


def test_the_command_writes_over_no_file_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = written(tmp_path / "1.xml", case(inside=RED))
    two = written(tmp_path / "2.xml", case(), stamp="2026-11-21T00:00:00")
    out = tmp_path / "sub" / "out.xml"
    assert cli.main(["junit", "merge", str(out), str(one), str(two)]) == run_command.OK
    told = capsys.readouterr().out
    assert told == f"{out}: 1 testcases of 2 files: 1 passed (1 of them flaky), 0 failed, 0 errors, 0 skipped\n"
    assert out.stat().st_mode & 0o777 == 0o600
    for name in ("junit.xml", "events.jsonl"):
        (tmp_path / name).write_text("kept")
    assert cli.main(["junit", "merge", str(tmp_path / "junit.xml"), str(one)]) == run_command.WRONG_CONFIG
    assert "name the output file before" in capsys.readouterr().err
    assert (tmp_path / "junit.xml").read_text() == "kept"
