"""When an answer may be given again: for the same question, asked by the same tenant, of the same model, with the same
context and knowledge. That a question looks similar is no reason, unless a user has said how many wrong answers that
may cost (boundary.py); all else must be the same then, too."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from models.knowledge.canonical import canonical


class Grounds(NamedTuple):
    """All that an answer depends on beside the question's words."""

    tenant: str | None
    context: bytes
    """Hash of whatever else the model was told: instructions, window, facts, injected state, sampling."""
    knowledge: tuple[int, ...]
    """Version of the knowledge that it was answered from (Answer.version); empty where none was asked."""
    model: str
    """Identity of the version that answered: bytes, quantisation, adapter, tokenizer, template."""
    embedder: str = ""
    reranker: str = ""
    """Identity of the version that has ordered the passages; empty: the fusion has."""


def answer_key(question: str, grounds: Grounds) -> bytes | None:
    """32 bytes, equal only where an answer may be given again. None: this question's never is, since nothing is left
    of it but signs."""
    asked = canonical(question)
    if not any(sign.isalnum() for sign in asked):
        return None
    return _hashed(asked.encode("utf-8", "surrogatepass"), *_parts(grounds))


def scope_key(grounds: Grounds) -> bytes:
    """32 bytes, equal only where all but the question is the same: similar questions are looked for in there alone."""
    return _hashed(*_parts(grounds))


def _parts(grounds: Grounds) -> tuple[bytes, ...]:
    none = b"\0" if grounds.tenant is None else b"\1"
    return (
        none + (grounds.tenant or "").encode("utf-8", "surrogatepass"),
        grounds.context,
        ",".join(map(str, grounds.knowledge)).encode(),
        grounds.model.encode(),
        grounds.embedder.encode(),
        grounds.reranker.encode(),
    )


def _hashed(*parts: bytes) -> bytes:
    hashed = blake2b(digest_size=32)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()
