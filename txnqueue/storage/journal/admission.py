"""Admission of drivers to storage that does not create files atomically.

Delta's log store for S3 checks whether a commit's file exists and then puts it: if two drivers do
so at once, the later put silently replaces the other's commit. Within one JVM, a lock separates
the writers. So a driver that writes to such a store registers in a property of the journal's
table, and other drivers are refused while that driver has recently been active.

With the log store of this library, S3 itself refuses the later put. Any number of drivers may use
it; the same property records that, and keeps drivers without it away.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from txnqueue.errors import SecondDriver
from txnqueue.platform import clock
from txnqueue.platform.log_store import ATOMIC, CONDITIONAL_PUT, scheme_of
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.exceptions import conflicts, is_absent
from txnqueue.storage.journal.sessions import LAST_COMMIT, commit_noted, is_connect
from txnqueue.storage.journal.tables import literal
from txnqueue.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_S3 = ("s3", "s3a", "s3n")
"""Schemes for which Delta's log store separates only the writers of its own JVM."""
SINGLE_DRIVER = "io.delta.storage.S3SingleDriverLogStore"
SEVERAL_DRIVERS = "io.delta.storage.S3DynamoDBLogStore"
KEEP_APART = (
    SEVERAL_DRIVERS,
    "io.delta.storage.IBMCOSLogStore",
    "io.delta.storage.OracleCloudLogStore",
)
"""Delta's log stores that support several drivers on storage that is not atomic by itself."""
EVERY_DRIVER = f"every driver with {CONDITIONAL_PUT}"
"""The entry in the register of a store that such drivers share."""
_DELEGATING = "org.apache.spark.sql.delta.storage.DelegatingLogStore"
SETTING = "spark.txnqueue.storage.several_drivers"

SILENCE_SECONDS = 300.0
"""The silence after which another driver may replace one."""
LOOK_SECONDS = 60.0
"""How often a driver checks that it is still the registered one, and shows that it is active."""
SETTLE_SECONDS = 3.0
"""The maximum time of a put, after which a new driver checks its registration."""
_TRIES = 5


def log_store_setting(scheme: str) -> str:
    """Return the setting that selects another log store for a scheme."""
    return f"spark.delta.logStore.{scheme}.impl"


def log_store(scheme: str, conf: Callable[[str], str | None]) -> str | None:
    """Return the class of the log store for a scheme: the configured one, or that of S3.

    Delta reads its settings when a table is first used, with and without the prefix ``spark.``,
    from those with which the Spark application was started. The old one for all schemes wins.
    """
    for setting in ("spark.delta.logStore.class", log_store_setting(scheme)):
        for key in (setting, setting.removeprefix("spark.")):
            said = conf(key)
            if said and said != _DELEGATING:
                return said
    return SINGLE_DRIVER if scheme in OF_S3 else None


class Writers(Enum):
    """Who may write at a location where Delta's log store does not separate drivers."""

    ONE = "one driver at a time"
    SHARING = "all drivers that put conditionally"
    APART = "drivers that something else keeps apart"


def writers_at(
    location: str, conf: Callable[[str], str | None], *, several_drivers: bool = False
) -> Writers | None:
    """Return who may write at a location; None: any driver (pure).

    Args:
        location: The location of the store.
        conf: Looks up a setting with which the application was started.
        several_drivers: Whether the platform itself allows several drivers.
    """
    scheme = scheme_of(location)
    if scheme in ATOMIC:
        return None
    chosen = log_store(scheme, conf)
    if several_drivers or chosen in KEEP_APART:
        return Writers.APART
    return Writers.SHARING if chosen == CONDITIONAL_PUT else Writers.ONE


def application_settings(spark: SparkSession) -> Callable[[str], str | None]:
    """Return a lookup of the settings with which a Spark application was started, as Delta does it.

    Under Spark Connect only the session can be asked, which has the same values unless they were
    changed there.
    """
    if is_connect(spark):
        return lambda key: spark.conf.get(key, None)
    conf = spark.sparkContext.getConf()
    return lambda key: conf.get(key, None)


