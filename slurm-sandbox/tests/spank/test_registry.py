"""Images of a real registry on loopback."""

from __future__ import annotations

import io
import subprocess
from typing import TYPE_CHECKING

import pytest
from registry_server import Served, served, tar_of
from sandbox_helpers import environment

from slurm_sandbox.spank import registry

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_sandbox.api import Sandbox

__all__ = ["served"]  # a fixture


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
