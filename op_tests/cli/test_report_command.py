"""``aiter-tune report``: one page that needs nothing else, from whatever there is."""

import re
import sys

import pytest

from aiter_tuning.tables.evidence import append_evidence
from aiter_tuning.tables.tuned import TunedCsv
from op_tests.cli.test_verify_command import evidence, row
from op_tests.families_for_tests.compared import Compared


@pytest.fixture
def table(tmp_path):
    path, rows = tmp_path / "out.csv", [row(8, "quick"), row(16, "</script><b>steady</b>")]
    TunedCsv(path, Compared.key).update(rows)
    append_evidence(path, [evidence(one, "steady", {"torch": "2.11"}) for one in rows])
    return path


def test_the_page_is_one_file_that_fetches_nothing(run_here, table):
    code, out, err = run_here("report", "out.csv")

    assert (code, err) == (0, "") and out == "out.report.html: 1 picture of 2 rows\n"
    page = table.with_name("out.report.html").read_text()
    assert "<h1>compared on" in page and "no profile or checkpoint lies beside the table" in page
    assert not re.search(r"<script[^>]*\ssrc=|<link\b|@import", page[: page.index("plotly.js")] + page[-20_000:])
    assert page.count("</script>") == page.count("<script"), "no name ends a script"


def test_the_page_goes_where_it_is_told(run_here, table, tmp_path):
    assert run_here("report", "out.csv", "-o", "page.html")[0] == 0
    assert (tmp_path / "page.html").is_file() and not (tmp_path / "out.report.html").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone.csv",), "gone.csv: no such file; expected a tuned CSV"),
        (("out.csv", "-o", "no/where.html"), "there is no directory no"),
        (("out.csv", "--profile", "gone.csv"), "--profile gone.csv: no such file"),
        (("out.csv", "--profile", "out.csv"), "out.csv"),
        (("shapes.csv",), "shapes.csv"),
        (("empty.csv",), "there is nothing to draw"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_exit_code_2(run_here, table, tmp_path, words, says):
    (tmp_path / "shapes.csv").write_text("N\n8\n")
    (tmp_path / "empty.csv").write_text(table.read_text().splitlines()[0] + "\n")
    code, _, err = run_here("report", *words)
    assert code == 2 and says in err and len(err.splitlines()) == 1


def test_who_lacks_plotly_is_told_how_to_get_it(run_here, table, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("aiter_tuning.report.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    code, _, err = run_here("report", "out.csv")
    assert code == 2 and "pip install plotly" in err
