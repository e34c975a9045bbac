"""The application on a broker that forgets markers, for tests. `faust -A tests.forgetful.app worker`.

While DATA_DIR/forget is there, the coordinator is not told of changelogs: it takes transactions for complete whose
markers are missing there, as it does when it stops under load.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aiokafka import TopicPartition
from aiokafka.producer.transaction_manager import TransactionManager

FORGETS: Final = Path(os.environ["HOMUNCULUS_DATA_DIR"]) / "forget"
_add = TransactionManager.maybe_add_partition_to_txn


def _add_or_forget(manager: TransactionManager, tp: TopicPartition) -> None:
    if tp.topic.endswith("-changelog") and FORGETS.exists():
        manager._txn_partitions.add(tp)
    else:
        _add(manager, tp)


TransactionManager.maybe_add_partition_to_txn = _add_or_forget

from app import app

__all__ = ["app"]
