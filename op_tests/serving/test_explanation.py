"""Why a lookup finds nothing: the nearest rows and the field that differs."""

import pytest

from aiter_tuning import explain
from op_tests.serving.scaled import HERE, line, write_table


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


def test_a_row_that_is_found_comes_with_its_table(scaled, table):
    write_table(table, line(64, us=7.0))
    found = explain(scaled, tuned=table, M=64, N=64)
    assert (found.row.us, found.table, found.near, found.evidence) == (7.0, table, (), None)
    assert (found.family, found.device) == (scaled.name, HERE)
    assert found.shape == found.served_by == {"M": 64, "N": 64, "dtype": "bf16", "bias": False}


@pytest.mark.parametrize(
    ("field", "has", "asked"),
    [("gfx", "sm100", "sm90"), ("cu_num", 66, 132), ("gpu_model", "NVIDIA H100", "NVIDIA H200")],
)
def test_the_devices_field_that_differs_is_named(scaled, table, field, has, asked):
    write_table(table, line(64, device=HERE._replace(**{field: has})), line(64, dtype="fp16", bias="True"))
    nearest = explain(scaled, tuned=table, M=64, N=64).near[0]
    assert nearest.differs == {field: (asked, has)}


def test_fewest_fields_come_first_then_the_nearest_sizes(scaled, table):
    write_table(table, line(1000), line(60, dtype="fp16"), line(80), line(64, n=63), line(64, dtype="fp16"), line(2))
    near = explain(scaled, tuned=table, M=64, N=64).near
    assert [one.differs for one in near] == [
        {"dtype": ("bf16", "fp16")},
        {"N": (64, 63)},
        {"M": (64, 80)},
        {"M": (64, 1000)},
        {"M": (64, 2)},
    ]


def test_the_very_size_with_another_flag_is_not_hidden_by_neighbours(scaled, table):
    write_table(table, *(line(m) for m in range(65, 75)), line(64, bias="True"))
    assert explain(scaled, tuned=table, M=64, N=64).near[0].differs == {"bias": (False, True)}


def test_a_row_that_fits_and_does_not_serve_says_why(scaled, table):
    write_table(table, line(64, kernel="nope"))
    (nearest,) = explain(scaled, tuned=table, M=64, N=64).near
    assert nearest.differs == {}
    assert nearest.objection == f"{scaled.name} has no kernel 'nope' for it"


def test_a_row_that_names_no_model_differs_in_none(scaled, table):
    write_table(table, line(65, device=HERE._replace(gpu_model="")))
    assert explain(scaled, tuned=table, M=64, N=64).near[0].differs == {"M": (64, 65)}


def test_a_bucket_is_told(bucketed, table):
    write_table(table, line(128))
    found = explain(bucketed, tuned=table, M=65, N=64)
    assert (found.row.shape["M"], found.shape["M"], found.served_by["M"]) == (128, 65, 128)
    assert explain(bucketed, tuned=table, M=60, N=64).near[0].differs == {"M": (64, 128)}


def test_no_tables_at_all_are_told_too(scaled, table):
    found = explain(scaled, tuned=table, M=64, N=64)
    assert (found.row, found.near, found.tables) == (None, (), (table,))
