"""Tasks and groups."""

import pickle

import numpy
import pytest

from aiter_tuning.task import Group, MpTunerTask, as_task, group_by_shape, shape_key


def gen(n, device=None):
    return {"x": n}


def work(x):
    return x


def task(info, gen_args=(1,), ref_args=((),), **more):
    return MpTunerTask(info, gen, gen_args, work, (["x"],), {}, work, ref_args, {}, None, **more)


def test_a_task_is_a_tuple_with_tail_defaults_that_pickles():
    one = task(("shape", 0))
    assert isinstance(one, tuple)
    assert one[10:] == (1e-2, 1e-2, None, None, None)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("length", [10, 12, 15])
def test_plain_tuples_are_tasks(length):
    full = tuple(task(("shape", 0), max_abs_delta=None))
    assert as_task(full[:length], 0) == task(("shape", 0))


@pytest.mark.parametrize("wrong", [(), (1, 2, 3), tuple(range(16)), "a string of ten", 7])
def test_what_is_no_task_is_refused_with_its_position(wrong):
    with pytest.raises(ValueError, match="task 4"):
        as_task(wrong, 4)


def test_a_candidate_that_cannot_be_called_is_refused():
    with pytest.raises(ValueError, match="func is a int"):
        as_task(task("a")._replace(func=3), 0)


@pytest.mark.parametrize("field", ["rtol", "atol", "max_abs_delta"])
@pytest.mark.parametrize("value", ["0.01", -1, float("nan"), [0.1], True])
def test_a_tolerance_that_is_no_number_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"task 2 \('a'\): {field} is .*; expected a number of 0 or more"):
        as_task(task("a", **{field: value}), 2)


@pytest.mark.parametrize("value", [0, 1, 0.5, float("inf"), numpy.float32(0.25)])
def test_any_number_of_0_or_more_is_a_tolerance(value):
    one = task("a", rtol=value, atol=value, max_abs_delta=value)
    assert as_task(one, 0) is one


def test_groups_come_in_order_of_first_appearance():
    tasks = [task(("b", 0)), task(("a", 0)), task(("b", 1))]
    assert group_by_shape(tasks) == [("b", [0, 2]), ("a", [1])]


def test_an_unhashable_shape_still_groups():
    assert shape_key(task(([1, 2], 0))) == "[1, 2]"


def test_candidates_share_inputs_by_the_identity_of_what_makes_them():
    class FakeTensor:
        shape, dtype = (2,), "float32"

        def __init__(self, address):
            self.address = address

        def data_ptr(self):
            return self.address

    same = FakeTensor(1)
    tasks = (
        task(("s", 0), gen_args=(1,)),
        task(("s", 1), gen_args=(1,)),
        task(("s", 2), gen_args=(2,)),
        task(("s", 3), gen_args=([same, {"k": 1}],)),
        task(("s", 4), gen_args=([same, {"k": 1}],)),
        task(("s", 5), gen_args=([FakeTensor(2), {"k": 1}],)),
        task(("s", 6), gen_args=(True,)),
    )
    group = Group(tasks, tuple(range(7)))
    assert group.inputs_ids == (0, 0, 1, 2, 2, 3, 4)
    assert group.sharing(0, "inputs") == (0, 1)


def test_a_reference_is_shared_only_with_the_inputs_it_was_made_from():
    group = Group((task("a"), task("b"), task("c", gen_args=(2,)), task("d", ref_args=(("y",),))), (0, 1, 2, 3))
    assert group.reference_ids == (0, 0, 1, 2)
    assert group.sharing(0, "reference") == (0, 1)


def test_a_group_knows_where_its_tasks_came_from():
    with pytest.raises(ValueError, match="position"):
        Group((task("a"),), ())
