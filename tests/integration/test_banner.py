"""What a worker prints before it starts is so."""

from __future__ import annotations

from pathlib import Path

from tests.worker import Worker, free_port


def test_the_banner_says_where_the_state_is(tmp_path: Path) -> None:
    given = {"broker": "kafka://127.0.0.1:9", "app_id": "shop", "data_dir": "state", "web_port": free_port()}
    environment = {f"HOMUNCULUS_{name.upper()}": str(value) for name, value in given.items()}
    worker = Worker("a", tmp_path, environment).start()
    try:
        worker.wait_log(f"RocksDB in {tmp_path / 'state' / 'shop'}")
    finally:
        worker.close()
    banner = worker.log(None)
    assert "kafka://127.0.0.1:9" in banner
    assert f"http://127.0.0.1:{given['web_port']}" in banner
    for wrong in ("memory:", "faust/v1"):
        assert wrong not in banner
