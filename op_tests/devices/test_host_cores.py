import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.host_cores import parse_cpu_list, reserved_cores


@pytest.fixture
def host(tmp_path):
    """A sysfs of cores with two threads each (n and n + cores), and GPUs near some of them."""

    def make(cores, **near):
        for cpu in range(2 * cores):
            topology = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{cpu % cores},{cpu % cores + cores}\n")
        for pci, cpus in near.items():
            (tmp_path / f"bus/pci/devices/{pci}").mkdir(parents=True)
            (tmp_path / f"bus/pci/devices/{pci}/local_cpulist").write_text(cpus)
        return tmp_path

    return make


def test_each_lane_gets_a_physical_core_near_its_gpu(host):
    sysfs = host(8, a="0-3,8-11", b="4-7,12-15")
    assert reserved_cores(["a", "b", "b"], range(16), sysfs) == ((3, 11), (7, 15), (6, 14))


def test_far_cores_are_better_than_none_and_the_first_core_goes_last(host):
    sysfs = host(4, a="0,4")
    assert reserved_cores(["a", "a", ""], range(8), sysfs) == ((0, 4), (3, 7), (2, 6))


def test_where_every_core_is_needed_none_is_reserved(host):
    assert reserved_cores(["", ""], range(4), host(2)) == ((), ())
    assert reserved_cores([""], [0], host(0)) == ((),)


def test_only_cores_that_this_process_may_use_are_reserved(host):
    assert reserved_cores([""], [1, 2, 5], host(4)) == ((2,),)  # 6, its sibling, is somebody else's


@given(st.integers(1, 12), st.integers(1, 12))
def test_reserved_cores_are_distinct_and_leave_one(cpus, gpus):
    reserved = reserved_cores([""] * gpus, range(cpus))
    taken = [cpu for cores in reserved for cpu in cores]
    assert len(taken) == len(set(taken))
    assert set(range(cpus)) - set(taken)


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0,2-2", {0, 2})])
def test_the_kernels_lists_are_read(text, cpus):
    assert parse_cpu_list(text) == cpus
