"""What a lookup finds, what it leaves alone, and when it notices that a table has changed."""

import os
import threading

import pytest

from aiter_tuning import is_tuned, lookup
from aiter_tuning.devices.identity import Identity
from aiter_tuning.serving import answers, bind, refuse, serve_from, watch
from op_tests.serving.scaled import HERE, line, write_table


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


def test_a_row_is_found_by_its_exact_key_whatever_way_it_is_spelled(scaled, table):
    write_table(table, line(64, us=7.5), line(64, us=9.0, dtype="fp16", bias="True"))
    found = lookup(scaled, tuned=table, M=64, N=64)
    assert (found.us, found.kernelName, found.config, found.stale) == (7.5, "fast", {"kernel": "fast"}, "")
    for key in ({"dtype": "fp16", "bias": True}, {"dtype": "half", "bias": 1}, {"dtype": "torch.float16", "bias": "1"}):
        assert lookup(scaled, tuned=str(table), M="64", N=64.0, **key).us == 9.0
    assert is_tuned(scaled, tuned=table, M=64, N=64)
    assert not is_tuned(scaled, tuned=table, M=65, N=64)


def test_a_bound_lookup_takes_values_by_position_and_by_name(scaled, table):
    write_table(table, line(64))
    tuned = bind(scaled, table)
    assert (
        tuned(64, 64, "bf16", False) == tuned(64, N=64) == tuned(M=64, N=64) == lookup(scaled, tuned=table, M=64, N=64)
    )
    assert tuned(64, 65) is None
    assert bind(scaled, table) is tuned
    assert tuned(64, 64) is tuned(64, 64), "the same object each time: nothing is made in a hit"


@pytest.mark.parametrize(
    ("values", "fields", "complaint"),
    [
        ((64,), {}, "N is missing"),
        ((64, 64), {"dtyp": "bf16"}, "dtyp is no field"),
        ((64, 64), {"M": 64}, "M is given twice"),
        ((64, 64, "bf16", False, 1), {}, "key is 5 values"),
        ((64, 64, "purple"), {}, "dtype is 'purple'"),
        ((-1, 64), {}, "M is -1"),
        ((64, 64), {"cu_num": "many"}, "cu_num is 'many'"),
    ],
)
def test_a_key_that_means_nothing_is_an_error_that_names_the_field(scaled, table, values, fields, complaint):
    write_table(table, line(64))
    with pytest.raises(ValueError, match=complaint):
        bind(scaled, table)(*values, **fields)


def test_an_unknown_family_is_an_error_that_lists_those_there_are():
    with pytest.raises(ValueError, match=r"unknown family 'gemm_bf61'; did you mean gemm_bf16\?"):
        lookup("gemm_bf61", M=1, N=1, K=1)


@pytest.mark.parametrize(
    "elsewhere",
    [HERE._replace(gfx="sm100"), HERE._replace(cu_num=114), HERE._replace(gpu_model="NVIDIA H100 80GB HBM3")],
)
def test_a_row_of_another_device_never_serves_unless_that_device_is_asked_for(scaled, table, elsewhere):
    write_table(table, line(64, device=elsewhere))
    assert lookup(scaled, tuned=table, M=64, N=64) is None
    assert lookup(scaled, tuned=table, M=64, N=64, **elsewhere._asdict()).us == 10.0


def test_a_row_that_names_no_model_serves_every_model_behind_those_that_do(scaled, table):
    write_table(
        table,
        line(1, us=1.0, device=HERE._replace(gpu_model="")),
        line(1, us=5.0),
        line(2, us=2.0, device=HERE._replace(gpu_model="")),
    )
    assert lookup(scaled, tuned=table, M=1, N=64).us == 5.0
    assert lookup(scaled, tuned=table, M=2, N=64).us == 2.0


def test_the_nearest_shape_is_never_taken(scaled, table):
    write_table(table, line(63), line(65), line(64, n=63), line(64, dtype="fp16"))
    assert lookup(scaled, tuned=table, M=64, N=64) is None


def test_a_declared_bucket_serves_behind_the_exact_key(bucketed, table):
    write_table(table, line(64, us=64.0), line(33, us=33.0))
    assert lookup(bucketed, tuned=table, M=40, N=64).us == 64.0
    assert lookup(bucketed, tuned=table, M=33, N=64).us == 33.0
    assert lookup(bucketed, tuned=table, M=64, N=64).us == 64.0
    assert lookup(bucketed, tuned=table, M=65, N=64) is None


# Rows that are there and do not serve


