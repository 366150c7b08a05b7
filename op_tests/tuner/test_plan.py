"""Which shapes a run tunes, and what is tried for each."""

import math
import sys

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.tables.tuned import TunedRow
from aiter_tuning.tuner.choice import Today
from aiter_tuning.tuner.family import Candidate, Work
from aiter_tuning.tuner.family_reference import FamilyError
from aiter_tuning.tuner.plan import plan_shape, sampled, serving_shapes
from aiter_tuning.tuner.tasks import FamilyTasks, ShapeGroups

DEVICE = Device("k:K", "gpu0", "GPU-0", gfx="sm90", cu_num=132, gpu_model="H200")


def row(name, config=None):
    return TunedRow("sm90", 132, "H200", {"N": 8, "dtype": "fp32"}, 3, 0, 10.0, name, config=config or {})


@pytest.fixture
def shape(tiny):
    return tiny().key.parse({"N": 8})


def test_the_default_is_the_incumbent_of_a_first_tune(tiny, shape):
    plan = plan_shape(tiny(), shape, DEVICE)

    assert (plan.incumbent, plan.default, plan.names) == ("steady", "steady", ("steady", "quick"))
    assert plan.label == "N=8 dtype=fp32"


def test_a_published_rows_kernel_is_the_incumbent_and_measured_first(tiny, shape):
    plan = plan_shape(tiny(), shape, DEVICE, row("quick"))

    assert plan.incumbent == "quick"
    assert [candidate.name for candidate in plan.measuring_order()] == ["quick", "steady"]
    assert plan.names == ("steady", "quick"), "the order that breaks ties stays the family's"


def test_a_published_kernel_that_the_family_no_longer_proposes_is_none_that_serving_runs(tiny, shape):
    plan = plan_shape(tiny(), shape, DEVICE, row("retired", {"do": "quick"}))

    assert plan.today == Today("steady", "steady", "retired")
    assert plan.names == ("steady", "quick")


def test_a_published_kernel_that_the_family_still_resolves_is_measured_from_its_row(tiny, shape):
    class Keeping(type(tiny())):
        def resolve(self, name, config, shape, device):
            return config

    plan = plan_shape(Keeping(), shape, DEVICE, row("retired", {"do": "quick"}))

    assert plan.today == Today("retired", "steady", "retired")
    assert plan.candidate("retired") == Candidate("retired", {"do": "quick"}, kernel_id=3)


def test_a_row_that_launches_another_config_under_a_candidates_name_is_a_candidate_beside_it(tiny, shape):
    plan = plan_shape(tiny(), shape, DEVICE, row("quick", {"do": "steady"}))

    assert plan.today == Today("quick as published", "steady", "quick as published")
    assert plan.names == ("steady", "quick", "quick as published")
    assert plan.candidate("quick as published").config == {"do": "steady"}


def test_a_sample_is_the_same_each_time_and_grows(tiny, shape):
    class Wide(type(tiny())):
        def candidates(self, shape, device):
            return [Candidate(f"c{number}", {"do": "quick"}) for number in range(50)]

    plans = [plan_shape(Wide(), shape, DEVICE, row("c7"), sample=count) for count in (5, 5, 20)]

    assert plans[0].names == plans[1].names
    assert len(plans[0].names) == 7
    assert {"steady", "c7"} < set(plans[0].names) < set(plans[2].names)
    assert list(plans[2].names) == [
        name for name in ("steady", *(f"c{n}" for n in range(50))) if name in plans[2].names
    ]


def test_shapes_draw_samples_of_their_own():
    names = [f"c{number}" for number in range(50)]

    assert sampled(names, 5, "N=8") != sampled(names, 5, "N=9")
    assert sampled(names, 5, "N=8") == sampled(names[::-1], 5, "N=8")


@pytest.mark.parametrize("sample", [4096, 2])
def test_more_than_there_are_is_all(tiny, shape, sample):
    """shark#2760: asking for more candidates than exist is no error."""
    assert plan_shape(tiny(), shape, DEVICE, sample=sample).names == ("steady", "quick")


def test_a_published_kernel_of_which_nothing_is_known_leaves_the_default_as_incumbent(tiny, shape):
    assert plan_shape(tiny(), shape, DEVICE, row("_ZN5aiter")).incumbent == "steady"


def test_a_default_that_is_no_candidate_is_measured_too(tiny, shape):
    class Apart(type(tiny())):
        def default(self, shape, device):
            return Candidate("apart")

    assert plan_shape(Apart(), shape, DEVICE).names == ("apart", "steady", "quick")


