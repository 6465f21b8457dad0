"""The file of the history: one SQLite file, opened, locked and upgraded.

Several runs may write at once: a run is one transaction, begun with the write lock in hand, and a writer waits up to
BUSY seconds for it. What was killed in between is rolled back by whoever opens the file next. The rollback journal is
used, not WAL, which cannot work where the writers are on several hosts (https://sqlite.org/wal.html); on NFS the
server's locks must work. The schema has a version: `convert` brings older files to the present one; others are refused.
"""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucluster.core.errors import ConfigError, GpuClusterError
from pytest_gpucluster.core.secure_tempfile import Folder
from pytest_gpucluster.report.history.ledger import TABLES
from pytest_gpucluster.report.history.work import TABLES as WORK
from pytest_gpucluster.report.machine.convert import convert_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

BUSY = 60.0  # seconds; a run of 1,000 nodes is written in a few
STEP = 0.05  # seconds between two tries for it
APPLICATION = 0x67_70_75_63  # 'gpuc', in the file's header: marks the file as a history

# A list of steps; the first N were applied to a file at version N (0.2.0: 1). Released steps are never changed.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (id INTEGER PRIMARY KEY, run TEXT NOT NULL, cluster TEXT NOT NULL,
            simulated INTEGER NOT NULL, started REAL NOT NULL, finished REAL NOT NULL, complete INTEGER NOT NULL,
            good INTEGER NOT NULL, exit INTEGER, arguments TEXT NOT NULL, passed INTEGER NOT NULL,
            failed INTEGER NOT NULL, error INTEGER NOT NULL, unjudged INTEGER NOT NULL, nodes INTEGER NOT NULL,
            UNIQUE (cluster, run))""",
        "CREATE INDEX runs_started ON runs (cluster, simulated, started)",
        """CREATE TABLE nodes (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, simulated INTEGER NOT NULL,
            name TEXT NOT NULL, UNIQUE (cluster, simulated, name))""",
        """CREATE TABLE node_runs (node INTEGER, started REAL, run INTEGER, good INTEGER NOT NULL,
            passed INTEGER NOT NULL, failed INTEGER NOT NULL, error INTEGER NOT NULL, unjudged INTEGER NOT NULL,
            PRIMARY KEY (node, started, run)) WITHOUT ROWID""",
        "CREATE INDEX node_runs_run ON node_runs (run)",
        """CREATE TABLE items (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, "check" TEXT NOT NULL,
            UNIQUE (node, "check"))""",
        """CREATE TABLE verdicts (item INTEGER, started REAL, run INTEGER, outcome TEXT NOT NULL,
            message TEXT NOT NULL, action TEXT NOT NULL, PRIMARY KEY (item, started, run)) WITHOUT ROWID""",
        "CREATE INDEX verdicts_run ON verdicts (run)",
        """CREATE TABLE findings (run INTEGER NOT NULL, item INTEGER NOT NULL, part TEXT NOT NULL,
            measured TEXT NOT NULL, expected TEXT NOT NULL)""",
        "CREATE INDEX findings_run ON findings (run, item)",
        """CREATE TABLE series (id INTEGER PRIMARY KEY, node INTEGER NOT NULL, "check" TEXT NOT NULL,
            name TEXT NOT NULL, unit TEXT NOT NULL, device TEXT NOT NULL, better TEXT NOT NULL,
            detail INTEGER NOT NULL, UNIQUE (node, "check", name, unit, device))""",
        # fit: may serve as a baseline (the node was good, and the value was not worse than its own baseline)
        """CREATE TABLE metrics (series INTEGER, started REAL, run INTEGER, value REAL, fit INTEGER NOT NULL,
            PRIMARY KEY (series, started, run)) WITHOUT ROWID""",
        "CREATE INDEX metrics_run ON metrics (run)",
        """CREATE TABLE fleet (run INTEGER, "check" TEXT, name TEXT, unit TEXT, device TEXT, median REAL NOT NULL,
            PRIMARY KEY (run, "check", name, unit, device)) WITHOUT ROWID""",
        """CREATE TABLE accepted (cluster TEXT, simulated INTEGER, node TEXT, started REAL NOT NULL,
            PRIMARY KEY (cluster, simulated, node)) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE acts (run INTEGER NOT NULL, node INTEGER NOT NULL, time REAL NOT NULL, result TEXT NOT NULL,
            reason TEXT NOT NULL, user TEXT NOT NULL)""",
        "CREATE INDEX acts_run ON acts (run)",
        "CREATE INDEX acts_node ON acts (node, time)",
    ),
    (
        # times are seconds since the epoch; lists and mappings are JSON
        """CREATE TABLE campaigns (id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, name TEXT NOT NULL,
            simulated INTEGER NOT NULL, nodes TEXT NOT NULL, kinds TEXT NOT NULL, began REAL NOT NULL,
            closed REAL, UNIQUE (cluster, name))""",
        # child: mark of the process that tests; until: no job of it lasts longer
        """CREATE TABLE campaign_groups (id INTEGER PRIMARY KEY, campaign INTEGER NOT NULL, kind TEXT NOT NULL,
            nodes TEXT NOT NULL, waits INTEGER NOT NULL, folder TEXT NOT NULL, owner TEXT NOT NULL,
            child TEXT NOT NULL, began REAL NOT NULL, until REAL NOT NULL, ended REAL, run_id TEXT NOT NULL,
            sha256 TEXT NOT NULL)""",
        "CREATE INDEX campaign_groups_campaign ON campaign_groups (campaign)",
        # the nodes as a process of the campaign saw them last in Slurm; why '': in service
        """CREATE TABLE campaign_nodes (campaign INTEGER, node TEXT, idle INTEGER NOT NULL, share TEXT NOT NULL,
            why TEXT NOT NULL, boot TEXT NOT NULL, PRIMARY KEY (campaign, node)) WITHOUT ROWID""",
        # a node is under test for one group at a time, whatever the campaign
        """CREATE TABLE campaign_leases (cluster TEXT, node TEXT, "group" INTEGER NOT NULL,
            PRIMARY KEY (cluster, node)) WITHOUT ROWID""",
        # node '': the cluster; left: the node went out of service, or was booted, after this result
        """CREATE TABLE campaign_results (campaign INTEGER, kind TEXT, node TEXT, "group" INTEGER,
            outcome TEXT NOT NULL, message TEXT NOT NULL, boot TEXT NOT NULL, "left" INTEGER NOT NULL,
            PRIMARY KEY (campaign, kind, node, "group")) WITHOUT ROWID""",
        """CREATE TABLE campaign_pairs (campaign INTEGER, "group" INTEGER, suite TEXT, name TEXT, one TEXT, other TEXT,
            value REAL, problem TEXT NOT NULL, PRIMARY KEY (campaign, "group", suite, name, one, other)) WITHOUT ROWID""",
    ),
    # of a finding: what is wrong, its part as data, and the measured number; of a metric: its part as JSON
    tuple(
        f"ALTER TABLE {column}"
        for column in (
            "series ADD COLUMN part TEXT NOT NULL DEFAULT '{}'",
            *(
                f"findings ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
                for name in ("code", "kind", "name", "address", "serial", "unit")
            ),
            'findings ADD COLUMN "index" INTEGER',
            "findings ADD COLUMN value REAL",
        )
    ),
    TABLES,
    WORK,
    # seen: when the last run found the node with this value
    (
        """CREATE TABLE factors (node INTEGER, factor TEXT, value TEXT, seen REAL NOT NULL,
            PRIMARY KEY (node, factor, value)) WITHOUT ROWID""",
    ),
)


class HistoryFile:
    """An open history file. ConfigError: it is none, or of a newer version; GpuClusterError: it cannot be written."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        convert: bool = False,
        group: int | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """Open the file. `create`: to write; it is made where it is missing, but not its folder.

        `convert`: bring a file of an earlier version to the present schema, which is refused otherwise; `converted` is
        its schema before. `wait(seconds)` sleeps while another writer is busy, and returns False to stop waiting.
        """
        self.path, self._wait, self._convert = path, wait, convert
        self.converted = len(MIGRATIONS)
        self._waited = 0.0  # seconds, for another writer
        self._folder: Folder | None = None
        if not create and not path.exists():
            raise ConfigError(f"history {path}: no such file; a run with --history={path} makes it")
        with self._readable_errors():
            if create:
                self._folder = Folder(path.parent, group=group)
                self._folder.make(path.name)
            name = self._folder.reach(path.name) if self._folder is not None else path
            self._db = sqlite3.connect(name, timeout=BUSY, isolation_level=None)
        try:
            with self._readable_errors():
                self._patiently("PRAGMA cache_size = -65536")
                self._check()
                if create:
                    self._try_to_write()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        if self._folder is not None:
            self._folder.close()

    def query(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a statement that reads."""
        with self._readable_errors():
            return self._db.execute(statement, values).fetchall()

    def _check(self) -> None:
        """Refuse files of other programs and of other versions; make the tables of a new one."""
        if self._number("application_id") != APPLICATION and self._tables():
            raise ConfigError(
                f"history {self.path}: an SQLite file of another program; name another file with --history"
            )
        version = self._number("user_version")
        if version > len(MIGRATIONS):
            raise ConfigError(
                f"history {self.path}: written by a newer pytest-gpucluster (schema {version}, this one knows "
                f"{len(MIGRATIONS)}); upgrade, or name another file"
            )
        if 0 < version < len(MIGRATIONS) and not self._convert:
            raise ConfigError(
                f"history {self.path}: an earlier pytest-gpucluster wrote it; convert it once: "
                f"gpucluster history --history {shlex.quote(str(self.path))} --convert"
            )
        if version < len(MIGRATIONS):
            self.converted = version
            self._upgrade()

    def _try_to_write(self) -> None:
        """Start to write: a file or folder that this user cannot write is found now, not after the run."""
        self._patiently("BEGIN IMMEDIATE")
        try:
            self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")  # opens the journal beside the file
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _upgrade(self) -> None:
        with self._transaction():
            # its second read: another writer may have been first
            for step in MIGRATIONS[self._number("user_version") :]:
                for statement in step:
                    self._db.execute(statement)
            convert_rows(self._db)
            self._db.execute(f"PRAGMA application_id = {APPLICATION}")
            self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _number(self, pragma: str) -> int:
        (value,) = self._patiently(f"PRAGMA {pragma}").fetchone()
        return int(value)

    def _tables(self) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Hold the write lock; all or nothing."""
        self._patiently("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled back by itself
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _patiently(self, statement: str) -> sqlite3.Cursor:
        """Execute a statement that another writer may keep from its lock for up to BUSY seconds."""
        begin = time.monotonic()
        self._db.execute("PRAGMA busy_timeout = 0")  # in SQLite's own wait no signal is seen
        try:
            while True:
                try:
                    return self._db.execute(statement)
                except sqlite3.OperationalError as error:
                    self._waited = time.monotonic() - begin
                    if not _is_locked(error) or self._waited >= BUSY or self._wait(STEP) is False:
                        raise
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {BUSY * 1000:.0f}")

    @contextlib.contextmanager
    def _readable_errors(self) -> Iterator[None]:
        """Turn SQLite's errors into one line: what, where, what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_locked(error):
                raise GpuClusterError(
                    f"history {self.path}: another writer has held it for {self._waited:.0f} s; import the run later "
                    "with `gpucluster history --import EVENTS`"
                ) from error
            if "readonly" in str(error) or "unable to open" in str(error):
                raise ConfigError(
                    f"history {self.path}: this user cannot write it, or its folder ({error}); name another file"
                ) from error
            raise GpuClusterError(f"history {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"history {self.path}: damaged, or no SQLite file ({error}); move it away, or name another file"
            ) from error
        except FileNotFoundError as error:
            raise ConfigError(
                f"history {self.path}: there is no folder {self.path.parent}: make it, or name another file"
            ) from error
        except OSError as error:
            raise ConfigError(f"history {self.path}: {error.strerror}; name another file") from error


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)
