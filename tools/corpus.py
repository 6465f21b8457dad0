"""Judge the corpus of real-world output: python tools/corpus.py [NAME ...]; prints sensitivity and specificity.

`python tools/corpus.py decisions` judges the decisions of tests/corpus/decisions alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "slurm-sandbox/tests"), str(ROOT)]

import corpus_decisions  # found by the path above
from corpus_cases import all_cases, wrong


def main() -> int:
    """Print each wrong verdict, the cases of each area, and the two figures; 1 where a verdict is wrong."""
    names = sys.argv[1:]
    if names == ["decisions"]:
        return _decisions()
    cases = [case for case in all_cases() if not names or any(name in case.name for name in names)]
    failed, areas = set(), Counter()
    for case in cases:
        areas[case.name.partition("/")[0], "sick" if case.sick else "healthy"] += 1
        with tempfile.TemporaryDirectory() as folder:
            for line in wrong(case, Path(folder)):
                failed.add(case.name)
                print(f"WRONG {line}")
    for area in sorted({area for area, _ in areas}):
        print(f"{area:16} {areas[area, 'healthy']:4} healthy {areas[area, 'sick']:4} sick")
    sick = [case for case in cases if case.sick]
    healthy = [case for case in cases if not case.sick]
    found = sum(case.name not in failed for case in sick)
    passed = sum(case.name not in failed for case in healthy)
    print(f"{len(cases)} cases, {len(failed)} wrong")
    print(f"sensitivity {found} of {len(sick)} sick machines judged as expected ({_share(found, len(sick))})")
    print(f"specificity {passed} of {len(healthy)} healthy machines pass ({_share(passed, len(healthy))})")
    disagreed = not names and _decisions()
    return bool(failed) or disagreed


def _decisions() -> bool:
    """Print each decision that the checks do not share, and the figure; return whether there is one."""
    total, found = corpus_decisions.differences()
    for line in found:
        print(f"WRONG {line}")
    shared = total - len(found)
    print(f"decisions   {shared} of {total} shared by the checks ({_share(shared, total)})")
    return bool(found)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


if __name__ == "__main__":
    sys.exit(main())
