"""documents -> what is known of each, in the transaction of its record; passages follow (agents/knowledge.py)."""

from __future__ import annotations

from core.errors import DecodeError
from core.events import Document
from core.topics import DOCUMENTS, PASSAGES
from engine.agent import Stream, agent
from engine.batch import Slice, working_on
from engine.tracing import output_headers
from models.knowledge.block import check_size
from models.knowledge.reading import content_of
from models.knowledge.record import Announced, Key, encode
from tables.documents import Kept, documents


@agent(DOCUMENTS, outputs=[PASSAGES])
async def take(stream: Stream[Document | None]) -> None:
    """Keeps every document, and announces it: what is deleted is found no more as soon as that is read."""
    async for batch in stream:
        for s in batch.slices:
            working_on(s)
            for at, document in enumerate(s.events):
                _take(s, at, document)


def _take(s: Slice[Document | None], at: int, document: Document | None) -> None:
    record = s.records[at]
    try:
        name = (record.key or b"").decode()
    except UnicodeDecodeError:
        raise DecodeError("a document's key is its id as UTF-8; this one's is not") from None
    if document is None:
        if name in documents:
            del documents[name]
            _tell(s, at, name, None)
        return
    if document.id != name:
        raise DecodeError(
            f"the record's key is {name[:100]!r}, but its id is {document.id[:100]!r}: they must be equal"
        )
    check_size(document.text)
    before = documents.get(name)
    born = record.offset if before is None else before.born
    content = content_of(document)
    documents[name] = Kept(document, born, record.offset, content)
    told = Announced(
        born=born,
        revision=record.offset,
        content=content,
        size=len(document.text),
        at=record.timestamp,
        title=document.title,
        url=document.url,
        tags=document.tags,
        tenant=document.tenant,
    )
    _tell(s, at, name, encode(told))


def _tell(s: Slice[Document | None], at: int, name: str, value: bytes | None) -> None:
    headers = output_headers(s.topic, s.partition, s.records[at : at + 1], s.parents)
    s.emit(PASSAGES, [Key(name).encode()], [value], headers)
