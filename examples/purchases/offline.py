"""Every session feature computed once more, in pandas and over the finished file: what the online ones must equal.

It shares no code with the online fold, on purpose.
"""

from __future__ import annotations

import io
from typing import Final

import pandas as pd

from examples.purchases.data import text

FIELDS: Final = ("amount", "quantity")


def frame(master: str | None = None) -> pd.DataFrame:
    """The purchases by time, read by pandas: id, customer, day, amount, quantity; in the order of the stream.

    master: the file's text, else fetched. Raises DataError when it can't be.
    """
    names = ["customer", "day", "quantity", "amount"]
    table = pd.read_csv(
        io.StringIO(master or text()),
        sep=r"\s+",
        skiprows=1,
        header=None,
        names=names,
        dtype={"customer": str, "day": str},
    )
    table["day"] = pd.to_datetime(table["day"], format="%Y%m%d")
    table["id"] = [f"cdnow-{line:05d}" for line in range(1, len(table) + 1)]
    return table.sort_values("day", kind="stable").reset_index(drop=True)


def features(table: pd.DataFrame, half_life: str = "30D") -> pd.DataFrame:
    """The whole vocabulary for every purchase, a column a feature; NaN where there is no value yet.

    half_life: of the decayed means, as pandas writes it.
    """
    customers = table.groupby("customer", sort=False)
    first, count = customers["day"].transform("min"), customers.cumcount() + 1
    since_first = (table["day"] - first).dt.total_seconds()
    seen = {
        "session.count": count.astype(float),
        "session.seconds_since_first": since_first,
        "session.seconds_since_last": customers["day"].diff().dt.total_seconds(),
        "session.mean_gap": (since_first / (count - 1)).where(count > 1),
    }
    for field in FIELDS:
        seen |= _field(table, field, half_life)
    return pd.DataFrame(seen)


def _field(table: pd.DataFrame, field: str, half_life: str) -> dict[str, pd.Series[float]]:
    values = table.groupby("customer", sort=False)[field]
    growing = values.expanding()
    mean, spread = (_aligned(part) for part in (growing.mean(), growing.std()))
    before = {"mean": mean, "spread": spread}
    shifted = pd.DataFrame(before).groupby(table["customer"]).shift()
    zscore = ((table[field] - shifted["mean"]) / shifted["spread"]).where(shifted["spread"] > 0, 0.0)
    return {
        f"session.sum.{field}": values.cumsum(),
        f"session.mean.{field}": mean,
        f"session.min.{field}": values.cummin(),
        f"session.max.{field}": values.cummax(),
        f"session.variance.{field}": _aligned(growing.var()).fillna(0.0),
        f"session.last.{field}": table[field],
        f"session.zscore.{field}": zscore,
        f"session.decayed_mean.{field}@{half_life.lower()}": _decayed(table, field, half_life),
    }


def _decayed(table: pd.DataFrame, field: str, half_life: str) -> pd.Series[float]:
    """pandas' own exponentially weighted mean of irregular times."""
    customers = table.groupby("customer", sort=False)
    return _aligned(customers[[field]].ewm(halflife=half_life, times=table["day"]).mean()[field])


def bought_again(table: pd.DataFrame, within_days: int = 60) -> pd.Series[bool]:
    """Whether the customer's next day with a purchase comes within so many days."""
    days = table[["customer", "day"]].drop_duplicates()
    days = days.assign(next=days.groupby("customer")["day"].shift(-1))
    later = table.merge(days, on=["customer", "day"], how="left")
    return (later["next"] - later["day"]).dt.days.le(within_days)


def _aligned(by_customer: pd.Series[float]) -> pd.Series[float]:
    """Drops the customer from the index that groupby().expanding() adds, back in the stream's order."""
    return by_customer.reset_index(level=0, drop=True).sort_index()