_here: list[str] = []
_naming = threading.Lock()


def driver_of(spark: SparkSession) -> str:
    """Return the name of the JVM that writes for a session: the driver of its application.

    A classic Python process has the same JVM for its whole life, even if it runs several
    applications in turn; a client of Spark Connect may use several servers.
    """

    def name() -> str:
        keys = ("spark.app.id", "spark.driver.host", "spark.driver.port")
        return "@".join(filter(None, (spark.conf.get(key, "") for key in keys)))

    if is_connect(spark):
        return name()
    with _naming:
        if not _here:
            _here.append(name())
        return _here[0]


@dataclass(frozen=True, slots=True)
class Registration:
    """The registered writer of a store, according to its journal.

    Attributes:
        driver: The driver; None if none is registered.
        heard_at_ms: When the journal was last written to.
        about: Further details that the driver registered.
    """

    driver: str | None
    heard_at_ms: int
    about: Mapping[str, object]


class Register(Protocol):
    """The register of the writer of a store."""

    def read(self) -> Registration | None:
        """Read the registration; None if there is no journal yet."""
        ...

    def write(self, driver: str | None, about: Mapping[str, object]) -> int:
        """Write the registration by a Delta commit, and return that commit's version.

        Raises:
            AppendConflict: Another driver wrote to the journal meanwhile.
        """
        ...

    def written_by(self, version: int) -> str | None:
        """Read from the storage, not from a cache, which driver made a commit by ``write``."""
        ...


