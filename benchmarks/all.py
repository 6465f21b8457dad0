"""All benchmarks one after another: the smallest sizes, or with --full all of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
QUICK: tuple[tuple[str, ...], ...] = (
    ("rivals.py", "4"),
    ("suites_cost.py", "4", "--repeats", "1", "--collect", "1000"),
    ("fleet_channel.py", "--nodes", "4", "--repeats", "1"),
    ("controller.py", "100"),
    ("ssh_cost.py", "2", "--repeats", "1"),
    ("localisation.py", "100"),
    ("acceptance.py",),
    ("intermittent.py", "node", "64", "5"),
    ("intermittent_history.py", "30", "100"),
    ("report_scale.py", "--nodes", "100"),
    ("import_cost.py",),
    ("gate.py",),
    ("processes.py",),
    ("shared_causes.py", "1"),
)
FULL: tuple[tuple[str, ...], ...] = (
    ("rivals.py", "4", "16", "64", "256", "--repeats", "3"),
    ("rivals.py", "4", "16", "64", "256", "--repeats", "3", "--free"),
    ("suites_cost.py", "4", "16", "64", "256"),
    ("fleet_channel.py",),
    ("controller.py", "1000", "10000", "--floor"),
    ("ssh_cost.py",),
    ("localisation.py",),
    ("acceptance.py",),
    ("intermittent.py",),
    ("intermittent_history.py",),
    ("report_scale.py",),
    ("import_cost.py",),
    ("gate.py",),
    ("processes.py",),
    ("shared_causes.py", "50"),
)


def main() -> int:
    """Run them; a benchmark that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("only", nargs="*", metavar="SCRIPT", help="default: all")
    chosen, failed = parser.parse_args(), []
    for script, *options in FULL if chosen.full else QUICK:
        if chosen.only and script not in chosen.only:
            continue
        print(f"== {script} {' '.join(options)}", flush=True)
        if subprocess.run([sys.executable, str(HERE / script), *options], check=False).returncode:
            failed.append(script)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
