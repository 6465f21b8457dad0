"""Each text of a cluster file, hostile or odd: refused at load with file and line, or all that is made of it can be made."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import typing
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from pytest_gpucluster.cluster.transport import ssh_connect
from pytest_gpucluster.config import load_cluster
from pytest_gpucluster.config.models import ClusterFile
from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.fact import Fact
from pytest_gpucluster.core.registry import suites
from pytest_gpucluster.core.values import ssh_address
from pytest_gpucluster.plugin.options import refused_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_gpucluster.config.models import Cluster

EXAMPLES = int(os.environ.get("GPUCLUSTER_FUZZ_EXAMPLES", "200"))
KEY = "<key>"
WORDS = r"""-x --help -oProxyCommand=true .. ../../etc / // ~ ~/x ~no-such-user/x * [ ( a{ \ ' " `id` $(id) $HOME ;id a|b a&b
% %s {} {0} é 1 null = : , a=b a,b #"""
LONG = ["x" * 300, "/" + "x" * 300, "/x" * 3000, "x" * 40_000]
ODD = [*WORDS.split(), *LONG, "", " ", "a b", "vm swappiness", "/a b", "\u202e", "\t", "\n"]


def texts_of(annotation: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the place of each text that a model can hold; `[]` is a list, KEY a key of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from texts_of(field.annotation, (*path, name))
    elif annotation is str:
        yield path
    elif typing.get_origin(annotation) is dict:
        keys, values = typing.get_args(annotation)
        yield from texts_of(keys, (*path, KEY))
        yield from texts_of(values, (*path, "name"))
    else:
        listed = typing.get_origin(annotation) is tuple
        for one in typing.get_args(annotation):
            if one is not Ellipsis and not isinstance(one, str):
                yield from texts_of(one, (*path, "[]") if listed else path)


# `settings` is the site's own, profiles are tested with their files
PLACES = sorted({path for path in texts_of(ClusterFile) if path[0] != "settings" and "profile" not in path})


def placed(path: tuple[str, ...], text: str) -> Any:
    """Return plain data with a text at a place."""
    if not path:
        return text
    first, *rest = path
    if first == KEY:
        return {text: 1}
    inner = placed(tuple(rest), text)
    return [inner] if first == "[]" else {first: inner}


def use(cluster: Cluster) -> None:
    """Make what a run makes of a cluster before its nodes answer."""
    for suite in suites():
        module = importlib.import_module(f"{suite.package}.test_{suite.name}")
        for fact in vars(module).values():
            if isinstance(fact, Fact) and fact.probes is not None:
                assert all(probe.command for probe in fact.probes(cluster, ["gpu01"]))
    [*refused_values(cluster)]
    for reached in (cluster.transport, cluster.ssh):
        with contextlib.suppress(GpuClusterError):
            ssh_connect._prepared(cluster.transport.host or "gpu01", reached, None)


@pytest.mark.thorough
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(PLACES), st.sampled_from(ODD) | st.text(max_size=30))
def test_text_of_each_key_is_refused_with_file_and_line_or_can_be_used(
    tmp_path: Path, place: tuple[str, ...], text: str
) -> None:
    check(tmp_path, place, text)


def test_addresses_of_each_form_are_accepted_and_others_refused() -> None:
    for text in ("login", "u@login:22", "10.0.0.1", "::1", "[fe80::1%eth0]:22", "u@[::1]:22", "é.org"):
        assert ssh_address(text) == text
    for text in ("", ":", "a b", "-x", "@a", "a@", "a:99999", "a:", ":22", "a;id", "$(id)"):
        with pytest.raises(ValueError, match=r"must be \[USER@\]HOST\[:PORT\]"):
            ssh_address(text)


def check(folder: Path, place: tuple[str, ...], text: str) -> None:
    file = folder / "c.yaml"
    data = {"nodes": "gpu[01-02]"} | placed(place, text)
    if place[0] == "transport":
        data["transport"]["kind"] = "ssh"
        data["transport"].setdefault("host", "login")
    file.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    try:
        cluster = load_cluster(file)
    except ConfigError as error:
        assert re.match(rf"{re.escape(str(file))}(:\d+: |: )", str(error)), (place, text, error)
        assert "\n" not in str(error)
        return
    try:
        use(cluster)
    except Exception as error:
        raise AssertionError((place, text)) from error
