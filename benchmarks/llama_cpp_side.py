"""llama.cpp's side of the decoder benchmark: runs in a Python that has llama-cpp-python, and prints seconds as JSON.

python llama_cpp_side.py FILE.gguf THREADS < tokens.json
"""

from __future__ import annotations

import json
import sys
import time

HISTORY = 512


def main() -> None:
    """Prefill, a turn on top of it, one token: the quickest of a few rounds each."""
    from llama_cpp import Llama

    path, threads = sys.argv[1], int(sys.argv[2])
    tokens = json.load(sys.stdin)
    model = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)

    clock = time.process_time if threads == 1 else time.perf_counter

    def best(count: int, begin: int, end: int) -> float:
        taken = []
        for _ in range(count):
            model.n_tokens = begin
            model._ctx.kv_cache_seq_rm(-1, begin, -1)
            began = clock()
            model.eval(tokens[begin:end])
            taken.append(clock() - began)
        return min(taken)

    seconds = {"prefill of 512": best(2, 0, HISTORY), "32 on 512": best(3, HISTORY, HISTORY + 32)}
    seconds["one token"] = best(20, HISTORY, HISTORY + 1)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
