"""llama.cpp's side of the decoder benchmark: runs in a Python that has llama-cpp-python, and prints seconds as JSON.

python llama_cpp_side.py FILE.gguf THREADS < tokens.json
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

HISTORY = 512
SESSIONS = 8


def main() -> None:
    """Prefill, a turn on top of it, one token, one token each of 8 sessions: the quickest of a few rounds each."""
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
    seconds["8 sessions, a token each"] = together(model.model, tokens[:HISTORY], threads)
    print(json.dumps(seconds))


def together(model: Any, tokens: list[int], threads: int) -> float:
    """The high-level class knows one session; a context of several is llama.cpp's own."""
    import llama_cpp as api

    clock = time.process_time if threads == 1 else time.perf_counter
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max = 1024 * SESSIONS, HISTORY, SESSIONS
    params.n_threads = params.n_threads_batch = threads
    params.kv_unified = True
    context = api.llama_init_from_model(model, params)
    memory = api.llama_get_memory(context)
    batch = api.llama_batch_init(HISTORY, 0, SESSIONS)

    def decode(rows: list[tuple[int, int, int]]) -> None:
        """Tokens, their positions, their sessions."""
        batch.n_tokens = len(rows)
        for row, (token, position, session) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, session
            batch.logits[row] = len(rows) == SESSIONS
        if api.llama_decode(context, batch):
            raise RuntimeError("llama.cpp doesn't decode the batch")

    decode([(token, position, 0) for position, token in enumerate(tokens)])
    for session in range(1, SESSIONS):
        api.llama_memory_seq_cp(memory, 0, session, 0, -1)
    taken = []
    for _ in range(10):
        began = clock()
        decode([(5, HISTORY, session) for session in range(SESSIONS)])
        taken.append(clock() - began)
        for session in range(SESSIONS):
            api.llama_memory_seq_rm(memory, session, HISTORY, -1)
    return min(taken)


if __name__ == "__main__":
    main()
