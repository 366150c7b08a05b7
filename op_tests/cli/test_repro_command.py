"""aiter-tune repro runs one candidate in the foreground and says what it did."""

import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.cli import main

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["gemm_cpu", "M=4", "N=64", "K=32"]
TROUBLED = f"{ROOT}/op_tests/families_for_tests/tiny.py:Troubled"


def repro(*words):
    """In a process of its own: it binds the process to the device, as a debugger would see it."""
    command = [sys.executable, "-m", "aiter_tuning", "repro", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_candidates_are_listed_and_none_is_run(capsys):
    assert main(["repro", *WORDS, "--list"]) == 0
    out = capsys.readouterr().out
    assert 'split_n2  {"kernel": "split_n", "parts": 2}' in out.splitlines()


def test_a_right_candidate_is_compared_and_timed():
    done = repro(*WORDS, "--candidate", "split_n2", "--times", "3")
    assert done.returncode == 0, done.stderr
    assert "input      weight: (64, 32) float32, strides (32, 1)" in done.stdout
    assert "result     (4, 64) float32, strides (64, 1)" in done.stdout
    assert "compared   right: 0.0000% of its elements are off" in done.stdout
    assert "max error  " in done.stdout
    assert "of 3 single calls" in done.stdout


def test_a_wrong_candidate_ends_with_1_and_tells_how_wrong_it_is():
    done = repro(TROUBLED, "N=8", "--candidate", "wrong", "--times", "0")
    assert done.returncode == 1
    assert "compared   WRONG: 100.0000% of its elements are off" in done.stdout
    assert "time" not in done.stdout


def test_results_and_outputs_may_be_mappings_and_lists_as_in_a_run(tmp_path):
    (tmp_path / "several.py").write_text(
        "from op_tests.families_for_tests.tiny import Tiny\n"
        "class Several(Tiny):\n"
        "    name, outputs = 'several', ('parts',)\n"
        "    def inputs(self, shape, device, seed):\n"
        "        x = super().inputs(shape, device, seed)['x']\n"
        "        return {'x': x, 'parts': [x.clone(), x.clone()]}\n"
        "    def reference(self, inputs):\n"
        "        return {'more': inputs['x'] + 1, 'note': None, 'less': inputs['x'] - 1}\n"
        "    def run(self, inputs, config):\n"
        "        x = inputs['x']\n"
        "        inputs['parts'][0].copy_(x)\n"
        "        return {'less': x - 1.5, 'more': x + 1, 'note': 'unused'}\n"
    )
    done = repro(f"{tmp_path}/several.py:Several", "N=8", "--candidate", "quick", "--times", "0")
    assert done.returncode == 1, done.stderr
    assert "output less" in done.stdout
    errors = [line.split(maxsplit=2)[2] for line in done.stdout.splitlines() if line.startswith("  max error")]
    assert errors == ["0 in output more", "0.5 in output less"]


def test_an_exception_keeps_its_traceback():
    done = repro(TROUBLED, "N=8", "--candidate", "raises")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "tiny.py" in done.stderr
    assert "candidate  raises" in done.stdout, "what was being run is told before it runs"


def test_a_candidate_that_ends_the_process_ends_this_one():
    done = repro(TROUBLED, "N=8", "--candidate", "dies")
    assert done.returncode not in (0, 2)
    assert "candidate  dies" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (WORDS, 2, "which candidate? Give --candidate NAME, or --list"),
        ([*WORDS, "--candidate", "split_n3"], 2, "no candidate 'split_n3' for this shape; did you mean split_n"),
        (["gemm_cpu", "M=4", "--list"], 2, "M=4: N is missing"),
        ([*WORDS, "gfx=sm90", "--list"], 2, "gfx is no field"),
        ([*WORDS, "--device", "purple", "--list"], 2, "--device purple: devices names 'purple'"),
        (["gemm_bf16", "M=4", "N=64", "K=32", "--device", "cpu", "--list"], 2, "gemm_bf16 runs on cuda, hip only"),
    ],
)
def test_a_mistake_is_one_line(capsys, monkeypatch, words, code, complaint):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert main(["repro", *words]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("aiter-tune repro: error: ") and complaint in line


def test_a_number_of_times_that_is_none_is_a_usage_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["repro", *WORDS, "--times", "-1"])
    assert "not a whole number of 0 or more" in capsys.readouterr().err
