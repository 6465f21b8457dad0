"""A SIMULATED Kubernetes API server: it serves given objects over TLS on loopback, as far as kubectl asks for them.

The objects are those of a recorded cluster (tests/corpus/kubernetes). Created Jobs are run by `kubelet`, a function of the
test. `trouble` makes requests slow or fail. Time passes by `pass_time`: then Jobs end at their deadline, ended Jobs go after
their TTL, and what belongs to a Job goes with it. No scheduler, no admission and no watch: what needs those is not shown.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
import urllib.parse
import uuid
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOKEN = "simulated"
LABEL = "pytest-gpucluster/run"
# path of the group -> the resources that discovery names: (plural, kind, namespaced)
GROUPS = {
    "/api/v1": [("nodes", "Node", False), ("pods", "Pod", True), ("services", "Service", True)],
    "/apis/apps/v1": [("daemonsets", "DaemonSet", True)],
    "/apis/batch/v1": [("jobs", "Job", True)],
}
VERBS = ["get", "list", "create", "delete"]


@dataclass(frozen=True)
class Trouble:
    """What happens to a request: seconds until it is processed, and the status that replaces the answer, 0 for none.

    `processed`: it takes effect before the status is sent.
    """

    delay: float = 0.0
    code: int = 0
    processed: bool = False


class Objects:
    """The objects of the cluster by resource, the requests that came in, and the number of those without an answer."""

    def __init__(self, version: str, **kinds: list[dict[str, Any]]) -> None:
        self.version, self.requests, self.lock = version, list[str](), threading.Lock()
        self.kinds: dict[str, list[dict[str, Any]]] = defaultdict(list, kinds)
        self.logs: dict[str, str] = {}
        self.kubelet: Callable[[Objects, dict[str, Any]], None] = lambda _objects, _job: None
        self.trouble: Callable[[str, str], Trouble] = lambda _method, _path: Trouble()
        self.open, self.ahead, self.drops_bodies = 0, 0.0, False
        self.born: dict[str, float] = {}  # uid of a created Job -> seconds

    def left(self) -> list[str]:
        """Return the names of the objects that runs created."""
        with self.lock:
            self._collect()
            made = [*self.kinds["jobs"], *self.kinds["services"], *self.kinds["pods"]]
            return [it["metadata"]["name"] for it in made if LABEL in it["metadata"].get("labels", {})]

    def pass_time(self, seconds: float) -> None:
        """Let the controllers find that so much time is over."""
        self.ahead += seconds

    def add(self, plural: str, made: dict[str, Any]) -> None:
        """Create an object."""
        with self.lock:
            self.kinds[plural].append(made)
            self.born[made["metadata"]["uid"]] = time.monotonic() + self.ahead
            self._collect()

    def _collect(self) -> None:
        """Do what the TTL controller and the garbage collector do."""
        now, jobs = time.monotonic() + self.ahead, self.kinds["jobs"]
        self.kinds["jobs"] = jobs = [it for it in jobs if now < self._removed_at(it)]
        gone = True
        while gone:  # also what belongs to what belongs to a Job
            alive = {it["metadata"]["uid"] for it in jobs}
            gone = False
            for plural, found in self.kinds.items():
                kept = [it for it in found if not (owners := _owning_jobs(it)) or owners & alive]
                gone = gone or len(kept) < len(found)
                self.kinds[plural] = kept
            jobs = self.kinds["jobs"]

    def _removed_at(self, job: dict[str, Any]) -> float:
        """Return when the TTL of a Job is over. One whose pods ended is taken for active until its deadline."""
        spec, born = job["spec"], self.born.get(job["metadata"]["uid"])
        if born is None or "ttlSecondsAfterFinished" not in spec:
            return float("inf")
        if spec.get("suspend"):  # activeDeadlineSeconds does not apply
            return float("inf")
        active = 0 if spec.get("completions") == 0 else spec.get("activeDeadlineSeconds", float("inf"))
        return float(born + active + spec["ttlSecondsAfterFinished"])

    def orphan(self, owner: dict[str, Any]) -> None:
        """Let what belongs to an object belong to nothing."""
        for one in (it for found in self.kinds.values() for it in found):
            owners = one["metadata"].get("ownerReferences", [])
            owners[:] = [it for it in owners if it.get("uid") != owner["metadata"]["uid"]]

    def node(self, name: str) -> dict[str, Any]:
        """Return a node, to change it."""
        return next(it for it in self.kinds["nodes"] if it["metadata"]["name"] == name)

    def pod(self, node: str, part: str) -> dict[str, Any]:
        """Return the pod on a node with this part of its name."""
        return next(
            it for it in self.kinds["pods"] if it["spec"]["nodeName"] == node and part in it["metadata"]["name"]
        )


class Handler(BaseHTTPRequestHandler):
    """Answers as kube-apiserver does, without compression and aggregated discovery."""

    objects: ClassVar[Objects]
    protocol_version = "HTTP/1.1"
    trouble = Trouble()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.answer(self.get)

    def do_POST(self) -> None:
        self.answer(self.create)

    def do_DELETE(self) -> None:
        self.answer(self.delete)

    def answer(self, process: Callable[[str, dict[str, str], bytes], None]) -> None:
        """Process the request as its trouble allows."""
        (path, query), body, objects = self.begin(), self.body(), self.objects
        with objects.lock:
            objects.open += 1
        try:
            self.trouble = objects.trouble(self.command, path)
            time.sleep(self.trouble.delay)
            if self.trouble.code and not self.trouble.processed:
                self.reply("")
            else:
                process(path, query, body)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):  # the client is dead
            self.close_connection = True
        finally:
            with objects.lock:
                objects.open -= 1

    def get(self, path: str, query: dict[str, str], _body: bytes) -> None:
        """Answer a GET."""
        if path == "/version":
            major, minor = self.objects.version.lstrip("v").split(".")[:2]
            self.reply({"major": major, "minor": minor, "gitVersion": self.objects.version})
        elif path == "/api":
            self.reply({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            self.reply(
                {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(it) for it in GROUPS if "apis" in it]}
            )
        elif path in GROUPS:
            self.reply(_resources(path))
        elif path.endswith("/log"):
            self.reply(self.objects.logs.get(path.split("/")[-2], ""))
        else:
            self.list(path, query)

    def list(self, path: str, query: dict[str, str]) -> None:
        """Answer a LIST, or a GET of one object."""
        base, namespace, plural, name = _place(path)
        kind = next((kind for it, kind, _ in GROUPS.get(base, ()) if it == plural), "")
        with self.objects.lock:
            found = [it for it in self.objects.kinds[plural] if _selected(it, namespace, query)]
        if not kind:
            self.status(404, "NotFound", f"the server could not find the requested resource ({path})")
        elif name:
            one = next((it for it in found if it["metadata"]["name"] == name), None)
            self.reply(one) if one else self.status(404, "NotFound", f'{plural} "{name}" not found')
        else:
            version = base.removeprefix("/apis/").removeprefix("/api/")
            self.reply({"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": found})

    def create(self, path: str, _query: dict[str, str], body: bytes) -> None:
        """Create an object, and have the kubelet run a Job with pods."""
        _, namespace, plural, _ = _place(path)
        made = json.loads(body)
        made["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4())}
        if "generateName" in made["metadata"]:
            made["metadata"]["name"] = made["metadata"]["generateName"] + made["metadata"]["uid"][:5]
        self.objects.add(plural, made)
        if plural == "jobs" and made["spec"].get("completions") != 0:
            threading.Thread(target=self.objects.kubelet, args=(self.objects, made), daemon=True).start()
        self.reply(made, 201)

    def delete(self, path: str, query: dict[str, str], body: bytes) -> None:
        """Delete an object, and what belongs to it; without a policy that stays, as of batch/v1 Jobs."""
        options = json.loads(body or b"{}") if not self.objects.drops_bodies else {}
        _, namespace, plural, name = _place(path)
        uid = options.get("preconditions", {}).get("uid")
        with self.objects.lock:
            others = [
                it
                for it in self.objects.kinds[plural]
                if it["metadata"]["name"] == name and uid not in (None, it["metadata"]["uid"])
            ]
        if others:  # as validateDeletionPreconditions of kube-apiserver answers
            found = others[0]["metadata"]["uid"]
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found}"
            self.status(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {why}')
            return
        with self.objects.lock:
            gone = [
                it
                for it in self.objects.kinds[plural]
                if it["metadata"]["name"] == name and it["metadata"]["namespace"] == namespace
            ]
            for one in gone:
                self.objects.kinds[plural].remove(one)
                if "propagationPolicy" not in query:  # a proxy may drop the body
                    self.objects.orphan(one)
            self.objects._collect()
        self.status(200 if gone else 404, "Success" if gone else "NotFound", f"{plural} {name}")

    def begin(self) -> tuple[str, dict[str, str]]:
        """Note the request; return its path and query."""
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        with self.objects.lock:
            self.objects.requests.append(f"{self.command} {parts.path}")
        assert self.headers["Authorization"] == f"Bearer {TOKEN}", "kubectl must send the token"
        return parts.path, query

    def body(self) -> bytes:
        """Read the body; kubectl sends that of `delete --raw` in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        read = b""
        while size := int(self.rfile.readline(), 16):
            read += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return read

    def status(self, code: int, reason: str, message: str) -> None:
        """Answer with a Status object."""
        state = "Success" if code < 300 else "Failure"
        self.reply(
            {"kind": "Status", "apiVersion": "v1", "status": state, "reason": reason, "message": message, "code": code},
            code,
        )

    def reply(self, body: object, code: int = 200) -> None:
        """Send an object as JSON, or a text."""
        if self.trouble.code:
            code, why = self.trouble.code, "the server is not ready"
            reason = "Forbidden" if code == 403 else ""
            body = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": reason,
                "message": why,
                "code": code,
            }
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _group(path: str) -> dict[str, Any]:
    name = path.split("/")[2]
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(path: str) -> dict[str, Any]:
    version = path.removeprefix("/apis/").removeprefix("/api/")
    found = [
        {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": VERBS}
        for plural, kind, namespaced in GROUPS[path]
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}


def _place(path: str) -> tuple[str, str, str, str]:
    """Split /apis/batch/v1/namespaces/NS/jobs/NAME into group, namespace, plural and name."""
    words = path.strip("/").split("/")
    length = 2 if words[0] == "api" else 3
    base, rest = "/" + "/".join(words[:length]), words[length:]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return base, namespace, rest[0] if rest else "", rest[1] if len(rest) > 1 else ""


def _selected(item: dict[str, Any], namespace: str, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = [it.split("=", 1) for it in query.get("labelSelector", "").split(",") if "=" in it]
    present = [it for it in query.get("labelSelector", "").split(",") if it and "=" not in it]
    unwanted = [it.split("!=", 1)[1] for it in query.get("fieldSelector", "").split(",") if "status.phase!=" in it]
    return (
        (not namespace or item["metadata"].get("namespace") == namespace)
        and all(labels.get(key) == value for key, value in wanted)
        and all(key in labels for key in present)
        and item.get("status", {}).get("phase") not in unwanted
    )


def _owning_jobs(item: dict[str, Any]) -> set[str]:
    owners = item["metadata"].get("ownerReferences", ())
    return {it.get("uid", "") for it in owners if it.get("kind") == "Job"}


@contextmanager
def serving(objects: Objects, folder: Path) -> Iterator[Path]:
    """Serve the objects; yield the kubeconfig to use."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=simulated", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"objects": objects}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    config = folder / "kubeconfig"
    authority = base64.b64encode(certificate.read_bytes()).decode()
    address = f"https://127.0.0.1:{server.server_address[1]}"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "simulated",
                "clusters": [{"name": "c", "cluster": {"server": address, "certificate-authority-data": authority}}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "simulated", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    try:
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
