"""SQLAlchemy's dialect for DuckDB: each kind of expression that the questions use, compiled and run."""

import duckdb
import pytest
import sqlalchemy as sa

from nsystui.store.database import engine_of

ROWS = [("a", 1, 10, 1.5), ("a", 2, 20, None), ("b", 3, 30, 2.5), (None, 4, None, 0.5)]
TABLE = sa.table(
    "rows", sa.column("name", sa.Text),
    sa.column("end", sa.BigInteger),  # a reserved word
    sa.column("Value", sa.BigInteger),  # a name with a capital
    sa.column("share", sa.Double),
)  # fmt: skip
NAME, END, VALUE, SHARE = TABLE.c


@pytest.fixture(scope="module")
def engine():
    connection = duckdb.connect()
    connection.execute('CREATE TABLE rows (name TEXT, "end" BIGINT, "Value" BIGINT, share DOUBLE)')
    connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", ROWS)
    yield engine_of(connection.cursor)
    connection.close()


def ask(engine, query):
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def given(*pairs):
    return sa.values(sa.column("name", sa.Text), sa.column("number", sa.BigInteger), name="given").data(list(pairs))


SINGLE = {
    "a quotient is a float": (sa.literal(7, sa.BigInteger) / 2, 3.5),
    "a quotient of whole numbers": (sa.literal(7, sa.BigInteger).op("//")(2), 3),
    "a remainder": (sa.literal(7, sa.BigInteger) % 4, 3),
    "bits": (sa.literal(12, sa.BigInteger).op(">>")(2).op("&")(1), 1),
    "a float": (sa.literal(0.1, sa.Double) * 3, 0.1 * 3),
    "a large number": (sa.literal(2**62, sa.BigInteger) + 1, 2**62 + 1),
    "a cast to a float": (sa.cast("1.25", sa.Double), 1.25),
    "a cast to whole numbers": (sa.cast(2.0, sa.BigInteger), 2), "a cast to text": (sa.cast(12, sa.Text), "12"),
    "a cast to a flag": (sa.cast(1, sa.Boolean), True), "true": (sa.true(), True), "not": (sa.not_(sa.false()), True),
    "nothing": (sa.null(), None),
    "text with every special character": (sa.literal("'\"%:\\ $1 ?;--é"), "'\"%:\\ $1 ?;--é"),
    "texts joined": (sa.literal("a") + "b" + sa.literal("%c"), "ab%c"),
    "a name as a function of DuckDB": (sa.func.printf("%4d|%s", 3, "x"), "   3|x"),
    "an expression with a pattern": (sa.func.regexp_extract("step 12", r"(\d+)", 1), "12"),
    "a case": (sa.case((sa.literal(1) > 2, "more"), else_="less"), "less"),
    "a pattern with a percent sign": (sa.literal("50%").endswith("%"), True),
    "the beginning of a text": (sa.literal("100 %").startswith("100%", autoescape=True), False),
    "an element of a list": (sa.func.list_extract(sa.literal([7, 8], sa.ARRAY(sa.BigInteger)), 2), 8),
    "one of several": (sa.literal(2).in_([1, 2]), True), "one of none": (sa.literal("a").in_([]), False),
    "none of none": (sa.literal(2).not_in([]), True),
    "several of none": (sa.tuple_(sa.literal("a"), sa.literal(1)).in_([]), False),
    "several of several": (sa.tuple_(sa.literal("a"), sa.literal(1)).in_([("a", 1), ("b", 2)]), True),
    "between": (sa.literal(2).between(1, 3), True),
}  # fmt: skip


@pytest.mark.parametrize("kind", SINGLE)
def test_an_expression_has_its_value(engine, kind):
    expression, value = SINGLE[kind]
    ((found,),) = ask(engine, sa.select(expression))
    assert found == value
    assert type(found) is type(value)


