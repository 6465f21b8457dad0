"""Reads what perftest prints, in the forms of its versions 4.4 to 26.04: a table, and with --out_json a report.

Formats: print_report_bw, print_report_lat and write_test_info_to_file in perftest_parameters.c. The report is JSON since 24.01;
before that its keys have no quotes (perftest issue 216). Its bandwidth is in Gb/s, since the payload passes --report_gbits; the table
states its unit, where MB/sec means MiB/s too. Python 3.6.
"""

import re
from typing import Dict, List

_GB = {"Gb": 1 / 8.0, "MB": 2**20 / 1e9, "MiB": 2**20 / 1e9}  # GB/s of one unit
_NUMBER = re.compile(r"\d+(?:\.\d+)?$")
_REPORT = re.compile(r'"?(BW_average|t_typical|percentile_99)"?\s*:\s*(\d+(?:\.\d+)?)\b')
_HEADER = re.compile(r"#bytes|#iterations|BW \w+\[(?:Gb|MB|MiB)/sec\]|MsgRate\[Mpps\]|[\w.]+%? ?\w*\[usec\]")
_NAMES = {
    "BW_average": "bandwidth",
    "BW average": "bandwidth",
    "t_typical": "latency",
    "percentile_99": "tail",
    "99% percentile": "tail",
}
# lines on stderr after which a test continues
_HARMLESS = re.compile(r"(?i)inline|warning|falling back|conflicting cpu frequency|requested ")
# rdma-core: "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes." with an indented line, "mlx5: NODE: got completion with error:" with a dump
_LIBRARY = re.compile(r"(?:lib\w+|mlx\d): |got completion with error| {4}|[0-9a-f]{8} [0-9a-f]{8} ")


def read_perftest(text: str) -> Dict[str, float]:
    """Return `bandwidth` in GB/s, or `latency` (typical) and `tail` (99th percentile) in microseconds; {} without a result."""
    found: Dict[str, float] = {}
    columns: List[str] = []
    for line in text.splitlines():
        if "#bytes" in line:
            columns = _HEADER.findall(line)
        elif columns and re.match(r"\s*\d+\s+\d+\s", line):
            for column, word in zip(columns, line.split()):
                name, _, unit = column.partition("[")
                if name in _NAMES and _NUMBER.match(word):
                    found[_NAMES[name]] = float(word) * _GB.get(unit.partition("/")[0], 1.0)
    for name, word in _REPORT.findall(text):
        found[_NAMES[name]] = float(word) * (_GB["Gb"] if name == "BW_average" else 1.0)
    return found


def error_of(text: str) -> str:
    """Return the first line of stderr that is perftest's own and no warning, since it prints the cause first; '' for none.

    A completion with an error has its status in the next line: 12 is "transport retry counter exceeded".
    """
    own = [line.strip() for line in text.splitlines() if not _LIBRARY.match(line)]
    lines = [line for line in own if line and not _HARMLESS.search(line)]
    return " ".join(lines[: 2 if lines and lines[0].startswith("Completion with error") else 1])[:200]