def test_a_row_that_names_an_absent_kernel_is_a_miss_with_one_warning(scaled, table, said):
    write_table(table, line(64, kernel="nope"))
    for _ in range(3):
        assert lookup(scaled, tuned=table, M=64, N=64) is None
        assert lookup(scaled, tuned=table, M=64, N=64, bias=False) is None
    (warning,) = said()
    assert "M=64 N=64" in warning and f"{scaled.name} has no kernel 'nope'" in warning


def test_a_row_without_a_config_stands_for_the_candidate_that_it_names(scaled, table):
    write_table(table, line(64, kernel="plain", config=""))
    assert lookup(scaled, tuned=table, M=64, N=64).config == {"kernel": "plain"}


@pytest.mark.parametrize("us", ["0", "-1", "inf", "nan", ""])
def test_a_row_without_a_measured_latency_never_serves(scaled, table, said, us):
    write_table(table, line(64, us=us), line(65))
    assert lookup(scaled, tuned=table, M=64, N=64) is None
    assert lookup(scaled, tuned=table, M=65, N=64) is not None
    assert len(said("not a measured latency")) == 1


@pytest.mark.parametrize(
    "broken",
    [
        line(64, us="quick"),
        line("many"),
        line(64, config="{nope"),
        line(64, dtype="purple"),
        "sm90,132\n",
        "gar,bage\n",
    ],
)
def test_a_malformed_row_costs_itself_and_one_warning(scaled, table, said, broken):
    write_table(table, line(63), broken, line(65))
    assert [is_tuned(scaled, tuned=table, M=m, N=64) for m in (63, 64, 65)] == [True, False, True]
    (warning,) = said()
    assert f"{table}:3" in warning


def test_a_family_that_cannot_say_its_kernels_is_a_miss_that_tells_why(scaled, table, said):
    def candidates(self, shape, device):
        raise ValueError("no such thing on a Tuesday")

    scaled.candidates = candidates
    write_table(table, line(64))
    assert lookup(scaled, tuned=table, M=64, N=64) is None
    assert len(said("no such thing on a Tuesday")) == 1


def test_a_refused_row_is_not_found_again_until_another_one_takes_its_place(scaled, table, said, every_time):
    write_table(table, line(64))
    found = lookup(scaled, tuned=table, M=64, N=64)
    refuse(scaled, found, "OutOfResources: 640 KB of shared memory")
    assert lookup(scaled, tuned=table, M=64, N=64) is None
    assert len(said("does not run here: OutOfResources")) == 1
    write_table(table, line(64, us=9.0, kernel="plain", config='{"kernel":"plain"}'))
    assert lookup(scaled, tuned=table, M=64, N=64).us == 9.0


# Changes


def test_a_changed_table_is_noticed(scaled, table, every_time):
    tuned = bind(scaled, table)
    assert tuned(64, 64) is None
    write_table(table, line(64, us=8.0))
    assert tuned(64, 64).us == 8.0
    write_table(table, line(64, us=7.0), line(65))
    assert tuned(64, 64).us == 7.0
    table.unlink()
    assert tuned(64, 64) is None


def test_tables_are_looked_at_twice_a_second_and_not_more_often(scaled, table, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(answers, "monotonic", lambda: now[0])
    monkeypatch.setattr("aiter_tuning.serving.bound.monotonic", lambda: now[0])
    write_table(table, line(64, us=8.0))
    tuned = bind(scaled, table)
    assert tuned(64, 64).us == 8.0
    write_table(table, line(64, us=7.00))
    now[0] += 0.4
    assert tuned(64, 64).us == 8.0
    now[0] += 0.2
    assert tuned(64, 64).us == 7.0


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("\n", "\n<<<<<<< ours\n", 1),
        lambda text: text + '"unfinished',
        lambda text: "nothing of a table\n",
        lambda text: text + "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + "\n",
    ],
    ids=["cut", "conflict", "quote", "no table", "garbage"],
)
def test_a_damaged_table_leaves_the_last_good_one_in_use_with_one_warning(scaled, table, said, every_time, damage):
    whole = write_table(table, line(63), line(64, us=8.0), line(65)).read_text()
    tuned = bind(scaled, table)
    assert tuned(64, 64).us == 8.0
    table.write_text(damage(whole))
    for _ in range(3):
        assert [tuned(m, 64) is not None for m in (63, 64, 65)] == [True, True, True]
    (warning,) = said()
    assert "damaged" in warning and "last good state, 3 rows, serves" in warning
    table.write_text(whole.replace("8.0", "6.0"))
    assert tuned(64, 64).us == 6.0


