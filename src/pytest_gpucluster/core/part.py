"""The part of a machine or cluster that a finding is about, as data, from the check to every report. Pure.

>>> str(nvlink(7, gpu(4, uuid="GPU-5e", address="0000:1b:00.0")))
'GPU 4 (GPU-5e, 0000:1b:00.0) NVLink 7'
>>> str(port("mlx5_4", 1, address="0000:5e:00.0", of=gpu(4)))
'mlx5_4 port 1 (0000:5e:00.0), rail of GPU 4'
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_gpucluster.core.safe_json import as_dict, shared_text
from pytest_gpucluster.core.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class PartKind:
    """A kind of part. `label` precedes its index, and its name if `labelled`.

    `named`: its name means the same thing on every node, as a mount or a service does, so that findings of two nodes are
    the same only if it is equal. An index, an address or the name of a device differs from node to node.
    """

    label: str
    named: bool = False
    labelled: bool = False


KINDS = {
    "": PartKind("", named=True),
    "node": PartKind("node"),
    "gpu": PartKind("GPU"),
    "nvlink": PartKind("NVLink"),
    "nvswitch": PartKind("NVSwitch"),
    "adapter": PartKind("adapter"),
    "port": PartKind("port"),
    "cable": PartKind("cable"),
    "module": PartKind("module"),
    "device": PartKind("device"),
    "disk": PartKind("disk"),
    "dimm": PartKind("DIMM"),
    "cpu": PartKind("CPU"),
    "chassis": PartKind("chassis"),
    "board": PartKind("board"),
    "bmc": PartKind("BMC"),
    "memory": PartKind("memory"),
    "mount": PartKind("mount", named=True),
    "service": PartKind("service", named=True),
    "setting": PartKind("setting", named=True),
    "software": PartKind("software", named=True),
    "file": PartKind("file", named=True),
    "rank": PartKind("rank"),
    "task": PartKind("task"),
    "process": PartKind("process"),
    "job": PartKind("job"),
    "step": PartKind("step", named=True),
    "run": PartKind("run", named=True),  # of a program on nodes, or a part of its output
    "size": PartKind("", named=True),  # of the messages of a collective, in bytes
    "peer": PartKind("with", labelled=True),  # the node that was measured together with this one
    "rail": PartKind("rail of GPU"),  # the GPU or its adapter
    "pair": PartKind("link", labelled=True),
    "group": PartKind("one of", labelled=True),
    "leaf": PartKind("leaf switch", labelled=True),
    "switch": PartKind("switch", labelled=True),
    "partition": PartKind("partition", named=True, labelled=True),
    "account": PartKind("account", named=True, labelled=True),
    "user": PartKind("user", named=True, labelled=True),
    "container": PartKind("container"),
}


def register(kind: str, label: str, *, named: bool = False, labelled: bool = False) -> None:
    """Add a kind of part, in a module of a suite; ValueError if it exists otherwise."""
    if KINDS.setdefault(kind, PartKind(label, named, labelled)) != PartKind(label, named, labelled):
        raise ValueError(f"a kind of part {kind!r} exists already")


@dataclass(frozen=True, slots=True)
class Part:
    """What a finding is about. `index`: its number in the node. `name`: of a GPU its UUID, else what people call it.

    `address`: PCI address, or URL of a service. `model`: of a drive. `of`: the part that it belongs to or serves. `nodes`: those that
    a link joins, or one of which is at fault. A kind without index and name stands for all of them: GPUs.
    """

    kind: str = ""
    index: int | None = None
    name: str = ""
    address: str = ""
    serial: str = ""
    of: Part | None = None
    nodes: tuple[str, ...] = ()
    model: str = ""

    @property
    def short(self) -> str:
        """The words for the part without UUID, address and serial number, as they are the same on other nodes."""
        return self._beside(self._own(), self.of.short if self.of else "")

    @property
    def place(self) -> str:
        """The words of `short` with addresses instead of numbers, which shift when a part is lost."""
        of = self.of.place if self.of else ""
        if not self.address or self.is_named:
            return self._beside(self._own(), of)
        number = f" port {self.index}" if self.kind == "port" and self.index is not None else ""
        kind = KINDS.get(self.kind) or PartKind(self.kind)
        return self._beside(f"{kind.label} {self.address}{number}", of)

    @property
    def shared(self) -> Part:
        """The part without what differs from node to node."""
        of = self.of.shared if self.of else None
        return replace(self, name="" if self.kind == "gpu" else self.name, address="", serial="", of=of)

    @property
    def exchanged(self) -> Part:
        """The part that hands exchange for a fault of this one: of an NVLink its GPU."""
        return self.of if self.kind == "nvlink" and self.of else self

    @property
    def slot(self) -> Part:
        """The part without what changes when it is exchanged."""
        return replace(self.shared, address=self.address, of=self.of.slot if self.of else None)

    @property
    def brief(self) -> str:
        """The words for the part with its address alone, where a line is short."""
        return self._words(self.model, self.address, of=self.of.brief if self.of else "")

    @property
    def gpu(self) -> int | None:
        """The index of the GPU that the part is or belongs to."""
        if self.kind == "gpu":
            return self.index
        return self.of.gpu if self.of else None

    @property
    def is_named(self) -> bool:
        """Whether its name means the same thing on every node."""
        return self.kind in KINDS and KINDS[self.kind].named

    @property
    def likeness(self) -> tuple[str, str]:
        """What the same part of another node has in common with this one: its kind, and its name if that is shared."""
        return self.kind, self.name if self.is_named else ""

    def __str__(self) -> str:
        """The words for the part in every report."""
        name = self.name if self.index is not None and self.kind != "port" else ""
        return self._words(name, self.model, self.address, self.serial, of=str(self.of or ""))

    def _words(self, *inside: str, of: str) -> str:
        known = ", ".join(filter(None, inside))
        return self._beside(f"{self._own()} ({known})" if known else self._own(), of)

    def _beside(self, own: str, of: str) -> str:
        if self.of is None:
            return own
        return f"{own}, rail of {of}" if self.kind == "port" else f"{of} {own}"

    def _own(self) -> str:
        kind = KINDS.get(self.kind) or PartKind(self.kind)
        if self.kind == "port" and self.name:
            return self.name if self.index is None else f"{self.name} port {self.index}"
        if self.index is not None:
            return format_size(self.index) if self.kind == "size" else f"{kind.label} {self.index}".lstrip()
        if self.name:
            return f"{kind.label} {self.name}" if kind.labelled else self.name
        return f"{kind.label}s" if self.kind == "gpu" and not self.address else kind.label

    def mapped(self, change: Callable[[str], str]) -> Part:
        """Return the part with each of its texts changed."""
        return replace(
            self,
            name=change(self.name),
            address=change(self.address),
            serial=change(self.serial),
            of=self.of.mapped(change) if self.of else None,
            nodes=tuple(map(change, self.nodes)),
            model=change(self.model),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, without what is empty."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            key: value.as_dict() if isinstance(value, Part) else list(value) if value.__class__ is tuple else value
            for key, value in found.items()
            if value not in ("", None, ())
        }

    @classmethod
    def read(cls, plain: Any, depth: int = 3) -> Part:
        """Read a part of a log; what another program wrote is read as empty."""
        plain = as_dict(plain)
        index, of, nodes = plain.get("index"), plain.get("of"), plain.get("nodes")
        words = {key: shared_text(plain.get(key)) for key in ("kind", "name", "address", "serial", "model")}
        words["kind"] *= words["kind"].isprintable()  # no `mapped` changes it
        return _shared(
            **words,
            index=index if index.__class__ is int else None,
            of=cls.read(of, depth - 1) if isinstance(of, dict) and depth else None,
            nodes=tuple(map(shared_text, nodes)) if isinstance(nodes, list) else (),
        )


@lru_cache(1 << 18)  # a log names the GPUs of all nodes in each of their checks
def _shared(**fields: Any) -> Part:
    return Part(**fields)


def identity(serial: str) -> str:
    """Return a serial number that can identify a part, '' for a placeholder: a word, zeros, or counted digits.

    The number of a DIMM is of 8 hexadecimal digits (JEDEC SPD): in one of 2,500 all of them are letters.

    >>> identity("1650525012345"), identity("To be filled by O.E.M."), identity("00000000"), identity("0123456789")
    ('1650525012345', '', '', '')
    >>> identity("CBEBEBDF"), identity("FFFFFFFF"), identity("DEFAULT")
    ('CBEBEBDF', '', '')
    """
    serial = serial.strip()
    signs = "".join(filter(str.isalnum, serial)).upper()
    digits = any(map(str.isdecimal, signs)) or re.fullmatch("[A-F]{8}", signs)
    own = len(set(signs)) > 2 and digits and "SERNUM" not in signs
    return serial if own and signs not in "01234567890" else ""


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A part of a node, with what identifies it; '' is unknown. `length`: of a cable, in metres."""

    part: Part
    vendor: str = ""
    number: str = ""
    firmware: str = ""
    length: str = ""
    TEXTS: ClassVar = ("vendor", "number", "firmware", "length")

    @property
    def slot(self) -> str:
        """Where it sits in the node: what stays when it is exchanged."""
        part = self.part
        own = part.address or part.name if part.kind in ("gpu", "adapter", "nvswitch", "disk") else part.name
        return " ".join(filter(None, (part.kind, own)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, without what is empty."""
        own = {key: getattr(self, key) for key in self.TEXTS}
        return {"part": self.part.as_dict(), **{key: value for key, value in own.items() if value}}

    def mapped(self, change: Callable[[str], str]) -> InstalledPart:
        """Return it with each of its texts changed."""
        own = {key: change(getattr(self, key)) for key in self.TEXTS}
        return InstalledPart(self.part.mapped(change), **own)

    @classmethod
    def read(cls, plain: Any) -> InstalledPart:
        """Read an installed part of a log."""
        plain = as_dict(plain)
        own = {key: shared_text(plain.get(key)) for key in cls.TEXTS}
        return cls(Part.read(plain.get("part")), **own)


GPUS = Part("gpu")


def named(kind: str, name: str) -> Part:
    """Return a part that people call by its name alone: a mount, a service, a setting."""
    return Part(kind, name=name)


def gpu(index: int | None, *, uuid: str = "", address: str = "", serial: str = "") -> Part:
    """Return a GPU by the index of the driver."""
    return Part("gpu", index, uuid, address, serial)


def nvlink(index: int, of: Part) -> Part:
    """Return an NVLink of a GPU."""
    return Part("nvlink", index, of=of)


def port(adapter: str, number: int | None, *, address: str = "", of: Part | None = None) -> Part:
    """Return a port of an adapter; `of`: the GPU whose rail it is."""
    return Part("port", number, adapter, address, of=of)


def pair(one: str, other: str) -> Part:
    """Return the link between two nodes."""
    return Part("pair", name=f"{one} - {other}", nodes=(one, other))
