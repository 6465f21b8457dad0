"""The process that forks for forked.py: it has imported what a run of pytest imports, or torch, and runs nothing itself."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path


def _serve(requests: socket.socket) -> None:
    """Fork for each request; return in the process that runs it."""
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            return _run(*fds)
        for fd in fds:
            os.close(fd)


def _run(request: int, out: int, err: int, reply: int) -> None:
    """Return in a process with the streams, folder and variables of the request; its parent replies with pid and status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.write(reply, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(reply, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        how, what, *words, cwd, env = json.loads(file.read().decode(errors="surrogateescape"))
    for fd, standard in ((out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.close(reply)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [how, what, *words]
    sys.path.insert(0, cwd)


def _preload() -> None:
    """Import what a run needs, and forget what the run has computed."""
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401

        return
    import pytest

    path = sys.path[1:]  # without the folder of this script
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("test_preload.py").write_text("def test_preload(gpucluster_node): assert gpucluster_node.name\n")
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
            pytest.main(["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--cluster=local"])
        os.chdir("/")
    sys.path[:] = path
    sys.modules.pop("test_preload")
    for cached in [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]:
        cached.cache_clear()
    pytest.mark._markers.clear()
    tempfile.tempdir = None
    gc.collect()
    gc.freeze()


def _main() -> None:
    os.set_inheritable(int(sys.argv[1]), False)
    requests = socket.socket(fileno=int(sys.argv[1]))
    _preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve(requests)
    time.tzset()
    how, what, *words = sys.argv
    sys.argv = [what if how == "-m" else how, *words]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _main()
