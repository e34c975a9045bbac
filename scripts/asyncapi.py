"""Writes docs/asyncapi.yaml: every topic with its key, headers and values, from the code that reads and writes them.

python scripts/asyncapi.py            writes it
python scripts/asyncapi.py --check    fails where what is there says something else
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from pydantic import BaseModel

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from core.settings import Settings  # noqa: E402  its own folder comes first on the path, as in app.py
from core.topics import ALL, Direction, TopicSpec  # noqa: E402

DOCUMENT: Final = ROOT / "docs" / "asyncapi.yaml"
SCHEMAS: Final = "#/components/schemas/"
TEXT: Final = {"type": "string"}
OPERATIONS: Final = {Direction.IN: "receive", Direction.OUT: "send"}
"""Seen from the worker, as AsyncAPI 3 wants it."""
PUBLIC: Final = [spec for spec in ALL if spec.direction in OPERATIONS]
"""What is internal has no form that others may rely on."""


def document() -> dict[str, Any]:
    """The AsyncAPI 3.0 document. Source of its shape: https://www.asyncapi.com/docs/reference/specification/v3.0.0"""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Homunculus",
            "version": project["version"],
            "description": f"{project['description']}. HOMUNCULUS_TOPIC_PREFIX goes before every address.",
            "license": {"name": project["license"]},
        },
        "defaultContentType": "application/json",
        "channels": {spec.name: channel(spec) for spec in PUBLIC},
        "operations": {
            f"{OPERATIONS[spec.direction]}-{spec.name}": {
                "action": OPERATIONS[spec.direction],
                "channel": {"$ref": f"#/channels/{spec.name}"},
            }
            for spec in PUBLIC
        },
        "components": {"schemas": schemas(spec.value for spec in PUBLIC if spec.value is not bytes)},
    }


def channel(spec: TopicSpec[Any]) -> dict[str, Any]:
    """One topic, as the first worker creates it."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    config = spec.config(int(defaults["max_record"]))
    topic: dict[str, Any] = {"cleanup.policy": [config["cleanup.policy"]]}
    if "retention.ms" in config:
        topic["retention.ms"] = int(config["retention.ms"])
    topic["max.message.bytes"] = int(config["max.message.bytes"])
    return {
        "address": spec.name,
        "messages": {spec.name: message(spec)},
        "bindings": {
            "kafka": {
                "topic": spec.name,
                "partitions": defaults["partitions"],
                "replicas": defaults["replication"],
                "topicConfiguration": topic,
                "bindingVersion": "0.5.0",
            }
        },
    }


def message(spec: TopicSpec[Any]) -> dict[str, Any]:
    """Key, headers and value of a topic's records."""
    raw = spec.value is bytes
    headers = {name: TEXT | {"description": meaning} for name, meaning in spec.headers.items()}
    return {
        "name": "bytes" if raw else spec.value.__name__,
        "contentType": "application/octet-stream" if raw else "application/json",
        **({"headers": {"type": "object", "properties": headers}} if headers else {}),
        "payload": {"description": "the record's own bytes"} if raw else {"$ref": SCHEMAS + spec.value.__name__},
        "bindings": {
            "kafka": {"key": TEXT | {"description": f"UTF-8: the {spec.key}" if not raw else "as the record's own"}}
        },
    }


def schemas(types: Any) -> dict[str, Any]:
    """The JSON schema of each type, and of those that they are made of."""
    found: dict[str, Any] = {}
    for kind in types:
        if issubclass(kind, BaseModel):
            schema = kind.model_json_schema(ref_template=SCHEMAS + "{model}")
            found |= schema.pop("$defs", {})
            found[kind.__name__] = schema
        else:
            found |= msgspec.json.schema_components([kind], ref_template=SCHEMAS + "{name}")[1]
    return dict(sorted(found.items()))


def main() -> int:
    """0 when the document is what it should be."""
    wanted = "# Made by scripts/asyncapi.py out of core/topics.py and core/events.py.\n" + yaml.safe_dump(
        document(), sort_keys=False, allow_unicode=True, width=120
    )
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(wanted, "utf-8")
        return 0
    if DOCUMENT.read_text("utf-8") == wanted:
        return 0
    print(f"asyncapi: {DOCUMENT.relative_to(ROOT)} is out of date: run .venv/bin/python scripts/asyncapi.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
