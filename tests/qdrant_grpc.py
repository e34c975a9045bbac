# ruff: noqa: N802 (methods are called as the services name them)
"""The same stand-in for Qdrant, by gRPC alone: what its client calls over REST finds nobody here. The client's own
conversions turn the messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
from qdrant_client import QdrantClient
from qdrant_client import grpc as wire
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc
from qdrant_client.grpc import collections_service_pb2_grpc, points_service_pb2_grpc

from tests.qdrant import KEY, StandIn, put

NOBODY: Final = 9
"""A port that no REST is at."""


class GrpcStandIn(StandIn):
    """certificate: PEM file of a key and its certificate, for TLS."""

    def __init__(self, certificate: Path | None = None) -> None:
        self._certificate = certificate
        self._gone = threading.Event()
        self.held = threading.Event()
        """Set once a call waits in vain."""
        super().__init__()

    @property
    def url(self) -> str:
        return f"http{'s' if self._certificate else ''}://127.0.0.1:{NOBODY}"

    @property
    def grpc_port(self) -> int:
        return self.port

    def start(self) -> None:
        self._silent, self._gone = threading.Event(), threading.Event()
        self._grpc = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        points_service_pb2_grpc.add_PointsServicer_to_server(_Points(self), self._grpc)  # type: ignore[no-untyped-call]
        collections_service_pb2_grpc.add_CollectionsServicer_to_server(_Collections(self), self._grpc)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{self.port}"
        if self._certificate is None:
            self.port = self._grpc.add_insecure_port(address)
        else:
            pem = self._certificate.read_bytes()
            self.port = self._grpc.add_secure_port(address, grpc.ssl_server_credentials([(pem, pem)]))
        self._grpc.start()

    def stop(self) -> None:
        self._silent.set()
        self._gone.set()
        self._grpc.stop(None).wait()

    def wait(self) -> None:
        self.held.set()
        self._gone.wait(60)

    def told(self, context: grpc.ServicerContext, call: Callable[[QdrantClient], Any]) -> Any:
        """What a call comes to, or its status."""
        if dict(context.invocation_metadata()).get("api-key") != KEY:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid API key or JWT")
        try:
            return self.do(call)
        except ValueError as error:
            missing = "not found" in str(error)
            context.abort(grpc.StatusCode.NOT_FOUND if missing else grpc.StatusCode.INVALID_ARGUMENT, str(error))


class _Collections(collections_service_pb2_grpc.CollectionsServicer):
    def __init__(self, server: GrpcStandIn) -> None:
        self._server = server

    def CollectionExists(self, asked: Any, context: Any) -> Any:
        there = self._server.told(context, lambda data: data.collection_exists(asked.collection_name))
        return wire.CollectionExistsResponse(result=wire.CollectionExists(exists=there))

    def Get(self, asked: Any, context: Any) -> Any:
        info = self._server.told(context, lambda data: data.get_collection(asked.collection_name))
        return wire.GetCollectionInfoResponse(result=RestToGrpc.convert_collection_info(info))

    def Create(self, asked: Any, context: Any) -> Any:
        wanted = GrpcToRest.convert_vectors_config(asked.vectors_config)
        made = self._server.told(context, lambda data: data.create_collection(asked.collection_name, wanted))
        return wire.CollectionOperationResponse(result=made)


class _Points(points_service_pb2_grpc.PointsServicer):
    def __init__(self, server: GrpcStandIn) -> None:
        self._server = server

    def CreateFieldIndex(self, asked: Any, context: Any) -> Any:
        self._server.told(context, lambda data: data.get_collection(asked.collection_name))
        return _done()

    def Upsert(self, asked: Any, context: Any) -> Any:
        points = [GrpcToRest.convert_point_struct(one) for one in asked.points]
        self._server.told(context, lambda data: put(data, asked.collection_name, points))
        return _done()

    def Delete(self, asked: Any, context: Any) -> Any:
        which = GrpcToRest.convert_points_selector(asked.points)
        self._server.told(context, lambda data: data.delete(asked.collection_name, which))
        return _done()

    def Query(self, asked: Any, context: Any) -> Any:
        found = self._server.told(
            context,
            lambda data: data.query_points(
                asked.collection_name,
                query=GrpcToRest.convert_query(asked.query),
                query_filter=GrpcToRest.convert_filter(asked.filter),
                limit=asked.limit,
                with_payload=GrpcToRest.convert_with_payload_selector(asked.with_payload),
            ),
        )
        return wire.QueryResponse(result=[RestToGrpc.convert_scored_point(one) for one in found.points])

    def Scroll(self, asked: Any, context: Any) -> Any:
        points, following = self._server.told(
            context,
            lambda data: data.scroll(
                asked.collection_name,
                scroll_filter=GrpcToRest.convert_filter(asked.filter),
                limit=asked.limit,
                offset=GrpcToRest.convert_point_id(asked.offset) if asked.HasField("offset") else None,
                with_payload=GrpcToRest.convert_with_payload_selector(asked.with_payload),
            ),
        )
        return wire.ScrollResponse(
            result=[RestToGrpc.convert_retrieved_point(one) for one in points],
            next_page_offset=None if following is None else RestToGrpc.convert_extended_point_id(following),
        )


def _done() -> Any:
    return wire.PointsOperationResponse(result=wire.UpdateResult(status=wire.UpdateStatus.Completed))
