"""`python -m benchmarks [NAME ...]`: runs them on the Kafka at KAFKA_BOOTSTRAP, one JSON object a line."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import (
    chatting,
    decoder,
    drift,
    failover,
    freshness,
    grounding,
    inputs,
    latency,
    library,
    memory,
    qdrant,
    rebalance,
    replay,
    reranking,
    retrieval,
    scale,
    scoring,
    swaps,
    views,
    windows,
)
from benchmarks.lab import Lab
from benchmarks.registry import BENCHMARKS
from benchmarks.worker import WorkerFailedError

REGISTERED = (
    scoring,
    latency,
    replay,
    memory,
    rebalance,
    failover,
    scale,
    views,
    swaps,
    drift,
    inputs,
    decoder,
    chatting,
    retrieval,
    qdrant,
    reranking,
    freshness,
    library,
    grounding,
    windows,
)
"""Importing a module has registered its benchmark."""


def main() -> int:
    """Runs what was asked for. Returns 0 when every benchmark came to its end, whatever it measured."""
    about = "\n".join(f"  {name:10} {(run.__doc__ or '').splitlines()[0]}" for name, run in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=f"{__doc__}\n\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    names: list[str] = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    bootstrap = os.environ.get("KAFKA_BOOTSTRAP", "").removeprefix("kafka://")
    if not bootstrap:
        parser.error("KAFKA_BOOTSTRAP must be the host:port of an Apache Kafka; scripts/bench starts one")
    failed = False
    with tempfile.TemporaryDirectory(prefix="homunculus-bench-") as folder:
        for name in names:
            try:
                for result in BENCHMARKS[name](Lab(bootstrap, Path(folder))):
                    print(result.line(), flush=True)
            except WorkerFailedError as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
