"""What a fault means for the candidates of a group: the decisions, without any process."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.contest import Block, Contest
from aiter_tuning.measurement import IMPLAUSIBLE, Measurement
from aiter_tuning.pool.ledger import Ledger, with_output
from aiter_tuning.status import Status
from aiter_tuning.task import Group, MpTunerTask

OK = Measurement(Status.ok, 10.0, 0.0)
OOM = Measurement.failed(Status.oom_runtime, "MemoryError")
IMPOSSIBLE = Measurement(Status.crash, -1.0, detail="faster than the device can be", flags=(IMPLAUSIBLE,))


def gen(n, device=None):
    return {}


def group(size, inputs=None):
    """A group whose candidates share inputs where ``inputs`` has equal numbers."""
    numbers = inputs or [0] * size
    tasks = tuple(MpTunerTask(("s", i), gen, (numbers[i],), gen, (), {}, gen, (), {}, None) for i in range(size))
    return Group(tasks, tuple(range(size)))


def ledger(size=4, on_fault="continue", retries=0, inputs=None):
    return Ledger(group(size, inputs), on_fault=on_fault, retries=retries)


def statuses(book):
    return [str(result.status) for result in book.results]


def measure(book, measurement=OK, *, leaving=False):
    return book.measured(book.next, measurement, leaving=leaving)


def die(book, exit_text="exited with code 7", *, stranger=False, phase="candidate"):
    return book.died(phase, exit_text, "", stranger=stranger)


def test_candidates_come_in_order_and_each_gets_one_verdict():
    book = ledger(3)
    order = []
    while not book.ended:
        order.append(book.next)
        measure(book)
    assert order == [0, 1, 2]
    assert statuses(book) == ["ok"] * 3


def test_continue_costs_only_the_culprit():
    book = ledger()
    measure(book)
    [(index, verdict)] = die(book)
    assert (index, verdict.status, verdict.us) == (1, Status.crash, math.inf)
    assert "exited with code 7" in verdict.detail
    measure(book)
    measure(book)
    assert statuses(book) == ["ok", "crash", "ok", "ok"]


def test_abandon_leaves_the_rest_for_a_resume():
    book = ledger(on_fault="abandon")
    measure(book)
    die(book)
    assert statuses(book) == ["ok", "crash", "not_run", "not_run"]


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_killer_is_tried_again_as_often_as_asked(retries):
    book = ledger(2, retries=retries)
    for attempt in range(1, retries + 1):
        assert book.attempt(0) == attempt
        assert die(book) == []
        assert book.next == 0
    [(index, verdict)] = die(book)
    assert (index, verdict.status, verdict.attempt) == (0, Status.crash, retries + 1)


def test_a_retry_that_succeeds_is_the_verdict():
    book = ledger(1, on_fault="abandon", retries=1)
    assert die(book) == []
    assert book.attempt(0) == 2
    measure(book)
    assert statuses(book) == ["ok"]


def test_a_strangers_kill_is_forgiven_once():
    book = ledger(2)
    assert die(book, "was killed by signal 9 (SIGKILL)", stranger=True) == []
    assert book.next == 0
    [(index, verdict)] = die(book, "was killed by signal 9 (SIGKILL)", stranger=True)
    assert (index, verdict.status) == (0, Status.crash)
    assert book.next == 1


def test_who_had_not_started_is_not_blamed():
    book = ledger(2)
    assert die(book, phase="handed") == []
    assert die(book, phase="handed") == []
    assert book.attempt(0) == 1
    measure(book)
    assert die(book, phase="handed") == []
    measure(book)
    assert statuses(book) == ["ok", "ok"]


def test_but_not_for_ever():
    book = ledger(1)
    die(book, phase="handed")
    die(book, phase="handed")
    [(_, verdict)] = die(book, phase="handed")
    assert verdict.status is Status.crash
    assert "before it could start" in verdict.detail


def test_inputs_that_kill_are_tried_once_for_all_who_share_them():
    book = ledger(4, inputs=[0, 1, 0, 1])
    verdicts = die(book, phase="inputs")
    assert [index for index, _ in verdicts] == [0, 2]
    assert all(verdict.status is Status.crash and "in inputs" in verdict.detail for _, verdict in verdicts)
    measure(book)
    measure(book)
    assert statuses(book) == ["crash", "ok", "crash", "ok"]


def test_inputs_that_fail_late_spare_what_was_measured():
    book = ledger(3)
    measure(book)
    verdicts = book.unprepared(1, "reference", Measurement.failed(Status.oom_preflight, "MemoryError"))
    assert [index for index, _ in verdicts] == [1, 2]
    assert statuses(book) == ["ok", "oom_preflight", "oom_preflight"]


def test_inputs_that_fail_in_abandon_cost_the_first_and_leave_the_rest():
    book = ledger(3, on_fault="abandon")
    book.unprepared(0, "inputs", Measurement.failed(Status.crash, "RuntimeError: no"))
    assert statuses(book) == ["crash", "not_run", "not_run"]


def test_a_timeout_is_the_running_candidates():
    book = ledger(3)
    measure(book)
    [(index, verdict)] = book.timed_out("candidate", "candidate", 2.0, "still here\n")
    assert (index, verdict.status, verdict.us) == (1, Status.timeout, math.inf)
    assert verdict.detail == "no result after 2 s (candidate clock), killed; last output: still here"
    assert book.next == 2


def test_a_group_that_ran_out_of_time_blames_nobody_in_continue():
    book = ledger(3)
    measure(book)
    book.timed_out("candidate", "group", 5.0, "")
    assert statuses(book) == ["ok", "not_run", "not_run"]


def test_a_group_that_ran_out_of_time_blames_the_running_one_in_abandon():
    book = ledger(3, on_fault="abandon")
    measure(book)
    book.timed_out("candidate", "group", 5.0, "")
    assert statuses(book) == ["ok", "timeout", "not_run"]


def test_a_device_fault_is_final_and_its_latency_infinite():
    book = ledger(2)
    verdicts, clean = measure(book, Measurement.failed(Status.crash, "illegal memory access", us=-1.0), leaving=True)
    assert not clean
    assert verdicts[0][1].us == math.inf
    assert book.next == 1


@pytest.mark.parametrize("measured", [OOM, IMPOSSIBLE])
def test_what_may_be_the_processs_fault_is_tried_once_in_a_clean_worker(measured):
    book = ledger(2)
    assert measure(book, measured) == ([], True)
    assert book.attempt(0) == 2
    verdicts, clean = measure(book, measured)
    assert [index for index, _ in verdicts] == [0]
    assert not clean
    measure(book)
    assert statuses(book) == [measured.status, "ok"]


def test_the_leader_is_the_fastest_correct_uncensored_candidate():
    book = ledger(4)
    assert book.leader_us == math.inf
    measure(book, Measurement(Status.mismatch, 1.0))
    measure(book, Measurement(Status.ok, 2.0, censored=True))
    assert book.leader_us == math.inf
    measure(book, Measurement(Status.ok, 5.0))
    assert book.leader_us == 5.0


def test_a_stopped_group_keeps_what_it_has():
    book = ledger(3)
    measure(book)
    book.close_with("the run was stopped")
    assert statuses(book) == ["ok", "not_run", "not_run"]


EVENTS = st.lists(
    st.sampled_from(
        ["ok", "mismatch", "oom", "fault", "die", "stranger", "handed", "inputs", "timeout", "unprepared", "kill"]
    ),
    max_size=60,
)


@given(
    events=EVENTS,
    inputs=st.lists(st.integers(0, 2), min_size=1, max_size=7),
    on_fault=st.sampled_from(["abandon", "continue"]),
    retries=st.integers(0, 2),
)
def test_whatever_happens_each_candidate_gets_exactly_one_verdict(events, inputs, on_fault, retries):
    book = ledger(len(inputs), on_fault, retries, inputs)
    seen = []
    for event in [*events, *["ok"] * 40]:
        if book.ended:
            break
        verdicts = []
        if event in ("ok", "mismatch"):
            verdicts, _ = measure(book, Measurement(Status(event), 3.0))
        elif event == "oom":
            verdicts, _ = measure(book, OOM)
        elif event == "fault":
            verdicts, _ = measure(book, Measurement.failed(Status.crash, "x"), leaving=True)
        elif event == "timeout":
            verdicts = book.timed_out("candidate", "candidate", 1.0, "")
        elif event == "kill":
            verdicts = book.timed_out("inputs", "compile", 1.0, "")
        elif event == "unprepared":
            verdicts = book.unprepared(book.next, "inputs", Measurement.failed(Status.crash, "x"))
        else:
            verdicts = die(
                book,
                stranger=event == "stranger",
                phase={"handed": "handed", "inputs": "inputs"}.get(event, "candidate"),
            )
        seen += [index for index, _ in verdicts]
    assert book.ended
    assert sorted(seen) == list(range(len(inputs)))
    assert len(book.results) == len(inputs)


def test_the_last_output_of_a_crash_names_the_line():
    frames = (
        'Current thread 0x1 (most recent call first):\n  File "k.py", line 3 in go\n  File "child.py", line 9 in main\n'
    )
    detail = with_output("worker died", f"noise\nFatal Python error: Segmentation fault\n\n{frames}")
    assert 'File "k.py", line 3 in go' in detail
    assert detail.startswith("worker died; last output: Fatal Python error: Segmentation fault")


# --- contests


def test_why_rocm_aborts_a_process_is_told_before_where():
    said = "Memory access fault by GPU node-1 (Agent handle: 0x55cd) on address 0x2e7000. Reason: Unknown."
    output = f"noise\n{said}\nGPU core dump failed\nFatal Python error: Aborted\n\nThread 0x1:\n  File 'a', line 1"
    assert with_output("worker died", output).startswith(
        f"worker died; last output: {said} | Fatal Python error: Aborted"
    )


def contest_ledger(size=3, **more):
    plain = group(size)
    return Ledger(
        Group(plain.tasks, plain.positions, contest=Contest(None, seed=1)), on_fault="continue", retries=0, **more
    )


def test_in_a_contest_it_is_the_turn_of_whoever_the_worker_says():
    book = contest_ledger()
    book.turn_to(2)
    [(index, verdict)] = die(book)
    assert (index, verdict.status) == (2, Status.crash)
    book.turn_to(2)
    assert book.next in (0, 1), "it has its verdict"
    assert book.remaining == ((0, 1), (1, 1)), "in the group's order"


def test_elsewhere_the_order_is_the_groups():
    book = ledger(3)
    book.turn_to(2)
    assert book.next == 0


def test_blocks_so_far_go_along_with_the_contest():
    book = contest_ledger()
    for number in (1, 2):
        book.block_done(Block(number, (0, 1), (5.0, 6.0)), "GPU-a")
    assert [block.number for block in book.contest.blocks] == [1, 2] and book.contest.device == "GPU-a"
    book.block_done(Block(1, (0, 1), (7.0, 8.0)), "GPU-b")
    assert book.contest.blocks == (Block(1, (0, 1), (7.0, 8.0)),) and book.contest.device == "GPU-b"


def test_memory_is_tried_again_unless_a_block_says_that_it_ran_out_there():
    book = contest_ledger()
    assert book.measured(0, OOM, leaving=False) == ([], True)
    book.block_done(Block(1, (0, 1, 2), (5.0, math.nan, 6.0)), "GPU-a")
    [(index, verdict)], clean_worker = book.measured(1, OOM, leaving=False)
    assert (index, verdict.status, clean_worker) == (1, Status.oom_runtime, False)


def test_who_cannot_be_captured_is_remembered_once():
    book = contest_ledger()
    for index in (1, 1, 0):
        book.cannot_be_captured(index)
    assert book.contest.no_graph == (1, 0)