COUNT, HALF = sa.func.count(), END.op("//")(2)
OWN, MORE = (sa.select(given(*pairs)).subquery("own") for pairs in ((("a", 5), ("b", 6)), (("b", 6),)))
NAMED = sa.select(given(("a", 5), ("b", 6))).cte("own")
GROUPS = sa.select(sa.func.coalesce(NAME, "").label("name"), sa.func.sum(VALUE), COUNT).group_by(sa.text("name"))
AGGREGATES = (sa.func.median(VALUE), sa.func.arg_max(NAME, SHARE), sa.func.quantile_disc(VALUE, 0.5))
PLACE = sa.func.row_number().over(partition_by=NAME, order_by=END.desc())
PAIRWISE = sa.func.sum(END).over(order_by=END, rows=(-1, 0))
LETTERS = sa.func.unnest(sa.literal(["x", "y"], sa.ARRAY(sa.Text)), type_=sa.Text).label("name")
LATER = sa.tuple_(NAME, END) > sa.tuple_(sa.literal("a"), sa.literal(1))
JOINED, OUTER = (sa.select(of.c.number, END).order_by(END) for of in (OWN, MORE))
QUERIES = {
    "columns with reserved words and capitals": (
        sa.select(END, VALUE.label("Total Time (ns)")).order_by(END.desc()).limit(2), [(4, None), (3, 30)]),
    "a page": (sa.select(END).order_by(END).limit(2).offset(1), [(2,), (3,)]),
    "missing values last": (sa.select(VALUE).order_by(VALUE.desc().nulls_last()), [(30,), (20,), (10,), (None,)]),
    "groups": (GROUPS.having(COUNT < 3).order_by(sa.text("name")), [("", None, 1), ("a", 30, 2), ("b", 30, 1)]),
    "the same parameter selected and grouped": (
        sa.select(HALF, COUNT).group_by(HALF).order_by(HALF), [(0, 1), (1, 2), (2, 1)]),
    "aggregates of DuckDB": (sa.select(*AGGREGATES), [(20.0, "b", 20)]),
    "an aggregate of some rows": (sa.select(COUNT.filter(NAME == "a"), sa.func.count(NAME.distinct())), [(2, 2)]),
    "different rows": (sa.select(NAME).where(NAME.is_not(None)).distinct().order_by(NAME), [("a",), ("b",)]),
    "windows of rows": (sa.select(END, PLACE, PAIRWISE).order_by(END), [(1, 2, 1), (2, 1, 3), (3, 1, 5), (4, 1, 7)]),
    "a list of values, joined": (JOINED.join_from(TABLE, OWN, OWN.c.name == NAME), [(5, 1), (5, 2), (6, 3)]),
    "a list of values, named": (sa.select(sa.func.max(NAMED.c.number)), [(6,)]),
    "rows for which there are others": (
        sa.select(END).where(sa.exists().where(given(("b", 1)).c.name == NAME)), [(3,)]),
    "one query after another": (
        sa.union_all(sa.select(END).where(END < 2), sa.select(END).where(END > 3)).order_by(sa.text('"end"')),
        [(1,), (4,)]),
    "the elements of a list": (sa.select(LETTERS), [("x",), ("y",)]),
    "compared as one": (sa.select(END).where(NAME.is_not(None), LATER).order_by(END), [(2,), (3,)]),
    "outer": (OUTER.outerjoin_from(TABLE, MORE, MORE.c.name == NAME), [(None, 1), (None, 2), (6, 3), (None, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", QUERIES)
def test_a_query_has_its_rows(engine, kind):
    query, rows = QUERIES[kind]
    assert ask(engine, query) == rows


def test_names_come_back_as_they_were_asked_for(engine):
    with engine.connect() as connection:
        found = connection.execute(sa.select(VALUE.label("Med (ns)"), END)).cursor.fetchnumpy()
    assert list(found) == ["Med (ns)", "end"]


def test_a_query_with_other_values_is_not_compiled_again(engine):
    def query(value):
        return sa.select(END).where(END.between(0, value))

    with engine.connect() as connection:
        first, again = (connection.execute(query(value)).context for value in (1, 2))
    assert first.compiled is again.compiled
