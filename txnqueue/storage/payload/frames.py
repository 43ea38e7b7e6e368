"""Recognition of the DataFrames of Spark and of pandas by type, never by attributes alone.

A DataFrame of Spark Connect has a column for every attribute name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import TypeIs


def is_frame(rows: object) -> TypeIs[DataFrame]:
    """Return whether rows are a DataFrame, classic or of Connect; Spark need not be installed."""
    if "pyspark.sql.dataframe" not in sys.modules:
        return False
    from pyspark.sql import DataFrame

    return isinstance(rows, DataFrame)


def is_of_pandas(rows: object) -> bool:
    """Return whether rows are a pandas DataFrame or Series; pandas need not be installed."""
    return type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "iloc")


def check_not_streaming(rows: object, call: str, each_batch: str, name: str = "rows") -> None:
    """Check that rows are not a streaming DataFrame.

    Args:
        rows: The user's rows.
        call: The call that takes them.
        each_batch: The argument for ``foreachBatch`` to use instead.
        name: The argument.

    Raises:
        InvalidInput: They are a streaming DataFrame.
    """
    if is_frame(rows) and rows.isStreaming:
        raise InvalidInput(
            f"{call} takes a batch DataFrame, not a streaming one: use "
            f"df.writeStream.foreachBatch({each_batch}) with a checkpointLocation.",
            name=name,
        )
