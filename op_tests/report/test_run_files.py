"""What the page knows, from files that a run left."""

import math

import pytest

from aiter_tuning.report.page.run_files import newest_record, read_run_files
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.evidence import evidence_path


def test_rows_decisions_candidates_and_times_of_a_run(tuned):
    table = tuned(8, 16)
    files = read_run_files(table)

    assert (files.family, files.device, files.others) == ("tiny", ("sm90", "132", "H200"), 0)
    assert files.everywhere == {"dtype": "fp32"} and files.dtypes == ("fp32",)
    assert {row.label: row.kernel for row in files.rows} == {"N=8": "quick", "N=16": "steady"}
    assert {one.label: one.record.verdict for one in files.decisions} == {"N=8": "promoted", "N=16": "first_row"}
    assert {(one.label, one.name): one.us for one in files.candidates} == {
        **{("N=8", name): us for name, us in (("steady", 100), ("quick", 90), ("slow", 180))},
        **{("N=16", name): us for name, us in (("steady", 100), ("quick", math.inf), ("slow", 180))},
    }
    assert files.record is not None and files.record.name.startswith("tuned.profile.")
    assert {(span.label, span.stage) for span in files.spans} >= {
        *(("N=8", stage) for stage in ("screening", "finals", "second process")),
        ("N=16", "screening"),
    }


def test_the_label_of_a_single_shape_has_all_its_fields(tuned):
    files = read_run_files(tuned(8))
    assert (files.everywhere, files.rows[0].label) == ({}, "N=8 dtype=fp32")


def test_the_device_with_most_rows_is_drawn_and_the_others_are_counted(tuned):
    table = tuned(8, 16)
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[1].replace("sm90,132,H200", "gfx942,304,MI300X")]) + "\n")
    evidence_path(table).unlink()

    files = read_run_files(table)
    assert (files.device[0], len(files.rows), files.others) == ("sm90", 2, 1)
    assert (files.family, files.decisions) == ("", ())


def test_a_table_alone_is_enough(tuned):
    table = tuned(8)
    evidence_path(table).unlink()
    newest_record(table).unlink()

    files = read_run_files(table)
    assert (len(files.rows), files.decisions, files.candidates, files.spans, files.record) == (1, (), (), (), None)


def test_another_record_than_the_newest_may_be_named_and_a_torn_one_is_read(tuned):
    table = tuned(8, 16)
    profile = newest_record(table)
    older = profile.with_name("older.csv")
    lines = profile.read_text().splitlines()
    older.write_text("\n".join(lines[:4]) + "\n" + lines[4][:10])

    files = read_run_files(table, older)
    assert files.record == older and 0 < len(files.candidates) < 6
    assert any("older.csv" in warning for warning in files.warnings)


def test_a_file_that_is_no_record_is_refused(tuned, tmp_path):
    table = tuned(8)
    with pytest.raises(CsvError, match=r"shapes\.csv"):
        read_run_files(table, tmp_path / "shapes.csv")
    with pytest.raises(CsvError, match="kernelName"):
        read_run_files(tmp_path / "shapes.csv")
