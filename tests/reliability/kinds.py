"""What the long runs can do: each kind does one number after the other, as long as it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.delta import test_crash_on_delta as crashes
from tests.delta import test_twin as twin
from tests.delta.hostile_frames import SORTS
from tests.faults import crash_pairs as spoiled_pairs
from tests.faults import crash_twice as spoiled_twice
from tests.faults import interrupts
from tests.histories import runs, stories
from tests.reliability import (
    cases,
    connect,
    meetings,
    mutants,
    mutation,
    notebook,
    older,
    soak,
    soak_page,
    versions,
)
from tests.reliability.results import Again, Failure, Listed, Run, Told, fingerprint
from tests.reliability.session import Session
from tests.stores import test_damage


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        name: Names it, its file and its argument.
        title: What a number of it is.
        unit: What is counted.
        store: On which store.
        does: What is done and compared.
        blind: What it cannot show.
        run: Does one number; returns how many cases that was, and what happened.
        total: How many there are, if they are a list; None: any number.
        independent: Whether its cases are drawn, so that there is a bound for those not drawn.
        found: The counts whose share of all cases is published, with its interval, if that is
            what is asked: a failure is then one that was not found.
        looked_at: What came of looking at a failure, by what it said.
        told: What came of each number, if each is a thing of its own.
        shown: What else the page shows of it, from the folder of the result files.
        parts: Which part of a list each of its cases is of: the page tells how far each is, before
            the list is complete.
        names: The names of a list's cases: another commit may have another list, or order.
        sought: What a failure of a case begins with, by its name.
        in_one_store: So many of its cases are done in one store, one after the other: what failed
            is repeated after those before it.
        lists_kept: Whether each list of its cases is kept beside the results: they take seconds, so
            that one that has passed is not done anew because the list has changed.
        whole: Whether a number is all that there is, and each other one the same again.
        note: What else is to be said of its results.
        side_by_side: How many numbers are done at the same time, each with what is its own: a
            number on Delta waits for Spark more than it computes.
    """

    name: str
    title: str
    unit: str
    store: str
    does: str
    blind: str
    run: Callable[[Session, int], tuple[int, Counter[str]]]
    total: Callable[[], int] | None = None
    independent: bool = True
    found: tuple[str, ...] = ()
    looked_at: Callable[[str], mutation.Verdict | None] | None = None
    told: Callable[[Sequence[Run], Mapping[int, Again]], Told] | None = None
    shown: Callable[[Path], Iterable[str]] | None = None
    parts: Callable[[], Sequence[str]] | None = None
    names: Callable[[], Sequence[str]] | None = None
    sought: Callable[[str], str] = "{}:".format
    in_one_store: int = 1
    lists_kept: bool = False
    whole: bool = False
    note: str = ""
    side_by_side: int = 1

    def numbers_of(self, failure: Failure) -> list[int]:
        """Find the numbers that a failure is looked for with: its own, unless they have names."""
        if self.names is None:
            return [failure.number]
        said = failure.what.removeprefix("AssertionError: ")
        begins = [self.sought(name) for name in self.names()]
        return [number for number, begin in enumerate(begins) if said.startswith(begin)]

    def before(self, number: int) -> range:
        """Find the numbers that are done before one in its store, if it is the last one there."""
        place = number % self.total() if self.total is not None else number
        return range(number - min(place, self.in_one_store - 1), number)

    def listed(self) -> Listed:
        """Tell the list of now from others."""
        names = self.names() if self.names is not None else None
        if names is not None:
            return Listed(len(names), fingerprint(names))
        return Listed(self.total() if self.total is not None else None, None)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "histories-memory",
            "recorded histories in memory",
            "histories",
            "in memory",
            "Four threads send, pass on, prepare, decide, lease and look, with faults at random; "
            "what each saw is compared with the journal and with every version of it: for what is "
            "lost, doubled, torn or read of a transaction that is rolled back, for cycles, the "
            "order of lanes and of fences. The checker finds each of "
            f"{len(stories.BAD)} bad histories made by hand, and nothing in {len(stories.GOOD)} "
            "good ones.",
            "What Delta, Spark and file systems do. Threads take turns as Python lets them: a "
            "number is not repeated exactly.",
            cases.histories_memory,
        ),
        Kind(
            "histories-threads",
            "recorded histories on Delta, threads",
            "histories",
            "Delta on a local disk, one driver",
            f"As in memory, by {runs.THREADS.clients} threads of one driver with "
            f"{runs.THREADS.actions} actions each, which take some sixty calls; who looks reads "
            "the files without Spark, and each version is read again from Delta's log alone.",
            "Object stores, clusters; maintenance at the same time.",
            cases.histories_threads,
            side_by_side=3,
        ),
        Kind(
            "histories-processes",
            "recorded histories on Delta, driver processes",
            "histories",
            "Delta on a local disk, two driver processes attached to one Java",
            f"As by threads, but by {runs.PROCESSES.clients} processes with "
            f"{runs.PROCESSES.actions} actions each. Up to twice, unless it is done before, each "
            "is killed at a random moment and started again; no call is made to fail.",
            "A Java that dies with its driver: the kills with their Java are of those.",
            cases.histories_processes,
            side_by_side=2,
        ),
        Kind(
            "crash-matrix",
            "cells of the crash matrix in memory",
            "cells",
            "in memory",
            "Each operation × each store call in it × each fault × each recovery.",
            "Two faults at once; other operations at the same time.",
            cases.crash_matrix,
            lambda: len(cases.cells()),
            names=lambda: list(map(str, cases.cells())),
        ),
        Kind(
            "crash-matrix-delta",
            "cells of the crash matrix on Delta",
            "cells",
            "Delta on a local disk",
            f"Each of the {len(crashes.HERE)} operations × each writing store call in it × "
            "each fault × each recovery: by the same client, by another one, by two at once. They "
            "are run in a shuffled order, twenty in one store.",
            "Faults inside of a store call: those of the file system are a kind of their own.",
            cases.crash_matrix_delta,
            lambda: len(cases.cells_on_delta()),
            names=lambda: list(map(str, cases.cells_on_delta())),
            in_one_store=cases.CELLS_IN_ONE_STORE,
            lists_kept=True,
            side_by_side=3,
        ),
        Kind(
            "crash-pairs",
            "ordered pairs of operations that are both spoiled, in memory",
            "pairs",
            "in memory",
            f"Each of {len(spoiled_pairs.SECOND_ONES)} operations after each of "
            f"{len(spoiled_pairs.HERE)}: a client is spoiled at a call that writes, then a second "
            "one comes to what is left and is spoiled, too, before anybody recovers. Of "
            f"each ordered pair {spoiled_pairs.OF_EACH} of the faults, places and recoveries are "
            "drawn; they are run in a shuffled order.",
            "Most of what two faults in two operations can be; operations on queues that tell "
            "duplicates, and those of operators, of exchanges and of declarations.",
            cases.crash_pairs,
            lambda: len(cases.ordered_pairs()),
            names=lambda: list(map(str, cases.ordered_pairs())),
            note="Up to 2026-11-24 pairs were counted whose second fault did not happen: after the "
            "first one the second client no longer made that call. Since then they are no pairs.",
        ),
        Kind(
            "crash-twice",
            "operations that are spoiled twice, in memory",
            "cells",
            "in memory",
            "Each operation × each store call that writes × each fault that is survived × each "
            "call that is made after it × each fault there; one of the recoveries is drawn. They "
            "are run in a shuffled order.",
            "Three faults in one operation; a first fault at a call that only reads.",
            cases.crash_twice,
            lambda: len(spoiled_twice.everything()),
            names=lambda: list(map(str, spoiled_twice.everything())),
        ),
        Kind(
            "interrupts",
            "places where an operation is interrupted, in memory",
            "places",
            "in memory",
            "Each operation is interrupted, as by Ctrl-C or a notebook's stop button, wherever "
            "Python can do so: as a function of the library begins, and after each call of one "
            "that is written in C. The same client goes on: it sends, recovers, drains and counts, "
            "and sees what another one sees.",
            "A second interrupt; the library's stores; Python's own library, PySpark and Arrow. "
            "Who is interrupted at the very moment at which a block's end begins stays inside of "
            "it: a call then asks for transaction=None, or for another manager.",
            cases.interrupts_in_memory,
            lambda: len(interrupts.cases()),
            names=interrupts.names,
            sought=interrupts.sought,
        ),
        Kind(
            "pairs-memory",
            "pairs of operations that meet, in memory",
            "meetings",
            "in memory",
            f"{meetings.DOES} Besides, each is held inside of each of its appends.",
            "Two holds in one operation; three operations.",
            meetings.in_memory,
            meetings.total_in_memory,
            names=meetings.names_in_memory,
        ),
        Kind(
            "pairs-delta",
            "pairs of operations that meet, on Delta",
            "meetings",
            "Delta on a local disk, two managers of one driver",
            meetings.DOES,
            "Meetings inside of a store call: test_conflicts.py forces those of two appends.",
            meetings.on_delta,
            meetings.total,
            parts=meetings.parts,
            names=meetings.names,
            in_one_store=meetings.IN_ONE_STORE,
            lists_kept=True,
            side_by_side=3,
        ),
        Kind(
            "kills",
            "kills of driver processes",
            "kills",
            "Delta on a local disk, a producer and a consumer attached to one Java",
            "A producer and a consumer are killed at random moments and started again; ten times, "
            "then everything is drained, and each message is there once.",
            "Statements of the dead are carried out by the Java that lives on. No driver is killed "
            "while it starts.",
            cases.kills,
        ),
        Kind(
            "kills-java",
            "kills of driver processes with their Java",
            "kills",
            "Delta on a local disk, a producer and a consumer with a Java of their own",
            "A producer and a consumer are killed ten times, each with its Java, which is killed "
            "at the same moment, in the middle of whatever it writes, or ends once it notices "
            "that its process is gone: one half each. Then each message is there once.",
            "Power failures: Delta does not force its files to the disk.",
            cases.kills_with_java,
        ),
        Kind(
            "kills-hdfs",
            "kills of driver processes on HDFS",
            "kills",
            "Delta on HDFS, which has a name node and a data node in a process beside; a producer "
            "and a consumer with a Java of their own, and no lock",
            "A producer and a consumer are killed ten times, where nothing but HDFS decides which "
            "of two commits is the first: whoever is started anew does not wait for a Java that "
            "may still be writing. Then each message is there once.",
            "Name nodes and data nodes that fail; other object stores.",
            cases.kills_on_hdfs,
        ),
        Kind(
            "kills-s3",
            "kills of driver processes on S3",
            "kills",
            "Delta on S3, which has a server in a process beside; a producer and a consumer with a "
            "Java of their own, the log store of the package, and no lock",
            "A producer and a consumer are killed ten times, where nothing but the server decides "
            "which of two commits is the first. Then each message is there once.",
            "Amazon's own S3, and a network between it and a driver; a server that fails.",
            cases.kills_on_s3,
        ),
        Kind(
            "notebook-life",
            "disturbances in the life of a notebook",
            "disturbances",
            "Delta on a local disk, a Jupyter kernel with a Java of its own",
            "Cells that send, receive, drain and maintain are interrupted at random moments, their "
            "Spark jobs are cancelled, the session is stopped under them or inside of a "
            "transaction, the kernel is killed and started anew. The next call is right: what the "
            "notebook is told of the transaction is what others are told, its work can be "
            "done again under its id, and after the leases each message is there once, nothing is "
            "held, and the history is verified.",
            "Notebooks of platforms, where a session is shared or a kernel is elsewhere.",
            notebook.run,
        ),
        Kind(
            "failing-storage",
            "calls to the storage that fail",
            "calls",
            "Delta on a local disk whose calls go through a file system of the tests' own",
            "The n-th create, rename, list or open fails, or succeeds and says that it failed, for "
            "n = 1, 2, 3 …, in a send of rows or of a frame, a transaction that receives and "
            "sends, the change of a table, a drain, an acceptance, the creation of a queue, and "
            "maintenance, of whose later lists and opens none is done before it fails; what the "
            "client is told is compared with what there is, and after every "
            "few calls of maintenance the whole history is verified.",
            "Two calls that fail; a disk that says it has written and has not; deletions, looks at "
            "a file's status and the making of folders; writing to and closing an open file.",
            cases.storage_that_fails,
            lambda: len(cases.failing_calls()),
            parts=cases.parts_of_failing_calls,
            names=cases.names_of_failing_calls,
            in_one_store=cases.CELLS_OF_AN_OLD_STORE,
            lists_kept=True,
            side_by_side=2,
        ),
        Kind(
            "connect",
            "the conformance suite over a Spark Connect server",
            "modules",
            "Delta on a local disk, a server in another process",
            "All that the suite of the public interface asks of Delta, module by module, by a "
            "client of a Spark Connect server that has Delta and nothing of the library; each "
            "process ends by itself.",
            "Servers that many clients share, and storage that only the server sees.",
            connect.run,
            connect.total,
            independent=False,
            names=connect.names,
            lists_kept=True,
        ),
        Kind(
            "damage",
            "damaged files",
            "cells",
            "Delta on a local disk, read without Spark; with Hadoop's sums beside the files and "
            "without",
            "Of a small store that 0.1.0 left, the newest and an older commit, Delta's checksum "
            "and three data files of the journal, the archive and each payload table; of one whose "
            "tables have checkpoints, and whose journal no longer has what is older, the files of "
            "the logs: the newest and an older commit, the checksum, the last checkpoint, and "
            "Delta's hint where it is. Each is deleted, emptied, cut, zeroed in part, or has one "
            "bit flipped at seven places; six questions have the answer that they had before, or "
            "an error that names the damage.",
            "Damage to two files; files of deletion vectors, which the library's tables have not.",
            cases.damage,
            lambda: 2 * test_damage.ALL_CELLS,
            names=cases.names_of_damage,
            sought=cases.sought_of_damage,
        ),
        Kind(
            "damage-proof",
            "damaged files, proved by Spark",
            "cells",
            "Delta on a local disk, with Hadoop's sums beside the files and without",
            "The damages of the files that are read without Spark: with Spark the proof of the "
            "history fails or names the damage, or what was damaged made no difference: each "
            "message that waits is read as before.",
            "Damage to two files; payload of what is consumed, which nobody reads any more.",
            cases.damage_proved,
            lambda: 2 * test_damage.ALL_CELLS,
            names=cases.names_of_damage,
            sought=cases.sought_of_damage,
            lists_kept=True,
            note="Up to 2026-11-26 a proof that failed counted whatever it named.",
        ),
        Kind(
            "versions",
            "versions of Python, Spark and Delta",
            "tests",
            "in memory and Delta on a local disk, each in a virtual environment of its own",
            "The wheel is built from the checkout and installed; its doctor finds nothing wrong, "
            "and it passes the tests of the core and the conformance suite in memory, or a part of "
            "that on Delta. Free is what pip chooses within the bounds of the package's extras; "
            "other packages are pinned as in conf/constraints.txt, the newest, or the oldest ones "
            "that the package asks for.",
            "Platforms with a Spark of their own; other releases than those that are named: of "
            "Java, 17 and 25 could be installed where this ran, and 21 could not.",
            versions.run,
            lambda: len(versions.ALL),
            independent=False,
            told=versions.told,
            names=lambda: list(map(str, versions.ALL)),
        ),
        Kind(
            "simulator",
            "seeds of the simulator",
            "seeds",
            "in memory",
            "200 actions of two to four clients, interleaved within their calls, with faults, late "
            "replies, kills, zombies and clocks apart; each commit is compared with a model.",
            "What the model and the library have wrong alike; Delta and Spark.",
            cases.simulator,
        ),
        Kind(
            "interleavings",
            "programs of which every interleaving is explored",
            "programs",
            "in memory",
            "Two clients of the real code: their store calls in every order, where each may crash, "
            "a reply may be lost, an append may land late and a lease may end, once each; with a "
            "drain one or two of these. In each state that is reached the promises hold.",
            "Three clients; more than one fault of a sort; what happens inside of a store call.",
            cases.explored,
            lambda: len(cases.names_of_programs()),
            independent=False,
            names=cases.names_of_programs,
            lists_kept=True,
        ),
        Kind(
            "machines",
            "sequences of operations that Hypothesis draws",
            "sequences",
            "in memory",
            "Forty operations each: of several clients of queues, interleaved within their calls, "
            "against a model of single messages; and of sessions that work on, suspend and join "
            "branches of global transactions, against a model of these.",
            "What the model and the library have wrong alike; Delta and Spark.",
            cases.machines,
        ),
        Kind(
            "twins",
            "sequences of operations on Delta and in memory",
            "sequences",
            "Delta on a local disk, and in memory",
            f"{twin.STEPS} random operations of two clients are done on both: each has the same "
            "result or the same error, and in the end the journals have the same entries.",
            "Two operations at the same time; faults.",
            cases.twins,
            side_by_side=3,
        ),
        Kind(
            "wrong-clocks",
            "sequences of operations on Delta with wrong clocks",
            "sequences",
            "Delta on a local disk, and in memory",
            "As on Delta and in memory above, but each client has a clock of its own, up to an "
            "hour wrong, which jumps back by up to ten minutes; and what was committed before they "
            "started is three years older or newer, in Delta's log and on the disk.",
            "Clocks of the storage itself; maintenance, which keeps things for days.",
            cases.wrong_clocks,
            side_by_side=3,
        ),
        Kind(
            "broken-variants",
            "protocols that are broken on purpose",
            "variants caught",
            "in memory",
            "One rule of the real code is broken at a time: the checks must find each.",
            "Mistakes that nobody thought of.",
            cases.broken_variants,
            independent=False,
            whole=True,
        ),
        Kind(
            "mutants",
            "mutants of the core and of the append loop",
            "mutants drawn",
            "in memory",
            "One operator, constant, condition, call, loop or return value in the functions of "
            "txnqueue/core, client/append.py, client/runtime.py and storage/journal/groups.py is "
            "made wrong, drawn at random; the tests that reach the statement are run, the quickest "
            f"first, {mutation.JUDGED_SECONDS:.0f} seconds of them and up to "
            f"{mutation.FAULTS_SECONDS:.0f} with those of faults and random histories, until one "
            "fails. That test has to pass without the mistake.",
            "Constants of modules, defaults and decorators, which are not mutated; two mistakes at "
            "once; what only tests on Spark find, or tests that take longer.",
            mutation.run,
            lambda: len(mutants.mutants()),
            names=lambda: [one.place for one in mutants.mutants()],
            found=mutation.KILLED,
            looked_at=mutation.looked_at,
        ),
        Kind(
            "hostile-input",
            "hostile rows, frames and columns",
            "examples",
            "in memory",
            "Hypothesis draws rows, schemas and AMQP messages: a typed error, or a round trip.",
            "What the strategies do not draw; Spark's own reading of frames.",
            cases.hostile_input,
        ),
        Kind(
            "hostile-commands",
            "hostile command lines, files, YAML and AMQP frames",
            "examples",
            "in memory",
            "Hypothesis draws, with one seed for each number, commands with whichever words, "
            "files to send, YAML for declarations and for the rules of the AMQP listener, and "
            "what a client of it says: any exit code but that of an unexpected failure, any "
            "answer but an internal error; nothing is held and the history proves itself.",
            "Sockets; commands that look at the machine, wait or serve.",
            cases.hostile_commands,
        ),
        Kind(
            "hostile-frames",
            "hostile DataFrames on Delta",
            "frames",
            "Delta on a local disk",
            "Frames without rows, of thousands of partitions, with any types and names, decimals "
            "of 38 digits, keys that are null, strings of 10 MB, deep values, hundreds of "
            "columns, rows that are drawn anew, names twice, other columns and types, nulls, "
            "values that cannot be computed and files that are gone: each comes out as it went in, "
            "or is refused, and nothing of it is there.",
            "Frames of other sorts; sources that change while they are read.",
            cases.hostile_frames,
            in_one_store=len(SORTS),
        ),
        Kind(
            "hostile-connect",
            "hostile DataFrames over a Spark Connect server",
            "frames",
            "Delta on a local disk, a server in another process",
            "The frames that are offered to Delta, by clients of a Spark Connect server: a number "
            "is a frame of each sort.",
            "Servers that many clients share.",
            connect.hostile_frames,
        ),
        Kind(
            "upgrade",
            "store calls of an upgrade",
            "calls",
            "in memory, with all that a store of 0.1.0 has",
            "The first work of this version on it (recovery, the decision of what was prepared, a "
            "drain, maintenance, sends) × each store call × each fault; two other clients go on, "
            "and all that 0.1.0 left is there once.",
            "Two faults at once; what Delta makes of tables that 0.1.0 wrote.",
            older.upgrade,
            lambda: len(older.spoiled_upgrades()),
            names=lambda: list(map(str, older.spoiled_upgrades())),
        ),
        Kind(
            "two-versions",
            "kills of drivers of 0.1.0 and of this version on one store",
            "kills",
            "Delta on a local disk, a producer and a consumer attached to one Java",
            "0.1.0, from git's history, makes a store. One version produces, the other consumes, "
            "both are killed at random moments; then it is maintained, verified and shown to "
            "0.1.0, which has to refuse a store of this version.",
            "What is new in this version: 0.1.0 does not know it. Maintenance by 0.1.0.",
            older.two_versions,
            note="The kills up to 2026-11-24 are those that were meant; whether a driver was still "
            "alive was not counted. Since then only those are counted that were.",
        ),
        Kind(
            "copies",
            "copies of a store on which others work",
            "copies",
            "Delta on a local disk, two driver processes attached to one Java",
            "The folder is copied by the page's recipe while a producer and a consumer work: each "
            "copy verifies, has all that was committed before, and each message once. In a wrong "
            "order it is whole by chance, or is told.",
            "Maintenance during a copy; object stores.",
            older.copies,
        ),
        Kind(
            "soak",
            "sends of a process that lives long",
            "sends",
            "Delta on a local disk, one driver with seven threads",
            "Two producers send a hundred messages at a time, four consumers receive them and send "
            "them on in one transaction, and the store is maintained beside them. After each "
            "fifty sends their messages, which are numbered, are in the output once and nothing "
            "else is; after each five hundred the whole history is verified. The store is kept "
            "between the runs.",
            "Growth that takes longer than the runs so far; what depends on the days that Delta "
            "keeps old files and logs for.",
            soak.run,
            independent=False,
            shown=soak_page.lines,
        ),
    )
}