class _Presence:
    """The managers of one driver that write at a location; the last one leaves for all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.admitted: weakref.WeakSet[Admission] = weakref.WeakSet()


_presences: defaultdict[tuple[str, str], _Presence] = defaultdict(_Presence)


class Admission:
    """The admission to a store for one driver at a time, or for drivers that share it.

    A driver with conditional puts shares the store with all others that have them; its
    registration stays, and keeps drivers without them away. Drivers that are separated by other
    means register nothing, but check that no such registration exists.
    """

    def __init__(
        self,
        register: Register,
        driver: Callable[[], str],
        location: str,
        writers: Writers = Writers.ONE,
        *,
        alone: bool = True,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = clock.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Query nothing yet.

        Args:
            register: The register of the writer.
            driver: Returns the name of this driver.
            location: The location of the store.
            writers: Who may write there, including this driver.
            alone: Whether all managers of this driver are in this process.
            now_ms: The clock, in milliseconds.
            monotonic: A monotonic clock, in seconds.
            sleep: Waits for a number of seconds.
        """
        self._register = register
        self._writers = writers
        self._shared = writers is Writers.SHARING
        self._driver: Callable[[], str] = (lambda: EVERY_DRIVER) if self._shared else driver
        self._location = location
        self._alone = alone
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._sleep = sleep
        self._lock = threading.Lock()
        self._sure_at: tuple[float, int] | None = None
        self._has_written = False
        self._seen: tuple[str | None, int] | None = None
        self._seen_at = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make sure, as far as possible, that no other driver that may not writes here.

        Raises:
            SecondDriver: Another driver does; nothing was written.
        """
        with self._lock:
            if not self._is_sure():
                self._sure_at = None
                presence = self._presence()
                with presence.lock:
                    try:
                        is_on_record = self._check()
                    except SecondDriver:
                        presence.admitted.discard(self)
                        raise
                    if is_on_record:
                        self._admit(presence)
        yield

    def take_over(self, about: Mapping[str, object]) -> None:
        """Register this driver as the writer from now on.

        Raises:
            SecondDriver: Another one did the same at the same time.
        """
        presence = self._presence()
        with self._lock, presence.lock:
            found = self._register.read()
            if found is not None and self._writers is Writers.APART:
                if found.driver is not None:
                    taken = {**about, "taken_from": found.driver}
                    self._write(None, taken, lambda now: now is None or now.driver is None)
            elif found is not None:
                before = {"taken_from": found.driver} if found.driver else {}
                self._say({**about, **before}, settle=True)
                self._admit(presence)

    def leave(self) -> None:
        """Let the next driver begin at once, if this is the driver's last manager that wrote.

        If other processes may use the same Spark Connect server, the next driver must wait until
        this one has been silent long enough.
        """
        with self._lock:
            if self._writers is not Writers.ONE or not self._has_written:
                return
            self._sure_at = None
            presence = self._presence()
            with presence.lock:
                presence.admitted.discard(self)
                if presence.admitted or not self._alone:
                    return
                found = self._register.read()
                if found is not None and found.driver == self._driver():
                    self._register.write(None, {})

    def _is_sure(self) -> bool:
        """Return whether it was recently the registered driver, by both clocks.

        The monotonic one may stand still while a machine sleeps; meanwhile another driver may have
        begun.
        """
        if self._sure_at is None:
            return False
        monotonic, now_ms = self._sure_at
        passed = abs(self._now_ms() - now_ms) / 1000
        return max(self._monotonic() - monotonic, passed) <= LOOK_SECONDS

    def _admit(self, presence: _Presence) -> None:
        self._sure_at, self._has_written = (self._monotonic(), self._now_ms()), True
        presence.admitted.add(self)

    def _presence(self) -> _Presence:
        if self._writers is not Writers.ONE:
            return _Presence()  # without a counted leave
        key = self._location, self._driver()
        with _naming:
            return _presences[key]

    def _check(self) -> bool:
        """Check who writes here, and register this driver.

        Returns:
            Whether it is registered, which needs a journal.
        """
        found = self._register.read()
        if found is None:
            return False
        if self._writers is Writers.APART:
            if found.driver not in (None, self._driver()):
                self._unless_silent(found)
                self._forget(found.driver)
            return True
        mine = found.driver == self._driver()
        if not mine and found.driver is not None:
            self._unless_silent(found)
        silent = self._now_ms() - found.heard_at_ms > LOOK_SECONDS * 1000
        if not mine or (silent and not self._shared):
            self._say({}, settle=not mine)
        return True

    def _unless_silent(self, found: Registration) -> None:
        """Refuse to write beside a driver that was recently active, by its clock or ours.

        Raises:
            SecondDriver: The other driver was.
        """
        seen, now = (found.driver, found.heard_at_ms), self._monotonic()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        silent = (self._now_ms() - found.heard_at_ms) / 1000
        if found.driver == EVERY_DRIVER or max(silent, now - self._seen_at) < SILENCE_SECONDS:
            raise self._refusal(found.driver, found.about, silent)

    def _forget(self, driver: str | None) -> None:
        """Remove a driver that has ended from the register: others' commits would seem its own."""
        about = {"taken_from": driver}
        self._write(None, about, lambda found: found is None or found.driver != driver)

    def _say(self, about: Mapping[str, object], *, settle: bool) -> None:
        """Register this driver; if it is new, make sure that no other one registered too."""
        said = {**about, "at": self._now_ms()}
        version = self._write(self._driver(), said, self._is_said_by_another)
        if version is None or not settle:
            return
        self._sleep(SETTLE_SECONDS)
        written_by = self._register.written_by(version)
        if written_by != self._driver():
            raise self._refusal(written_by, {}, 0.0)

    def _is_said_by_another(self, found: Registration | None) -> bool:
        """Return whether another driver that shares the store has registered the same.

        Raises:
            SecondDriver: Another driver has registered itself.
        """
        if found is None or found.driver is None:
            return False
        if found.driver != self._driver():
            raise self._refusal(found.driver, found.about, 0.0)
        return self._shared

    def _write(
        self,
        driver: str | None,
        about: Mapping[str, object],
        is_done: Callable[[Registration | None], bool],
    ) -> int | None:
        """Write to the register, again if somebody else committed meanwhile.

        Returns:
            The version of the commit; None if the other commit made it unnecessary.
        """
        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                return self._register.write(driver, about)
            except AppendConflict:
                if is_done(self._register.read()):
                    return None
                if last:
                    raise
        raise AssertionError

    def _refusal(
        self, driver: str | None, about: Mapping[str, object], silent: float
    ) -> SecondDriver:
        setting = log_store_setting(scheme_of(self._location))
        if driver == EVERY_DRIVER:
            message = (
                f"The drivers of the store at {self._location!r} write their commits "
                "conditionally, and this one could silently replace them: nothing was done. Start "
                f"it with {setting}={CONDITIONAL_PUT} and the jar that txnqueue doctor names. If "
                "all the others have ended for good, manager.take_over(reason) lets this one start "
                "now."
            )
        else:
            message = (
                f"The driver {driver!r} uses the store at {self._location!r}, where a second one "
                "could silently replace its commits: nothing was done. Configure a log store for "
                f"several drivers, the same in all of them ({setting}={CONDITIONAL_PUT} or "
                f"{SEVERAL_DRIVERS}; {SETTING}=true if the platform has its own), or let that "
                "driver end: this one can start as soon as that one calls QueueManager.close(), or "
                f"{SILENCE_SECONDS:.0f} seconds after its last sign of life ({max(silent, 0):.0f} "
                "seconds ago by this clock). If it has certainly ended, manager.take_over(reason) "
                "lets this one start now."
            )
        return SecondDriver(
            message,
            owner={**about, "driver": driver},
            driver=driver,
            setting=setting,
        )


