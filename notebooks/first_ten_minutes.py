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
# # The first ten minutes
#
# Create a queue, send and consume messages, change a Delta table together with them, roll back,
# and query the history. Everything runs on this machine, in a temporary folder.

# %%
import tempfile
from pathlib import Path

from txnqueue import QueueManager, local_spark

spark = local_spark()
lake = Path(tempfile.mkdtemp())
manager = QueueManager(spark, f"{lake}/messaging", actor="ada")

# %% [markdown]
# ## Create a queue and send messages
#
# A queue has typed columns. Its dead-letter queue `orders.dead` is created with it, for messages
# that cannot be processed.

# %%
orders = manager.create_queue("orders", "order_id long, customer string, amount double")
orders.send(
    [
        {"order_id": 1, "customer": "bob", "amount": 9.5},
        {"order_id": 2, "customer": "eve", "amount": 3.0},
        {"order_id": 3, "customer": "bob", "amount": -1.0},
    ]
).count

# %% [markdown]
# ## Peek without receiving

# %%
seen = orders.peek().orderBy("order_id")
seen.select("order_id", "customer", "amount", "_message.delivery_count").show()
orders.depth()

# %% [markdown]
# ## Drain a queue into a Delta table
#
# The messages and your Delta table change together: both changes happen, or neither does. The
# order with a negative amount is rejected with a reason.

# %%
from pyspark.sql import functions as F

totals = f"{lake}/gold/totals"
spark.sql(f"CREATE TABLE delta.`{totals}` (customer string, total double) USING delta")


def handle(batch, tx):
    batch.reject(where="amount < 0", reason="negative amount")
    sums = batch.df.where("amount >= 0").groupBy("customer").agg(F.sum("amount").alias("total"))
    added = {"total": "target.total + source.total"}
    tx.table(totals).merge(sums, on="customer", update=added, insert="*")


result = orders.drain(handle, run_id="monday")
spark.read.format("delta").load(totals).orderBy("customer").show()
(result.messages, result.batches, result.applied)

# %% [markdown]
# Repeating the run consumes nothing, because it has finished.

# %%
orders.drain(handle, run_id="monday").already_finished

# %% [markdown]
# ## Roll back on an exception
#
# An exception rolls everything back: the messages are available again, the table is unchanged.

# %%
orders.send([{"order_id": 4, "customer": "eve", "amount": 100.0}])

try:
    with manager.transaction() as tx:
        batch = orders.receive(10, transaction=tx)
        handle(batch, tx)
        raise RuntimeError("the power went out")
except RuntimeError as error:
    print(error)

spark.read.format("delta").load(totals).orderBy("customer").show()
print(orders.depth(), "order waits,", tx.status.value)

# %%
orders.drain(handle, run_id="tuesday")
spark.read.format("delta").load(totals).orderBy("customer").show()

# %% [markdown]
# ## Trace a message
#
# Every step of every message is recorded: when, in which transaction, by which actor, and which
# table it changed.

# %%
for step in manager.history.trace(queue="orders", where="order_id = 4").rows():
    print(step["commit_seq"], step["step"], step["decision"], step["actor"], step["reason"] or "")

# %% [markdown]
# A dead letter has its reason.

# %%
(dead,) = manager.queue("orders.dead").peek_messages()
(dead["order_id"], dead["_message"]["origin"]["reason"])

# %% [markdown]
# ## Time travel: query past states
#
# Every past state can be queried. This is the number of messages in each state after every
# commit.

# %%
import matplotlib.pyplot as plt

commits = sorted({row["commit_seq"] for row in manager.history.changes().rows()})
states = []
for commit in commits:
    rows = manager.history.as_of(commit).counts().rows()
    states += [row for row in rows if row["queue"] == "orders"] or [{}]

figure, axes = plt.subplots(figsize=(8, 3))
for name in ("available", "in_flight", "accepted", "rejected"):
    axes.step(range(len(commits)), [row.get(name, 0) for row in states], where="post", label=name)
axes.set(xlabel="commit", ylabel="messages of orders")
axes.legend()
plt.show()

# %% [markdown]
# ## Verify the store

# %%
print(manager.history.verify())

# %%
spark.stop()
