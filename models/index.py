"""index.json at a store's root: which versions there are, for stores that can be read but not listed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import ManifestError
from core.events import ModelName, Version
from models.manifest import mistakes

INDEX: Final = "index.json"


class Index(BaseModel):
    """A plain web server serves files and tells nobody which ones, so the store's writer says it here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    models: Mapping[ModelName, tuple[Version, ...]] = {}
    """Name -> versions that have a manifest."""

    @classmethod
    def parse(cls, raw: bytes, where: str) -> Self:
        """Raises ManifestError that begins with `where` and names what is wrong."""
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            raise ManifestError(f"{where}: {mistakes(error)}") from None

    def text(self) -> str:
        """As a person reads it."""
        return self.model_dump_json(indent=2) + "\n"
