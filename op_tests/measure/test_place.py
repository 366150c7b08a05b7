"""An exception's detail names the line of the operator that it came from."""

import json
from pathlib import Path

import pytest

from aiter_tuning.measure.inputs import Inputs
from aiter_tuning.measure.place import described_with_place, place_of
from aiter_tuning.status import DETAIL_LIMIT


def raised(function, *args):
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value


def fails(text="x"):
    raise KeyError(text)


LINE = fails.__code__.co_firstlineno + 1


def test_the_operators_last_line_is_named():
    assert place_of(raised(fails)) == f"test_place.py:{LINE}"
    assert described_with_place(raised(fails)) == f"KeyError: 'x', at test_place.py:{LINE}"


def test_what_the_operator_calls_in_libraries_is_not():
    def parses():
        json.loads("{")

    assert place_of(raised(parses)) == f"test_place.py:{parses.__code__.co_firstlineno + 1}"


def test_an_error_that_never_reached_the_operator_has_no_place():
    error = raised(fails)
    error.__traceback__ = None
    assert described_with_place(error) == "KeyError: 'x'"


def test_our_own_lines_are_never_named():
    error = raised(Inputs.make, None, None, "cpu", 0)
    assert "inputs.py" not in place_of(error)
    assert Path(__file__).name in place_of(error), "who called us is somebody else's"


def test_a_long_message_leaves_room_for_the_place():
    text = described_with_place(raised(fails, "long " * 1000))
    assert len(text) <= DETAIL_LIMIT and text.endswith(f", at test_place.py:{LINE}")
