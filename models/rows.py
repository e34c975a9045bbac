"""From events' features to a model's inputs: what is missing, what is wrong, and what fills the gaps."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import chain, starmap
from operator import itemgetter
from typing import Final

import numpy as np

from core.errors import FieldError, RecordError
from core.events import Feature
from models.dtype import Dtype, Floats
from models.engine import Array
from models.features import RawFeature
from models.manifest import Input, Manifest

Events = Sequence[Mapping[str, Feature]]
"""The features of n events."""
Errors = dict[int, RecordError]
"""Place of an event -> what is wrong with it."""

TEXT: Final = np.inf
"""Stands where a text is: no number that numbers() finds is infinite."""
_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def numbers(events: Events, fields: Sequence[str]) -> Floats:
    """(n, len(fields)) numbers; NaN where a field is missing, null, not finite or beyond a float32.

    True and False count as 1 and 0. A text is TEXT: an error for those alone who want a number of this event there.
    """
    if not fields or not events:
        return np.empty((len(events), len(fields)))
    picked = map(itemgetter(*fields), events)
    try:
        packed = starmap(struct.Struct(f"{len(fields)}d").pack, picked if len(fields) > 1 else zip(picked, strict=True))
        found = np.frombuffer(b"".join(packed)).reshape(len(events), len(fields))
    except (KeyError, struct.error):  # a field is missing, null or a text
        return _checked(events, fields)
    return _cleaned(found)


def texts(events: Events, found: Floats, fields: Sequence[str], columns: Sequence[int], errors: Errors) -> None:
    """Notes each event with a text where numbers() looked for a number. columns: those to look at."""
    if not np.isinf(found).any():
        return
    for i, j in zip(*np.nonzero(found[:, columns] == TEXT), strict=True):
        field = fields[columns[int(j)]]
        errors.setdefault(int(i), FieldError(field, events[int(i)].get(field)))


def _cleaned(found: Floats) -> Floats:
    if np.isfinite(found).all() and np.abs(found).max() <= _FLOAT32_MAX:
        return found
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(found) <= _FLOAT32_MAX, found, np.nan)


def _checked(events: Events, fields: Sequence[str]) -> Floats:
    out = np.full((len(events), len(fields)), np.nan)
    found: list[tuple[int, int]] = []
    for i, event in enumerate(events):
        for j, field in enumerate(fields):
            value = event.get(field)
            if isinstance(value, str):
                found.append((i, j))
            elif value is not None:
                out[i, j] = value
    out = _cleaned(out)
    for cell in found:
        out[cell] = TEXT
    return out


class Rows:
    """How one version's inputs are filled: from numeric raw fields, session features and texts."""

    def __init__(self, manifest: Manifest, fields: Sequence[str], session: Sequence[str]) -> None:
        """fields: the columns of the numbers that build() gets; session: those of its session features."""
        self._places = {name: place for place, name in enumerate((*fields, *session))}
        self._inputs = [(name, spec) for name, spec in manifest.inputs.items() if spec.dtype is not Dtype.STRING]
        self._texts = [(name, spec) for name, spec in manifest.inputs.items() if spec.dtype is Dtype.STRING]
        self._columns = {name: [self._places[f.name] for f in spec.fields] for name, spec in self._inputs}
        self._defaults = {name: _defaults(spec) for name, spec in self._inputs}
        required = [
            (f.name, self._places[f.name])
            for _, spec in self._inputs
            for f in spec.fields
            if f.required and isinstance(f.feature, RawFeature)
        ]
        self._fields = tuple(fields)
        self._raw = sorted({self._places[name] for name in self.numeric_fields(manifest)})
        self._required = [name for name, _ in required]
        self._required_at = [place for _, place in required]

    @staticmethod
    def numeric_fields(manifest: Manifest) -> tuple[str, ...]:
        """The raw fields that the version wants as numbers, each once."""
        specs = (spec for spec in manifest.inputs.values() if spec.dtype is not Dtype.STRING)
        fields = chain.from_iterable(spec.fields for spec in specs)
        return tuple(dict.fromkeys(f.name for f in fields if isinstance(f.feature, RawFeature)))

    def check(self, events: Events, found: Floats, errors: Errors) -> None:
        """Notes each event that lacks a required field, or whose value doesn't fit its input's type.

        found: (n, len(fields)) as numbers() gave it.
        """
        texts(events, found, self._fields, self._raw, errors)
        if self._required:
            missing = np.isnan(found[:, self._required_at])
            if missing.any():
                for i, j in zip(*np.nonzero(missing), strict=True):
                    field = self._required[int(j)]
                    errors.setdefault(int(i), FieldError(field, events[int(i)].get(field)))
        for name, spec in self._inputs:
            if spec.dtype not in (Dtype.FLOAT32, Dtype.FLOAT64):
                self._check_fit(events, found, spec, self._columns[name], errors)
        for _, spec in self._texts:
            for i, event in enumerate(events):
                for f in spec.fields:
                    value = event.get(f.name)
                    if not (isinstance(value, str) or (value is None and not f.required)):
                        errors.setdefault(i, FieldError(f.name, value))

    def _check_fit(self, events: Events, found: Floats, spec: Input, columns: list[int], errors: Errors) -> None:
        """Types narrower than what numbers() gives. A float16 too large is a gap, as a float32 too large is."""
        for f, column in zip(spec.fields, columns, strict=True):
            if column >= found.shape[1] or (spec.dtype.floating and not f.required):
                continue
            values = found[:, column]
            with np.errstate(invalid="ignore"):  # TEXT
                odd = ~np.isnan(values) & ~spec.dtype.within(values)
                if not spec.dtype.floating:
                    odd |= values % 1 > 0
            for i in np.flatnonzero(odd).tolist():
                errors.setdefault(i, FieldError(f.name, events[i].get(f.name), spec.dtype.wanted))

    def build(self, events: Events, found: Floats, session: Floats) -> dict[str, Array]:
        """ONNX input -> (n, its fields), gaps filled by the manifest's defaults.

        found: (n, len(fields)); session: (n, len(session features)), NaN where there is no value yet.
        """
        values = np.concatenate((found, session), axis=1)
        gaps = bool(np.isnan(values).any())
        inputs: dict[str, Array] = {}
        for name, spec in self._inputs:
            matrix = values[:, self._columns[name]]
            if gaps:
                matrix = np.where(np.isnan(matrix), self._defaults[name], matrix)
            if spec.dtype is not Dtype.FLOAT64 and not (inside := spec.dtype.within(matrix)).all():
                # An aggregate beyond a float32 (a variance after an outlier) has no value that the model can take.
                matrix = np.where(inside, matrix, self._defaults[name])
            inputs[name] = matrix.astype(spec.dtype.numpy)
        for name, spec in self._texts:
            texts = [
                [spec.default(j) if (text := event.get(f.name)) is None else text for j, f in enumerate(spec.fields)]
                for event in events
            ]
            inputs[name] = np.array(texts, object)
        return inputs


def _defaults(spec: Input) -> Floats:
    return np.array([np.nan if spec.default(j) is None else spec.default(j) for j in range(len(spec.fields))], float)
