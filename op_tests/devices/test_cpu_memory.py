"""How much memory CPU lanes may share: the host's, or what a container's limit leaves."""

import psutil
import pytest

from aiter_tuning.devices.cpu import available_memory_bytes

GIB = 1 << 30


@pytest.fixture
def cgroup(tmp_path):
    def of(limit, used):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        return tmp_path

    return of


def test_a_containers_limit_counts_less_what_is_used_already(cgroup):
    assert available_memory_bytes(cgroup(3 << 20, 1 << 20)) == 2 << 20
    assert available_memory_bytes(cgroup(1 << 20, 3 << 20)) == 0


@pytest.mark.parametrize("limit", ["max", 1 << 60])
def test_a_limit_above_the_hosts_memory_is_none(cgroup, limit):
    assert available_memory_bytes(cgroup(limit, 0)) == pytest.approx(psutil.virtual_memory().available, abs=GIB)


def test_without_a_cgroup_the_host_tells(tmp_path):
    assert available_memory_bytes(tmp_path) == pytest.approx(psutil.virtual_memory().available, abs=GIB)
