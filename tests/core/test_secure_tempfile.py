"""Files of our own where other users may lay traps: refused, never followed; each mode and message exactly."""

from __future__ import annotations

import errno
import grp
import os
import re
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucluster.core.errors import GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder, group_id, open_own

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = 54321  # the id of no user here


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))  # the descriptors of this process
    yield
    left = {number for number in os.listdir("/proc/self/fd") if number not in before}
    assert {number for number in left if Path(f"/proc/self/fd/{number}").exists()} == set()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def to_another_user(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> int:
    """Give what this process has made to another user; return the id of its owner now."""
    if os.geteuid() != 0:  # only root can
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
        return os.getuid()
    for path in paths:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    return OTHER


def why_not(path: Path, *, create: bool = False) -> tuple[int | None, str]:
    with pytest.raises(OSError, match="/") as caught:
        Folder(path, create=create)
    assert caught.value.filename == str(path)
    return caught.value.errno, caught.value.strerror or ""


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_folder_is_made_for_its_owner_or_for_a_group_as_well(tmp_path: Path, mask: int) -> None:
    (tmp_path / "there").mkdir(mode=0o711)
    before, expected = os.umask(mask), mode(tmp_path / "there")
    try:
        with closing(Folder(tmp_path / "there" / "a" / "b", create=True)) as own:
            assert (own.path, own.group) == (tmp_path / "there" / "a" / "b", None)
        with closing(Folder(tmp_path / "there" / "c" / "d", create=True, group=os.getegid())) as shared:
            shared.folder("e", create=True).close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "there") == expected
    assert [mode(tmp_path / "there" / name) for name in ("a", "a/b")] == [0o700] * 2
    assert [mode(tmp_path / "there" / name) for name in ("c", "c/d", "c/d/e")] == [0o750] * 3


def test_what_is_made_belongs_to_the_stated_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, int, int]] = []
    monkeypatch.setattr(os, "chown", lambda _path, *ids: given.append(("folder", *ids)))
    monkeypatch.setattr(os, "fchown", lambda _handle, *ids: given.append(("file", *ids)))
    with closing(Folder(tmp_path / "a", create=True, group=4711)) as folder:
        os.close(folder.open("x"))
        folder.make("y")
        folder.replace("z", [b""])
    assert given == [("folder", -1, 4711), *[("file", -1, 4711)] * 3]
    assert [mode(tmp_path / "a" / name) for name in "xyz"] == [0o640] * 3


def test_own_links_on_the_way_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x").touch()
    (tmp_path / "relative").symlink_to("a/../a/b")
    (tmp_path / "absolute").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    ways = ("a/b", "relative", "absolute/b", "relative/../b", str(tmp_path / "a" / "." / "b"), "absolute/new")
    for way in ways:
        with closing(Folder(Path(way), create=True)) as folder:
            assert folder.names() == ([] if way.endswith("new") else ["x"])
    assert (tmp_path / "a" / "new").is_dir()
    with closing(Folder(Path())) as folder:
        assert folder.names() == ["a", "absolute", "relative"]


def test_a_folder_inside_is_no_link_not_even_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    with closing(Folder(tmp_path)) as folder:
        with pytest.raises(NotADirectoryError, match="is a link or a file, not a folder") as caught:
            folder.folder("link", create=True)
        assert caught.value.filename == str(tmp_path / "link")
        with pytest.raises(FileNotFoundError):
            folder.folder("absent")
        with closing(folder.folder("a")) as inner:
            assert (inner.path, inner.names()) == (tmp_path / "a", [])
        to_another_user(monkeypatch, tmp_path / "a")
        with pytest.raises(PermissionError, match="the folder belongs to another user"):
            folder.folder("a")


