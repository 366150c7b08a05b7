"""``tune --compare`` and ``--run_config`` as a person runs them: reports, exit codes, and what survives ``kill -9``."""

import json
import random
import time

import psutil
import pytest

from aiter_tuning.devices.discovery import discover
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from op_tests.cli.conftest import ROOT, write_shapes
from op_tests.families_for_tests.compared import Compared

COMPARED = ROOT / "op_tests" / "families_for_tests" / "compared.py"
SEEDS = ("quick", "fair", "wrong", "gone")
VERDICTS = {"quick": "retained", "fair": "promoted", "wrong": "correctness_fix", "gone": "promoted"}
FAST = ("--warmup", "1", "--iters", "3")


@pytest.fixture
def table(tmp_path):
    return tmp_path / "out.csv"


@pytest.fixture
def seed(table):
    """Puts a row of each kind into the table, in turns; returns the kernel of each size."""

    def put(sizes):
        device = discover("cpu", 0)[0]
        kernels = dict(zip(sizes, SEEDS * len(sizes), strict=False))
        TunedCsv(table, Compared.key).update(
            TunedRow(
                device.gfx,
                device.cu_num,
                device.gpu_model,
                {"N": size, "dtype": "fp32"},
                0,
                0,
                1.0,
                name,
                config={"do": name},
            )
            for size, name in kernels.items()
        )
        return kernels

    return put


WORDS = ("tune", f"{COMPARED}:Compared", "-i", "shapes.csv", "-o", "out.csv", "--compare", *FAST)


@pytest.fixture
def compare(command, tmp_path):
    """A comparison as a process."""

    def start(*flags, sizes=(8,)):
        write_shapes(tmp_path, sizes)
        return command(*WORDS, *flags)

    return start


@pytest.fixture
def compare_here(run_here, tmp_path):
    """The same in this process, on an open lane."""

    def run(*flags, sizes=(8,)):
        write_shapes(tmp_path, sizes)
        return run_here(*WORDS, *flags)

    return run


def kernels_in(table):
    return {row.shape["N"]: row.kernelName for row in TunedCsv(table, Compared.key).rows()}


def first_verdicts(table):
    """What was decided on each size: a run that is started once more after the end of another decides anew."""
    verdicts = {}
    for record in read_evidence(evidence_path(table), warnings=[]):
        verdicts.setdefault(record.key["N"], record.verdict)
    return verdicts


def each_row_is_explained(table):
    index = EvidenceIndex(read_evidence(evidence_path(table), warnings=[]))
    for row in TunedCsv(table, Compared.key).rows():
        record = index.newest_for(row)
        assert record is not None, row
        assert record.winner.config == row.config
        if record.published:
            assert record.winner.us == pytest.approx(row.us, abs=1e-3)
    return True


def end(process, descendants):
    """Kills a run; its workers die with it."""
    workers = descendants(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=10)


def compared_blocks(checkpoint):
    return checkpoint.read_text().count(",compared:") if checkpoint.exists() else 0


def test_a_comparison_is_told_on_the_terminal_and_in_a_file_and_applied_when_asked(compare_here, seed, table, tmp_path):
    seed((8, 16, 32, 64))
    before = table.read_bytes()

    code, out, err = compare_here(sizes=(8, 16, 32, 64))

    assert code == 0, err
    (report,) = tmp_path.glob("out.compare.*.txt")
    for text in (out, report.read_text()):
        assert "Tune performance comparison: compared on" in text
        assert "before: the rows of out.csv" in text
        assert "3 rows would be written, 1 shape as before" in text
        assert "candidate table: out.candidate.csv" in text and "--update_improved to apply" in text
        lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("N=")}
        assert "mismatch" in lines["N=32"] and "correctness fix" in lines["N=32"]
        assert "1.2" in lines["N=16"].split("x ")[0] and "update" in lines["N=16"]
        assert text.rstrip().splitlines()[-1 if text is not out else -2].endswith("32,fp32"), "the repro CSV"
    assert "1 row names a kernel that compared does not know" in err
    assert table.read_bytes() == before

    code, out, err = compare_here("--update_improved", "--json", sizes=(8, 16, 32, 64))

    assert code == 0, err
    told = json.loads(out)
    assert [shape["verdict"] for shape in told["shapes"]] == [VERDICTS[name] for name in SEEDS]
    assert [shape["decided_earlier"] for shape in told["shapes"]] == [True, False, False, False]
    assert told["already_tuned"] == 0
    assert told["shapes"][1]["served"]["before"]["kernel"] == "fair"
    assert set(kernels_in(table).values()) == {"quick"}
    assert each_row_is_explained(table)
    assert not list(tmp_path.glob("*.candidate.csv")) and not list(tmp_path.glob("*.checkpoint*.csv"))


