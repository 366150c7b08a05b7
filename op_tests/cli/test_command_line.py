"""What is typed: flags, spellings, mistakes."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

import aiter_tuning
from aiter_tuning.cli import main
from aiter_tuning.cli.parser import parse
from aiter_tuning.status import Status
from aiter_tuning.tuner.arguments import ARG_DEFAULTS
from aiter_tuning.tuning_policy import COMPILE_TIMEOUT_S


def run(*words):
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text("M,N,K\n8,16,32\n")
    (tmp_path / "link.csv").symlink_to("good.csv")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("M,N,K\n")
    (tmp_path / "column.csv").write_text("M,N,Kay\n8,16,32\n")
    (tmp_path / "text.csv").write_text("M,N,K\n8,16,32\n8,many,32\n")
    (tmp_path / "negative.csv").write_text("M,N,K\n8,-16,32\n")
    (tmp_path / "refused.csv").write_text("M,N,K,dtype\n8,16,32,fp32\n8,16,32,float64\n")
    (tmp_path / "conflict.csv").write_text("M,N,K\n<<<<<<< ours\n8,16,32\n=======\n8,16,64\n>>>>>>> theirs\n")
    (tmp_path / "long.csv").write_text("M,N,K\n1,2,3,4\n")
    (tmp_path / "broken_out.csv").write_text("M,N,K\n<<<<<<< ours\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["-i", "missing.csv", "-o", "o.csv"], "missing.csv", id="missing file"),
        pytest.param(["-i", "empty.csv", "-o", "o.csv"], "empty.csv", id="empty file"),
        pytest.param(["-i", "column.csv", "-o", "o.csv"], "K", id="wrong column"),
        pytest.param(["-i", "text.csv", "-o", "o.csv"], "text.csv:3:2", id="text for a number"),
        pytest.param(["-i", "negative.csv", "-o", "o.csv"], "negative.csv:2:2", id="negative size"),
        pytest.param(["-i", "conflict.csv", "-o", "o.csv"], "conflict.csv:2", id="conflict markers"),
        pytest.param(["-i", "refused.csv", "-o", "o.csv"], "refused.csv:3: family gemm_cpu", id="a refused shape"),
        pytest.param(["-i", "refused.csv", "-o", "o.csv", "--dry_run"], "refused.csv:3: family", id="refused, dry run"),
        pytest.param(["-i", "refused.csv", "--run_config"], "refused.csv:3: family gemm_cpu", id="refused as served"),
        pytest.param(["-i", "long.csv", "-o", "o.csv"], "long.csv:2", id="a row too long"),
        pytest.param(["-i", "good.csv", "-o", "nowhere/o.csv"], "nowhere", id="unwritable output"),
        pytest.param(["-i", "good.csv", "-o", "."], "directory", id="a directory for output"),
        pytest.param(["-i", "good.csv", "-o", "/proc/o.csv"], "/proc/o.csv", id="a place that takes no files"),
        pytest.param(["-i", "good.csv", "-o", "broken_out.csv"], "broken_out.csv:2", id="a broken tuned file"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "-o2", "o.csv"], "two files", id="one file for two outputs"),
        pytest.param(
            ["-i", "good.csv", "-o", "o.csv", "-o2", "header.csv"], "header.csv:1", id="a profile that is none"
        ),
        pytest.param(["-i", "good.csv", "-o", "good.csv"], "are one file", id="shapes for output"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "-o2", "./good.csv"], "are one file", id="shapes for a profile"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--checkpoint", "link.csv"], "are one file", id="a link"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "-o2", "o.checkpoint.csv"], "are one file", id="the checkpoint"),
        pytest.param(["-i", "good.csv", "-o", "o.csv:p.csv", "-o2", "p.csv"], "are one file", id="a file looked up in"),
        pytest.param(["-i", "", "-o", "o.csv"], "--untune_file is empty", id="no name"),
        pytest.param(["-i", "good.csv", "-o", ""], "--tune_file is empty", id="no name for output"),
        pytest.param(["-i", ".", "-o", "o.csv"], "--untune_file .: is a directory", id="a directory of shapes"),
        pytest.param(["-i", "/dev/null", "-o", "o.csv"], "is a device or a pipe", id="a device for shapes"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--tunefile"], "see aiter-tune tune --help", id="which help"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--mp", "0.5"], "--mp", id="half a lane"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--timeout", "-1"], "--timeout", id="negative time"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--iters", "0"], "--iters", id="no timed call"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--errRatio", "5%"], "--errRatio", id="a percentage"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--retry", "crsh"], "timeout", id="unknown status"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--tunefile", "x"], "--tunefile", id="unknown flag"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--device", "cuda"], "runs on cpu only", id="the wrong device"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--device", "0,1"], "runs on cpu only", id="GPUs for the CPU"),
        pytest.param(["-i", "good.csv", "-o", "o.csv", "--device", "cpu,cpu"], "--device cpu --mp 2 makes", id="lanes"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_with_nothing_written(place, capfd, words, told):
    before = sorted(os.listdir(place))

    code = run("tune", "gemm_cpu", *words)

    out, err = capfd.readouterr()
    assert code == 2
    assert told in err
    assert err.count("\n") == 1, err
    assert out == ""
    assert sorted(os.listdir(place)) == before


def test_an_unknown_family_is_one_line_and_exit_2(place, capfd):
    assert run("tune", "gemm_gpu", "-i", "good.csv", "-o", "o.csv") == 2

    err = capfd.readouterr().err
    assert "did you mean gemm_cpu?" in err
    assert err.count("\n") == 1


def test_a_family_without_its_device_ends_4(place, capfd, request):
    tiny = request.path.parent.parent / "families_for_tests" / "tiny.py"
    (place / "n.csv").write_text("N\n8\n")

    for device in ([], ["--device", "cuda"], ["--device", "0,1"], ["--device", "GPU-12"]):
        assert run("tune", f"{tiny}:Elsewhere", "-i", "n.csv", "-o", "o.csv", *device) == 4
        err = capfd.readouterr().err
        assert "no visible GPU" in err
        assert err.count("\n") == 1, err


def test_a_gpu_family_is_for_the_cpu_only_where_triton_interprets(place, capfd, request, monkeypatch):
    tiny = request.path.parent.parent / "families_for_tests" / "tiny.py"
    (place / "n.csv").write_text("N\n8\n")
    words = ("tune", f"{tiny}:Elsewhere", "-i", "n.csv", "-o", "o.csv", "--dry_run", "--device")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert run(*words, "cpu") == 2
    assert "runs on cuda, hip only" in capfd.readouterr().err
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run(*words, "cpu") == 0
    assert run(*words, "tpu") == 2
    err = capfd.readouterr().err
    assert "--device tpu" in err and "indices and UUIDs" in err
    assert err.count("\n") == 1, err


def test_a_file_without_rows_is_no_error(place, capfd):
    assert run("tune", "gemm_cpu", "-i", "header.csv", "-o", "o.csv") == 0
    assert "0 shapes" in capfd.readouterr().out


def test_a_dry_run_counts_shapes_and_candidates_and_writes_nothing(place, capfd):
    (place / "good.csv").write_text("M,N,K,scale\n8,16,32,1\n8,16,32,2\n")
    before = sorted(os.listdir(place))

    assert run("tune", "gemm_cpu", "-i", "good.csv", "-o", "o.csv", "--dry_run") == 0

    out, err = capfd.readouterr()
    first = out.splitlines()[0]
    assert first.startswith("1 shape, ")
    assert first.endswith(" candidates")
    assert "1 row repeats a shape; 1 distinct shape in 2 rows" in err
    assert "scale" in err, "a column that the family does not know is named"
    assert sorted(os.listdir(place)) == before


@pytest.mark.parametrize(
    "words", [["--tune-file", "x", "--dry-run"], ["--tune_file=x", "--dry_run"], ["-o", "x", "--dry-run"]]
)
def test_hyphens_and_underscores_are_the_same(words):
    args = parse(["tune", "gemm_cpu", *words])

    assert (args.tune_file, args.dry_run) == ("x", True)


def test_upstreams_flags_mean_what_they_mean_there():
    words = "-i a.csv -o b.csv -o2 c.csv --mp 2 --shape_grouped --sort True --errRatio 0.1 --batch 5 --all -v"
    args = parse(["tune", "f", *words.split(), "--warmup", "1", "--iters", "2", "--timeout", "3"])

    assert (args.untune_file, args.tune_file, args.profile_file) == ("a.csv", "b.csv", "c.csv")
    assert (args.mp, args.sort, args.errRatio, args.batch, args.all) == (2, True, 0.1, 5, True)
    assert (args.warmup, args.iters, args.timeout, args.verbose) == (1, 2, 3.0, True)


def test_statuses_to_retry_are_separated_by_commas():
    assert parse(["tune", "f", "--retry", "crash, timeout"]).retry == (Status.crash, Status.timeout)


@pytest.mark.parametrize("words", [["--help"], ["tune", "--help"]])
def test_help_teaches_with_examples_and_exit_codes(capfd, words):
    assert run(*words) == 0

    out = capfd.readouterr().out
    assert "examples:" in out
    assert "exit codes:" in out


@pytest.mark.parametrize(
    "command", ["doctor", "tune", "lookup", "repro", "verify", "check", "merge", "diff", "poison", "autotune"]
)
def test_the_help_of_each_command_tells_its_exit_codes(capfd, command):
    assert run(command, "--help") == 0

    assert "exit codes:" in capfd.readouterr().out


def test_the_help_tells_the_defaults_that_a_run_has(capfd):
    assert run("tune", "--help") == 0

    out = " ".join(capfd.readouterr().out.split())
    told = dict(re.findall(r"--(\w+) [A-Z]+ (?:(?! --\w).)*?\(default: ([\d.]+)[ )]", out))
    assert len(told) > 8
    assert {name: float(value) for name, value in told.items()} == {
        name: COMPILE_TIMEOUT_S if name == "compile_timeout" else ARG_DEFAULTS[name] for name in told
    }


def test_the_version_is_that_of_the_package(capfd):
    assert run("--version") == 0

    assert capfd.readouterr().out == f"aiter-tune {aiter_tuning.__version__}\n"


def test_what_the_system_refuses_is_told_with_the_file_first(tmp_path, capfd, monkeypatch):
    (tmp_path / "poison.jsonl").mkdir()
    monkeypatch.setenv("AITER_TUNING_HOME", str(tmp_path))

    assert run("poison") == 5

    assert capfd.readouterr().err == f"aiter-tune poison: error: {tmp_path}/poison.jsonl: is a directory\n"


def test_help_is_answered_in_a_fraction_of_a_second_and_loads_nothing_heavy():
    program = (
        "import sys; from aiter_tuning.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'pandas', 'numpy', 'rich', 'scipy', 'psutil'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    times = []
    for _ in range(3):
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        times.append(time.monotonic() - began)
        assert done.returncode == 0, done.stderr

    assert min(times) < 0.5


def test_families_are_listed_with_the_fields_of_their_shapes(capfd):
    assert run("families") == 0

    line = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("gemm_cpu"))
    assert "M, N, K, dtype=fp32, bias=False" in line


def test_a_reader_that_goes_away_is_no_error(place):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "aiter_tuning", "families"], stdout=write, stderr=subprocess.PIPE, cwd=place, text=True
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_streams_is_a_run(place, closed):
    words = [sys.executable, "-m", "aiter_tuning", "tune", "gemm_cpu", "-i", "good.csv", "-o", "o.csv"]
    few = ["--candidate_sample", "1", "--finalists", "0", "--probe", "False"]
    done = subprocess.run(f"exec {shlex.join([*words, *few])} {closed}", shell=True, cwd=place, capture_output=True)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert (place / "o.csv").read_text().count("\n") == 2


def test_ctrl_c_is_one_line_and_exit_code_3(place):
    os.mkfifo(place / "slow.csv")
    command = [sys.executable, "-m", "aiter_tuning", "diff", "slow.csv", "good.csv", "--family", "gemm_cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place, text=True)
    with open(place / "slow.csv", "w"):  # opens once the command has opened it, and keeps it waiting for a line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    assert (process.returncode, out, err) == (3, "", "aiter-tune diff: interrupted\n")


def test_a_name_that_the_terminal_cannot_show_is_no_error(place):
    command = [sys.executable, "-m", "aiter_tuning", "tune", "gemm_cpu", "-i", "größe.csv", "-o", "o.csv", "--dry_run"]
    (place / "größe.csv").write_text("M,N,K,Höhe\n" + "".join(f"{m},16,32,1\n" for m in range(1, 51)))
    done = subprocess.run(command, capture_output=True, cwd=place, env={**os.environ, "PYTHONIOENCODING": "ascii"})

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(b"? and 10 more shapes (-v shows all)\n")
    assert b"H?he" in done.stderr


def test_a_dry_run_shows_the_first_forty_shapes_and_with_v_all(place, capfd):
    (place / "many.csv").write_text("M,N,K\n" + "".join(f"{m},16,32\n" for m in range(1, 51)))
    words = ("tune", "gemm_cpu", "-i", "many.csv", "-o", "o.csv", "--dry_run")

    assert run(*words) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("M=")]) == 40
    assert lines[-1] == "… and 10 more shapes (-v shows all)"
    assert run(*words, "-v") == 0
    assert capfd.readouterr().out.count("M=") == 50


def test_a_family_that_exits_or_answers_nonsense_is_one_line_and_exit_2_with_nothing_written(place, capfd, request):
    tiny = request.path.parent.parent / "families_for_tests" / "tiny.py"
    (place / "n.csv").write_text("N\n8\n")
    (place / "exits.py").write_text("import sys\nsys.exit(0)\n")
    (place / "nothing.py").write_text(
        f"import sys; sys.path.append({str(tiny.parent)!r})\nimport tiny\n"
        "class Odd(tiny.Tiny):\n    def default(self, shape, device): return None\n"
    )
    before = {*os.listdir(place), "__pycache__"}
    for name, told in (("exits.py:Odd", "exits.py:2"), ("nothing.py:Odd", "default() gives None")):
        assert run("tune", name, "-i", "n.csv", "-o", "o.csv") == 2
        err = capfd.readouterr().err
        assert told in err
        assert err.count("\n") == 1, err
        assert {*os.listdir(place), "__pycache__"} == before
