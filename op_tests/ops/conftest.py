"""A table that the operators serve from, on the CPU that they run on."""

import pytest

from aiter_tuning.families import find_family
from aiter_tuning.serving import bind, serve_from
from aiter_tuning.tables.tuned import TunedCsv, TunedRow


@pytest.fixture
def serve(tmp_path):
    """Puts rows into a table and lets a family serve from it until the test ends."""
    contexts = []

    def start(name, *rows):
        family, here = find_family(name), bind(name, device="cpu").device
        table = TunedCsv(tmp_path / f"{name}.{len(contexts)}.csv", family.key)  # a new one is read at once
        table.update(TunedRow(*here, shape, 0, 0, 5.0, kernel, config=config) for shape, kernel, config in rows)
        context = serve_from(name, table.path)
        context.__enter__()
        contexts.append(context)

    yield start
    for context in reversed(contexts):
        context.__exit__(None, None, None)