def test_a_comparison_that_may_write_and_has_nothing_to_write_says_so(compare_here, seed):
    seed((8,))
    assert "0 rows were written, 1 shape as before" in compare_here("--update_improved").out


def test_a_run_killed_in_a_comparison_goes_on_after_its_last_block(
    compare, compare_here, seed, table, tmp_path, descendants
):
    seed((8, 16, 32, 64))
    checkpoint = tmp_path / "out.compare.checkpoint.csv"
    flags = ("--update_improved", "--rounds", "15")
    process = compare(*flags, sizes=(16,))
    deadline = time.monotonic() + 60
    while compared_blocks(checkpoint) < 10:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    end(process, descendants)
    whole = compared_blocks(checkpoint) // 2

    code, _, err = compare_here(*flags, sizes=(16,))

    assert code == 0, err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    assert compared_blocks(profile) // 2 == 15 and whole >= 5, "no block was measured twice"
    assert first_verdicts(table) == {16: "promoted"} and kernels_in(table)[16] == "quick"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [1, 2])
def test_killed_at_twenty_random_moments_a_comparison_decides_as_an_undisturbed_one(
    compare, seed, table, descendants, number
):
    sizes = tuple(range(1, 21))
    seeded = seed(sizes)
    choices, killed = random.Random(number), 0
    while killed < 20:
        process = compare("--update_improved", "--batch", "2", sizes=sizes)
        time.sleep(choices.uniform(0.5, 6.0))
        if process.poll() is not None:
            break
        if choices.random() < 0.3 and (workers := descendants(process)):
            choices.choice(workers).kill()
            time.sleep(choices.uniform(0.0, 0.5))
        end(process, descendants)
        killed += 1
    assert killed > 3, "it was over before it could be disturbed"

    process = compare("--update_improved", sizes=sizes)
    _, err = process.communicate()

    assert process.returncode == 0, err
    assert kernels_in(table) == dict.fromkeys(sizes, "quick")
    assert first_verdicts(table) == {size: VERDICTS[name] for size, name in seeded.items()}
    assert each_row_is_explained(table)
    assert len(table.read_text().splitlines()) == 1 + len(sizes), "no duplicate survives"


def test_what_cannot_be_compared_is_one_line_and_exit_code_2(run_here, tmp_path):
    write_shapes(tmp_path, (8,))
    tiny = ROOT / "op_tests" / "families_for_tests" / "tiny.py"
    for words, says in (
        (("tune", f"{COMPARED}:Compared", "--update_improved"), "add --compare"),
        (("tune", f"{tiny}:Tiny", "--compare"), "define its serve()"),
        (("tune", f"{tiny}:Tiny", "--run_config"), "define its serve()"),
        (("tune", f"{COMPARED}:Compared", "--run_config", "gone.csv"), "gone.csv"),
        (("tune", f"{COMPARED}:Compared", "--run_config"), "write --run_config out.csv"),
        (("tune", f"{COMPARED}:Compared", "--run_config", "--compare", "--dry_run"), "--compare and --dry_run"),
    ):
        code, _, err = run_here(*words, "-i", "shapes.csv", "-o", "out.csv")
        assert code == 2, err
        assert says in err and len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shapes.csv"]


def test_run_config_of_a_table_tells_what_each_row_does_and_writes_nothing(run_here, seed, table, tmp_path):
    seed((8, 16, 32, 64))
    files = sorted(tmp_path.iterdir())

    code, out, err = run_here("tune", f"{COMPARED}:Compared", "--run_config", "out.csv", "--json")

    assert code == 1, err
    told = {shape["shape"]["N"]: shape for shape in json.loads(out)["shapes"]}
    assert {n: shape["status"] for n, shape in told.items()} == {8: "ok", 16: "ok", 32: "mismatch", 64: "error"}
    assert 1400 <= told[8]["e2e_us"] < 4000 and told[16]["e2e_us"] > told[8]["e2e_us"]  # sleeps on a busy machine
    assert "no kernel 'gone'" in told[64]["reason"]
    assert sorted(tmp_path.iterdir()) == files


def test_run_config_without_a_table_times_what_serves_the_shapes(run_here, tmp_path):
    write_shapes(tmp_path, (8, 16))

    code, out, err = run_here("tune", f"{COMPARED}:Compared", "-i", "shapes.csv", "--run_config")

    assert code == 0, err
    assert "2 shapes: 2 ok" in out and out.count("(default)") == 2 and "E2E us" in out
