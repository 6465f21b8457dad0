"""JUnit files that others wrote become one: every end is counted, no red one is lost. Runs of the plugin are in test_junit.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from junitparser import xunit2

from pytest_gpucluster.report.junit_merge import Merged, merge

if TYPE_CHECKING:
    from pathlib import Path

RED = "<failure message='m'>why</failure>"
BROKEN = "<error message='e'/>"
SKIPPED = "<skipped message='s'/>"


def case(name: str = "t", inside: str = "", of: str = "gpucluster.gpu.gpu01") -> str:
    return f"<testcase classname='{of}' name='{name}'>{inside}</testcase>"


def merged(tmp_path: Path, *shards: str, heads: tuple[str, ...] = ()) -> tuple[Merged, list[Any], str]:
    """Merge files of these testcases; return what it says, the testcases, and the text of the file."""
    paths = []
    for place, shard in enumerate(shards):
        paths.append(tmp_path / f"{place}.xml")
        head = heads[place] if heads else ""
        stamp = f"timestamp='2026-11-2{place}T00:00:00'"
        paths[-1].write_text(
            f"<testsuites><testsuite name='x' {stamp}>{head}{shard}</testsuite></testsuites>"
        )
    told = merge(paths, tmp_path / "out.xml")
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
    assert text.count("\n") <= 1  # as small as can be: files of a thousand nodes are large


def test_what_was_skipped_each_time_keeps_earlier_failures(tmp_path: Path) -> None:
    flaky = "<flakyFailure message='m' type='x'/>"
    _, (one,), _ = merged(tmp_path, case(inside=flaky + SKIPPED), case(inside=SKIPPED))
    assert ends(one) == (["Skipped"], ["FlakyFailure"], {"attempts": "skipped, skipped"})


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


OTHER, NO_CLASS = (
    case("test_other", BROKEN, "gpucluster.run.gpu01"),
    case("test_available", BROKEN, "gpu01"),
)


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
    return (
        f"<properties><property name='other' value='o'/><property name='nodes' value='{nodes}'/></properties>"
    )


def test_a_file_that_names_no_nodes_is_a_scope_of_its_own(tmp_path: Path) -> None:
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
