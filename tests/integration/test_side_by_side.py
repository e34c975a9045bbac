"""Two workers started the same way in the same folder, with nothing set to tell them apart."""

from __future__ import annotations

from tests.rig import Rig
from tests.worker import tails


def test_a_second_worker_in_the_same_folder_takes_a_folder_of_its_own_and_work_is_shared(rig: Rig) -> None:
    shared = rig.folder / "data"
    first = rig.worker("first", data_dir=shared, worker_id=None).start()
    rig.deploy()
    with rig.sender():
        rig.wait_progress(300)
        second = rig.worker("second", data_dir=shared, worker_id=None).start().wait_ready()
        second.wait_log("is open")
        rig.wait_progress(1000)
        assert first.ready(), tails([first, second])
    rig.assert_exact()
    assert sorted(path.name for path in (shared / f"{rig.prefix}app").iterdir()) == ["0", "1"]
