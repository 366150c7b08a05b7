"""Several GPUs of one host: each worker on its own, faults on one that the others do not notice, decisions on one each.

Every scenario runs on all visible GPUs at once. What has to do with who does what is also tested without a GPU, in
op_tests/pool/test_several_lanes.py. Figures are printed (``-s`` shows them); scaling is tools/bench_multi_gpu.py's.
"""

from __future__ import annotations

import collections
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aiter_tuning import Pool
from aiter_tuning.contest import Contest
from aiter_tuning.devices.discovery import discover
from aiter_tuning.devices.visibility import mask_variable
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.status import Status
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.tasks import MakeInputs, MakeReference, RunCandidate
from op_tests.lane_candidates import MakesItsDeviceSick, Meeting, Noting
from op_tests.lane_scenarios import Operator, disturb, hold, wait_for_standbys, windows, with_sick_probe
from op_tests.pool.contest_rules import Rounds

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "bench_gpu.py"
W1 = f"{TOOL}:W1"
KIND = "hip" if torch.version.hip else "cuda"
GPUS = torch.cuda.device_count()
MASK = mask_variable(KIND)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason=f"needs 2 GPUs or more, sees {GPUS}"),
    pytest.mark.timeout(120),
]

SHAPE = {"M": 512, "N": 4096, "K": 4096}
OPERATOR = Operator(MakeInputs(W1), (SHAPE, 0), MakeReference(W1))
CALLS = MeasurePlan(warmup=2, iters=50)
"""Exactly so many calls: samples of equal weight."""
CLOCK_S = 3.0
"""What ends an endless kernel. Everything else is in the compile cache by then."""
BACK_S = 1.0
MOST_DIFFERENCE_PCT = 2.0
AROUND = 25
"""Good candidates before and behind a fault; as many controls beside each."""
MOST_SPREAD_PCT = 15.0
"""Between GPUs of one model, for one kernel: beyond it one of them is not well, and the test says which."""


def environment(**more):
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    found = {**os.environ, "PYTHONPATH": path, **more}
    found.pop("TRITON_INTERPRET", None)
    return found


def pct(us, other_us):
    return (us / other_us - 1) * 100


# Where workers are. In parents of their own: this process may have a context, from other tests.


