"""Tables that are compared: switching between them, without a look at a file once they are pinned."""

import pytest

from aiter_tuning.serving import bind, bound, lookup
from aiter_tuning.serving.pinned import PinnedTables, pinned, release
from op_tests.serving.scaled import line, write_table


@pytest.fixture
def tables(tmp_path):
    """Two tables, with a row for M=8 and for M=16."""
    return tuple(str(write_table(tmp_path / f"of{m}.csv", line(m))) for m in (8, 16))


def found(family):
    return [lookup(family, M=m, N=64) is not None for m in (8, 16)]


def test_lookups_look_where_the_tables_in_use_are_and_as_ever_once_they_are_released(scaled, tables):
    family = scaled()
    a, b = (PinnedTables(family, (table,)) for table in tables)
    assert found(family) == [False, False]
    a.use()
    assert found(family) == [True, False]
    b.use()
    assert found(family) == [False, True]
    a.use()
    assert found(family) == [True, False]
    release(family)
    assert found(family) == [False, False]


def test_pinned_tables_are_not_looked_at_again(scaled, tables, every_time, monkeypatch):
    family = scaled()
    a = pinned(family, (tables[0],))
    with a.watched() as seen:
        bind(family)(8, 64)
    assert [one.row is not None for one in seen] == [True]

    def refuse(*args):
        raise AssertionError("a timed call looked at its table")

    for answers in bound.answers_in(bound.operator_of(family), (tables[0],)):
        monkeypatch.setattr(answers, "refresh", refuse)
    assert bind(family)(8, 64) is not None
    release(family)


def test_the_same_tables_are_pinned_once(scaled, tables):
    family = scaled()
    assert pinned(family, (tables[0],)) is pinned(family, (tables[0],))
    assert pinned(family, None) is not pinned(family, ())
