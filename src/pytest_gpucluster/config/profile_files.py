"""Profiles: shipped ones, files, and mappings that go before the keys of another profile."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pytest_gpucluster.config.models import Profile
from pytest_gpucluster.config.validation_errors import nearest, problems, strange_file, together
from pytest_gpucluster.config.yaml_loader import Loc, Source, clip, read_source

if TYPE_CHECKING:
    from pytest_gpucluster.core.errors import ConfigError

PROFILES = Path(__file__).parent / "profiles"
MAX_DEPTH = 8
MEMORY_TOLERANCE = 0.01  # memory.total differs a little between drivers; one lost stack is 12% or more
_CLOUDS = ("aws-", "azure-", "gcp-")


class Layers:
    """Profile keys of several files on top of each other, the last one uppermost."""

    def __init__(self, layers: list[tuple[Source, Loc, dict[str, Any]]]) -> None:
        self.layers = layers

    def profile(self) -> Profile:
        """Put the layers together and validate them; ConfigError names the file and line of the wrong key."""
        merged: dict[str, Any] = {}
        for _source, _at, keys in self.layers:
            merged = _merge(merged, keys)
        source, at, _keys = self.layers[-1]
        merged.setdefault("name", Path(source.label).stem)
        merged.setdefault("description", "")
        merged.setdefault("source", source.label)
        if at and len(self.layers) > 1 and _keys:
            merged["source"] = f"{merged['source']}; changed in {source.label}"
        try:
            return Profile.model_validate(merged)
        except ValidationError as error:
            raise self._error(error) from None

    def _error(self, error: ValidationError) -> ConfigError:
        return together([self._at(loc, problem) for loc, problem in problems(error, Profile)])

    def _at(self, loc: Loc, problem: str) -> ConfigError:
        source, at = self._holder(loc)
        return source.error((*at, *loc), problem)

    def _holder(self, loc: Loc) -> tuple[Source, Loc]:
        """Return the file that gives a key, or the nearest one around it, and where its profile starts."""
        for length in range(len(loc), 0, -1):
            for source, at, _keys in reversed(self.layers):
                if (*at, *loc[:length]) in source.lines:
                    return source, at
        return self.layers[-1][:2]


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """Return a profile by its shipped name, NAME:COUNT for COUNT GPUs per node, or the path of a file.

    >>> load_profile("h200-vm:2").gpu.count
    2
    """
    return _load_shipped(name) if _is_shipped(name) else _load(name)


def profile_of(part: dict[str, Any], source: Source, at: Loc) -> Profile:
    """Return the profile that a mapping in a cluster file describes; `at` is where it stands in `source`."""
    return Layers(_unfold(part, source, at, depth=0)).profile()


def match_profile(gpu_name: str, count: int, *, hcas: int | None = None) -> str | None:
    """Return the shipped profile for `count` GPUs of this name, or None.

    Where several fit: one of plain hardware before a cloud's; then the one whose network ports are `hcas`, or,
    where that is not known, the one that demands the fewest. Simulated profiles never match. The answer may be
    NAME:COUNT.

    >>> match_profile("NVIDIA H200", 4), match_profile("NVIDIA H200", 7)
    ('h200-vm:4', None)
    """
    fitting = [
        (profile.name.startswith(_CLOUDS), abs(profile.fabric.hcas - (hcas or 0)), profile.name, profile.gpu)
        for profile in map(load_profile, profile_names())
        if profile.gpu and not profile.simulated and profile.gpu.name == gpu_name
        if count in (profile.gpu.count, *profile.gpu.counts)
    ]
    if not fitting:
        return None
    *_, name, gpu = min(fitting, key=lambda one: one[:3])
    return name if gpu.count == count else f"{name}:{count}"


def fitting_profiles(gpu_name: str, count: int, memory: int | None, *, simulated: bool) -> tuple[str, ...]:
    """Return the shipped profiles for `count` GPUs of this name and memory (bytes), plain hardware before clouds.

    >>> fitting_profiles("NVIDIA H200", 4, None, simulated=False)
    ('h200-vm:4',)
    """
    found = []
    for profile in map(load_profile, profile_names()):
        gpu = profile.gpu
        if gpu is None or gpu.name != gpu_name or (profile.simulated and not simulated):
            continue
        alike = not memory or not gpu.memory or abs(memory - gpu.memory) <= MEMORY_TOLERANCE * gpu.memory
        if alike and count in (gpu.count, *gpu.counts):
            name = profile.name if count == gpu.count else f"{profile.name}:{count}"
            found.append((profile.simulated != simulated, profile.name.startswith(_CLOUDS), name))
    return tuple(name for *_, name in sorted(found))


def _is_shipped(name: str) -> bool:
    return name.partition(":")[0] in profile_names()


@cache
def _load_shipped(name: str) -> Profile:
    return _load(name)


def _load(name: str) -> Profile:
    return profile_of({"extends": name}, Source("profile"), ())


def _unfold(
    part: dict[str, Any], source: Source, at: Loc, depth: int
) -> list[tuple[Source, Loc, dict[str, Any]]]:
    """Return the layers below a mapping, and the mapping itself on top."""
    keys = {key: value for key, value in part.items() if key != "extends"}
    own = [(source, at, keys)] if keys or not part.get("extends") else []
    if part.get("extends") is None:
        return own
    if depth >= MAX_DEPTH:
        raise source.error((*at, "extends"), "profiles extend each other in a circle")
    return [*_named(str(part["extends"]), source, at, depth), *own]


def _named(name: str, source: Source, at: Loc, depth: int) -> list[tuple[Source, Loc, dict[str, Any]]]:
    base, _, count = name.partition(":")
    if base in profile_names():
        found = read_source(PROFILES / f"{base}.yaml")
        layers = _unfold(found.data, found, (), depth + 1)
        return [*layers, *_with_count(layers, count, source, at)] if count else layers
    path = Path(source.label).parent / Path(name).expanduser()
    if "/" in name or name.endswith((".yaml", ".yml")):
        found = read_source(path)
        if why := strange_file(found.data, Profile, "profile"):
            raise source.error(at, f"{clip(path, 200)} {why}")
        return _unfold(found.data, found, (), depth + 1)
    guess = nearest(name, profile_names())
    raise source.error(at, f"no profile is called '{clip(name)}'{guess} (`gpucluster profiles` lists them)")


def _with_count(
    layers: list[tuple[Source, Loc, dict[str, Any]]], count: str, source: Source, at: Loc
) -> list[tuple[Source, Loc, dict[str, Any]]]:
    gpu = Layers(layers).profile().gpu
    counts = [str(number) for number in (gpu.count, *gpu.counts)] if gpu else []
    if count not in counts:
        raise source.error(at, f"this profile has {' or '.join(counts) or 'no'} GPUs per node, not '{count}'")
    return [(source, at, {"gpu": {"count": count}})]


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Put mappings on top of mappings; anything else replaces what was there."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
