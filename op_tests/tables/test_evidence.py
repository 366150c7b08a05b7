"""Why rows are there: records that are written whole, read strictly, and found by the row that they explain."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.evidence import (
    Evidence,
    EvidenceIndex,
    Timed,
    append_evidence,
    evidence_path,
    newest_for,
    read_evidence,
)
from aiter_tuning.tables.lock import FileLock, LockTimeoutError
from aiter_tuning.tables.tuned import TunedRow

QUICK = Timed("quick", {"block": 64}, 90.0, (91.0, None, 89.0))
STEADY = Timed("steady", {}, 100.0, (100.0, 101.0, 99.0))
RECORD = Evidence(
    family="tiny",
    key={"gfx": "sm90", "cu_num": 132, "gpu_model": "NVIDIA H200", "N": 8, "dtype": "fp32", "bias": False},
    verdict="promoted",
    reason="faster: 10.00 % reaches the bar of 3.00 %",
    published=True,
    complete=True,
    margin_pct=10.0,
    bar_pct=3.0,
    noise_pct=0.4,
    incumbent=STEADY,
    winner=QUICK,
    default=STEADY,
    device_uuid="GPU-0",
    timer="kernel",
    flags=("standby",),
    conditions={"sm_mhz": [1980, 1980, 1980], "throttle": {}},
    versions={"torch": "2.11"},
    fingerprints={"run": "abc", "winner": "def", "candidates": "123"},
    command="aiter-tune tune tiny",
    began="2026-01-31T12:00:00.000Z",
    ended="2026-01-31T12:00:02.000Z",
)
ROW = TunedRow("sm90", 132, "NVIDIA H200", {"N": 8, "dtype": "fp32", "bias": False}, 0, 0, 90.0, "quick")


@pytest.fixture
def tuned(tmp_path):
    return tmp_path / "out.csv"


def test_what_is_appended_is_read_back_in_order(tuned):
    append_evidence(tuned, [RECORD])
    append_evidence(tuned, [replace(RECORD, verdict="retained", winner=None), RECORD])

    assert evidence_path(tuned) == tuned.with_name("out.evidence.jsonl")
    assert [record.verdict for record in read_evidence(evidence_path(tuned))] == ["promoted", "retained", "promoted"]
    assert read_evidence(evidence_path(tuned))[0] == RECORD


def test_a_table_without_evidence_has_no_records_and_gets_no_file_by_reading(tuned):
    assert read_evidence(evidence_path(tuned)) == []
    append_evidence(tuned, [])

    assert not evidence_path(tuned).exists()


def test_the_evidence_of_a_linked_table_lies_beside_the_file_itself(tuned, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.csv"
    tuned.write_text("")
    link.symlink_to(tuned)

    append_evidence(link, [RECORD])

    assert read_evidence(evidence_path(tuned)) == [RECORD]


numbers = st.one_of(st.none(), st.floats(0.001, 1e6))
timed = st.builds(
    Timed,
    st.text(min_size=1, max_size=10),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.booleans(), st.text(max_size=5)), max_size=3),
    numbers,
    st.lists(numbers, max_size=4).map(tuple),
)


@given(
    text=st.text(max_size=20),
    margin=st.one_of(st.none(), st.floats(-1e6, 1e6)),
    winner=st.one_of(st.none(), timed),
    flags=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
def test_any_record_survives_the_way_through_json_on_one_line(text, margin, winner, flags):
    record = replace(RECORD, reason=text, command=text, margin_pct=margin, winner=winner, flags=flags)

    line = record.to_json()

    assert "\n" not in line
    assert Evidence.from_json(line) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_not_written(tuned, value):
    with pytest.raises(ValueError):
        append_evidence(tuned, [RECORD, replace(RECORD, margin_pct=value)])

    assert not evidence_path(tuned).exists()


def damaged(**changes):
    found = json.loads(RECORD.to_json())
    for name, value in changes.items():
        if value is ...:
            del found[name]
        else:
            found[name] = value
    return json.dumps(found)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("{", "is not JSON", id="half a line"),
        pytest.param('{"a', "is not JSON (Unterminated string starting at letter 2)", id="half a name"),
        pytest.param("[1]", "is not a JSON object", id="a list"),
        pytest.param(damaged(margin_pct=float("nan")), "NaN is no number in JSON", id="NaN"),
        pytest.param(damaged(schema=2), "schema is 2; expected 1", id="another schema"),
        pytest.param(damaged(schema=True), "schema is True", id="a flag for a schema"),
        pytest.param(damaged(verdict=...), "verdict is missing", id="a field is missing"),
        pytest.param(damaged(key={"N": 8}), "key lacks gfx", id="a key without a device"),
        pytest.param(damaged(published="yes"), "published is 'yes'; expected true or false", id="no flag"),
        pytest.param(damaged(bar_pct="3"), "bar_pct is '3'; expected a finite number or null", id="no number"),
        pytest.param(damaged(winner=3), "winner is 3; expected an object or null", id="no side"),
        pytest.param(damaged(winner={"name": "a"}), "winner.us is missing", id="half a side"),
        pytest.param(
            damaged(winner={"name": "a", "us": -1, "config": {}, "samples_us": []}), "winner.us is -1", id="no latency"
        ),
        pytest.param(
            damaged(winner={"name": "a", "us": 1, "config": {}, "samples_us": ["x"]}), "winner.samples_us", id="samples"
        ),
        pytest.param(damaged(flags="standby"), "flags is 'standby'; expected a list", id="no list"),
        pytest.param(damaged(versions={"torch": 2}), "versions is", id="a version that is no text"),
        pytest.param(damaged(began="yesterday"), "began is 'yesterday'; expected a time", id="no time"),
        pytest.param("\udcff", "'utf-8' codec", id="no text"),
    ],
)
def test_a_damaged_line_is_an_error_with_its_place_or_a_warning_and_skipped(tuned, line, says):
    path = evidence_path(tuned)
    path.write_bytes(f"{RECORD.to_json()}\n{line}\n{RECORD.to_json()}\n".encode(errors="surrogateescape"))

    with pytest.raises(CsvError) as caught:
        read_evidence(path)
    warnings = []
    kept = read_evidence(path, warnings=warnings)

    assert str(caught.value).startswith(f"{path}:2: ")
    assert says in str(caught.value)
    assert kept == [RECORD, RECORD]
    assert len(warnings) == 1 and warnings[0].startswith(f"{path}:2: ")


def test_fields_of_a_later_version_are_left_alone():
    assert Evidence.from_json(damaged(colour="blue")) == RECORD


@pytest.mark.parametrize("cut", [1, 30, -2])
def test_a_line_that_was_never_finished_is_cut_off_by_the_next_writer(tuned, cut):
    path = evidence_path(tuned)
    path.write_text(f"{RECORD.to_json()}\n{RECORD.to_json()[:cut]}")
    warnings = []
    assert read_evidence(path, warnings=warnings) == [RECORD]
    assert "never finished" in warnings[0]

    append_evidence(tuned, [replace(RECORD, verdict="retained")])

    assert [record.verdict for record in read_evidence(path)] == ["promoted", "retained"]


def test_a_whole_last_line_without_its_newline_counts(tuned):
    path = evidence_path(tuned)
    path.write_text(RECORD.to_json())
    assert read_evidence(path) == [RECORD]

    append_evidence(tuned, [RECORD])

    assert read_evidence(path) == [RECORD, RECORD]


def test_a_very_long_unfinished_line_is_cut_off_whole(tuned):
    path = evidence_path(tuned)
    path.write_text(f"{RECORD.to_json()}\n" + '{"schema":1,"x":"' + "y" * 300_000)

    append_evidence(tuned, [RECORD])

    assert read_evidence(path) == [RECORD, RECORD]


def test_a_writer_waits_for_the_tables_lock(tuned):
    with FileLock.beside(tuned), pytest.raises(LockTimeoutError):
        append_evidence(tuned, [RECORD], lock_timeout=0)


def test_a_file_that_may_not_grow_is_left_as_it_was(tuned):
    """The limit on file sizes stands in for a full disk: the kernel takes a part of the line and no more."""
    append_evidence(tuned, [RECORD])
    before = evidence_path(tuned).read_bytes()
    script = (
        "import resource, signal, sys\n"
        "from aiter_tuning.tables.evidence import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = evidence_path(sys.argv[1])\n"
        "records = read_evidence(path)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50,) * 2)\n"
        "try:\n"
        "    append_evidence(sys.argv[1], records)\n"
        "except OSError as error:\n"
        "    sys.exit(5)\n"
    )

    ended = subprocess.run([sys.executable, "-c", script, os.fspath(tuned)], cwd=os.getcwd())

    assert ended.returncode == 5
    assert evidence_path(tuned).read_bytes() == before


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(replace(ROW, kernelName="other"), id="another kernel"),
        pytest.param(replace(ROW, gpu_model="NVIDIA H100"), id="another model"),
        pytest.param(replace(ROW, cu_num=131), id="other compute units"),
        pytest.param(replace(ROW, shape={**ROW.shape, "N": 9}), id="another shape"),
        pytest.param(replace(ROW, shape={**ROW.shape, "bias": True}), id="another flag"),
    ],
)
def test_a_record_explains_only_its_own_row(row):
    assert newest_for([RECORD], ROW) is RECORD
    assert newest_for([RECORD], row) is None


def test_the_newest_record_that_names_the_rows_kernel_explains_it():
    newer = replace(RECORD, verdict="retained", published=False)
    others = replace(RECORD, winner=STEADY)
    nobody = replace(RECORD, winner=None)

    assert newest_for([RECORD, newer, others, nobody], ROW) is newer
    assert EvidenceIndex([RECORD, newer]).newest_for(ROW) is newer


def test_cells_of_a_csv_and_values_of_json_name_the_same_row():
    as_text = replace(RECORD, key={name: str(value) for name, value in RECORD.key.items()})

    assert newest_for([as_text], ROW) is as_text
