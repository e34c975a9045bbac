"""The page that one sends to a colleague: all that is known, nothing from elsewhere, and no markup of events."""

from __future__ import annotations

import re

import numpy as np

from models.drift.monitor import Monitor
from models.drift.report import html
from models.drift.spec import Spec
from tests.unit.drift.streams import answers, beta
from tests.unit.drift.test_composition import SPEC as DESCRIBED
from tests.unit.drift.test_composition import STREAM, judged

MARKUP = "<script>alert(1)</script>"


def test_it_shows_conditions_charts_and_every_detector_and_needs_nothing_beside_it() -> None:
    monitor = Monitor(DESCRIBED)
    monitor.fold(STREAM)
    for n in range(3):
        monitor.judge(judged(100 * n, 90))
    page = html({"subject": "churn@2", **monitor.page()})
    for words in ("input_drift", "Labels", "Inputs", "Performance", "Expected performance", "Thresholds", "accuracy"):
        assert words in page
    assert page.count("<svg") >= 2
    assert not re.search(r"(src|href)\s*=|url\(|<script", page)
    assert "default-src 'none'" in page


def test_names_stay_text() -> None:
    monitor = Monitor(Spec(name="churn", version="3", labels=(MARKUP, "yes")))
    monitor.fold(answers(beta(np.random.default_rng(1), (0.8, 4000))))
    assert MARKUP not in html({"subject": "churn@3", **monitor.page()})


def test_a_version_of_which_little_is_known_has_a_page_too() -> None:
    for spec in (Spec(name="churn", version="3"), Spec(name="price", version="1", confident=False)):
        monitor = Monitor(spec)
        monitor.fold(answers(np.full(3, 0.5)))
        assert "Nothing is wrong." in html({"subject": spec.identity, **monitor.page()})
