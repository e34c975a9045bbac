"""A server that speaks as much of Qdrant's REST as its client uses with us, over the client's own local mode: no Qdrant
is to be had where these tests run. What a real one does under load, or in a cluster, it doesn't show."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from qdrant_client import QdrantClient, models

KEY: Final = "the-key-of-qdrant"


class StandIn:
    """One server, in this process. It can be away, silent, and lose what it has."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.lose()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc_port(self) -> int | None:
        """Nobody speaks it here."""
        return None

    def start(self) -> None:
        """On the port that it had."""
        self._silent = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Nobody listens there any more; what it has, it keeps."""
        assert self._server is not None
        self._silent.set()
        self._server.shutdown()
        self._server.server_close()

    def hang(self) -> None:
        """Takes calls, and doesn't answer them."""
        self._silent.set()

    def lose(self) -> None:
        """All that it has is gone."""
        with self._lock:
            self.data = QdrantClient(":memory:")

    def points(self, collection: str) -> list[models.Record]:
        """All of a collection."""
        with self._lock:
            if not self.data.collection_exists(collection):
                return []
            return self.data.scroll(collection, limit=10_000)[0]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and result."""
        for route, call in ROUTES.items():
            if (found := re.fullmatch(route, f"{method} {path}")) is not None:
                try:
                    return 200, self.do(_asking(call, found[1], body))
                except ValueError as error:
                    return 404 if "not found" in str(error) else 400, str(error)
        return 404, f"no route {method} {path}"

    def wait(self) -> None:
        """What a call does that is not answered."""
        threading.Event().wait(60)

    def do(self, call: Callable[[QdrantClient], Any]) -> Any:
        """One call after the other."""
        if self._silent.is_set():
            self.wait()
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of indexes, which local mode has none of
            return call(self.data)


def _created(data: QdrantClient, name: str, body: Any) -> Any:
    return data.create_collection(name, models.CreateCollection.model_validate(body).vectors)


def put(data: QdrantClient, name: str, points: Sequence[models.PointStruct]) -> Any:
    """As the server does, which looks at sizes."""
    (size,) = {len(one.vector) for one in points}  # type: ignore[arg-type]
    if size != data.get_collection(name).config.params.vectors.size:  # type: ignore[union-attr]
        raise ValueError("Wrong input: Vector dimension error")
    return data.upsert(name, points)


def _query(data: QdrantClient, name: str, body: Any) -> Any:
    asked = models.QueryRequest.model_validate(body)
    return data.query_points(
        name, query=asked.query, query_filter=asked.filter, limit=asked.limit or 10, with_payload=False
    )  # fmt: skip


def _scrolled(data: QdrantClient, name: str, body: Any) -> Any:
    asked = models.ScrollRequest.model_validate(body)
    points, following = data.scroll(
        name, scroll_filter=asked.filter, limit=asked.limit or 10, offset=asked.offset, with_payload=["version"]
    )  # fmt: skip
    return {"points": [json.loads(one.model_dump_json()) for one in points], "next_page_offset": following}


def _asking(call: Callable[[QdrantClient, str, Any], Any], name: str, body: Any) -> Callable[[QdrantClient], Any]:
    return lambda data: call(data, name, body)


ROUTES: Final[dict[str, Callable[[QdrantClient, str, Any], Any]]] = {
    r"GET /collections/([^/]+)/exists": lambda data, name, body: {"exists": data.collection_exists(name)},
    r"GET /collections/([^/]+)": lambda data, name, body: data.get_collection(name),
    r"PUT /collections/([^/]+)": _created,
    r"PUT /collections/([^/]+)/index": lambda data, name, body: {"operation_id": 0, "status": "completed"},
    r"PUT /collections/([^/]+)/points": lambda data, name, body: put(
        data, name, models.PointsList.model_validate(body).points
    ),
    r"POST /collections/([^/]+)/points/delete": lambda data, name, body: data.delete(name, body["points"]),
    r"POST /collections/([^/]+)/points/query": _query,
    r"POST /collections/([^/]+)/points/scroll": _scrolled,
}


def _handler(server: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("api-key") != KEY:
                status, result = 403, "Forbidden"
            else:
                body = json.loads(raw) if raw else None
                status, result = server.answer(self.command, self.path.partition("?")[0], body)
            if hasattr(result, "model_dump_json"):
                result = json.loads(result.model_dump_json())
            told = {"result": result, "status": "ok"} if status == 200 else {"status": {"error": result}}
            out = json.dumps(told | {"time": 0.0}).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                self.wfile.write(out)
            except OSError:
                pass  # who asked has gone

        def log_message(self, format: str, *args: Any) -> None:
            pass

    for verb in ("GET", "PUT", "POST"):
        setattr(Handler, f"do_{verb}", Handler.answer)
    return Handler
