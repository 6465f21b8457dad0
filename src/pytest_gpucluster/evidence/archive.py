"""The archive of a case: its record and the files that were read, and names of hosts and users replaced on request."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.safe_json import as_dict
from pytest_gpucluster.evidence.case_file import text_of
from pytest_gpucluster.evidence.tools import file_name
from pytest_gpucluster.report.run_model import EVIDENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pytest_gpucluster.report.run_model import Run

MOST = 64 << 20  # bytes of a file that is read, unpacked


class Member(NamedTuple):
    """A file of an archive."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        """The sum of its bytes."""
        return hashlib.sha256(self.data).hexdigest()


def members(record: dict[str, Any], root: Path, change: Callable[[str], str]) -> list[Member]:
    """Return the files of a case. `root`: the folder of the run; `change`: what replaces names in every text.

    GpuClusterError where a file is missing, or is not as the run has written it.
    """
    found = []
    for entry in record["files"]:
        name = str(entry.get("name", ""))
        data = _content(root, f"{record['folder']}/{name}")
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            raise GpuClusterError(
                f"{root / record['folder'] / name}: the file is not as the run has written it (sha256)"
            )
        found.append(Member(file_name(change(name)), _changed(name, data, change)))
    found += [
        Member(file_name(log.rpartition("/")[2]), _changed(log, _content(root, log), change)) for log in record["steps"]
    ]
    by_name = {it.name: it for it in found}
    shown = json.loads(change(json.dumps(record)))
    for entry in shown["files"]:  # of what the archive holds
        member = by_name[file_name(str(entry.get("name")))]
        entry |= {"bytes": len(member.data), "sha256": member.sha256}
    own = [Member("case.txt", text_of(shown).encode()), Member("case.json", json.dumps(shown, indent=1).encode())]
    whole = [*own, *found]
    listed = "".join(f"{it.sha256}  {it.name}\n" for it in whole)
    return [*whole, Member("SHA256SUMS", listed.encode())]


def packed(found: Iterable[Member], folder: str) -> bytes:
    """Return a tar.gz of these files in a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member in found:
            info = tarfile.TarInfo(f"{folder}/{member.name}")
            info.size = len(member.data)
            archive.addfile(info, io.BytesIO(member.data))
    return buffer.getvalue()


def anonymous(run: Run) -> Callable[[str], str]:
    """Return what replaces the names of nodes, of the host and user of the run, and of the cluster; addresses stay."""
    names = {node: f"node{number:03}" for number, node in enumerate(sorted({*run.selected, *run.evidence}), 1)}
    start: Mapping[str, Any] = as_dict(run.start)
    for key in ("host", "cluster", "user"):
        name = str(start.get(key) or "")
        if name and name not in ("root", "local"):
            names.setdefault(name, key)
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    # a name, and its domain if it has one
    pattern = re.compile(rf"(?<![\w-])({'|'.join(longest)})(?:(?:\.[a-z][a-z0-9-]*)+)?(?![\w-])", re.IGNORECASE)
    lower = {name.lower(): shown for name, shown in names.items()}
    return lambda text: pattern.sub(lambda match: lower[match[1].lower()], text) if names else text


def _changed(name: str, data: bytes, change: Callable[[str], str]) -> bytes:
    is_packed = name.endswith(".gz")
    text = (_unpacked(data) if is_packed else data).decode(errors="replace")
    changed = change(text).encode(errors="replace")
    if changed == text.encode(errors="replace"):
        return data
    return gzip.compress(changed, mtime=0) if is_packed else changed


def _unpacked(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        return file.read(MOST)


def _content(root: Path, name: str) -> bytes:
    path = root / name
    try:
        if path.resolve().parent.parent not in (root.resolve(), (root / EVIDENCE).resolve()):
            raise GpuClusterError(f"{path}: is not a file of this run")
        return path.read_bytes()
    except OSError as error:
        raise GpuClusterError(f"{path}: {error.strerror or error}") from error
