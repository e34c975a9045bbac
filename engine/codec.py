"""JSON in and out: msgspec for structs and plain types, pydantic for its models."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_origin

import msgspec
from pydantic import BaseModel, ValidationError

from core.errors import DecodeError

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Codec(Generic[E]):
    """How values of one type become bytes and come back. decode raises DecodeError on anything else."""

    decode: Callable[[bytes], E]
    encode: Callable[[E], bytes]


def codec_of(kind: type[E]) -> Codec[E]:
    """The codec of a type. msgspec's decoder raises its own errors: explain() says them for people."""
    if kind is bytes:
        return cast(Codec[E], Codec(decode=bytes, encode=bytes))
    origin: Any = get_origin(kind) or kind
    if inspect.isclass(origin) and issubclass(origin, BaseModel):
        return cast(Codec[E], Codec(decode=cast(type[BaseModel], kind).model_validate_json, encode=_dump))
    return Codec(decode=msgspec.json.Decoder(kind).decode, encode=msgspec.json.Encoder().encode)


def explain(error: Exception) -> DecodeError:
    """A decoding error in words, without the payload."""
    if isinstance(error, ValidationError):
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors(include_input=False)
        )
        return DecodeError(f"not what the topic takes: {wrong}")
    if isinstance(error, msgspec.ValidationError):
        return DecodeError(f"not what the topic takes: {error}")
    if isinstance(error, RecursionError):
        return DecodeError("nested too deeply")
    return DecodeError(f"not JSON: {error}")


def _dump(value: Any) -> bytes:
    return cast(BaseModel, value).model_dump_json(exclude_none=True).encode()