def test_what_belongs_to_another_user_is_refused_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "x").touch()
    assert why_not(tmp_path / "b" / "c")[0] == errno.ENOENT
    assert not (tmp_path / "b").exists()
    for path in (tmp_path / "x", tmp_path / "x" / "y"):
        assert why_not(path, create=True)[0] == errno.ENOTDIR
    owner = to_another_user(monkeypatch, tmp_path / "a", tmp_path / "link")
    for name, printed in (("a", "the folder belongs to"), ("link/b", "link is a link of")):
        why = f"{printed} another user ({owner})"
        assert why_not(tmp_path / name, create=True) == (errno.EPERM, why)
    assert list((tmp_path / "a").iterdir()) == []
    if os.getuid() == 0:  # a new folder of ours inside theirs is one of ours
        Folder(tmp_path / "a" / "new", create=True).close()
        assert (tmp_path / "a" / "new").stat().st_uid == 0
        (tmp_path / "roots").symlink_to("a/new")
        monkeypatch.setattr(os, "geteuid", lambda: OTHER + 1)
        Folder(tmp_path / "roots").close()  # a folder and a link of root


@pytest.mark.parametrize(("rights", "refused"), [(0o777, True), (0o1777, False), (0o770, False), (0o702, True)])
def test_a_folder_where_everybody_may_exchange_files_is_refused(tmp_path: Path, rights: int, *, refused: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(rights)
    if refused:
        number, words = why_not(tmp_path / "a")
        assert (number, f"(mode {rights:04o})" in words) == (errno.EPERM, True)
    else:
        Folder(tmp_path / "a").close()


def traps(folder: Path) -> None:
    (folder / "precious").write_text("precious")
    (folder / "link").symlink_to("precious")
    (folder / "nowhere").symlink_to("absent")
    (folder / "two").write_text("")
    (folder / "names").hardlink_to(folder / "two")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()


NOT_OURS = "is not a plain file of this user's own"
LINK = "is a symbolic link"
OPENED = {"link": LINK, "nowhere": LINK, "two": NOT_OURS, "pipe": NOT_OURS, "folder": "Is a directory"}


def test_a_trap_is_neither_opened_nor_made(tmp_path: Path) -> None:
    traps(tmp_path)
    with closing(Folder(tmp_path)) as folder:
        for name, opened in OPENED.items():
            for call, why in ((folder.open, opened), (folder.make, NOT_OURS)):
                with pytest.raises(OSError, match="/") as caught:
                    call(name)
                assert (caught.value.strerror, caught.value.filename) == (why, str(tmp_path / name))
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(("rights", "refused"), [(0o1777, True), (0o770, False), (0o700, False)])
def test_a_file_of_another_user_is_shared_where_not_everybody_could_have_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rights: int, *, refused: bool
) -> None:
    with closing(Folder(tmp_path)) as folder:
        folder.make("x")
        assert mode(tmp_path / "x") == 0o600
        (tmp_path / "x").chmod(0o660)
        folder.make("x")
        tmp_path.chmod(rights)
        to_another_user(monkeypatch, tmp_path / "x")
        with pytest.raises(PermissionError, match=NOT_OURS):
            folder.open("x")
        if refused:
            with pytest.raises(PermissionError, match=NOT_OURS):
                folder.make("x")
        else:
            folder.make("x")
    assert mode(tmp_path / "x") == 0o660


def test_a_file_is_replaced_and_a_link_never_followed(tmp_path: Path) -> None:
    traps(tmp_path)
    with closing(Folder(tmp_path)) as folder:
        for name in ("link", "nowhere", "two", "pipe", "new"):
            folder.replace(name, [b"a", b"b"])
            assert (tmp_path / name).read_bytes() == b"ab"
            assert not (tmp_path / name).is_symlink()
            assert mode(tmp_path / name) == 0o600
        folder.replace("new", [b"c"], mode=0o644)
        assert mode(tmp_path / "new") == 0o644
        with pytest.raises(IsADirectoryError) as caught:
            folder.replace("folder", [b""])
        assert caught.value.filename == str(tmp_path / "folder")
        folder.replace("n" * 255, [b""])
        names = folder.names()
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "names").read_text() == ""
    assert [name for name in names if name.startswith(".")] == []


