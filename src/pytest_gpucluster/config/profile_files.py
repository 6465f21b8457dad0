"""Profiles: shipped ones, files, and mappings that go before the keys of another profile."""

from __future__ import annotations

from functools import cache, reduce
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
# a profile with this prefix is an instance type of a cloud, whose machines have this vendor in DMI
CLOUDS = {"aws-": "Amazon", "azure-": "Microsoft", "gcp-": "Google"}
Layer = tuple[Source, Loc, "dict[str, Any]"]  # the keys of a profile, and where they stand


def _together(layers: list[Layer]) -> Profile:
    """Put layers together, the last one uppermost, and validate them; ConfigError names the file and line of the wrong key."""
    merged: dict[str, Any] = reduce(_merge, (keys for *_, keys in layers), {})
    source, at, own = layers[-1]
    merged.setdefault("name", Path(source.label).stem)
    merged.setdefault("description", "")
    merged.setdefault("source", source.label)
    if at and len(layers) > 1 and own:
        merged["source"] = f"{merged['source']}; changed in {source.label}"
    try:
        return Profile.model_validate(merged)
    except ValidationError as error:
        raise together([_error(layers, *one) for one in problems(error, Profile)]) from None


def _error(layers: list[Layer], loc: Loc, problem: str) -> ConfigError:
    """Return the error in the file that gives a key, or the nearest one around it."""
    places = ((*one, length) for length in range(len(loc), 0, -1) for one in reversed(layers))
    source, at = next(
        ((source, at) for source, at, _, length in places if (*at, *loc[:length]) in source.lines), layers[-1][:2]
    )
    return source.error((*at, *loc), problem)


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """Return a profile by its shipped name, NAME:COUNT for COUNT GPUs per node, or the path of a file.

    >>> load_profile("h200-vm:2").gpu.count
    2
    """
    return _load_shipped(name) if name.partition(":")[0] in profile_names() else _load(name)


def profile_of(part: dict[str, Any], source: Source, at: Loc) -> Profile:
    """Return the profile that a mapping in a cluster file describes; `at` is where it stands in `source`."""
    return _together(_unfold(part, source, at, depth=0))


def match_profile(gpu_name: str, count: int) -> str | None:
    """Return the profile for `count` GPUs of this name that demands the fewest network ports, plain hardware before clouds.

    >>> match_profile("NVIDIA H200", 4), match_profile("NVIDIA H200", 7)
    ('h200-vm:4', None)
    """
    found = fitting_profiles(gpu_name, count, None, simulated=False)
    return min(found, key=lambda it: (it.startswith((*CLOUDS,)), load_profile(it).fabric.hcas), default=None)


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
            found.append((profile.simulated != simulated, profile.name.startswith((*CLOUDS,)), name))
    return tuple(name for *_, name in sorted(found))


def _load(name: str) -> Profile:
    return profile_of({"extends": name}, Source("profile"), ())


_load_shipped = cache(_load)


def _unfold(part: dict[str, Any], source: Source, at: Loc, depth: int) -> list[Layer]:
    """Return the layers below a mapping, and the mapping itself on top."""
    keys = {key: value for key, value in part.items() if key != "extends"}
    own = [(source, at, keys)] if keys or not part.get("extends") else []
    if part.get("extends") is None:
        return own
    if depth >= MAX_DEPTH:
        raise source.error((*at, "extends"), "profiles extend each other in a circle")
    return [*_named(str(part["extends"]), source, at, depth), *own]


def _named(name: str, source: Source, at: Loc, depth: int) -> list[Layer]:
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


def _with_count(layers: list[Layer], count: str, source: Source, at: Loc) -> list[Layer]:
    gpu = _together(layers).gpu
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
