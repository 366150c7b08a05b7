"""A process that tunes nothing and writes much: ``python -m op_tests.tables.concurrent_writer TABLE WRITER ROUNDS``.

Each writer has a latency of its own for each shape, so that the best row of a shape is known. In a round it writes all
shapes in an order of its own, some rows at a time, as a run's publisher does. It says ``began`` before the first write.
"""

import random
import sys

from aiter_tuning.keys import Key
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner.generation import Generation

KEY = Key(N=int)
SHAPES = 200
WRITERS = 8
WRITE_TOGETHER = 10


def latency_us(writer, shape):
    return round(random.Random(f"{writer}/{shape}").uniform(10, 1000), 4)


def row_of(writer, shape):
    config = {"by": writer, "pad": "x" * random.Random(shape).randrange(200)}
    return TunedRow(
        "sm90", 132, "H200", {"N": shape}, writer, 0, latency_us(writer, shape), f"w{writer}", config=config
    )


def best_of(shape):
    return min((row_of(writer, shape) for writer in range(WRITERS)), key=lambda row: row.us)


def main(path, writer, rounds):
    order = random.Random()
    print("began", flush=True)
    for _ in range(rounds):
        table, generation = TunedCsv(path, KEY), Generation()
        shapes = order.sample(range(1, SHAPES + 1), SHAPES)
        for start in range(0, SHAPES, WRITE_TOGETHER):
            rows = [row_of(writer, shape) for shape in shapes[start : start + WRITE_TOGETHER]]
            table.update(rows, sort=order.random() < 0.1, stays=generation.stays)
            generation.saw(row for row in rows if not generation.yielded(row))
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
