"""`factors` of a cluster file: which value each node has, from hostlists or from a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpucluster.config.models import FACTOR_FILE
from pytest_gpucluster.config.validation_errors import nearest
from pytest_gpucluster.config.yaml_loader import clip
from pytest_gpucluster.core import hostlist
from pytest_gpucluster.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_gpucluster.config.yaml_loader import Loc, Source

MAX_BYTES = 2**24
NODE = "node"  # the column with the names


def read_factors(
    source: Source, factors: Mapping[str, Mapping[str, str]], known: Collection[str], errors: list[ConfigError]
) -> dict[str, dict[str, str]]:
    """Return {factor: {node: value}} of the nodes of a cluster; what is wrong is added to `errors`, one line each.

    A node without a value is left out. Nodes of a CSV file that the cluster does not have are ignored: an inventory lists more.
    """
    tables: dict[Path, list[dict[str, str]]] = {}
    found: dict[str, dict[str, str]] = {}
    for name, stated in factors.items():
        try:
            if FACTOR_FILE in stated:
                path = Path(source.label).parent / Path(stated[FACTOR_FILE]).expanduser()
                if path not in tables:
                    tables[path] = _rows(path)
                column = _column(tables[path], name)
                found[name] = {node: value for node, value in column.items() if node in known}
            else:
                found[name] = _of_hostlists(source, ("factors", name), stated, known)
        except ConfigError as error:
            errors.append(error)
        except OSError as error:
            why = f"{clip(stated[FACTOR_FILE], 200)}: cannot be read ({error.strerror})"
            errors.append(source.error(("factors", name), why))
        except (ValueError, csv.Error) as error:
            errors.append(source.error(("factors", name), clip(error, 300)))
    return found


def _of_hostlists(source: Source, at: Loc, stated: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for nodes, value in stated.items():
        try:
            names = hostlist.expand(nodes)
        except ValueError as error:
            raise source.error((*at, nodes), str(error)) from None
        if unknown := [node for node in names if node not in known]:
            raise source.error((*at, nodes), f"the cluster has no node {hostlist.fold(unknown)}")
        if twice := [node for node in names if node in found]:
            raise source.error((*at, nodes), f"{twice[0]} has the value '{clip(found[twice[0]])}' already")
        found |= dict.fromkeys(names, value)
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, each with its columns; ConfigError with file and line for one that is none."""
    with path.open("rb") as file:
        octets = file.read(MAX_BYTES + 1)
    if len(octets) > MAX_BYTES:
        raise ConfigError(f"{path}: exceeds the limit of {MAX_BYTES >> 20} MiB")
    try:
        text = octets.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8; save the file in this encoding") from None
    reader = csv.reader(text.splitlines())
    header = [column.strip() for column in next(reader, [])]
    if NODE not in header:
        raise ConfigError(f"{path}:1: no column '{NODE}'; it has: {clip(', '.join(header), 200) or 'none'}")
    if len({*header}) < len(header):
        raise ConfigError(f"{path}:1: two columns have the same name")
    rows, seen = [], dict[str, int]()
    for cells in filter(None, reader):
        at = f"{path}:{reader.line_num}"
        if len(cells) != len(header):
            raise ConfigError(f"{at}: {len(cells)} cells, but the first line names {len(header)} columns")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        if not hostlist.is_name(row[NODE]):
            raise ConfigError(f"{at}: {NODE}: '{clip(row[NODE])}' is no node name")
        if seen.setdefault(row[NODE], reader.line_num) != reader.line_num:
            raise ConfigError(f"{at}: {NODE}: {row[NODE]} is in line {seen[row[NODE]]} already")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: no line below the first names a node")
    return rows


def _column(rows: list[dict[str, str]], name: str) -> dict[str, str]:
    """Return {node: value} of one column, without empty cells; ValueError where there is none."""
    columns = [column for column in rows[0] if column != NODE]
    if name not in columns:
        raise ValueError(
            f"the CSV file has no column of this name{nearest(name, columns) or '; it has: ' + ', '.join(columns)}"
        )
    return {row[NODE]: row[name] for row in rows if row[name]}
