"""The rival: the same job on stock faust-streaming, as a good user of Faust writes it.

It runs as `faust -A benchmarks.stock_faust worker`. What a Faust application declares at import it must configure at
import: this module reads BENCH_* from the environment (benchmarks/sides.py sets them), and only Faust itself
imports it. BENCH_TUNED=1 takes the settings that proved fastest; the job's code is the same with both.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any, Final, cast

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import faust
import msgspec
import numpy as np
import onnxruntime as ort
from faust.serializers import codecs
from faust.types import StreamT

PREFIX: Final = os.environ["BENCH_PREFIX"]
TUNED: Final = os.environ["BENCH_TUNED"] == "1"
FIELDS: Final = tuple(f"f{n}" for n in range(8))
LOW_CONFIDENCE: Final = 0.7

DEFAULTS: Final[dict[str, Any]] = {
    "broker": f"kafka://{os.environ['BENCH_BOOTSTRAP']}",
    "datadir": os.environ["BENCH_DATA_DIR"],
    "store": "rocksdb://",
    "topic_partitions": int(os.environ["BENCH_PARTITIONS"]),
    "web_bind": "127.0.0.1",
    "web_port": int(os.environ["BENCH_WEB_PORT"]),
}
BEST: Final[dict[str, Any]] = {
    "cython_optimizations": True,
    "stream_wait_empty": False,
    "stream_buffer_maxsize": 65_536,
    "broker_max_poll_records": 500,
    "broker_check_crcs": False,
    "consumer_max_fetch_size": 1 << 20,
    "producer_linger": 0.1,
    "producer_max_batch_size": 1 << 19,
    "table_key_index_size": 100_000,
    "topic_disable_leader": True,
    "web_enabled": False,
}
"""Beside these: uvloop, msgspec as the JSON codec, and aiokafka's logger above DEBUG."""


class MsgspecCodec(codecs.Codec):
    """JSON by msgspec, which is faster than the standard library's and than orjson."""

    def _loads(self, s: bytes) -> Any:
        return msgspec.json.decode(s)

    def _dumps(self, s: Any) -> bytes:
        return msgspec.json.encode(s, enc_hook=lambda value: value.to_representation())


if TUNED:
    codecs.register("json", MsgspecCodec())
    logging.getLogger("aiokafka").setLevel(logging.WARNING)


class Observation(faust.Record):
    """As the contract has it."""

    id: str
    session: str
    ts: int
    features: dict[str, float]


class Session(faust.Record):
    """The running means of a session."""

    count: int
    means: list[float]
    last_ts: int


class Prediction(faust.Record):
    """As the contract has it."""

    id: str
    event_id: str
    session: str
    ts: int
    model: str
    version: str
    label: str
    scores: dict[str, float]
    confidence: float
    low_confidence: bool
    role: str


app = faust.App(f"{PREFIX}stock", **DEFAULTS, **(BEST if TUNED else {}))
observations = app.topic(f"{PREFIX}observations", key_type=str, value_type=Observation)
predictions = app.topic(f"{PREFIX}predictions", key_type=str, value_type=Prediction)
sessions = app.Table("sessions", key_type=str, value_type=Session)

options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
model = ort.InferenceSession(os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"])
LABELS: Final = ("stays", "leaves")


@app.agent(observations)
async def score(stream: StreamT[Any]) -> None:
    """Folds an observation into its session's means, scores both, and sends the prediction on."""
    async for event in stream.events():
        seen = cast(Observation, event.value)
        message = event.message
        values = [seen.features[name] for name in FIELDS]
        session = sessions.get(seen.session)
        if session is None:
            session = Session(count=1, means=values, last_ts=seen.ts)
        else:
            n = session.count = session.count + 1
            session.means = [mean + (value - mean) / n for mean, value in zip(session.means, values, strict=True)]
            session.last_ts = max(session.last_ts, seen.ts)
        sessions[seen.session] = session
        row = np.array([values + session.means], np.float32)
        p = model.run(None, {"features": row})[0][0].tolist()
        confidence = 0.6 * (1 + sum(x * math.log(x) for x in p if x > 0) / math.log(2)) + 0.4 * abs(p[0] - p[1])
        source = f"observations/{message.partition}/{message.offset}"
        headers = {"source": source.encode()}
        if (trace := dict(message.headers or ()).get("traceparent")) is not None:
            headers["traceparent"] = trace
        await predictions.send(
            key=seen.session,
            value=Prediction(
                id=source,
                event_id=seen.id,
                session=seen.session,
                ts=seen.ts,
                model="mlp",
                version="1",
                label=LABELS[p[1] > p[0]],
                scores=dict(zip(LABELS, p, strict=True)),
                confidence=confidence,
                low_confidence=confidence < LOW_CONFIDENCE,
                role="active",
            ),
            headers=headers,
        )