@pytest.mark.parametrize(
    ("candidates", "told"),
    [
        (lambda: [Candidate("a"), Candidate("b"), Candidate("a")], "for N=8 dtype=fp32 two candidates are named a"),
        (lambda: [Candidate("a", {"tile": {1, 2}})], "config of a is not JSON"),
        (lambda: [][1], "no candidates for N=8 dtype=fp32: IndexError"),
        (lambda: None, "for N=8 dtype=fp32 candidates() gives None; expected Candidates in a list"),
        (lambda: 5, "for N=8 dtype=fp32 candidates() gives 5; expected Candidates in a list"),
        (lambda: sys.exit(0), "no candidates for N=8 dtype=fp32: SystemExit"),
        (lambda: [Candidate("a"), "b"], "candidates() gives 'b'; expected a Candidate"),
        (lambda: [Candidate("")], "names a candidate ''; expected one line of text"),
        (lambda: [Candidate("a\nb")], r"names a candidate 'a\nb'"),
        (lambda: [Candidate("a\x07")], r"names a candidate 'a\x07'"),
        (lambda: [Candidate(3)], "names a candidate 3"),
        (lambda: [Candidate("a", {"scale": float("nan")})], "config of a is not JSON"),
        (lambda: [Candidate("a", {"scale": float("inf")})], "config of a is not JSON"),
        (lambda: [Candidate("a", {1: 2, "b": 3})], "config of a is not JSON"),
        (lambda: [Candidate("a", None)], "config of a is None; expected a mapping"),
        (lambda: [Candidate("a", kernel_id="x")], "kernel_id of a is 'x'; expected a whole number"),
    ],
)
def test_a_familys_mistake_is_told_with_family_and_shape(tiny, shape, candidates, told):
    class Mistaken(type(tiny())):
        def candidates(self, shape, device):
            return candidates()

    with pytest.raises(FamilyError) as raised:
        plan_shape(Mistaken(), shape, DEVICE)

    assert told in str(raised.value)
    assert "family tiny" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "answer", "told"),
    [
        ("default", None, "default() gives None; expected a Candidate"),
        ("default", "steady", "default() gives 'steady'; expected a Candidate"),
        ("work", None, "work() gives None; expected Work"),
        ("work", Work(math.nan, 1), "work() gives flops=nan; expected a finite number"),
        ("work", Work(1, math.inf), "work() gives bytes=inf"),
        ("work", Work(-1, 1), "work() gives flops=-1"),
        ("work", Work(1, 1, "2 GB"), "work() gives workspace_bytes='2 GB'"),
    ],
)
def test_a_method_that_answers_what_cannot_be_used_is_told_by_name(tiny, shape, monkeypatch, method, answer, told):
    family = tiny()
    monkeypatch.setattr(type(family), method, lambda *args: answer)

    with pytest.raises(FamilyError) as raised:
        plan_shape(family, shape, DEVICE)

    assert told in str(raised.value)
    assert "family tiny: for N=8 dtype=fp32 " in str(raised.value)


@pytest.mark.parametrize("method", ["default", "candidates", "work"])
def test_a_method_that_fails_is_told_by_name_and_place(tiny, shape, monkeypatch, method):
    def fails(*args):
        return {}["columns"]

    monkeypatch.setattr(type(tiny()), method, fails)
    with pytest.raises(FamilyError) as raised:
        plan_shape(tiny(), shape, DEVICE)
    line = fails.__code__.co_firstlineno + 1
    what = "candidates" if method == "candidates" else f"{method}()"
    assert str(raised.value) == (
        f"family tiny: no {what} for N=8 dtype=fp32: KeyError: 'columns', at test_plan.py:{line}"
    )


def test_a_default_with_the_name_of_a_candidate_and_another_config_is_a_mistake(tiny, shape):
    class Torn(type(tiny())):
        def default(self, shape, device):
            return Candidate("a", {"tile": 9})

        def candidates(self, shape, device):
            return [Candidate("a", {"tile": 1}), Candidate("b", {"tile": 2})]

    with pytest.raises(FamilyError) as raised:
        plan_shape(Torn(), shape, DEVICE)
    assert str(raised.value) == (
        "family tiny: for N=8 dtype=fp32 default() and candidates() both name a, with different configs; names have to "
        "differ, or configs be the same"
    )