class TableRegister:
    """The register in a property of the journal's table."""

    PROPERTY = "txnqueue.driver"

    def __init__(
        self, naming: Callable[[], AbstractContextManager[SparkSession]], table: str
    ) -> None:
        """Name the table.

        Args:
            naming: Lends a session that nothing else uses.
            table: The journal, quoted for SQL.
        """
        self._naming = naming
        self._table = table

    def read(self) -> Registration | None:
        """Read the writer, and when the journal was last written to."""
        detail = f"DESCRIBE DETAIL {self._table}"
        # As a number: Spark Connect gives an instant without the hour's fold.
        wanted = "properties", "unix_millis(lastModified) AS at_ms"
        try:
            with self._naming() as session:
                (row,) = session.sql(detail).selectExpr(*wanted).collect()
        except Exception as error:
            if is_absent(error):
                return None
            raise
        said = _said(row["properties"].get(self.PROPERTY))
        driver = said.get("driver")
        return Registration(None if driver is None else str(driver), row["at_ms"], said)

    def write(self, driver: str | None, about: Mapping[str, object]) -> int:
        """Write the registration as a property of the table."""
        said = {**about, "driver": driver}
        key, value = literal(self.PROPERTY), literal(json.dumps(said))
        change = f"SET TBLPROPERTIES ({key} = {value})"
        if driver is None:
            change = f"UNSET TBLPROPERTIES IF EXISTS ({key})"
        note = {"txnqueue": __version__, "operation": "name the driver", **said}
        with self._naming() as session:
            session.conf.unset(LAST_COMMIT)
            with conflicts():
                commit_noted(session, f"ALTER TABLE {self._table} {change}", note)
            return int(session.conf.get(LAST_COMMIT, "-1") or -1)

    def written_by(self, version: int) -> str | None:
        """Read the file of the commit, which Delta does not cache."""
        with self._naming() as session:
            history = session.sql(f"DESCRIBE HISTORY {self._table} LIMIT 100")
            rows = history.where(f"version = {version}").select("userMetadata").collect()
        driver = _said(rows[0][0] if rows else None).get("driver")
        return None if driver is None else str(driver)


def _said(text: str | None) -> dict[str, object]:
    """Parse the details of a driver; empty if they cannot be parsed."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
