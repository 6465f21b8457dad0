"""What the plugin costs a pytest that does not ask for it: milliseconds, and the ratio to a bare `import pytest`.

    python benchmarks/import_cost.py [--repeats 15]

Every figure is the median of processes of their own, taken in turns. Exits 1 where the plugin costs 20 ms or more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from stamp import stamp

LIMIT = 20.0  # milliseconds
# -X importtime would count every module; a process measures itself, without the start of the interpreter
BARE = "import time; t = time.perf_counter(); import pytest; print((time.perf_counter() - t) * 1000)"
PLUGIN = (
    "import time, pytest; t = time.perf_counter(); import pytest_gpucluster.plugin; "
    "print((time.perf_counter() - t) * 1000)"
)


def milliseconds(code: str) -> float:
    """Run a program that prints how long it took."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    pairs = [(milliseconds(BARE), milliseconds(PLUGIN)) for _ in range(repeats + 1)][1:]  # the first warms caches
    bare, plugin = (statistics.median(values) for values in zip(*pairs, strict=True))
    print(f"import pytest                    {bare:8.2f} ms")
    print(f"import pytest_gpucluster.plugin  {plugin:8.2f} ms  {plugin / bare:.1%} of it (limit {LIMIT:g} ms)")
    print(stamp())
    return int(plugin >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
