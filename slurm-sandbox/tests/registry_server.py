"""A real registry on loopback, Debian's docker-registry, with images that are made here."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from sandbox_helpers import free_port

from slurm_sandbox.spank import image, registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


MANIFEST, LIST = registry.MANIFESTS[1], registry.LISTS[1]


def tar_of(
    root: Path | None = None, *, links: dict[str, str] | None = None, files: dict[str, str] | None = None
) -> bytes:
    """Return a layer: a folder's content, links, and files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        if root is not None:
            tar.add(root, ".")
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in (files or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(out.getvalue(), mtime=0)


class Served:
    """A registry that images can be pushed to."""

    def __init__(self, port: int) -> None:
        self.name = f"127.0.0.1:{port}"
        self._base = f"http://{self.name}/v2/"

    def up(self) -> bool:
        try:
            with urllib.request.urlopen(self._base, timeout=5):
                return True
        except OSError:
            return False

    def blob(self, name: str, content: bytes) -> dict[str, Any]:
        begin = urllib.request.Request(f"{self._base}{name}/blobs/uploads/", method="POST")
        with urllib.request.urlopen(begin, timeout=30) as answer:
            where = answer.headers["Location"]
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._put(f"{where}&digest={digest}", content, "application/octet-stream")
        return {"digest": digest, "size": len(content)}

    def push(self, name: str, tag: str, layers: list[bytes], **config: Any) -> None:
        """Push an image behind a list for two machines, as multi-platform images are."""
        about = self.blob(name, json.dumps({"config": config, "os": "linux"}).encode())
        stack = [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **self.blob(name, it)} for it in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **about},
            "layers": stack,
        }
        text = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
        self._put(f"{self._base}{name}/manifests/{digest}", text, MANIFEST)
        here = registry.MACHINES[platform.machine()]
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(text),
                "platform": {"os": "linux", "architecture": it},
            }
            for it in ("s390x", here)
        ]
        whole = json.dumps({"schemaVersion": 2, "mediaType": LIST, "manifests": entries}).encode()
        self._put(f"{self._base}{name}/manifests/{tag}", whole, LIST)

    def _put(self, url: str, content: bytes, kind: str) -> None:
        request = urllib.request.Request(url, data=content, method="PUT", headers={"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60):
            pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no registry here: apt-get install docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    port = free_port()
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    server = subprocess.Popen([program, "serve", str(folder / "config.yml")], stderr=subprocess.DEVNULL)
    try:
        made = Served(port)
        end = time.monotonic() + 30
        while not made.up() and time.monotonic() < end:
            time.sleep(0.05)
        root = folder / "root"
        image.fill(root)
        second = tar_of(links={"opt": "/srv"}, files={"srv/.wh.old": "", "opt/new": "2", "etc/gone": "x"})
        third = tar_of(files={"etc/.wh.gone": ""})
        made.push(
            "site/tools", "1", [tar_of(root, files={"srv/old": "1"}), second, third],
            Env=["PATH=/usr/bin:/bin", "SITE_IMAGE=yes"], WorkingDir="/srv", Entrypoint=["/usr/bin/env"],
        )  # fmt: skip
        yield made
    finally:
        server.terminate()
        server.wait(timeout=30)
