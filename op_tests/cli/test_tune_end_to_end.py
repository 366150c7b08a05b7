"""A whole run, with real workers that really die."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from aiter_tuning.tables.csv_reader import read_rows
from op_tests.cli.conftest import TINY, write_shapes

pytestmark = pytest.mark.timeout(120)


def rows_of(path):
    return [row.cells for row in read_rows(path).rows]


def finished(path):
    """Of the screening."""
    ended = (row for row in rows_of(path) if (row["event"], row["phase"]) == ("finished", "screen"))
    return [(row["N"], row["candidate"], row["attempt"]) for row in ended]


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def started(path, candidate):
    """Whether the checkpoint says that the candidate was handed out last."""
    if not path.exists():
        return False
    text = path.read_text()
    return bool(text) and f",{candidate}," in text.splitlines()[-1] and text.splitlines()[-1].startswith("started")


def gone(processes):
    return all(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE for process in processes)


def test_every_kind_of_trouble_costs_its_candidate_and_nothing_else(tune, tmp_path):
    process = tune("Troubled", "-o2", "all.csv", "--json", confirm=True)
    out, err = process.communicate()

    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["candidates"] == {"ok": 4, "mismatch": 2, "unsupported": 2, "crash": 4}
    assert [shape["kernel"] for shape in summary["shapes"]] == ["quick", "quick"]
    assert {row["N"]: row["kernelName"] for row in rows_of(tmp_path / "out.csv")} == {"8": "quick", "16": "quick"}
    by_kernel = {row["kernelName"]: row for row in rows_of(tmp_path / "all.csv") if row["N"] == "8"}
    assert by_kernel["wrong"]["status"] == "mismatch"
    assert (by_kernel["refuses"]["status"], by_kernel["refuses"]["us"]) == ("unsupported", "-1")
    assert (by_kernel["dies"]["status"], by_kernel["dies"]["us"]) == ("crash", "inf")
    assert "7" in by_kernel["dies"]["detail"]
    causes = {cause["detail"].split(":")[0]: cause["count"] for cause in summary["causes"]}
    assert causes["KeyError"] == 2
    assert not list(tmp_path.glob("*.checkpoint*"))
    assert len(list(tmp_path.glob("out.profile.*.csv"))) == 1


def test_a_shape_that_no_candidate_computes_ends_the_run_with_1_and_tells_why_once(tune_here):
    code, out, _ = tune_here("Hopeless")

    assert code == 1
    assert out.count("KeyError") == 1
    assert "2 × crash: KeyError: 'x'" in out


def test_a_hung_candidate_is_killed_by_its_clock(tune_here, tmp_path):
    code, _, err = tune_here("Hanging", "--candidate_timeout", "1", sizes=(8,))

    assert code == 0, err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    hung = next(row for row in rows_of(profile) if row["candidate"] == "hangs" and row["event"] == "finished")
    assert (hung["status"], hung["us"]) == ("timeout", "inf")


def test_ctrl_c_ends_with_3_and_the_same_command_goes_on(tune, tune_here, tmp_path, descendants, monkeypatch):
    gate, checkpoint = tmp_path / "gate", tmp_path / "out.checkpoint.csv"
    process = tune("Gated", sizes=(8,), TINY_GATE=str(gate))
    wait_until(lambda: started(checkpoint, "waits"))
    workers = descendants(process)

    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)

    assert process.returncode == 3
    assert "run the same command again to go on" in out
    wait_until(lambda: gone(workers), 10)
    assert not (tmp_path / "out.csv").exists()

    gate.touch()
    monkeypatch.setenv("TINY_GATE", str(gate))
    code, _, err = tune_here("Gated", sizes=(8,))

    assert code == 0, err
    assert "resuming, 2 candidates are on record" in err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    assert sorted(candidate for _, candidate, _ in finished(profile)) == ["quick", "steady", "waits"]


def test_a_second_ctrl_c_ends_at_once(tune, tmp_path, descendants):
    process = tune("Gated", sizes=(8,), TINY_GATE=str(tmp_path / "gate"))
    wait_until(lambda: started(tmp_path / "out.checkpoint.csv", "waits"))
    workers = descendants(process)
    psutil.Process(process.pid).suspend()  # both signals are there before it can act on the first

    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    psutil.Process(process.pid).resume()
    process.communicate(timeout=30)

    assert process.returncode in (-signal.SIGINT, -signal.SIGTERM)
    wait_until(lambda: gone(workers), 10)


def test_kill_9_of_the_parent_loses_no_finished_candidate_and_leaves_no_process(
    tune, tune_here, tmp_path, descendants, monkeypatch
):
    gate, checkpoint = tmp_path / "gate", tmp_path / "out.checkpoint.csv"
    process = tune("Gated", TINY_GATE=str(gate))
    wait_until(lambda: started(checkpoint, "waits"))
    workers = descendants(process)
    done = finished(checkpoint)

    process.kill()
    process.communicate()

    wait_until(lambda: gone(workers), 10)
    assert len(done) == 2

    gate.touch()
    monkeypatch.setenv("TINY_GATE", str(gate))
    code, _, err = tune_here("Gated")

    assert code == 0, err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    everything = finished(profile)
    assert len(everything) == len({(size, candidate) for size, candidate, _ in everything}) == 6
    assert set(done) <= set(everything)
    assert {row["N"] for row in rows_of(tmp_path / "out.csv")} == {"8", "16"}


def test_a_full_disk_ends_the_run_with_5_and_every_row_whole(tune, tune_here, tmp_path):
    limit = 1400  # bytes a file may have: the header, the run's row and a few more fit
    process = tune("Tiny", sizes=range(1, 9), limit=["prlimit", f"--fsize={limit}"])
    out, err = process.communicate()

    assert process.returncode == 5, err
    assert "could not be written" in out
    text = (tmp_path / "out.checkpoint.csv").read_text()
    assert text.endswith("\n")
    whole = finished(tmp_path / "out.checkpoint.csv")

    code, _, err = tune_here("Tiny", sizes=range(1, 9))

    assert code == 0, err
    assert f"resuming, {len(whole)} candidates are on record" in err
    assert len(rows_of(tmp_path / "out.csv")) == 8


def test_with_v_what_candidates_print_and_each_shape_are_shown(tune_here):
    _, _, err = tune_here("Talking", "-v", sizes=(8,))

    assert "N=8 dtype=fp32 talks | hello from a candidate" in err
    assert "N=8 dtype=fp32: " in err


def test_the_parent_imports_neither_torch_nor_triton_nor_pandas_for_a_run(tmp_path):
    write_shapes(tmp_path, (8,))
    words = ["tune", f"{TINY}:Tiny", "-i", "shapes.csv", "-o", "out.csv"]
    program = (
        f"import sys; from aiter_tuning.cli import main; code = main({words!r});"
        "print(code, sorted({'torch', 'triton', 'pandas', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "0 []", done.stderr


def test_a_log_that_goes_away_does_not_end_the_run(tune, tmp_path):
    process = tune("Tiny", sizes=(8,))
    process.stderr.close()
    process.stdout.close()

    process.stdout = process.stderr = None
    assert process.wait(100) == 0
    (row,) = rows_of(tmp_path / "out.csv")
    assert row["N"] == "8"  # which kernel it names is not asked here: on a busy machine finals may be ambiguous
