"""Images of a real registry on loopback: Debian's docker-registry, with images that are made here."""

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
import yaml
from paths import ROOT
from plugin_helpers import environment, free_port, run_pytest

from pytest_gpucluster.cluster.transport import LocalTransport
from pytest_gpucluster.sandbox.spank import image, registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.sandbox import Sandbox

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
        stack = [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", **self.blob(name, it)}
            for it in layers
        ]
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
        image.fill(root, LocalTransport())
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


def test_a_registry_s_image_runs_on_every_node(sandbox: Sandbox, served: Served) -> None:
    script = (
        "echo $SITE_IMAGE; pwd; ls /srv; cat /opt/new; [ ! -e /etc/gone ]; . /etc/os-release; echo; echo $ID"
    )
    done = subprocess.run(
        [
            "srun",
            "-Q",
            "-w",
            "gpu01,gpu02",
            f"--container-image=docker://{served.name}#site/tools:1",
            "sh",
            "-c",
            script,
        ],
        env=environment(**sandbox.env, ENROOT_ALLOW_HTTP="yes"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["yes", "/srv", "new", "2", image.ID] * 2)
    assert done.stderr.count("pyxis: imported docker image: docker://") == 2


def test_the_container_suite_imports_it_on_every_node(
    sandbox: Sandbox, served: Served, tmp_path: Path
) -> None:
    plain = yaml.safe_load(sandbox.cluster_file.read_text())
    plain["container"]["images"] = [f"{served.name}#site/tools:1", f"{served.name}#site/nosuch:1"]
    plain.setdefault("environments", {}).setdefault("default", {})["exports"] = {"ENROOT_ALLOW_HTTP": "yes"}
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(plain))
    suite = ROOT / "suites" / "container" / "test_container.py"
    run = run_pytest(tmp_path, f"--cluster={path}", "--nodes=gpu[01-02]", "-k", "import", where=[str(suite)])
    for node in ("gpu01", "gpu02"):
        event = next(it for it in run.events if it.get("check") == "container.import" and it["node"] == node)
        assert [found["part"] for found in event["verdicts"][0]["findings"]] == [
            f"{served.name}#site/nosuch:1"
        ], event["message"]
        assert "404" in event["message"]
        measured = {metric["device"] for metric in event["metrics"] if metric["name"] == "import_time"}
        assert f"{served.name}#site/tools:1" in measured


def test_an_image_that_the_registry_lacks_says_so(sandbox: Sandbox, served: Served) -> None:
    done = subprocess.run(
        ["srun", "-Q", "-w", "gpu01", f"--container-image={served.name}#site/nosuch", "true"],
        env=environment(**sandbox.env, ENROOT_ALLOW_HTTP="yes"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "site/nosuch/manifests/latest returned error code: 404" in done.stderr
    assert "failed to import docker image" in done.stderr


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("ubuntu", (registry.HUB, "library/ubuntu", "latest")),
        ("docker://ubuntu:24.04", (registry.HUB, "library/ubuntu", "24.04")),
        ("docker://$oauthtoken@nvcr.io#nvidia/pytorch:25.01-py3", ("nvcr.io", "nvidia/pytorch", "25.01-py3")),
        ("reg:5000#a/b", ("reg:5000", "a/b", "latest")),
        ("reg#a/b@sha256:00ff", ("reg", "a/b", "sha256:00ff")),
    ],
)
def test_names_of_images(uri: str, parts: tuple[str, str, str]) -> None:
    assert registry.split(uri) == parts


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(registry.PullError, match="Invalid image reference"):
        registry.split("reg#../etc")


def test_a_layer_stays_inside(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    links = {"away": str(outside), "up": "../../outside"}
    registry.apply(io.BytesIO(tar_of(links=links, files={"away/a": "1", "up/b": "2", "../../c": "3"})), root)
    assert list(outside.iterdir()) == []
    assert (root / str(outside).lstrip("/") / "a").read_text() == "1"
    assert (root / "outside" / "b").read_text() == "2"
    assert (root / "c").read_text() == "3"
