"""usage: registry.py [USER@][REGISTRY#]IMAGE[:TAG] ROOTFS: unpack an image of a registry, as `enroot load` does.

Uses the OCI distribution API (v2): token, manifest, configuration, layers with their digests; gzip and plain tar.
ENROOT_ALLOW_HTTP=yes uses HTTP. Progress and errors go to stderr in Enroot's format; exit status 1 on errors.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import stat
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HUB = "registry-1.docker.io"
LISTS = ("application/vnd.docker.distribution.manifest.list.v2+json", "application/vnd.oci.image.index.v1+json")
MANIFESTS = ("application/vnd.docker.distribution.manifest.v2+json", "application/vnd.oci.image.manifest.v1+json")
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
CHUNK = 1 << 20
TIMEOUT = 60
MAX_LINKS = 40  # as Linux


class PullError(Exception):
    """The reason of a failed download, in one line."""


def split(uri: str) -> tuple[str, str, str]:
    """Return registry, image and tag or digest of [docker://][USER@][REGISTRY#]IMAGE[:TAG]."""
    name = uri.removeprefix("docker://")
    user, _, rest = name.rpartition("@")
    if user and not rest.startswith("sha256:"):
        name = rest
    registry, _, image = name.rpartition("#")
    image, digest = image.split("@", 1) if "@" in image else (image, "")
    image, colon, tag = image.rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "")
    registry = registry or HUB
    if registry == HUB and "/" not in image:
        image = f"library/{image}"
    if not re.fullmatch(r"[a-z0-9]+([._/-]+[a-z0-9]+)*", image):
        raise PullError(f"Invalid image reference: {uri}")
    return registry, image, digest or (tag if colon else "latest")