def no_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open no file without a name, as on NFS."""
    real = os.open

    def named(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", named)


@pytest.mark.parametrize("names", [1, 2], ids=["without a name", "as on NFS"])
def test_a_write_that_is_stopped_leaves_nothing(tmp_path: Path, names: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL leaves what is there while the data comes: nothing, but on NFS a file that no collector reads."""
    (tmp_path / "x").write_text("old")
    if names == 2:
        no_unnamed_files(monkeypatch)
    seen: list[str] = []

    def stopped() -> Iterator[bytes]:
        yield b"new"
        seen.extend(sorted(path.name for path in tmp_path.iterdir()))
        raise KeyboardInterrupt

    with closing(Folder(tmp_path)) as folder, pytest.raises(KeyboardInterrupt):
        folder.replace("x", stopped())
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"
    *hidden, plain = seen
    assert (plain, len(hidden)) == ("x", names - 1)
    assert all(re.fullmatch(r"\.x\.\w{16}\.tmp", name) for name in hidden)
    with closing(Folder(tmp_path)) as folder:
        folder.replace("x", [b"newer"])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "newer")]


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    traps(tmp_path)
    with closing(Folder(tmp_path)) as folder:
        folder.remove("link")
        folder.remove("link")
        with pytest.raises(OSError, match="/") as caught:
            folder.remove("folder")
        assert caught.value.filename == str(tmp_path / "folder")
        assert Path(folder.reach("precious")).read_text() == "precious"
    assert (tmp_path / "precious").exists()
    assert not (tmp_path / "link").exists()


def test_the_folder_stays_the_one_that_was_checked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "evil").mkdir()
    with closing(Folder(tmp_path / "a")) as folder:
        (tmp_path / "a").rename(tmp_path / "moved")
        (tmp_path / "a").symlink_to("evil")
        folder.replace("x", [b""])
        handle = folder.open("y")
        os.write(handle, b"12")
        os.close(handle)
        handle = folder.open("y")  # found again
        assert os.read(handle, 9) == b"12"
        os.close(handle)
        folder.make("z")
        Path(folder.reach("w")).touch()
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == ["w", "x", "y", "z"]
    assert mode(tmp_path / "moved" / "y") == 0o600
    assert list((tmp_path / "evil").iterdir()) == []


def test_a_file_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path, handle = open_own("x.lock")
    os.close(handle)
    assert (path, mode(path)) == (tmp_path / "x.lock", 0o600)
    traps(tmp_path)
    with pytest.raises(GpuClusterError, match=r"/link: cannot be opened \(is a symbolic link\): .*set TMPDIR"):
        open_own("link")

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(GpuClusterError, match=r"^x: cannot be opened \(No usable temporary directory"):
        open_own("x")


@pytest.mark.parametrize(
    ("user", "group", "others", "given"),
    [(0, 5, [6], True), (OTHER, 5, [6], False), (OTHER, 5, [6, 0], True), (OTHER, 0, [6], True)],
)
def test_a_group_has_to_exist_and_be_ones_own(
    monkeypatch: pytest.MonkeyPatch, user: int, group: int, others: list[int], *, given: bool
) -> None:
    name = grp.getgrgid(0).gr_name
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(os, "getegid", lambda: group)
    monkeypatch.setattr(os, "getgroups", lambda: others)
    assert group_id(None) is None
    with pytest.raises(GpuClusterError, match="'nosuch' does not exist"):
        group_id("nosuch")
    if given:
        assert group_id(name) == 0
    else:
        with pytest.raises(GpuClusterError, match="not a member and cannot give it files"):
            group_id(name)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert why_not(tmp_path / "circle", create=True)[0] == errno.ENOTDIR
