"""The canonical tables as SQLAlchemy tables, over all open reports at once.

Every table also has ``report`` (the index of the report in the session) and ``clock_offset`` (ns to add to the report's
own times to get job time, the common clock).
"""

from typing import Any

import sqlalchemy as sa

from nsystui.exports import canonical
from nsystui.exports.canonical import CanonicalTable, ColumnKind

_TYPES: dict[ColumnKind, type[sa.types.TypeEngine[Any]]] = {
    ColumnKind.INT: sa.BigInteger,
    ColumnKind.FLOAT: sa.Double,
    ColumnKind.TEXT: sa.Text,
}
METADATA = sa.MetaData()
LEAST_OFFSET, MOST_OFFSET = (
    sa.bindparam(name, type_=sa.BigInteger()) for name in ("least_clock_offset", "most_clock_offset")
)
"""The least and the most ``clock_offset`` of the open reports, which the session sets for each query.

DuckDB skips row groups only by conditions on constants.
"""


def _make(table: CanonicalTable) -> sa.Table:
    columns = [sa.Column(item.name, _TYPES[item.kind]()) for item in table.fields]
    return sa.Table(
        table.name, METADATA, sa.Column("report", sa.BigInteger()), sa.Column("clock_offset", sa.BigInteger()), *columns
    )


_TABLES = {table.name: _make(table) for table in canonical.TABLES}


def of(table: CanonicalTable) -> sa.Table:
    """Return a canonical table as a SQLAlchemy table."""
    return _TABLES[table.name]


def __getattr__(name: str) -> sa.Table:
    """Return the canonical table of that name: new tables are declared only in `exports.canonical`."""
    try:
        return _TABLES[name]
    except KeyError:
        raise AttributeError(f"there is no canonical table {name!r}") from None
