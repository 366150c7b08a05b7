"""Tables keep every digit and every name, however narrow the terminal is."""

from io import StringIO

import pytest

from aiter_tuning.report.benchmark import print_benchmark
from aiter_tuning.report.table import print_hidden, print_table
from aiter_tuning.tuner.run_config import Benched, Benchmark


def printed(rows, **how):
    out = StringIO()
    print_table(("name", "us"), rows, out, **how)
    return out.getvalue()


@pytest.mark.parametrize("width", [10, 20, 200])
def test_numbers_are_never_cut_and_texts_are_folded(width):
    text = printed([("a_kernel_with_a_long_name", "123456.789")], numbers=("us",), width=width)

    assert "123456.789" in text
    if width > 10:  # there the number has all of it
        assert "".join(line[:-10].strip() for line in text.splitlines()[1:]).startswith("a_kernel")
    assert "…" not in text


def test_what_looks_like_markup_is_a_name():
    assert "[bold]x[/bold]" in printed([("[bold]x[/bold]", "1")])


def test_a_table_may_have_two_columns_of_one_title_and_no_rows():
    out = StringIO()
    print_table(("us", "us"), [], out, numbers=("us",))
    assert out.getvalue().split() == ["us", "us"]


def test_hidden_rows_are_counted():
    out = StringIO()
    for hidden in (0, 1, 2):
        print_hidden(hidden, "shape", out)
    assert out.getvalue() == "… and 1 more shape (-v shows all)\n… and 2 more shapes (-v shows all)\n"


def test_a_benchmark_in_a_narrow_terminal_keeps_its_latencies():
    shape = Benched({"M": 64}, "M=64 N=4096 K=4096 dtype=bf16 bias=False", "split_k8_64x64x128", 17.25, "ok", "")
    out = StringIO()
    print_benchmark(Benchmark("gemm_bf16", "a GPU", "sm90", "shapes.csv", (shape,), False), out, width=24)

    assert "17.25" in out.getvalue() and "OK" in out.getvalue()
