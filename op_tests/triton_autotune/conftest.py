"""Every test starts and ends without a policy; kernels are interpreted, on the CPU."""

import json

import pytest

from aiter_tuning.triton_autotune import selection, set_deterministic_mode, uninstall


@pytest.fixture(autouse=True)
def no_policy(monkeypatch):
    monkeypatch.delenv("MAMBA_DETERMINISTIC", raising=False)
    monkeypatch.setattr(selection, "_mamba_env_warned", False)
    monkeypatch.setenv("RANK", "0")
    yield
    uninstall()
    set_deterministic_mode(None)


@pytest.fixture
def kernels():
    import op_tests.triton_autotune.kernels

    return op_tests.triton_autotune.kernels


@pytest.fixture
def table_dir(tmp_path):
    """Writes ``<arch>.json`` into a directory, as a seed or a user would, and returns the directory."""

    def write(kernels, arch="sm90", directory="tables", **more):
        folder = tmp_path / directory
        folder.mkdir(exist_ok=True)
        (folder / f"{arch}.json").write_text(json.dumps({"arch": arch, "kernels": kernels, **more}))
        return str(folder)

    return write
