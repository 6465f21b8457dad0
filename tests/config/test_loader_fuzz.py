"""Whatever a cluster file or an inventory holds: a cluster, or a ConfigError of one line with the file's name."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from fuzz_readers import deadline
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.ansible import Inventory, read_inventory
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = int(os.environ.get("GPUCLUSTER_FUZZ_EXAMPLES", "20"))
CAMPAIGN = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="GPUCLUSTER_FUZZ_EXAMPLES" not in os.environ,
)
GOOD = """\
name: lab
nodes: gpu[01-04]
profile: dgx-h100
sudo: true
slurm: {partition: batch, time: 01:30:00}
environments:
  pytorch: {container_image: /images/pytorch.sqsh, container_mounts: ['/data:/data:ro'], exports: {NCCL_DEBUG: INFO}}
not_applicable: {os.lsm: none here}
settings: {answer: 42}
"""
INVENTORY = "[slurm-node]\ngpu[01:04] ansible_host=10.0.0.1\n[slurm-node:vars]\nansible_user=root\n[all:children]\nslurm-node\n"
# beside those of test_models.py
HOSTILE: dict[str, bytes] = {
    "cyclic merge": b"nodes: gpu01\nslurm: &s {<<: *s}\n",
    "deep flow mapping": b"nodes: " + b"{a: " * 5_000,
    "deep block": b"".join(b" " * n + b"a:\n" for n in range(300)),
    "NUL": b"nodes: gpu\x0001\n",
    "UTF-16": "nodes: gpu01\n".encode("utf-16"),
    "huge number": b"nodes: gpu01\nslurm: {time: %s}\n" % (b"9" * 5000),
    "huge range": b"nodes: gpu[1-%s]\n" % (b"9" * 5000),
    "node with a command": b"nodes: 'gpu01;$(touch x)'\n",
    "directive": b"%YAML 9.9\n---\nnodes: gpu01\n",
}
HOSTILE_INVENTORIES: dict[str, bytes] = {
    "product of ranges": b"[g]\na[1:60000]b[1:60000]c[1:60000]\n",
    "huge number": b"[g]\ngpu[1:%s]\n" % (b"9" * 9),
    "empty word": b"[g]\n''\n",
    "NUL": b"[g]\ngpu\x0001\n",
    "cyclic children": b"[a:children]\nb\n[b:children]\na\n[b]\ngpu01\n",
    "binary": bytes(range(256)) * 20,
}


def load(path: Path, raw: bytes) -> object:
    path.write_bytes(raw)
    with deadline():
        try:
            return read_inventory(path) if path.suffix == ".ini" else load_cluster(path)
        except ConfigError as error:
            text = str(error)
            assert "\n" not in text
            assert text.isprintable(), ascii(text)
            assert len(text) < 1500
            return text


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_the_good_file_is_read_whatever_its_line_ends(tmp_path: Path, newline: str, bom: str) -> None:
    read = load(tmp_path / "lab.yaml", (bom + GOOD.replace("\n", newline)).encode())
    assert not isinstance(read, str), read


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line_with_its_name(tmp_path: Path, kind: str) -> None:
    printed = load(tmp_path / "lab.yaml", HOSTILE[kind])
    assert isinstance(printed, str), "it was accepted"
    assert str(tmp_path / "lab.yaml") in printed


@pytest.mark.parametrize("kind", HOSTILE_INVENTORIES)
def test_a_hostile_inventory_is_read_or_one_line_with_its_place(tmp_path: Path, kind: str) -> None:
    printed = load(tmp_path / "lab.ini", HOSTILE_INVENTORIES[kind])
    readable = kind in ("empty word", "NUL", "cyclic children")  # what their names are worth is judged later
    assert isinstance(printed, Inventory if readable else str), printed
    assert readable or str(printed).startswith(f"{tmp_path / 'lab.ini'}:2: ")


WORDS = "&a *a { } [ ] ' \" % .nan ~ gpu[01- # é null [1:99999]"
PIECES = [
    *("<<: *a", "!!int ", ": ", "- ", "? ", "|\n", ">\n", "---\n", "\t", "\0", "\r", "\ufeff", "\u2028"),
    *("9" * 400, "\n  ", "\x1b[0m", *WORDS.split()),
]


@st.composite
def damaged(draw: st.DrawFn, text: str) -> bytes:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 30)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.text(max_size=5)) + text[end:]
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(("name", "good"), [("lab.yaml", GOOD), ("lab.ini", INVENTORY)])
def test_a_damaged_file_is_read_or_one_line(tmp_path: Path, name: str, good: str) -> None:
    @CAMPAIGN
    @given(damaged(good) | st.binary(max_size=200))
    def check(raw: bytes) -> None:
        load(tmp_path / name, raw)

    check()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    set(re.findall(r"\b([a-z_]+):", GOOD)) | {"groups", "required", "nccl", "burnin", "transport", "ssh"}
)


def test_values_of_any_type_are_read_or_one_line(tmp_path: Path) -> None:
    @CAMPAIGN
    @given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
    def check(plain: dict[str, object]) -> None:
        load(tmp_path / "lab.yaml", json.dumps({"nodes": "gpu01", **plain}).encode())

    check()