def test_a_table_that_cannot_be_opened_is_said_and_costs_nobody_an_exception(scaled, tmp_path, said, every_time):
    directory = tmp_path / "table.csv"
    directory.mkdir()
    assert lookup(scaled, tuned=directory, M=64, N=64) is None
    assert lookup(scaled, tuned=directory, M=64, N=64) is None
    assert len(said(str(directory))) == 1


def test_a_named_table_that_is_not_there_is_said_once(scaled, table, said, every_time):
    for _ in range(3):
        assert lookup(scaled, tuned=table, M=64, N=64) is None
    assert len(said("no such file")) == 1


def test_threads_that_look_up_while_a_table_changes_see_one_state_or_the_other(scaled, table, every_time):
    states = [[line(m, us=us) for m in range(1, 30)] for us in (8.0, 9.0)]
    new = table.with_suffix(".new")
    write_table(table, *states[0])
    tuned = bind(scaled, table)
    stop, wrong = threading.Event(), []

    def look():
        while not stop.is_set():
            for m in range(1, 30):
                found = tuned(m, 64)
                if found is None or found.us not in (8.0, 9.0) or found.shape["M"] != m:
                    wrong.append((m, found))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(24):
        write_table(new, *states[turn % 2]).replace(table)
        assert tuned(1, 64).us in (8.0, 9.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# Several tables


def test_of_several_files_the_fastest_row_counts_where_nothing_tells_their_environments(scaled, tmp_path):
    first = write_table(tmp_path / "a.csv", line(64, us=9.0), line(65, us=1.0))
    second = write_table(tmp_path / "b.csv", line(64, us=8.0))
    for tables in ([first, second], (second, first), f"{first}:{second}"):
        assert lookup(scaled, tuned=tables, M=64, N=64).us == 8.0
        assert lookup(scaled, tuned=tables, M=65, N=64).us == 1.0


def test_serve_from_exchanges_the_tables_of_lookups_that_name_none(scaled, tmp_path):
    before = write_table(tmp_path / "before.csv", line(64, us=9.0))
    after = write_table(tmp_path / "after.csv", line(64, us=5.0))
    unnamed, named = bind(scaled), bind(scaled, before)
    assert unnamed(64, 64) is None
    with serve_from(scaled, after):
        assert (unnamed(64, 64).us, lookup(scaled, M=64, N=64).us, named(64, 64).us) == (5.0, 5.0, 9.0)
        with serve_from(scaled, before):
            assert (unnamed(64, 64).us, bind(scaled, None, "cuda:1")(64, 64).us) == (9.0, 9.0)
        assert unnamed(64, 64).us == 5.0
    assert unnamed(64, 64) is None


def test_watching_tells_what_lookups_find_also_where_the_answer_was_known(scaled, bucketed, table):
    write_table(table, line(64, us=8.0))
    tuned = bind(scaled, table)
    tuned(64, 64)
    with watch(scaled) as seen:
        tuned(64, 64)
        tuned(64, 64)
        tuned(65, 64)
    tuned(66, 64)
    assert [(one.family, one.shape["M"], one.row and one.row.us) for one in seen] == [
        (scaled.name, 64, 8.0),
        (scaled.name, 65, None),
    ]


def test_a_key_with_a_value_that_cannot_be_hashed_is_understood_all_the_same(scaled, table):
    class Size(int):
        __hash__ = None

    write_table(table, line(64))
    assert lookup(scaled, tuned=table, M=Size(64), N=64) is not None


def test_answers_do_not_pile_up_without_end(scaled, table, monkeypatch):
    monkeypatch.setattr(answers, "_MOST_KNOWN", 10)
    write_table(table, line(64))
    tuned = bind(scaled, table)
    for m in range(1, 100):
        assert (tuned(m, 64) is not None) == (m == 64)
    assert len(tuned.answers.known) <= 10


def test_the_device_can_be_given(scaled, table):
    write_table(table, line(64, device=Identity("gfx942", 304, "AMD Instinct MI300X")))
    assert lookup(scaled, tuned=table, M=64, N=64, gfx="gfx942", cu_num="304", gpu_model="AMD  Instinct MI300X")


def test_a_child_that_was_forked_during_a_look_looks_for_itself(scaled, table):
    tuned = bind(scaled, table)
    write_table(table, line(64))
    with tuned.answers._lock:
        child = os.fork()
        if not child:
            os._exit(0 if tuned(64, 64) is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
