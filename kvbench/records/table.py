"""Rows as columns: one Arrow schema, and the frame that statistics are computed on.

Columns are named as in `TurnRecord`, in its order. Text that repeats (pods, sessions, errors) is
stored once, so a million rows fit into a few hundred megabytes. In the frame:

- a number that may be unknown is float64 with NaN for unknown;
- derived columns are added, NaN where their parts are unknown: `ok`, `lateness_s`, `ttft_s`,
  `ttft_intended_s`, `tpot_s`, `e2e_s` (as the properties of `TurnRecord`), `uncached_tokens`
  (prompt tokens that had to be computed) and `hit_share` (cached ÷ prompt tokens of the turn);
- `chunk_gaps_s` stays an Arrow list column (read it with `chunk_gaps`);
- latencies hold what was measured, also for a turn that failed later. What a failure counts in a
  percentile is for `kvbench.records.stats` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import astuple

from kvbench.records.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvbench.records.schema import TurnRecord

_NAME = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("session", _NAME, nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("group", _NAME, nullable=False),
        pa.field("worker", pa.int32(), nullable=False),
        pa.field("intended_s", pa.float64(), nullable=False),
        pa.field("sent_s", pa.float64()),
        pa.field("headers_s", pa.float64()),
        pa.field("first_token_s", pa.float64()),
        pa.field("first_answer_s", pa.float64()),
        pa.field("last_token_s", pa.float64()),
        pa.field("end_s", pa.float64()),
        pa.field("chunk_gaps_s", pa.list_(pa.float64()), nullable=False),
        pa.field("first_read_chunks", pa.int32()),
        pa.field("status", pa.int32()),
        pa.field("error", _NAME),
        pa.field("error_message", _NAME),
        pa.field("finish_reason", _NAME),
        pa.field("degeneration", _NAME),
        pa.field("context_ratio", pa.float64()),
        pa.field("planned_prompt_tokens", pa.int64()),
        pa.field("dropped_tokens", pa.int64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("ceiling_tokens", pa.int64()),
        pa.field("max_tokens", pa.int64(), nullable=False),
        pa.field("pod", _NAME),
        pa.field("policy", _NAME),
        pa.field("predicted_tokens", pa.int64()),
        pa.field("prediction_cause", _NAME),
        pa.field("request_id", pa.string(), nullable=False),
    ],
    metadata={"kvbench.schema": str(SCHEMA_VERSION)},
)


def to_table(rows: Sequence[TurnRecord]) -> pa.Table:
    """Return the rows as an Arrow table of `SCHEMA`, in their order."""
    if not rows:
        return SCHEMA.empty_table()
    columns = zip(*map(astuple, rows), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Return one table of all rows, ordered by index; of equal indices the first is kept first."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries()
    order = np.argsort(table["index"].to_numpy(), kind="stable")
    return table.take(pa.array(order))


def table_to_frame(table: pa.Table) -> pd.DataFrame:
    """Return the table as a frame with the derived columns of this module."""
    plain = table.drop_columns(["chunk_gaps_s"]).to_pandas()
    for field in SCHEMA:
        if field.nullable and pa.types.is_integer(field.type):
            plain[field.name] = plain[field.name].astype("float64")
    gaps = pd.arrays.ArrowExtensionArray(table["chunk_gaps_s"])
    plain["chunk_gaps_s"] = pd.Series(gaps, index=plain.index)
    return _derived(plain)


def to_frame(rows: Sequence[TurnRecord]) -> pd.DataFrame:
    """Return the rows as a frame, ordered by index."""
    return table_to_frame(join_tables([to_table(rows)]))


def chunk_gaps(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Return the chunk gaps of all rows in one array, seconds."""
    gaps = pa.chunked_array(frame["chunk_gaps_s"].array.__arrow_array__())
    return np.asarray(gaps.combine_chunks().flatten().to_numpy(zero_copy_only=False))


def _derived(frame: pd.DataFrame) -> pd.DataFrame:
    after_first = frame["completion_tokens"] - 1
    return frame.assign(
        ok=frame["error"].isna(),
        lateness_s=frame["sent_s"] - frame["intended_s"],
        ttft_s=frame["first_token_s"] - frame["sent_s"],
        ttft_intended_s=frame["first_token_s"] - frame["intended_s"],
        tpot_s=(frame["last_token_s"] - frame["first_token_s"])
        / after_first.where(after_first >= 1),
        e2e_s=frame["last_token_s"] - frame["sent_s"],
        uncached_tokens=frame["prompt_tokens"] - frame["cached_tokens"],
        hit_share=frame["cached_tokens"] / frame["prompt_tokens"].where(frame["prompt_tokens"] > 0),
    )
