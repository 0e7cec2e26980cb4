"""Which rows of a trace end a transaction, where clients' requests are known: EndTxn and InitProducerId. Pure."""

from __future__ import annotations

import pyarrow

from tools.replay.traces.schema import ABORT, ENDS, OFFSETS, PRODUCE

INIT_OP = "init"
"""An InitProducerId in the place of an op: it aborts the transaction of the producer before, if one was open."""


def with_ends(table: pyarrow.Table, open_ids: dict[str, str]) -> pyarrow.Table:
    """Without the ends of transactions of which there is nothing else: an end that was sent again, an `init`, one of other topics.

    `table` has the columns `op`, `client` and `transactional_id`. `open_ids`: the transactional id -> the client of each transaction that
    is open; they change.
    """
    ids = table["transactional_id"]
    if ids.null_count == table.num_rows:
        return table
    ops, clients = table["op"].to_pylist(), table["client"].to_pylist()
    is_kept = [True] * table.num_rows
    for at, name in enumerate(ids.to_pylist()):
        if name is None:
            continue
        if ops[at] in (PRODUCE, OFFSETS):
            open_ids[name] = clients[at]
        elif (client := open_ids.pop(name, None)) is None:
            is_kept[at] = False
        elif ops[at] not in ENDS:
            ops[at], clients[at] = ABORT, client
    for column, values in (("op", ops), ("client", clients)):
        table = table.set_column(table.schema.get_field_index(column), table.schema.field(column), [values])
    return table.filter(pyarrow.array(is_kept))
