"""Packages whose names are loaded when they are first used."""

import importlib
import subprocess
import sys

import pytest

PACKAGES = (
    "aiter_tuning",
    "aiter_tuning.ops",
    "aiter_tuning.tables",
    "aiter_tuning.triton_autotune",
    "aiter_tuning.tuner",
)
HEAVY = ("torch", "triton", "pandas", "numpy", "rich")


def test_importing_them_loads_nothing_heavy():
    code = f"import sys, {', '.join(PACKAGES)}; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_listed_and_there_and_stays_the_same(name):
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    for public in package.__all__:
        assert getattr(package, public) is getattr(package, public)
        assert public in vars(package), "looked up once"


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_that_is_not_there_is_told_with_its_package(name):
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        importlib.import_module(name).nothing  # noqa: B018 - the look-up is what is tested
