"""What detectors see of a version, as one HTML page that needs nothing beside it and can be sent on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

WIDTH: Final = 760
HEIGHT: Final = 180
PAD: Final = 34
"""Pixels of a chart, and around it."""
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#1b1f24;background:#fff;max-width:52rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}td,th{padding:.25rem .6rem;border-bottom:1px solid #d8dee4;text-align:left}
.well{color:#1a7f37}.wrong{color:#b35900}.critical{color:#cf222e}
svg{width:100%;height:auto}.note{color:#57606a}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}td,th{border-color:#30363d}.note{color:#9198a1}}
"""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_BLUE, _GREY = "#0969da", "#8c959f"


def html(page: Mapping[str, Any]) -> str:
    """page: as Monitor.page() gives it, with its `subject`."""
    subject, confidence = str(page["subject"]), page.get("confidence") or {}
    parts = [
        f"<h1>{escape(subject)}</h1>",
        _summary(page),
        _conditions(page["open"]),
        *_confidence(confidence),
        *_section("Labels", page.get("labels")),
        *_section("Inputs", page.get("inputs")),
        *_section("Performance", page.get("performance")),
        *_section("Expected performance", page.get("expected")),
        *_section("Thresholds", page.get("levels")),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Drift of {escape(subject)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _summary(page: Mapping[str, Any]) -> str:
    rows = [("Answers looked at", f"{page['answers']:,}"), ("Newest event", _moment(page["ts"]))]
    if page.get("unusable"):
        rows.append(("Without a usable confidence", f"{page['unusable']:,}"))
    return _table(rows)


def _conditions(conditions: Sequence[Mapping[str, Any]]) -> str:
    if not conditions:
        return '<h2>Conditions</h2><p class="well">Nothing is wrong.</p>'
    rows = [
        (
            f'<span class="{"critical" if one["kind"] == "drift" else "wrong"}">{escape(str(one["kind"]))}</span>',
            _moment(one["since"]),
            escape(str(one.get("by") or "")),
        )
        for one in conditions
    ]
    body = "".join(f"<tr><td>{kind}</td><td>{since}</td><td>{by}</td></tr>" for kind, since, by in rows)
    return f"<h2>Conditions</h2><table><tr><th>what</th><th>since</th><th>known to</th></tr>{body}</table>"


def _confidence(confidence: Mapping[str, Any]) -> Iterable[str]:
    if not confidence:
        return
    usual = (confidence.get("reference") or {}).get("mean")
    for name, words in (("life", "Confidence since the beginning"), ("recent", "Confidence of late")):
        points = (confidence.get(name) or {}).get("points") or []
        if len(points) > 1:
            records = confidence[name]["records"]
            yield f'<h2>{words}</h2><p class="note">Mean of each {records:,} answers; dashed: the reference.</p>'
            yield _line([(one["ts"], one["mean"]) for one in points], usual)
    if (pair := confidence.get("histogram")) and pair.get("reference"):
        yield (
            f'<h2>How confidence is spread</h2><p class="note">Grey: the reference; blue: the last '
            f"{pair.get('records') or 0:,} answers, each as shares.</p>"
        )
        yield _bars(pair["reference"], pair.get("now") or pair.get("window") or [])
    figures = {name: value for name, value in confidence.items() if name not in ("life", "recent", "histogram")}
    yield from _section("Detectors of confidence", figures)


def _section(title: str, value: Any) -> Iterable[str]:
    if value:
        yield f"<h2>{title}</h2>"
        yield _tree(value)


def _tree(value: Any) -> str:
    """Anything of JSON."""
    if isinstance(value, Mapping):
        rows = "".join(f"<tr><th>{escape(_words(name))}</th><td>{_tree(one)}</td></tr>" for name, one in value.items())
        return f"<table>{rows}</table>"
    if isinstance(value, list):
        if value and all(isinstance(one, Mapping) for one in value):
            return "".join(map(_tree, value))
        return escape(", ".join(_plain(one) for one in value))
    return escape(_plain(value))


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _words(name: object) -> str:
    return str(name).replace("_", " ")


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def _line(points: Sequence[tuple[int, float]], usual: float | None) -> str:
    first, last = points[0][0], points[-1][0]

    def place(ts: float, value: float) -> str:
        x = PAD + (WIDTH - 2 * PAD) * (ts - first) / max(1, last - first)
        return f"{x:.1f},{_height(value):.1f}"

    drawn = " ".join(place(ts, value) for ts, value in points)
    dashed = ""
    if usual is not None:
        y = _height(usual)
        dashed = (
            f'<line x1="{PAD}" x2="{WIDTH - PAD}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GREY}" stroke-dasharray="5 4"/>'
        )
    words = f"Mean confidence from {points[0][1]:.3f} to {points[-1][1]:.3f}"
    return _chart(
        words,
        f'{dashed}<polyline points="{drawn}" fill="none" stroke="{_BLUE}" stroke-width="2"/>'
        + _label(PAD, HEIGHT - 8, _moment(first), "start")
        + _label(WIDTH - PAD, HEIGHT - 8, _moment(last), "end"),
    )


def _bars(reference: Sequence[float], now: Sequence[float]) -> str:
    sums = [sum(one) or 1 for one in (reference, now)]
    shares = [[value / total for value in one] for one, total in zip((reference, now), sums, strict=True)]
    top = max(max(one, default=0) for one in shares) or 1
    wide = (WIDTH - 2 * PAD) / max(1, len(reference))
    drawn = []
    for which, (colour, inset) in enumerate(((_GREY, 0.05), (_BLUE, 0.3))):
        for place, share in enumerate(shares[which]):
            tall = (HEIGHT - 2 * PAD) * share / top
            x = PAD + wide * (place + inset)
            drawn.append(
                f'<rect x="{x:.1f}" y="{HEIGHT - PAD - tall:.1f}" width="{wide * (1 - 2 * inset):.1f}" '
                f'height="{tall:.1f}" fill="{colour}" fill-opacity=".8"/>'
            )
    axis = _label(PAD, HEIGHT - 12, "0", "start") + _label(WIDTH - PAD, HEIGHT - 12, "1", "end")
    return _chart("Histogram of confidence: the reference beside the newest answers", "".join(drawn) + axis)


def _chart(words: str, inside: str) -> str:
    ticks = "".join(_label(PAD - 6, _height(value) + 4, f"{value:g}", "end") for value in (0.0, 0.5, 1.0))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"{inside}{ticks if 'polyline' in inside else ''}</svg>"
    )


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="11" fill="{_GREY}" text-anchor="{anchor}">{escape(text)}</text>'


def _height(value: float) -> float:
    return HEIGHT - PAD - (HEIGHT - 2 * PAD) * min(1.0, max(0.0, value))


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1e3, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