def test_a_default_that_spells_the_same_config_otherwise_is_that_candidate(tiny, shape):
    class Alike(type(tiny())):
        def default(self, shape, device):
            return Candidate("a", {"tile": (1, 2), "warps": 4})

        def candidates(self, shape, device):
            return [Candidate("a", {"warps": 4, "tile": [1, 2]})]

    assert plan_shape(Alike(), shape, DEVICE).names == ("a",)


def test_a_candidate_runs_with_the_config_that_its_row_will_launch(tiny, shape):
    tasks = FamilyTasks(tiny(), "ref", seed=0, kwargs={})
    work = Work(1, 1)
    assert tasks.way(Candidate("a", {"tile": (1, (2, 3)), "by": {"x": (4,)}}), work).config == {
        "tile": [1, [2, 3]],
        "by": {"x": [4]},
    }
    assert tasks.way(Candidate("a", {"by": {1: 2}}), work).config == {"by": {"1": 2}}
    assert tasks.way(Candidate("a", {1: 2.5}), work).config == {"1": 2.5}
    assert tasks.way(Candidate("a", {"b": True, "n": None, "s": "x"}), work).config == {"b": True, "n": None, "s": "x"}


@pytest.mark.parametrize("answer", [None, 5, [8]])
def test_a_bucket_that_is_no_mapping_is_told_by_its_method_and_what_was_expected(tiny, shape, monkeypatch, answer):
    family = tiny()
    monkeypatch.setattr(type(family), "bucket", lambda *args: answer)

    with pytest.raises(FamilyError) as raised:
        serving_shapes(family, [shape])

    gives = f"for N=8 dtype=fp32 bucket() gives {answer}; expected a shape, a mapping of N, dtype"
    assert str(raised.value) == f"family tiny: {gives}"


@pytest.mark.parametrize("answer", [{"N": 0}, {"dtype": "fp32"}])
def test_a_bucket_that_is_no_shape_is_told_with_the_shape(tiny, shape, monkeypatch, answer):
    family = tiny()
    monkeypatch.setattr(type(family), "bucket", lambda *args: answer)

    with pytest.raises(FamilyError, match=r"family tiny: no bucket\(\) for N=8 dtype=fp32"):
        serving_shapes(family, [shape])


def test_shapes_are_tuned_where_lookups_land_and_the_others_are_named(tiny):
    family = tiny("Bucketed")
    shapes, notes = serving_shapes(family, [family.key.parse({"N": n}) for n in (96, 128, 120)])

    assert [shape["N"] for shape in shapes] == [128]
    assert len(notes) == 2
    assert "N=96" in notes[0]
    assert "N=128" in notes[0]


def test_the_costliest_group_comes_first_and_a_shape_without_work_has_none(tiny):
    class Weighted(type(tiny())):
        def work(self, shape):
            return Work(flops=shape["N"] * 1e6, bytes=1)

    family = Weighted()
    plans = [plan_shape(family, family.key.parse({"N": n}), DEVICE) for n in (10, 1000, 500, 7)]
    todo = [plan.candidates for plan in plans]
    todo[2] = ()
    groups = ShapeGroups(FamilyTasks(family, "a:B", seed=1, kwargs={}), plans, todo)

    assert list(groups.numbers) == [1, 0, 3]
    assert [group.label for group in groups] == ["N=1000 dtype=fp32", "N=10 dtype=fp32", "N=7 dtype=fp32"]


def test_shapes_that_were_begun_come_before_costlier_ones(tiny):
    family = tiny()
    plans = [plan_shape(family, family.key.parse({"N": n}), DEVICE) for n in (10, 1000, 500, 7)]
    tasks = FamilyTasks(family, "a:B", seed=1, kwargs={})

    groups = ShapeGroups(tasks, plans, [plan.candidates for plan in plans], begun={0, 3})

    assert list(groups.numbers) == [0, 3, 1, 2]


def test_candidates_of_a_group_share_inputs_and_reference(tiny, shape):
    plan = plan_shape(tiny(), shape, DEVICE)
    group = FamilyTasks(tiny(), "a:B", seed=1, kwargs={"num_iters": 3}).group(plan, plan.candidates)

    assert group.inputs_ids == (0, 0)
    assert group.reference_ids == (0, 0)
    assert [task.info[-1] for task in group.tasks] == ["steady", "quick"]
    assert all(task.kwargs == {"num_iters": 3} for task in group.tasks)
