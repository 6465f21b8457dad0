"""Run each suite alone at every site of the first night; print its verdict there, and exit with 1 where it is wrong.

python tools/first_night.py [SITE ...]

Wrong is an accepted suite that has passed nothing, or a node that would be drained. `make nightly` plays the sites themselves.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "slurm-sandbox/tests")]

from first_night_helpers import Boxes, alone, home  # found by the path above
from first_night_sites import ALL
from user_helpers import readable_checkout


def main() -> int:
    """Run, print, and return the exit status."""
    boxes, wrong = Boxes(), 0
    sites = [ALL[name] for name in sys.argv[1:]] or sorted(ALL.values(), key=lambda site: site.box)
    with readable_checkout() as checkout:
        try:
            for site in sites:
                with home() as folder:
                    try:
                        found = alone(site, boxes.of(site, checkout), folder, checkout)
                    except AssertionError as error:
                        wrong += 1
                        print(f"{site}: WRONG: {error}", flush=True)
                        continue
                names = defaultdict(list)
                for suite, verdict in found.items():
                    names[verdict].append(suite)
                print(
                    f"{site}: " + "; ".join(f"{verdict} {', '.join(of)}" for verdict, of in names.items()),
                    flush=True,
                )
        finally:
            boxes.close()
    print(f"{len(sites)} sites, {wrong} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
