"""`factors` of a cluster file: hostlists, CSV files, and what is wrong in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

CSV = "node,power feed,rack\ngpu01,P1,A07\ngpu02,P2,\nlogin1,P1,A01\n"
HEAD = "nodes: gpu[01-04]\nprofile: generic\n"


def test_hostlists_a_csv_file_places_and_units_are_factors(tmp_path: Path) -> None:
    (tmp_path / "site.csv").write_text(CSV)
    path = tmp_path / "prod.yaml"
    shared = "location: {'gpu[01-02]': 'rack {n}'}\nunits: {SU1: 'gpu[01-04]'}\n"
    stated = "factors:\n  loop: {'gpu[01-03]': B, gpu04: C}\n  power feed: site.csv\n  rack: site.csv\n"
    path.write_text(HEAD + shared + stated)
    assert load_cluster(path).stated_factors(["gpu01", "gpu02", "gpu03", "gpu04"]) == {
        "location": {"rack {n}": "gpu[01-02]"},
        "unit": {"SU1": "gpu[01-04]"},
        "loop": {"B": "gpu[01-03]", "C": "gpu04"},
        "power feed": {"P1": "gpu01", "P2": "gpu02"},
        "rack": {"A07": "gpu01"},
    }


@pytest.mark.parametrize(
    ("text", "csv", "message"),
    [
        ("  row: {'gpu[01-09]': x}", CSV, "prod.yaml:4: factors.row.gpu[01-09]: the cluster has no node gpu[05-09]"),
        ("  row: {gpu01: x, 'gpu[01-02]': y}", CSV, "prod.yaml:4: factors.row.gpu[01-02]: gpu01 has the value 'x' already"),
        ("  row: {'gpu[01': x}", CSV, "prod.yaml:4: factors.row.gpu[01: not a hostlist"),
        ("  row: [x]", CSV, "prod.yaml:4: factors.row: must be a mapping, not a list"),
        ("  rck: site.csv", CSV, "prod.yaml:4: factors.rck: the CSV file has no column of this name; did you mean 'rack'?"),
        ("  row: none.csv", CSV, "prod.yaml:4: factors.row: none.csv: cannot be read (No such file or directory)"),
        ("  row: site.csv", "name,row\n", "site.csv:1: no column 'node'; it has: name, row"),
        ("  row: site.csv", "node,row\ngpu01,x\ngpu02\n", "site.csv:3: 1 cells, but the first line names 2 columns"),
        ("  row: site.csv", "node,row\ngpu01,x\ngpu01,y\n", "site.csv:3: node: gpu01 is in line 2 already"),
        ("  row: site.csv", "node,row\n-x,y\n", "site.csv:2: node: '-x' is no node name"),
        ("  row: site.csv", "node,row\ngpu01,\xff\n", "site.csv: is not UTF-8"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, csv: str, message: str) -> None:
    path = tmp_path / "prod.yaml"
    path.write_text(f"{HEAD}factors:\n{text}\n")
    (tmp_path / "site.csv").write_bytes(csv.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_cluster(path)
    assert message in str(caught.value)
