"""Small parts of the localisation: tallies of leaves, rounds of pairs, and the lines of evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_gpucluster.kit import pairing as schedule  # monkeypatched
from pytest_gpucluster.suites.nccl import inference
from pytest_gpucluster.suites.nccl import localization as localise
from pytest_gpucluster.suites.nccl.localization import Localiser
from pytest_gpucluster.suites.nccl.measurement import (
    Bound,
    GroupKind,
    Localisation,
    Measurement,
    Status,
    Unresolved,
    fleet_bound,
)


class Course:
    """A plan on parts of given health, to its end: all batches, and the verdict."""

    def __init__(
        self, nodes: str, sick: dict[str, float | str] | None = None, leaves: str = "", **options: Any
    ) -> None:
        self.sick = sick or {}
        self.leaf = dict(zip(nodes, leaves, strict=False))
        self.batches: list[schedule.Batch] = []
        plan = Localiser(
            tuple(nodes), leaves={n: leaf for n, leaf in self.leaf.items() if leaf != "-"}, **options
        )
        while batch := plan.next_rounds():
            self.batches.append(batch)
            plan.feed([self.measure(group) for groups in batch for group in groups])
        assert batch == ()
        self.found = plan.verdict()

    def measure(self, group: schedule.Group) -> Measurement:
        """A group is as fast as its slowest part; the parts are nodes, GPUs, links as 'ab', leaves, 'a+' in pairs."""
        hosts = sorted({member[0] for member in group})
        parts = {*group, *hosts, "".join(hosts), *("".join(group),)}
        if len(group) == 1:
            parts.add(f"{group[0]}!")
        if len(hosts) > 1:
            parts |= {f"{member}+" for member in (*group, *hosts)}
            if len(leaves := {self.leaf.get(host, "-") for host in hosts}) > 1:
                parts |= leaves
        crossing = len({self.leaf.get(host) for host in hosts}) > 1
        rank = ":" in group[0]
        healthy = (
            (340.0 if rank else 400.0) if len(hosts) == 1 else 50.0 if rank else 90.0 if crossing else 100.0
        )
        words = [self.sick[part] for part in sorted(parts & self.sick.keys())]
        for word in words:
            if isinstance(word, str):
                return Measurement(group, None, word.removeprefix("-"), skipped=word.startswith("-"))
        return Measurement(group, healthy * min([1.0, *(float(word) for word in words)]))

    @property
    def rounds(self) -> str:
        """The batches, a line each: rounds after '|', groups after a blank."""
        return "\n".join(
            " | ".join(" ".join("".join(g) for g in groups) for groups in batch) for batch in self.batches
        )


SLOW_SPINE = (
    "no bound of pairs across leaves, which are equally slow (fleet median 45 less 12%; within a leaf fleet median 100 less 12%): "
    "the spine, one of the leaves, or oversubscription by design; state the bound of 'across' to decide"
)
PARTS_OF_C = "c:0a:0 c:1a:1 c:2a:2 c:3a:3 b:0d:0 b:1d:1 b:2d:2 b:3d:3 | c:0c:1 c:2c:3 | c:1c:2 c:3c:0"
# nodes, what is sick and the options, the rounds of each batch ('|' between rounds), what the verdict says
COURSES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "abcd",
        {"sick": {"b+": 0.5}},
        "a b c d | ad bc | ac db | ab cd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with c, d, a, which are fine with others"},
            "rounds": 3,
            "steps": 1,
            "evidence": (
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "d with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "a with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcde",
        {"sick": {"b+": 0.5}},
        "a b c d e | ab cd | bc de\nac bd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with a, c, d, which are fine with others"},
            "rounds": 3,
            "steps": 2,
            "evidence": (
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcdefgh",
        {"sick": {"cd": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\ncd",
        {
            "bad_links": (("c", "d"),),
            "rounds": 3,
            "steps": 2,
            "evidence": (
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
            ),
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy"},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {"rounds": 2, "steps": 1},
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk",
        {
            "bad_leaves": ("y",),
            "why": {"y": "4 of 4 pairs across it are slow, pairs within are fine"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5, "f+": 0.3}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk\neg fh",
        {
            "bad_nodes": ("f",),
            "bad_leaves": ("y",),
            "why": {
                "f": "bad with e, h, which are fine with others",
                "y": "3 of 3 pairs across it are slow, pairs within are fine",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5}, "expected": {"across": 80.0, "within": 90.0}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": (
                (
                    ("x", "y"),
                    SLOW_SPINE,
                ),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c:2": 0.5, "c": 0.6}, "gpus_per_node": 4},
        "a b c d e f | ab cd ef | bc de fa\nc\n" + PARTS_OF_C,
        {
            "bad_nodes": ("c",),
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
            "evidence": (
                "c alone: 240 GB/s, at least 352 GB/s (fleet median 400 less 12%): slow",
                "c with d: 60 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 60 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c alone: 240 GB/s, at least 352 GB/s (fleet median 400 less 12%): slow",
                "c:0 with a:0: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:1 with a:1: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:2 with a:2: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:3 with a:3: 30 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:0 with c:1: 204 GB/s, at least 86.18 GB/s (fleet median 187 less 54%): good",
                "c:2 with c:3: 170 GB/s, at least 86.18 GB/s (fleet median 187 less 54%): good",
                "c:1 with c:2: 170 GB/s, at least 86.18 GB/s (fleet median 187 less 54%): good",
                "c:3 with c:0: 204 GB/s, at least 86.18 GB/s (fleet median 187 less 54%): good",
            ),
        },
    ),
    (
        "abcdef",
        {"sick": {"c:1+": 0.5, "c+": 0.5}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa\nc:0a:0 c:1a:1 b:0d:0 b:1d:1",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
            "evidence": (
                "c alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "c with d: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 50 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c:0 with a:0: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
                "c:1 with a:1: 25 GB/s, at least 44 GB/s (fleet median 50 less 12%): slow",
            ),
        },
    ),
    (
        "abcdef",
        {"sick": {"c": "crashed"}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa",
        {
            "bad_nodes": ("c",),
            "why": {"c": "failed alone: crashed"},
            "rounds": 2,
            "steps": 1,
            "evidence": ("c alone: crashed", "c with d: crashed", "b with c: crashed"),
        },
    ),
    (
        "abcde",
        {"expected": {"within": 200.0}},
        "a b c d e | ab cd | bc de",
        {
            "unresolved": (
                (
                    ("a", "b", "c", "d", "e"),
                    "no pair is fine: the fabric as a whole, or the bound is too high",
                ),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcd",
        {"expected": {"within": 200.0}},
        "a b c d | ad bc | ac db | ab cd",
        {
            "unresolved": (
                (("a", "d", "link a-d"), "no further acquitted partner to decide between them"),
                (("b", "c", "link b-c"), "no further acquitted partner to decide between them"),
            ),
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "ab",
        {},
        "a b | ab",
        {
            "unresolved": (
                (("a",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
                (("b",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
            ),
            "rounds": 1,
            "steps": 1,
            "evidence": (
                "a alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: 100 GB/s, no bound: unjudged",
            ),
        },
    ),
    (
        "ab",
        {"sick": {"ab": "hung"}, "expected": {"within": 50.0}},
        "a b | ab",
        {
            "unresolved": ((("a", "b", "link a-b"), "no further acquitted partner to decide between them"),),
            "rounds": 1,
            "steps": 1,
            "evidence": (
                "a alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "b alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "a with b: hung",
            ),
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxx-yyy-", "sick": {"h+": 0.5}},
        "a b c d e f g h | ab dh ef cg | de bf ag ch",
        {
            "bad_nodes": ("h",),
            "why": {"h": "bad with d, c, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c+": "-c had ended"}},
        "a b c d e f | ab cd ef | bc de fa\nca\nca\nca\nca\nca\nca\nca",
        {
            "unresolved": ((("c",), "never measured in a pair"),),
            "rounds": 9,
            "steps": 8,
            "evidence": (
                "c alone: 400 GB/s, at least 352 GB/s (fleet median 400 less 12%): good",
                "c with d: not measured, c had ended",
                "b with c: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
                "c with a: not measured, c had ended",
            ),
        },
    ),
    (
        "a",
        {},
        "a",
        {"steps": 1},
    ),
    (
        "a",
        {"sick": {"a": 0.5}, "expected": {"alone": 300.0}},
        "a\na",
        {"bad_nodes": ("a",), "why": {"a": "slow alone, measured twice"}, "steps": 2},
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5, "d+": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\nca db",
        {
            "bad_nodes": ("c", "d"),
            "why": {
                "c": "bad with b, a, which are fine with others",
                "d": "bad with e, b, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5, "d+": 0.5, "e+": 0.5}},
        "a b c d e f g h | ab cd ef gh | bc de fg ha\nca db eg\nda",
        {
            "bad_nodes": ("c", "d", "e"),
            "why": {
                "c": "bad with b, a, which are fine with others",
                "d": "bad with b, a, which are fine with others",
                "e": "bad with f, g, which are fine with others",
            },
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"b+": 0.5, "f+": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nbc fg",
        {
            "bad_nodes": ("b", "f"),
            "why": {
                "b": "bad with a, c, which are fine with others",
                "f": "bad with e, g, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefghi",
        {"leaves": "xxxyyyzzz", "sick": {"d+": 0.5, "e+": 0.5, "f+": 0.5}},
        "a b c d e f g h i | ab de gh cf | dg bh cf ai\nca db eg fh\nda eb fg\nea\ndf\nef",
        {
            "unresolved": (
                (("y", "d", "e", "f"), "no pair across this leaf is fine: the leaf, or all these nodes"),
            ),
            "rounds": 7,
            "steps": 6,
        },
    ),
    (
        "abcdefgh",
        {"sick": {"c+": 0.5}, "max_steps": 1},
        "a b c d e f g h | ab cd ef gh | bc de fg ha",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {"sick": {"c+": 0.5}, "alone": False},
        "ab cd ef | bc de fa",
        {
            "bad_nodes": ("c",),
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdef",
        {
            "sick": {"c:2": 0.5, "c+": 0.9, "c": 0.8},
            "gpus_per_node": 4,
            "expected": {"alone": 390.0, "rail": 40.0, "local": 250.0},
        },
        "a b c d e f | ab cd ef | bc de fa\nc\n" + PARTS_OF_C,
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 2",)},
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
            "evidence": (
                "c alone: 320 GB/s, at least 390 GB/s (expected): slow",
                "c with d: 80 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "b with c: 80 GB/s, at least 88 GB/s (fleet median 100 less 12%): slow",
                "c alone: 320 GB/s, at least 390 GB/s (expected): slow",
                "c:0 with a:0: 40 GB/s, at least 40 GB/s (expected): good",
                "c:1 with a:1: 40 GB/s, at least 40 GB/s (expected): good",
                "c:2 with a:2: 25 GB/s, at least 40 GB/s (expected): slow",
                "c:3 with a:3: 40 GB/s, at least 40 GB/s (expected): good",
                "c:0 with c:1: 272 GB/s, at least 250 GB/s (expected): good",
                "c:2 with c:3: 170 GB/s, at least 250 GB/s (expected): slow",
                "c:1 with c:2: 170 GB/s, at least 250 GB/s (expected): slow",
                "c:3 with c:0: 272 GB/s, at least 250 GB/s (expected): good",
            ),
        },
    ),
    (
        "abcdef",
        {"leaves": "xxyyzz", "sick": {"ab": 0.5, "ac": 0.5}, "expected": {"within": 95.0, "across": 85.0}},
        "a b c d e f | ab cd ef | ce bf ad\nab",
        {"bad_links": (("a", "b"),), "rounds": 3, "steps": 2},
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyzz", "sick": {"e+": 0.5, "f+": 0.5}},
        "a b c d e f g h | ab cd ef gh | eg bh cf\nea fb\neb fa",
        {
            "unresolved": ((("e", "f", "link e-f"), "no further acquitted partner to decide between them"),),
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"ae": 0.5}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nae",
        {"bad_links": (("a", "e"),), "rounds": 3, "steps": 2},
    ),
    (
        "dcba",
        {"sick": {"a+": 0.5, "b+": 0.5}},
        "d c b a | da cb | db ac | dc ba",
        {
            "bad_nodes": ("b", "a"),
            "why": {
                "b": "bad with c, d, which are fine with others",
                "a": "bad with d, c, which are fine with others",
            },
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "hgfedcba",
        {"sick": {"e+": 0.5, "b+": 0.4}},
        "h g f e d c b a | hg fe dc ba | gf ed cb ah",
        {
            "bad_nodes": ("e", "b"),
            "why": {
                "e": "bad with f, d, which are fine with others",
                "b": "bad with a, c, which are fine with others",
            },
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "zzzyyyxxxwww", "sick": {"z": 0.5, "x": 0.5}},
        "a b c d e f g h i j k l | ab de gh jk cf il | aj dg bh ke cf il\nca fd ig lj",
        {
            "bad_leaves": ("x", "z"),
            "why": {
                "x": "2 of 2 pairs across it are slow, pairs within are fine",
                "z": "3 of 3 pairs across it are slow, pairs within are fine",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdef",
        {"sick": {"b": "crashed", "ae": "-lost", "ac": "-lost", "ad": "-lost", "af": "-lost"}},
        "a b c d e f | ab cd ef | bc de fa\nac\nac\nac\nac\nac\nac\nac",
        {
            "bad_nodes": ("b",),
            "why": {"b": "failed alone: crashed"},
            "unresolved": ((("a",), "measured with bad nodes only"),),
            "rounds": 9,
            "steps": 8,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxx"},
        "a b c d e | ab cd | bc de",
        {"rounds": 2, "steps": 1},
    ),
    (
        "abcdef",
        {"sick": {"c!": 0.5}, "gpus_per_node": 2},
        "a b c d e f | ab cd ef | bc de fa\nc\nc:0a:0 c:1a:1 b:0d:0 b:1d:1 | c:0c:1 | c:1c:0",
        {
            "bad_nodes": ("c",),
            "why": {"c": "slow alone, measured twice"},
            "rounds": 2,
            "part_rounds": 3,
            "steps": 3,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxy"},
        "a b c d e | ab cd | ae\neb",
        {"rounds": 3, "steps": 2},
    ),
    (
        "abcde",
        {"leaves": "xxxxy", "sick": {"e+": 0.5}},
        "a b c d e | ab cd | ae\neb\nec\ned",
        {
            "unresolved": (
                (("x", "y"), SLOW_SPINE),
                (("e",), "no bound: state the expected bandwidth, there are too few pairs to compare"),
            ),
            "rounds": 5,
            "steps": 4,
        },
    ),
    (
        "abcde",
        {"leaves": "xxxxy", "sick": {"a!": 0.5}},
        "a b c d e | ab cd | ae\na | eb",
        {"bad_nodes": ("a",), "why": {"a": "slow alone, measured twice"}, "rounds": 3, "steps": 2},
    ),
    (
        "abcdefgh",
        {"sick": {"cd": 0.5}, "max_steps": 1},
        "a b c d e f g h | ab cd ef gh | bc de fg ha",
        {
            "unresolved": ((("link c-d",), "slow or failed once, not measured again"),),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "fedcba",
        {"sick": {"c!": 0.5, "e!": 0.5}, "max_steps": 1},
        "f e d c b a | fe dc ba | ed cb af",
        {
            "unresolved": ((("e",), "slow alone, measured once"), (("c",), "slow alone, measured once")),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5, "b+": 0.6}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh\nac bd",
        {
            "bad_nodes": ("b",),
            "why": {"b": "bad with a, d, which are fine with others"},
            "unresolved": ((("x", "y"), SLOW_SPINE),),
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxxyyyy", "sick": {"x": 0.5, "bf": "hung"}},
        "a b c d e f g h | ab cd ef gh | ae bf cg dh",
        {
            "unresolved": (
                (("x", "y"), SLOW_SPINE),
                (("x", "y", "link b-f"), "too few pairs cross these leaves"),
            ),
            "rounds": 2,
            "steps": 1,
        },
    ),
    (
        "fedcba",
        {"sick": {"c:1+": 0.5, "c+": 0.8}, "gpus_per_node": 3, "expected": {"within": 90.0, "rail": 40.0}},
        "f e d c b a | fe dc ba | ed cb af\nc:0f:0 c:1f:1 c:2f:2 e:0d:0 e:1d:1 e:2d:2",
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 1 or its adapter",)},
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
        },
    ),
    (
        "fedcba",
        {"sick": {"c:1+": "hung", "c+": 0.8}, "gpus_per_node": 3, "expected": {"within": 90.0, "rail": 40.0}},
        "f e d c b a | fe dc ba | ed cb af\nc:0f:0 c:1f:1 c:2f:2 e:0d:0 e:1d:1 e:2d:2",
        {
            "bad_nodes": ("c",),
            "bad_parts": {"c": ("GPU 1 or its adapter",)},
            "why": {"c": "bad with d, b, which are fine with others"},
            "rounds": 2,
            "part_rounds": 1,
            "steps": 2,
        },
    ),
    (
        "abcdef",
        {
            "leaves": "xxxyyy",
            "sick": {"ad": 0.5, "be": 0.5, "cf": 0.5},
            "expected": {"within": 90.0, "across": 80.0},
        },
        "a b c d e f | ab de cf | ad be cf\nca fd",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefg",
        {"leaves": "xxxyyzz", "sick": {"y": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e f g | ab de fg | df bg ae\nca",
        {
            "bad_leaves": ("y",),
            "why": {"y": "2 of 2 pairs across it are slow, pairs within are fine"},
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abcdefgh",
        {"leaves": "xxxyyy--", "sick": {"g+": 0.5, "h+": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e f g h | ab de gh cf | dg bh cf ae\nga hc",
        {
            "bad_nodes": ("g", "h"),
            "why": {
                "g": "bad with d, a, which are fine with others",
                "h": "bad with b, c, which are fine with others",
            },
            "rounds": 3,
            "steps": 2,
        },
    ),
    (
        "abc",
        {"leaves": "xyz", "sick": {"a+": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c | bc | ac | ab",
        {
            "unresolved": ((("a", "link a-c", "x"), "no further acquitted partner to decide between them"),),
            "rounds": 3,
            "steps": 1,
        },
    ),
    (
        "abcdefghijkl",
        {"leaves": "xxxxyyyyzzzz", "sick": {"y": 0.5, "ef": 0.5}},
        "a b c d e f g h i j k l | ab cd ef gh ij kl | ei bj cg hl af dk\neg fh\nef",
        {
            "bad_links": (("e", "f"),),
            "bad_leaves": ("y",),
            "why": {"y": "4 of 4 pairs across it are slow, pairs within are fine"},
            "rounds": 4,
            "steps": 3,
        },
    ),
    (
        "abcde",
        {"leaves": "xxyyy", "sick": {"x": 0.5}, "expected": {"within": 90.0, "across": 80.0}},
        "a b c d e | ab cd | ac bd\nec",
        {
            "unresolved": ((("x", "y"), "slow to other leaves, and none of them is acquitted"),),
            "rounds": 3,
            "steps": 2,
        },
    ),
]


@pytest.mark.parametrize(("nodes", "options", "rounds", "said"), COURSES)
def test_the_course_of_a_localisation(
    nodes: str, options: dict[str, Any], rounds: str, said: dict[str, Any]
) -> None:
    course = Course(nodes, **options)
    assert course.rounds == rounds
    unresolved = tuple(Unresolved(*one) for one in said.get("unresolved", ()))
    evidence = said.get("evidence", course.found.evidence)
    assert course.found == Localisation(**{**said, "unresolved": unresolved, "evidence": evidence})
    assert course.found.clean is not any(key.startswith(("bad", "unresolved")) for key in said)


def test_one_json_line_of_the_payload() -> None:
    read = Measurement.from_dict
    assert read({"members": ["a", 7], "busbw": "5"}) == Measurement(("a", "7"), 5.0, "", skipped=False)
    assert read({"members": ["a"], "busbw": 5, "wrong": None}) == Measurement(("a",), 5.0)
    assert read({"members": ["a"], "busbw": 5, "wrong": 2}) == Measurement(
        ("a",), 5.0, "wrong data: 2 elements"
    )
    assert read({"members": ["a"], "problem": "hung", "wrong": 2}) == Measurement(("a",), None, "hung")
    assert read({"members": ["a"], "skipped": True}) == Measurement(("a",), None, "", skipped=True)
    assert read({"members": ["a"], "busbw": 0}) == Measurement(("a",), 0.0)
    with pytest.raises(ValueError, match=r"^a measurement without members$"):
        read({"members": [], "busbw": 1})
    with pytest.raises(ValueError, match=r"^neither busbw nor problem for a b$"):
        read({"members": ["a", "b"]})


@pytest.mark.parametrize(
    ("values", "value", "origin"),
    [
        ([100.0, 100.0], 88.0, "fleet median 100 less 12%"),
        (
            [75.0, 100.0],
            87.5 - 4 * 1.4826 * 12.5,
            "fleet median 87.5 less 85%",
        ),  # a quarter off is good still
        ([74.9, 100.0], 88.0, "fleet median 100 less 12%"),
        # the 90th percentile starts: of eleven values the second highest, of ten the highest
        ([10.0] * 9 + [100.0, 500.0], 88.0, "fleet median 100 less 12%"),
        ([10.0] * 8 + [100.0, 500.0], 440.0, "fleet median 500 less 12%"),
        ([0.0, 0.0], 0.0, "fleet median 0 less 0%"),
    ],
)
def test_the_bound_that_a_fleet_sets(values: list[float], value: float, origin: str) -> None:
    near: Any = pytest.approx(value)
    assert fleet_bound(values) == Bound(near, origin)
    assert fleet_bound(values[:1]) is None


def test_bounds_by_kind_and_where_they_come_from() -> None:
    def bounds(
        *fed: tuple[str, float], later: tuple[tuple[str, float], ...] = (), **options: Any
    ) -> dict[str, float]:
        it = Localiser(("a", "b", "c", "d"), leaves={"a": "x", "b": "x", "c": "y"}, **options)
        it.next_rounds()
        it.feed(Measurement(tuple(group), value) for group, value in fed)
        it.next_rounds()
        it._steps = 2
        it.feed(Measurement(tuple(group), value) for group, value in later)
        return {kind.value: round(bound.value, 2) for kind, bound in it.bounds().items()}

    assert bounds(("ac", 100.0), ("bc", 100.0)) == {"across": 88.0, "within": 88.0}
    assert bounds(("ab", 100.0)) == {}
    # a later batch looks where something is slow: its values count only where the first gave one or none
    assert bounds(("a", 100.0), later=(("b", 100.0),)) == {"alone": 88.0}
    assert bounds(("a", 100.0), ("b", 100.0), later=(("a", 110.0),) * 5) == {"alone": 88.0}
    assert bounds(expected={"within": 5.0}) == {"within": 5.0, "across": 5.0}
    assert bounds(expected={"across": 5.0}) == {"across": 5.0, "within": 5.0}
    assert bounds(expected={"alone": 5.0}) == {"alone": 5.0}
    assert bounds(("a", 100.0), ("b", 100.0), min_distance=0.3) == {"alone": 70.0}
    assert bounds(("a", 90.0), ("b", 110.0), sigmas=1.0) == {"alone": 85.17}


def test_kinds_and_judgements() -> None:
    it = Localiser(("a", "b", "c"), leaves={"a": "x", "b": "x", "q": "z"}, gpus_per_node=2)
    assert it.leaves == {"a": "x", "b": "x"}
    assert {group: it.kind_of(group) for group in (("a",), ("a", "b"), ("a", "c"), ("a:0", "b:0"), ("a:0", "a:1"))} == {
        ("a",): GroupKind.ALONE, ("a", "b"): GroupKind.WITHIN, ("a", "c"): GroupKind.ACROSS, ("a:0", "b:0"): GroupKind.RAIL,
        ("a:0", "a:1"): GroupKind.LOCAL,
    }  # fmt: skip
    bounds = {GroupKind.ALONE: Bound(10.0, "expected")}
    judged = [
        (Measurement(("a",), 10.0), Status.GOOD), (Measurement(("a",), 9.99), Status.SLOW),
        (Measurement(("a",)), Status.FAILED), (Measurement(("a",), 20.0, "hung"), Status.FAILED),
        (Measurement(("a",), 20.0, "gone", skipped=True), Status.SKIPPED),
        (Measurement(("a", "b"), 20.0), Status.UNJUDGED),
    ]  # fmt: skip
    assert [it.judge(one, bounds) for one, _ in judged] == [status for _, status in judged]
    assert [kind.value for kind in GroupKind] == ["alone", "within", "across", "rail", "local"]
    assert [status.value for status in Status] == ["good", "slow", "failed", "skipped", "unjudged"]


def test_names_must_be_there_once_each_and_known() -> None:
    for nodes in ((), ("a", "a")):
        with pytest.raises(ValueError, match=r"^a localisation needs node names, each once$"):
            Localiser(nodes)
    with pytest.raises(ValueError, match=r"^measured, but not under test: x y$"):
        Localiser(("a",)).feed([Measurement(("y:0", "a:0", "x:1"), 1.0)])


def test_what_is_found_is_clean_only_where_nothing_is_named() -> None:
    assert Localisation() == Localisation((), (), (), {}, {}, (), (), 0, 0, 0)
    assert Localisation().clean
    for found in (
        Localisation(("a",)), Localisation((), (("a", "b"),)), Localisation((), (), ("x",)),
        Localisation(unresolved=(Unresolved(("a",), "why"),)),
    ):  # fmt: skip
        assert not found.clean


@pytest.mark.parametrize(
    ("slow", "fine", "mostly"), [(3, 1, True), (2, 1, False), (5, 2, False), (30, 10, True)]
)
def test_three_quarters_are_mostly_slow(slow: int, fine: int, *, mostly: bool) -> None:
    assert inference._mostly_slow(Counter({True: slow, False: fine})) is mostly


def test_the_leaf_with_the_largest_slow_share_is_the_worst() -> None:
    # x: 3 of 4 slow, y: 2 of 2 slow, z: fine elsewhere
    crossing = [
        (("x", "z"), True), (("x", "z"), True), (("x", "w"), True), (("x", "w"), False), (("y", "z"), True),
        (("y", "w"), True), (("z", "w"), False), (("z", "w"), False), (("z", "w"), False), (("z", "w"), False),
    ]  # fmt: skip
    assert inference._worst_leaf(crossing) == ("y", "2 of 2 pairs across it are slow, pairs within are fine")
    assert inference._worst_leaf([it for it in crossing if "y" not in it[0]]) == (
        "x",
        "3 of 4 pairs across it are slow, pairs within are fine",
    )


@pytest.mark.parametrize(
    ("slow", "fine", "mostly"), [(2, 0, True), (1, 0, False), (0, 2, False), (2, 98, False)]
)
def test_a_leaf_that_is_mostly_slow(slow: int, fine: int, *, mostly: bool) -> None:
    assert inference._mostly_slow(Counter({True: slow, False: fine})) is mostly


def test_the_worst_leaf_is_slow_with_those_that_are_fine_elsewhere() -> None:
    slow = [(("x", "y"), True), (("x", "z"), True)]
    assert inference._worst_leaf([*slow, (("y", "z"), False)]) == (
        "x",
        "2 of 2 pairs across it are slow, pairs within are fine",
    )
    assert inference._worst_leaf(slow) is None  # nobody that it met is known to be fine
    assert inference._worst_leaf([*slow, (("v", "w"), False)]) is None
    assert inference._worst_leaf([]) is None
    assert inference._tally(slow) == {
        "x": Counter({True: 2}),
        "y": Counter({True: 1}),
        "z": Counter({True: 1}),
    }


def test_pairs_are_placed_in_few_rounds() -> None:
    pairs = [("a", "b"), ("c", "d"), ("a", "c"), ("b", "d"), ("a", "d"), ("a", "e"), ("a", "f")]
    assert localise._place(pairs) == (
        (("a", "b"), ("c", "d")),
        (("a", "c"), ("b", "d")),
        (("a", "d"),),
        (("a", "e"),),
    )
    assert localise._place([]) == ()
    assert inference._link(("a", "b")) == "link a-b"


def test_a_clean_fleet_ends_and_its_evidence_is_told() -> None:
    it = Localiser(("a", "b", "c", "d"), gpus_per_node=2, expected={"alone": 5.0, "within": 10.0})
    batch = it.next_rounds()
    it.feed(Measurement(group, 20.0) for groups in batch for group in groups)
    assert it.next_rounds() == ()
    found = it.verdict()
    assert found.clean
    assert (found.rounds, found.part_rounds, found.steps) == (3, 0, 1)


def test_lines_of_evidence() -> None:
    it = Localiser(("a", "b", "c"), expected={"within": 10.0})
    it.next_rounds()
    it.feed([
        Measurement(("a",), None, "hung"), Measurement(("b",), None), Measurement(("a", "b"), 5.0),
        Measurement(("a", "c"), None, skipped=True), Measurement(("b", "c"), None, "lost", skipped=True),
    ])  # fmt: skip
    whole = inference.Inference(it)
    lines = [whole._line(one, it.judge(one, it.bounds())) for one in it.measurements]
    assert lines == [
        "a alone: hung",
        "b alone: no bandwidth",
        "a with b: 5 GB/s, at least 10 GB/s (expected): slow",
        "a with c: not measured, skipped",
        "b with c: not measured, lost",
    ]
    (alone,) = [Measurement(("c",), 7.0)]
    assert whole._line(alone, it.judge(alone, it.bounds())) == "c alone: 7 GB/s, no bound: unjudged"


@pytest.mark.parametrize(
    ("results", "again", "why"),
    [
        ([5.0], True, None), ([20.0], False, None), ([], False, None), ([5.0, 20.0], False, None),
        ([5.0, 20.0, 20.0], False, None), ([5.0, 5.0, 20.0], False, "slow alone, measured twice"),
        ([5.0, 5.0], False, "slow alone, measured twice"), ([5.0, 20.0, 5.0, 20.0], False, None),
        ([5.0, None], True, None), ([5.0, 5.0, None, None], False, "slow alone, measured twice"),
        ([20.0, "hung", "crashed"], False, "failed alone: hung"), ([None], False, None),
    ],
)  # fmt: skip
def test_what_a_node_measures_alone(
    results: list[float | str | None], *, again: bool, why: str | None
) -> None:
    it = Localiser(("a", "b"), expected={"alone": 10.0})
    it.feed(
        Measurement(("a",), None, one)
        if isinstance(one, str)
        else Measurement(("a",), one, skipped=one is None)
        for one in results
    )
    found = inference.Inference(it)
    assert found.slow_alone_once == ({"a"} if again else set())
    assert found.why == ({"a": why} if why else {})


def pairs_of(leaves: str, fed: str, **options: Any) -> inference.Inference:
    """Read pairs such as 'ab+ cd-' (fine and slow) of nodes a, b, c and so on."""
    nodes = "abcdefgh"[: len(leaves)]
    known = {node: leaf for node, leaf in zip(nodes, leaves, strict=True) if leaf != "-"}
    it = Localiser(tuple(nodes), leaves=known, expected={"within": 10.0, "across": 10.0}, **options)
    it.feed(Measurement(tuple(one[:2]), 20.0 if one[2] == "+" else 5.0) for one in fed.split())
    return inference.Inference(it)


def test_a_link_is_bad_only_where_it_is_never_fine() -> None:
    fine = "ac+ bd+"
    assert pairs_of("xxxx", f"ab- ab- {fine}").bad_links == [("a", "b")]
    assert pairs_of("xxxx", f"ab- {fine}").bad_links == []
    found = pairs_of("xxxx", f"ab- ab- ab+ {fine}")
    assert found.bad_links == []
    assert [*found.evidence()] == ["link a-b: bad 2 time(s), fine 1: a passing disturbance"]
    assert [*pairs_of("xxxx", f"ab+ ab+ {fine}").evidence()] == []


def test_a_pair_across_that_is_as_often_fine_as_slow_accuses_no_leaf() -> None:
    within = "ab+ cd+ ef+"
    assert pairs_of("xxyyzz", f"{within} ac- bd- ce+ df+ ae+").maybe_leaves == []
    assert pairs_of("xxyyzz", f"{within} ac- bd- ce+ ae+").maybe_leaves == []
    assert pairs_of("xxyyzz", f"{within} ac- bd- ae- bf- ce+ df+").bad_leaves == ["x"]
    assert pairs_of("xxyyzz", f"{within} ac- ac+ bd- bd+ ae- bf- ce+ df+").bad_leaves == []
    assert pairs_of("xxyyzz", f"{within} ac- ac- ac+ bd- ae- bf- ce+ df+").bad_leaves == ["x"]
    # nodes of unknown leaf say nothing of leaves
    assert pairs_of("x--y", "bc+ ab- cd-").bad_leaves == []


def test_leaves_that_slow_and_unknown_leaves_share_stay_open() -> None:
    found = pairs_of("x--y", "bc+ ab- cd-")
    assert found.closed_leaves == {"x", "y"}
    assert pairs_of("xxyy", "ab+ cd+ ac- bd+").closed_leaves == set()


def test_values_with_a_problem_set_no_bound() -> None:
    it = Localiser(("a", "b", "c"))
    it.feed([
        Measurement(("a",), 100.0), Measurement(("b",), 100.0), Measurement(("c",), 500.0, "wrong data"),
        Measurement(("c",), 500.0, "wrong data"), Measurement(("c",)),
    ])  # fmt: skip
    assert it.bounds() == {GroupKind.ALONE: Bound(88.0, "fleet median 100 less 12%")}


def test_a_spine_at_three_quarters_of_the_leaves_is_no_slow_spine() -> None:
    def spine(across: float, **options: Any) -> str:
        it = Localiser(("a", "b", "c", "d"), leaves={"a": "x", "b": "x", "c": "y", "d": "y"}, **options)
        it.feed([Measurement(("a", "b"), 100.0), Measurement(("c", "d"), 100.0)])
        it.feed([Measurement(("a", "c"), across), Measurement(("b", "d"), across)])
        return inference.Inference(it).slow_spine

    assert spine(75.0) == ""
    assert spine(74.0).startswith(
        "no bound of pairs across leaves, which are equally slow (fleet median 74 less 12%; within a leaf "
    )
    assert spine(20.0, expected={"across": 10.0}) == ""