class Registry:
    """One image of one registry."""

    def __init__(self, registry: str, image: str) -> None:
        scheme = "http" if os.environ.get("ENROOT_ALLOW_HTTP", "") in {"y", "yes", "true", "1"} else "https"
        self._base, self._image = f"{scheme}://{registry}/v2/{image}", image
        self._headers: dict[str, str] = {}

    def manifest(self, reference: str) -> dict[str, Any]:
        """Return the manifest for this machine."""
        log("INFO", "Fetching image manifest list")
        found = self._json(f"manifests/{reference}", *LISTS, *MANIFESTS)
        if "manifests" not in found:
            return found
        wanted = MACHINES.get(platform.machine(), platform.machine())
        for entry in found["manifests"]:
            here = entry.get("platform", {})
            if (here.get("os"), here.get("architecture")) == ("linux", wanted):
                log("INFO", "Fetching image manifest")
                return self._json(f"manifests/{entry['digest']}", *MANIFESTS)
        raise PullError(f"Image has no layers for linux/{wanted}")

    def configuration(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the image's configuration: Env, Entrypoint, Cmd, WorkingDir."""
        return dict(self._json(f"blobs/{manifest['config']['digest']}").get("config") or {})

    def layer(self, digest: str, target: IO[bytes]) -> None:
        """Download a layer; PullError if it does not match its digest."""
        algorithm, _, expected = digest.partition(":")
        measured = hashlib.new(algorithm)
        with self._open(f"blobs/{digest}") as answer:
            while block := answer.read(CHUNK):
                measured.update(block)
                target.write(block)
        if measured.hexdigest() != expected:
            raise PullError(f"Checksum mismatch: {digest}")
        target.seek(0)

    def _json(self, path: str, *accept: str) -> dict[str, Any]:
        with self._open(path, *accept) as answer:
            return dict(json.load(answer))

    def _open(self, path: str, *accept: str, again: bool = True) -> Any:
        headers = {**self._headers, **({"Accept": ", ".join(accept)} if accept else {})}
        request = urllib.request.Request(f"{self._base}/{path}", headers=headers)  # HTTP and HTTPS only
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if (
                error.code == 401 and again and self._authenticate(error.headers.get("WWW-Authenticate", ""))
            ):  # HTTP's number
                return self._open(path, *accept, again=False)
            raise PullError(f"URL {request.full_url} returned error code: {error.code} {error.reason}") from error

    def _authenticate(self, challenge: str) -> bool:
        """Get a token without a password; return whether there is one."""
        log("INFO", "Authenticating with user: <anonymous>")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        if not challenge.lower().startswith("bearer ") or not fields.get("realm", "").startswith("https://"):
            return False
        scope = fields.get("scope", f"repository:{self._image}:pull")
        query = urllib.parse.urlencode({"service": fields.get("service", ""), "scope": scope})
        with urllib.request.urlopen(f"{fields['realm']}?{query}", timeout=TIMEOUT) as answer:  # HTTPS only
            reply = json.load(answer)
        self._headers["Authorization"] = f"Bearer {reply.get('token') or reply.get('access_token')}"
        return True


def apply(layer: IO[bytes], root: Path) -> None:
    """Apply a layer to the root file system: first its whiteouts, then its entries."""
    with tarfile.open(fileobj=layer) as tar:
        members = tar.getmembers()
        for member in members:
            if Path(member.name).name.startswith(WHITEOUT):
                white_out(inside(root, member.name))
        for member in members:
            special = member.ischr() or member.isblk() or member.isfifo()
            if not special and not Path(member.name).name.startswith(WHITEOUT):
                place(tar, member, inside(root, member.name), root)


def white_out(path: Path) -> None:
    """Remove the target of a whiteout: one entry, or the contents of a folder."""
    if path.name != OPAQUE:
        remove(path.with_name(path.name.removeprefix(WHITEOUT)))
    elif path.parent.is_dir():
        for old in path.parent.iterdir():
            remove(old)


def place(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, root: Path) -> None:
    """Write one entry of a layer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (member.isdir() and path.is_dir() and not path.is_symlink()):
        remove(path)
    if member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        os.link(inside(root, member.linkname), path, follow_symlinks=False)
    elif member.isdir():
        path.mkdir(exist_ok=True)
        path.chmod(stat.S_IMODE(member.mode) | stat.S_IRWXU)
    elif (source := tar.extractfile(member)) is not None:
        with path.open("wb") as target:
            shutil.copyfileobj(source, target)
        path.chmod(stat.S_IMODE(member.mode))


def inside(root: Path, name: str) -> Path:
    """Return the path below root; links in its folders are resolved as if root were /, the last part is not."""
    *folders, last = Path("/", name).parts[1:] or ("",)
    path, todo, links = root, folders[::-1], 0
    while todo:
        part = todo.pop()
        if part == "..":
            path = path.parent if path != root else root
        elif (path / part).is_symlink():
            target, links = (path / part).readlink(), links + 1
            if links > MAX_LINKS:
                raise PullError(f"Too many links in image: {name}")
            path = root if target.is_absolute() else path
            todo.extend(it for it in reversed(target.parts) if it != "/")
        else:
            path /= part
    if last == "..":
        raise PullError(f"Invalid path in image: {name}")
    return path / last


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def start_files(configuration: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of /etc/environment and /etc/rc, as Enroot writes them."""
    yield "etc/environment", "".join(f"{line}\n" for line in configuration.get("Env") or ())
    entry = " ".join(map(shlex.quote, configuration.get("Entrypoint") or ()))
    command = " ".join(map(shlex.quote, configuration.get("Cmd") or ()))
    folder = shlex.quote(configuration.get("WorkingDir") or "/")
    start = f'if [ $# -gt 0 ]; then exec {entry} "$@"; else exec {entry} {command}; fi'
    step_in = "[ ! -s /etc/rc.local ] || . /etc/rc.local"
    yield ("etc/rc", f"mkdir -p {folder} 2> /dev/null\ncd {folder} && unset OLDPWD || exit 1\n{step_in}\n{start}\n")


def pull(uri: str, root: Path) -> None:
    """Unpack the image into an existing folder."""
    name, image, reference = split(uri)
    registry = Registry(name, image)
    manifest = registry.manifest(reference)
    layers = [layer["digest"] for layer in manifest.get("layers", ())]
    if not layers:
        raise PullError(f"Image has no layers: {uri}")
    log("INFO", f"Downloading {len(layers)} missing layers...")
    for digest in layers:
        with tempfile.TemporaryFile() as layer:
            registry.layer(digest, layer)
            apply(layer, root)
    for path, text in start_files(registry.configuration(manifest)):
        target = inside(root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(target)
        target.write_text(text)


def log(level: str, text: str) -> None:
    """Print a line in Enroot's format."""
    sys.stderr.write(f"[{level}] {text}\n")


if __name__ == "__main__":
    try:
        pull(sys.argv[1], Path(sys.argv[2]))
    except (PullError, OSError, tarfile.TarError, ValueError, KeyError) as error:
        log("ERROR", str(error) or type(error).__name__)
        sys.exit(1)