class Parents:
    """Runs of lanes_process.py under masks, started together."""

    def __init__(self, folder, masks):
        self._running = {name: self._start(folder / name, mask) for name, mask in masks.items()}
        self._told = {}

    @staticmethod
    def _start(folder, mask):
        folder.mkdir()
        masked = environment()
        masked.pop(MASK, None)
        if mask is not None:
            masked[MASK] = mask
        command = [sys.executable, "-m", "op_tests.gpu.lanes_process", KIND, str(folder)]
        return subprocess.Popen(
            command, cwd=ROOT, env=masked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def told(self, name):
        if name not in self._told:
            out, err = self._running[name].communicate(timeout=100)
            lines = [line for line in out.splitlines() if line.startswith("@{")]
            assert lines, f"under the mask {name}: {out[-2000:]}\n{err[-4000:]}"
            self._told[name] = json.loads(lines[-1][1:])
        return self._told[name]

    def close(self):
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
                process.communicate()


@pytest.fixture(scope="module")
def host():
    """UUIDs of all GPUs, in the order in which CUDA counts them where nothing masks them."""
    masked = environment()
    masked.pop(MASK, None)
    code = (
        "import json; from aiter_tuning.devices.discovery import discover\n"
        f"print(json.dumps([device.uuid for device in discover({KIND!r})]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=masked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    uuids = json.loads(done.stdout.splitlines()[-1])
    assert len(uuids) >= 2
    return uuids


@pytest.fixture(scope="module")
def parents(host, tmp_path_factory):
    backwards = [str(index) for index in reversed(range(len(host)))]
    masks = {
        "none": None,
        "backwards": ",".join(backwards),
        "uuids": ",".join(reversed(host)),
        "last": host[-1],
        "mixed": f"{len(host) - 1},{host[0]}",
    }
    if KIND == "hip":  # HIP does not mix indices and UUIDs
        del masks["mixed"]
    started = Parents(tmp_path_factory.mktemp("masks"), masks)
    yield started
    started.close()


EXPECTED = {
    "none": lambda uuids: uuids,
    "backwards": lambda uuids: uuids[::-1],
    "uuids": lambda uuids: uuids[::-1],
    "last": lambda uuids: uuids[-1:],
    "mixed": lambda uuids: [uuids[-1], uuids[0]],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_under_any_mask_each_lane_has_a_worker_on_the_gpu_that_the_mask_names(host, parents, name):
    if name == "mixed" and KIND == "hip":
        pytest.skip("HIP does not mix indices and UUIDs in a mask")
    told = parents.told(name)
    expected = EXPECTED[name](host)
    print(f"{name}: {[(lane['name'], lane['mask'], lane['uuid']) for lane in told['lanes']]}")
    # In the order of the mask: by discovery, by the worker itself, and in what its result says.
    assert [lane["lane"] for lane in told["lanes"]] == expected
    assert [lane["uuid"] for lane in told["lanes"]] == expected
    assert [lane["told"] for lane in told["lanes"]] == expected
    assert [lane["count"] for lane in told["lanes"]] == [1] * len(expected), "a worker sees more than its own GPU"
    assert [lane["masks"][MASK] for lane in told["lanes"]] == [lane["mask"] for lane in told["lanes"]]
    assert len({lane["worker"] for lane in told["lanes"]}) == len(expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_no_process_of_a_run_has_a_context_on_a_gpu_but_the_lanes_own_worker(parents, name):
    if name == "mixed" and KIND == "hip":
        pytest.skip("HIP does not mix indices and UUIDs in a mask")
    told = parents.told(name)
    if told["contexts"] is None:
        pytest.skip("needs nvidia-ml-py or nvidia-smi")
    workers = {lane["worker"]: lane["uuid"] for lane in told["lanes"]}
    listed = {pid for pids in told["contexts"].values() for pid in pids}
    print(f"{name}: contexts {told['contexts']}, workers {workers}, ours {told['family']}")
    if not listed & set(workers):
        pytest.skip(f"the driver lists no worker by its number here: {told['contexts']}")
    ours = set(told["family"])
    found = {(uuid, pid) for uuid, pids in told["contexts"].items() for pid in pids if pid in ours}
    assert found == {(uuid, pid) for pid, uuid in workers.items()}, "a stray context"
    assert not told["torch_here"], "the parent imported torch"


def test_no_lane_takes_the_workers_of_the_others_for_strangers(parents):
    told = parents.told("none")
    if told["blind"]:
        pytest.skip(told["blind"])
    # Four more parents run at the same time; only of their workers may there be any.
    own = {lane["worker"] for lane in told["lanes"]}
    for uuid, foreign in told["foreign"].items():
        assert not own & set(foreign), f"{uuid}: {foreign} are strangers, own workers are {own}"
    assert set(told["foreign"]) == {lane["uuid"] for lane in told["lanes"]}


# Whole runs, before this process has a pool of its own whose workers would be strangers to theirs


@pytest.fixture(scope="module")
def faults():
    load_family(W1)  # its folder is on the import path now
    from gpu_bench import faults

    return faults


@pytest.fixture(scope="module")
def config():
    return load_family(W1).default(SHAPE, None).config


@pytest.fixture(scope="module")
def good(config):
    return RunCandidate(W1, config)


def test_a_gpu_that_turns_sick_is_retired_and_the_others_finish_with_nothing_lost(good, tmp_path):
    devices = with_sick_probe(discover(KIND), f"Sick{KIND.title()}", tmp_path)
    sick, meeting, shapes = devices[-1], tmp_path / "meeting", GPUS + 2
    meeting.mkdir()
    spoiler = MakesItsDeviceSick(good, sick.uuid, sick.settings["sick"])
    functions = [Meeting(good, str(meeting), GPUS), *[good] * 3, spoiler, *[good] * 4]
    began = time.monotonic()
    with Pool(devices, preload=("torch", "triton")) as pool:
        diary = hold(pool, [OPERATOR.group(functions) for _ in range(shapes)], plan=CALLS)
        states = {lane.device.uuid: lane.state for lane in pool.lanes}
    print(f"{shapes} shapes on {GPUS} GPUs, one of which was retired: {time.monotonic() - began:.1f} s; {diary.notes}")
    assert {uuid for uuid, state in states.items() if state == "retired"} == {sick.uuid}, states
    assert (tmp_path / sick.uuid).read_text() == "ppp", "it is probed three times"
    assert any(f"{sick.name} is retired" in note and "made to fail" in note for note in diary.notes), diary.notes
    assert diary.again == []
    results = [entry.measurement for entry in diary.entries.values()]
    assert len(results) == shapes * len(functions)
    failed = [result for result in results if result.status is not Status.ok]
    assert [(str(result.status), result.device) for result in failed] == [("crash", sick.uuid)], failed
    # What it had measured before counts; its group went on elsewhere.
    assert sum(result.device == sick.uuid for result in results) == 5


def test_a_run_decides_each_shape_on_one_gpu_and_uses_them_all(tmp_path):
    shapes = [f"{64 * number},1024,1024" for number in range(1, 2 * GPUS + 1)]
    (tmp_path / "shapes.csv").write_text("\n".join(["M,N,K", *shapes]) + "\n")
    command = [sys.executable, "-m", "aiter_tuning", "tune", W1, "-i", "shapes.csv", "-o", "tuned.csv"]
    command += ["--device", KIND, "--json"]
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}\n{done.stdout[-2000:]}"
    summary = json.loads(done.stdout)
    print(f"{len(shapes)} shapes, {summary['candidates']} in {time.monotonic() - began:.1f} s; {summary['lanes']}")
    assert len(summary["lanes"]) == GPUS

    (profile,) = tmp_path.glob("tuned.profile.*.csv")
    screened, finals, confirmed = set(), collections.defaultdict(set), collections.defaultdict(set)
    for row in (row.cells for row in read_rows(profile).rows):
        if row["event"] != "finished" or not row["device_uuid"]:
            continue
        if row["phase"] == "screen":
            screened.add(row["device_uuid"])
        else:
            timed = confirmed if row["phase"].startswith("confirm") else finals
            timed[row["M"]].add(row["device_uuid"])
    assert screened == {device.uuid for device in discover(KIND)}, "a GPU had no work"
    assert len(finals) == len(shapes), f"no finals on record of some shapes: {dict(finals)}"
    # What is confirmed goes to whoever has a fresh worker; those that are compared are on one GPU all the same.
    for timed in (finals, confirmed):
        assert all(len(devices) == 1 for devices in timed.values()), dict(timed)

    records = [json.loads(line) for line in (tmp_path / "tuned.evidence.jsonl").read_text().splitlines()]
    assert len(records) == len(shapes), records
    for record in records:
        assert finals[str(record["key"]["M"])] == {record["device_uuid"]}, record


# Faults and decisions on a pool of all GPUs


@pytest.fixture(scope="module")
def gpus(faults, good, tmp_path_factory):
    """A pool on all GPUs with every kernel in the compile cache and every worker warm."""
    with Pool(KIND, preload=("torch", "triton")) as pool:
        meeting = Meeting(good, str(tmp_path_factory.mktemp("warm")), GPUS)
        group = OPERATOR.group([meeting, faults.compile_kernels, *[good] * 3])
        diary = hold(pool, [group] * GPUS, plan=CALLS)
        results = [entry.measurement for entry in diary.entries.values()]
        assert {result.status for result in results} == {Status.ok}, [result.detail for result in results]
        print(f"{GPUS} lanes, timer {results[-1].timer}, flags {sorted({f for r in results for f in r.flags})}")
        yield pool


FAULTS = [
    ("exits", Status.crash, "exited with code 7"),
    ("accesses_illegally", Status.crash, "illegal memory access"),
    ("asserts", Status.crash, "assert"),
    ("spins", Status.timeout, "clock"),
]


@pytest.mark.parametrize(("fault", "status", "says"), FAULTS)
def test_a_fault_on_one_gpu_is_not_noticed_on_the_others(gpus, faults, good, tmp_path, fault, status, says):
    wait_for_standbys(gpus, OPERATOR, good)
    trouble = disturb(
        gpus,
        OPERATOR,
        good,
        lambda moment: faults.Fault(fault, moment),
        lambda moment: Noting(good, moment),
        tmp_path,
        clock_s=CLOCK_S,
        plan=CALLS,
        around=AROUND,
    )
    diary, broken = trouble.diary, trouble.diary.device_of_trouble
    print(
        f"{fault} on {broken}: next handed out after {trouble.handed_after_s:.3f} s, "
        f"running after {trouble.running_after_s:.3f} s; {trouble.fault.measurement.detail[:120]}"
    )
    assert trouble.fault.measurement.status is status, trouble.fault.measurement
    assert says in trouble.fault.measurement.detail.lower(), trouble.fault.measurement
    neighbours = [entry.measurement for entry in diary.of(0) if entry is not trouble.fault]
    assert {result.status for result in neighbours} == {Status.ok}, [result.detail for result in neighbours]

    assert diary.again == [], "work was done again"
    for uuid, (pid, same) in trouble.workers.items():
        assert (pid == same) == (uuid != broken), f"{uuid}: worker {pid} became {same}; the fault was on {broken}"

    controls = diary.controls()
    assert set(controls) == {lane.device.uuid for lane in gpus.lanes} - {broken}
    off = {}
    for uuid, entries in controls.items():
        assert {entry.measurement.status for entry in entries} == {Status.ok}
        before, during, after = windows(entries, trouble.fault_at, trouble.back_at)
        assert min(map(len, (before, during, after))) >= 3, (
            f"too few controls to tell: {len(before)} before, {len(during)} during, {len(after)} after"
        )
        medians = [statistics.median(window) for window in (before, during, after)]
        # The mean of before and after: a clock that drifts all the while is no disturbance.
        off[uuid] = pct(medians[1], (medians[0] + medians[2]) / 2)
        print(
            f"  {uuid}: {len(before)}/{len(during)}/{len(after)} controls, medians "
            + " ".join(f"{us:.2f}" for us in medians)
            + f" us, during {off[uuid]:+.2f} %, after against before {pct(medians[2], medians[0]):+.2f} %"
        )
    assert max(map(abs, off.values())) <= MOST_DIFFERENCE_PCT, off
    assert trouble.handed_after_s <= BACK_S, "the lane was not back within a second"


def test_the_same_candidate_on_every_gpu(gpus, good, tmp_path):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    group = OPERATOR.group([Meeting(good, str(meeting), GPUS), *[good] * 20])
    diary = hold(gpus, [group] * GPUS, plan=CALLS)
    by_device = collections.defaultdict(list)
    for entry in diary.entries.values():
        assert entry.measurement.status is Status.ok, entry.measurement
        by_device[entry.measurement.device].append(entry.measurement.us)
    assert {uuid: len(us) for uuid, us in by_device.items()} == {lane.device.uuid: 21 for lane in gpus.lanes}
    medians = {uuid: statistics.median(us) for uuid, us in by_device.items()}
    fastest = min(medians.values())
    for uuid, us in medians.items():
        own = (max(by_device[uuid]) - min(by_device[uuid])) / us * 100
        print(f"{uuid}: {us:.2f} us, {pct(us, fastest):+.2f} % of the fastest GPU; {own:.2f} % between its own")
    print(f"spread between {len(medians)} GPUs: {pct(max(medians.values()), fastest):.2f} %")
    assert pct(max(medians.values()), fastest) < MOST_SPREAD_PCT, medians


def test_contests_are_held_on_one_gpu_each_at_the_same_time(gpus, config, good, tmp_path):
    configs = [candidate.config for candidate in load_family(W1).candidates(SHAPE, None)][:3]
    functions = [Meeting(good, str(tmp_path), GPUS), *(RunCandidate(W1, other) for other in configs)]
    contest = Contest(Rounds(5), 7)
    diary = hold(gpus, [OPERATOR.group(functions, contest=contest) for _ in range(GPUS)], plan=CALLS)
    devices = []
    for group, results in sorted(diary.results.items()):
        assert {result.status for result in results} == {Status.ok}, [result.detail for result in results]
        assert len({result.device for result in results}) == 1, f"contest {group} was held on several GPUs"
        devices.append(results[0].device)
        print(f"contest {group} on {devices[-1]}: " + ", ".join(f"{result.us:.2f}" for result in results) + " us")
    assert sorted(devices) == sorted(lane.device.uuid for lane in gpus.lanes)
