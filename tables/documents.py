"""Documents as they came: whoever has their partition makes passages of them."""

from __future__ import annotations

import msgspec

from core.events import Document
from engine.table import Table


class Kept(msgspec.Struct, omit_defaults=True):
    """A document, and which of its records it is."""

    document: Document
    born: int
    """Offset of the record that made it, since it was last deleted."""
    revision: int
    """Offset of its newest record."""
    content: str
    """Hash of what passages are made of."""


class Documents(Table[str, Kept]):
    """document -> its newest record. Put and deleted by agents/knowledge.py, in the partition of the document."""

    name = "documents"
    of_sessions = False


documents = Documents()
