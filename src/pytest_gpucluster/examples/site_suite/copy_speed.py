"""A payload: what a step runs on each node. Any Python 3.6; prints one JSON object."""

import json
import time

SIZE = 64 << 20
REPEATS = 5

source = bytearray(SIZE)
seconds = []
for _ in range(REPEATS):
    begin = time.perf_counter()
    copy = bytes(source)
    seconds.append(time.perf_counter() - begin)
print(json.dumps({"bytes": len(copy), "gb_per_s": SIZE / min(seconds) / 1e9}))  # the step reads the output
