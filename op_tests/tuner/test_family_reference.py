"""Naming a family so that another process finds the same class."""

import pickle
import shutil
import subprocess
import sys

import pytest

from aiter_tuning.families import family_names, find_family
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.family_reference import FamilyError, load_family, reference_of
from aiter_tuning.tuner.tasks import MakeInputs, PreparedCandidate, RunCandidate

ADD_ONE = """
from aiter_tuning.keys import Key
from aiter_tuning.tuner import Candidate, Family, Work
from neighbour import ONE

class Add(Family):
    name = "add"
    devices = ("cpu",)
    key = Key(N=int)
    def inputs(self, shape, device, seed): return {"n": shape["N"]}
    def reference(self, inputs): return inputs["n"] + ONE
    def default(self, shape, device): return Candidate("plain")
    def candidates(self, shape, device): return [Candidate("plain")]
    def run(self, inputs, config): return inputs["n"] + ONE
    def work(self, shape): return Work(1, 1)

class Incomplete(Family):
    name = "incomplete"

class Stranger:
    pass
"""


@pytest.fixture
def op_file(tmp_path):
    path = tmp_path / "op.py"
    path.write_text(ADD_ONE)
    (tmp_path / "neighbour.py").write_text("ONE = 1\n")
    return path


@pytest.mark.parametrize(("answer", "gives"), [([1, 2], "a list"), (None, "nothing")])
def test_inputs_that_are_no_dict_are_told_by_the_familys_own_words(op_file, monkeypatch, answer, gives):
    reference = f"{op_file}:Add"
    monkeypatch.setattr(type(load_family(reference)), "inputs", lambda *args: answer)
    with pytest.raises(TypeError) as raised:
        MakeInputs(reference)({"N": 8}, 0, device="cpu")
    assert str(raised.value) == f"inputs() of add gives {gives}; expected a dict of named tensors"


def test_an_output_that_is_no_input_is_told_with_what_there_is(op_file, monkeypatch):
    reference = f"{op_file}:Add"
    monkeypatch.setattr(type(load_family(reference)), "outputs", ("n", "y"))
    with pytest.raises(LookupError) as raised:
        MakeInputs(reference)({"N": 8}, 0, device="cpu")
    assert str(raised.value) == "outputs of add names 'y', which inputs() does not give; it gives n"


def test_a_family_in_a_users_file_is_found_by_path_and_runs(op_file):
    family = find_family(f"{op_file}:Add")

    assert family.run(family.inputs({"N": 2}, "cpu", 0), {}) == 3
    assert reference_of(family) == f"{op_file}:Add"


def test_the_same_reference_finds_the_same_class_in_another_process(op_file):
    calls = (MakeInputs(f"{op_file}:Add"), RunCandidate(f"{op_file}:Add", {}))
    pickled = pickle.dumps(calls)
    program = (
        "import pickle, sys; make, run = pickle.loads(sys.stdin.buffer.read());"
        "print(run(make({'N': 4}, 0, device='cpu')))"
    )

    done = subprocess.run([sys.executable, "-c", program], input=pickled, capture_output=True, check=True)

    assert done.stdout.strip() == b"5"
    assert len(pickled) < 300 + 2 * len(str(op_file)), "the operator itself does not travel"


def test_a_family_of_the_package_is_found_by_name_alone():
    assert "gemm_cpu" in family_names()
    family = find_family("gemm_cpu")
    assert load_family(reference_of(family)) is not None
    assert reference_of(family) == "aiter_tuning.families.gemm_cpu:GemmCpu"


def test_listing_names_imports_no_family():
    program = (
        "import sys; from aiter_tuning.families import family_names; family_names();"
        "print([m for m in sys.modules if m.startswith('aiter_tuning.families.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gemm_cpi", "did you mean gemm_cpu"),
        ("nonsense", "unknown family 'nonsense'"),
        ("{}", "which class?"),
        ("{}:Nobody", "families in it: Add"),
        ("{}:Incomplete", "lacks"),
        ("{}:Stranger", "not a class derived from"),
        ("{}/missing.py:Add", "no such file"),
    ],
)
def test_what_cannot_be_found_is_told_in_one_line(op_file, name, told):
    with pytest.raises(FamilyError) as raised:
        find_family(name.format(op_file))

    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ('name = ""', "name is ''"),
        ("name = None", "name is None"),
        ('key = {"N": int}', "expected a Key"),
        ('devices = "cpu"', "devices is 'cpu'; expected a tuple of cpu, cuda, hip"),
        ("devices = ()", "devices is ()"),
        ('devices = ("tpu",)', "devices is ('tpu',)"),
        ("devices = None", "devices is None"),
        ("tolerance = 0.01", "tolerance is 0.01; expected a Tolerance"),
        ('outputs = "out"', "outputs is 'out'; expected a tuple"),
        ("def __init__(self): raise SystemExit(0)", "cannot be made without arguments: SystemExit"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_told_in_one_line(op_file, declared, told):
    op_file.write_text(op_file.read_text() + f"\nclass Odd(Add):\n    {declared}\n")

    with pytest.raises(FamilyError) as raised:
        find_family(f"{op_file}:Odd")

    assert told in str(raised.value)
    assert str(raised.value).startswith(f"{op_file}: Odd")
    assert "\n" not in str(raised.value)


def test_a_class_given_from_python_is_checked_as_one_from_a_file(op_file, monkeypatch):
    family = find_family(f"{op_file}:Add")
    monkeypatch.setattr(type(family), "devices", "cpu")

    with pytest.raises(FamilyError, match=r"Add\.devices is 'cpu'"):
        TunerCommon(family)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (3, "raise RuntimeError('not today')"),
        (3, "def broken(:"),
        (3, "raise SystemExit(0)"),
        (3, "import sys; sys.exit('no')"),
    ],
)
def test_a_file_that_does_not_load_is_told_with_its_line(op_file, line, text):
    lines = op_file.read_text().splitlines()
    lines.insert(line - 1, text)
    op_file.write_text("\n".join(lines))

    with pytest.raises(FamilyError) as raised:
        find_family(f"{op_file}:Add")

    assert str(raised.value).startswith(f"{op_file}:{line}: ")


def test_two_files_of_one_name_are_two_modules(op_file, tmp_path):
    other = tmp_path / "elsewhere" / "op.py"
    other.parent.mkdir()
    shutil.copy(op_file, other)

    assert type(find_family(f"{op_file}:Add")) is not type(find_family(f"{other}:Add"))


def test_a_family_inside_a_function_is_refused(op_file):
    class Local(type(find_family(f"{op_file}:Add"))):
        pass

    with pytest.raises(FamilyError, match="inside a function"):
        reference_of(Local())


def test_preparing_is_only_announced_by_families_that_prepare():
    assert not hasattr(RunCandidate("x", {}), "prepare")
    assert hasattr(PreparedCandidate("x", {}), "prepare")
