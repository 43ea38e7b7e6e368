"""Message flows: the coordinated and uncoordinated transactions of an integration broker.

A flow takes a message from its input queue and passes it to its nodes, which write messages and
change tables. Its *main* transaction spans the input message, the output messages and, if the
flow is coordinated, the tables; each data source has *auxiliary* transactions beside it.
"""

from txnqueue.protocols.flow.message_flow import DataSource, MessageFlow, Node, Processed
from txnqueue.protocols.flow.processing import LAKEHOUSE, DataSourceFailed, Processing

__all__ = [
    "LAKEHOUSE",
    "DataSource",
    "DataSourceFailed",
    "MessageFlow",
    "Node",
    "Processed",
    "Processing",
]
