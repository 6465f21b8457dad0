"""Runs perftest between pairs of nodes, one rail after the other; one task per node. Python 3.6.

payload.py find         report the version of perftest, and which tools are absent
payload.py run < PLAN   go through the slots of a plan of kit/payloads/perftest.py, which also has
"slots": [[[RAIL, ...], [TEST, ...], [[NODE, NODE], ...]], ...]
"""

import json
import sys

from pytest_gpucluster.kit.payloads.perftest import PerftestNode, absent_tools, printed_by
from pytest_gpucluster.kit.payloads.prelude import error_text, reporter

report = reporter("rdma")


def find() -> int:
    """Report the version of perftest, '' if a tool is absent."""
    absent = absent_tools()
    version = "" if absent else printed_by("ib_write_bw", "--version").partition("Version:")[2].strip()
    report("found", version=version, absent=absent)
    return 0


def run() -> int:
    """Go through the slots of the plan; a slot without a partner is a result too."""
    plan = json.load(sys.stdin)
    node = PerftestNode(plan, report)
    for number, (rails, tests, pairs) in enumerate(plan["slots"]):
        pair = next((pair for pair in pairs if node.name in pair), None)
        if pair is None:
            continue
        try:
            node.slot(number, rails, tests, pair)
        except (OSError, EOFError, ValueError) as error:
            other = pair[1 - pair.index(node.name)]
            report("lost", slot=number, pair=list(pair), problem="%s: %s" % (other, error_text(error)))
    return 0


if __name__ == "__main__":
    sys.exit(find() if sys.argv[1:] == ["find"] else run())
