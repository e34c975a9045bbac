"""From a GGUF file or a folder with safetensors to one that a store takes, with golden replies of the model's own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from core.errors import ConversionError, ManifestError
from models.convert.gguf.file import GgufFile
from models.convert.gguf.form import Form, Weights
from models.convert.gguf.graph import Graph, checked
from models.convert.gguf.source import Shape, Source
from models.decoder.message import Message
from models.decoder.network import Network, Slab
from models.decoder.proving import greedy
from models.decoder.template import ChatTemplate, constants_of
from models.decoder.tokenizer import Tokenizer
from models.device import Device
from models.folder import ModelFolder, hashes
from models.language import TEMPLATE, TOKENIZER, Defaults, GoldenReply, Language
from models.manifest import MANIFEST, MODEL, Kind, Manifest

DATA: Final = "model.onnx.data"
PROMPTS: Final = (
    "What is the capital of France?",
    "Count from one to ten.",
    "Write a sentence about the sea.",
)
"""What golden replies answer."""
GOLDEN_TOKENS: Final = 12
MARGIN: Final[dict[Weights, float]] = {"fp32": 0.02, "fp16": 0.1, "int8": 0.1, "int4": 0.25}
"""A golden reply ends before a token that is ahead of the next by fewer logits: other processors round otherwise."""


def convert(
    path: Path,
    out: Path,
    *,
    name: str,
    version: str,
    weights: Weights = "fp32",
    accuracy: Literal[1, 4] = 4,
    template: str | None = None,
    adapters: bool = False,
    embeds: bool = False,
    hidden: bool = False,
) -> ModelFolder:
    """Makes the folder out/NAME/VERSION of a GGUF file, or of a folder with config.json, safetensors, tokenizer.json.

    weights: fp32 computes with every weight in float32; fp16, meant for GPUs, with all of them, keys and values in
    float16; int4 and int8 with the linear layers in blocks of 4 or 8 bits, taken as they are from Q4_0, Q4_1 and Q8_0,
    and rounded from anything else. accuracy: of int4 and int8; 1 computes in float32, 4 rounds each layer's inputs to 8
    bits, which is faster and makes a token's logits depend on its batch. template: the chat template, where the file
    has none or another is wanted. adapters, embeds, hidden: as models/convert/gguf/form.py says. Raises
    ConversionError, also where the folder is there.
    """
    target = out / name / version
    if target.exists():
        raise ConversionError(f"{target} is there already; a version never changes")
    source = _opened(path)
    shape = Shape.of(source)
    form = Form(weights, accuracy, adapters, embeds, hidden)
    checked(shape, form)
    chat = template or source.get("tokenizer.chat_template")
    if not chat:
        raise ConversionError(f"{path.name} has no chat template: it may be no chat model; give one")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{version}."))
    try:
        _write_graph(Graph(source, shape, form), part)
        source.tokenizer().save(str(part / TOKENIZER))
        (part / TEMPLATE).write_text(str(chat), encoding="utf-8")
        language = _language(source, shape, form)
        made_by = f"{path.name} ({source.title}), converted to {weights}"
        made_by += f", accuracy {accuracy}" if form.bits else ""
        folder = _manifest(part, source, language, name, version, made_by)
        golden = _golden(folder)
        _manifest(part, source, language.model_copy(update={"golden": golden}), name, version, made_by)
        ModelFolder.open(part, name, version)
        part.chmod(0o755)
        part.rename(target)
        return ModelFolder.open(target, name, version)
    except (ManifestError, ValidationError) as error:
        raise ConversionError(f"{path.name} can't be converted: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _opened(path: Path) -> Source:
    if path.is_dir():
        from models.convert.safetensors import Checkpoint

        return Checkpoint(path)
    return GgufFile(path)


def _write_graph(graph: Graph, part: Path) -> None:
    import onnx

    onnx.save(
        graph.build(),
        str(part / MODEL),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=DATA,
        size_threshold=1024,
    )


def _language(source: Source, shape: Shape, form: Form) -> Language:
    sampling = {
        "temperature": source.get("general.sampling.temp"),
        "top_p": source.get("general.sampling.top_p"),
        "top_k": source.get("general.sampling.top_k"),
        "min_p": source.get("general.sampling.min_p"),
        "repetition_penalty": source.get("general.sampling.penalty_repeat"),
    }
    begin = source.get("tokenizer.ggml.bos_token_id")
    return Language(
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
        context=shape.context,
        weights=form.weights,
        adapters=form.adapters,
        embeds=form.embeds,
        hidden=form.hidden,
        end_tokens=source.end_tokens(),
        begin_token=None if begin is None else int(begin),
        begins=bool(source.get("tokenizer.ggml.add_bos_token", False)) and begin is not None,
        defaults=Defaults(**{key: value for key, value in sampling.items() if value is not None}),
    )


def _manifest(part: Path, source: Source, language: Language, name: str, version: str, made_by: str) -> ModelFolder:
    (part / MANIFEST).unlink(missing_ok=True)
    licence = source.get("general.license")
    manifest = Manifest(
        name=name,
        version=version,
        kind=Kind.DECODER,
        files=hashes(part),
        language=language,
        licence=None if licence is None else str(licence),
        made_by=made_by,
    )
    manifest.write(part)
    return ModelFolder.open(part, name, version)


def _golden(folder: ModelFolder) -> tuple[GoldenReply, ...]:
    """What the model answers, as far as it is sure."""
    language = folder.manifest.language
    assert language is not None
    tokenizer = Tokenizer(folder.path / TOKENIZER, language.end_tokens, folder.identity)
    constants: dict[str, Any] = constants_of(tokenizer, language.begin_token, language.end_tokens[0])
    text = (folder.path / TEMPLATE).read_text(encoding="utf-8")
    template = ChatTemplate(text, tokenizer, constants, folder.identity)
    slab = Slab(Network(folder, Device.of("cpu"), 1), 1, min(language.context, 512))
    golden = []
    for prompt in PROMPTS:
        tokens = template.render([Message("user", prompt)], generate=True)[: slab.window - GOLDEN_TOKENS]
        reply = []
        for logits in greedy(slab, tokens, GOLDEN_TOKENS):
            best = int(logits.argmax())
            rest = logits.copy()
            rest[best] = -float("inf")
            if float(logits[best] - rest.max()) < MARGIN[language.weights]:
                break
            reply.append(best)
        if reply:
            golden.append(GoldenReply(prompt=tuple(tokens), reply=tuple(reply)))
    return tuple(golden)
