"""Adapters: each session's own, beside others', and never with keys and values of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import AdapterError, ConversionError, ManifestError
from models.convert import lora
from models.convert.gguf import convert
from models.decoder import Adapter, BlockFolder, Decoder, Sampling, Sizes, Turn
from models.decoder.network import Network, Slab
from models.decoder.proving import prefill
from models.device import Device
from models.folder import ModelFolder, hashes
from tests.gguf import FORMS, Form, Tiny
from tests.peft import MODULES, Peft
from tests.unit.decoder.conftest import paused

CPU = Device.of("cpu")
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 60, 40)]
FORM = FORMS["llama"]

Load = Callable[..., Decoder]


def base_of(form: Form, folder: Path, **options: Any) -> ModelFolder:
    path = Tiny(form).write(folder / "tiny.gguf")
    return convert(path, folder, name="tiny", version="1", adapters=True, **options)


def adapter_of(peft: Peft, base: ModelFolder, folder: Path, name: str) -> Adapter:
    return Adapter(lora.convert(peft.write(folder / f"peft-{name}"), base, folder, name=name, version="1"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return base_of(FORM, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def two(base: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """Of different ranks, for different layers."""
    folder = tmp_path_factory.mktemp("adapters")
    some = Peft(FORM, 2, rank=8, modules=("self_attn.q_proj", "self_attn.v_proj"))
    return [adapter_of(Peft(FORM, 1), base, folder, "all"), adapter_of(some, base, folder, "some")]


@pytest.fixture
def load(base: ModelFolder) -> Iterator[Load]:
    made: list[Decoder] = []

    def begin(blocks: BlockFolder | None = None, slots: int = 4) -> Decoder:
        made.append(Decoder(base, CPU, Sizes(slots, 256, threads=1), blocks))
        return made[-1]

    yield begin
    for decoder in made:
        decoder.close()
        decoder.join()


async def say(decoder: Decoder, session: str, tokens: list[int], adapter: Adapter | None) -> tuple[list[int], int]:
    """The reply, and how many tokens of the context weren't computed."""
    turn = Turn(session=session, tokens=tuple(tokens), sampling=Sampling(max_tokens=12), adapter=adapter)
    generation = decoder.submit(turn)
    return generation.tokens, (await generation.result()).cached


@pytest.mark.parametrize("name", ["llama", "qwen2", "biased-llama"])
def test_a_model_with_an_adapter_computes_what_the_merged_weights_would(name: str, tmp_path: Path) -> None:
    base = base_of(FORMS[name], tmp_path)
    peft = Peft(FORMS[name], 1)
    adapter = adapter_of(peft, base, tmp_path, "a")
    slab = Slab(Network(base, CPU, 1), 1, 128)
    logits = slab.run(np.array([TOKENS]), 0, [len(TOKENS) - 1], [adapter])[0]
    assert np.abs(logits - peft.merged().logits(TOKENS)).max() < 3e-4
    slab.clear(0)
    assert np.abs(prefill(slab, 0, TOKENS) - Tiny(FORMS[name]).logits(TOKENS)).max() < 2e-4, "and without it as ever"


@pytest.mark.parametrize(("setting", "scale"), [({"use_rslora": True}, 4.0), ({"alpha_pattern": {"q_proj": 12}}, 3.0)])
def test_the_scale_is_pefts(setting: dict[str, Any], scale: float, base: ModelFolder, tmp_path: Path) -> None:
    peft = Peft(FORM, 1, modules=("self_attn.q_proj",))
    peft.config |= setting
    slab = Slab(Network(base, CPU, 1), 1, 128)
    got = slab.run(np.array([TOKENS]), 0, [len(TOKENS) - 1], [adapter_of(peft, base, tmp_path, "a")])[0]
    assert np.abs(got - peft.merged(scale=scale).logits(TOKENS)).max() < 3e-4


def test_rows_of_one_batch_have_an_adapter_each_and_compute_as_alone(base: ModelFolder, two: list[Adapter]) -> None:
    network = Network(base, CPU, 1)
    adapters = [two[0], None, two[1], two[0]]
    together = Slab(network, 4, 128)
    alone = []
    for slot, adapter in enumerate(adapters):
        single = Slab(network, 1, 128)
        for slab, place in ((together, slot), (single, 0)):
            slab.run(np.array([TOKENS[slot:]]), place, [], [adapter])
        alone.append([single.run(np.array([[7]]), 0, [0], [adapter])[0] for _ in range(3)])
    for step in range(3):
        logits = together.run(np.full((4, 1), 7, np.int64), 0, range(4), adapters)
        for row, expected in zip(logits, alone, strict=True):
            assert np.abs(row - expected[step]).max() < 1e-5
    plain = Slab(network, 1, 128)
    plain.run(np.array([TOKENS[1:]]), 0, [])
    expected = [plain.run(np.array([[7]]), 0, [0])[0] for _ in range(3)]
    assert np.array_equal(alone[1], expected), "one without an adapter: bit by bit"


async def test_sessions_with_different_adapters_are_answered_at_once_each_as_alone(
    load: Load, two: list[Adapter]
) -> None:
    decoder, alone = load(), load(slots=1)
    asked = {"a": two[0], "b": two[1], "c": None, "d": two[0]}
    with paused(decoder):
        turns = [asyncio.ensure_future(say(decoder, name, TOKENS, adapter)) for name, adapter in asked.items()]
        await asyncio.sleep(0)
    replies = [reply for reply, _ in await asyncio.gather(*turns)]
    assert replies == [(await say(alone, f"alone {name}", TOKENS, asked[name]))[0] for name in asked]
    assert max(tick.decoded for tick in decoder.figures.ticks) == 4
    assert len({tuple(reply) for reply in replies}) == 3, "and the adapters are heard"


async def test_a_switch_never_uses_keys_and_values_of_another_adapter(
    load: Load, two: list[Adapter], tmp_path: Path
) -> None:
    decoder, fresh = load(BlockFolder(tmp_path, 1 << 30)), load()
    context, usual = TOKENS[:30], two[0]
    for turn, adapter in enumerate([None, usual, usual, two[1], None]):
        context = [*context, *TOKENS[:30]]
        reply, cached = await say(decoder, "ann", context, adapter)
        await decoder.save("ann")
        expected, _ = await say(fresh, f"turn {turn}", context, adapter)
        assert reply == expected
        # No adapter's tokens but its own: in the slot, in others' slots and on disk.
        assert bool(cached) == (turn in {2, 4})
        context += reply


async def test_another_models_adapter_is_refused(load: Load, two: list[Adapter], tmp_path: Path) -> None:
    other = base_of(Form(tied=True), tmp_path)
    stranger = adapter_of(Peft(FORM, 1), other, tmp_path, "a")
    with pytest.raises(AdapterError, match="tiny@1"):
        await say(load(), "ann", TOKENS, stranger)
    plain = convert(tmp_path / "tiny.gguf", tmp_path, name="plain", version="1")
    decoder = Decoder(plain, CPU, Sizes(1, 128, threads=1))
    with pytest.raises(AdapterError, match="takes no adapters"):
        await say(decoder, "ann", TOKENS, two[0])
    decoder.close()
    decoder.join()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_what_is_more_than_lora_is_refused(
    change: dict[str, Any], said: str, base: ModelFolder, tmp_path: Path
) -> None:
    peft = Peft(FORM, 1)
    peft.config |= change
    with pytest.raises(ConversionError, match=said):
        adapter_of(peft, base, tmp_path, "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("layers", [3, 2])
def test_an_adapter_of_other_sizes_is_refused(layers: int, base: ModelFolder, tmp_path: Path) -> None:
    form = Form(layers=layers, kv_heads=2 if layers == 3 else 4)
    with pytest.raises(ConversionError, match="layer 2" if layers == 3 else "64 to 64 at lora.0.qkv"):
        adapter_of(Peft(form, 1), base, tmp_path, "a")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_that_cannot_be_read_are_named(file: str, base: ModelFolder, tmp_path: Path) -> None:
    folder = Peft(FORM, 1).write(tmp_path / "peft")
    (folder / file).write_bytes(b"\x00\x01 nothing of the kind")
    with pytest.raises(ConversionError, match=file):
        lora.convert(folder, base, tmp_path, name="a", version="1")
    (folder / file).unlink()
    with pytest.raises(ConversionError, match=file):
        lora.convert(folder, base, tmp_path, name="a", version="1")


def test_embeddings_and_halves_of_pairs_are_refused(base: ModelFolder, tmp_path: Path) -> None:
    peft = Peft(FORM, 1)
    peft.tensors["base_model.model.lm_head.lora_A.weight"] = np.zeros((4, 64), np.float32)
    with pytest.raises(ConversionError, match="lm_head"):
        adapter_of(peft, base, tmp_path, "a")
    peft = Peft(FORM, 1)
    del peft.tensors["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"]
    with pytest.raises(ConversionError, match="no pair"):
        adapter_of(peft, base, tmp_path, "b")


def test_a_folder_says_whose_it_is_and_holds_matrices_alone(
    base: ModelFolder, two: list[Adapter], tmp_path: Path
) -> None:
    manifest = two[0].manifest
    assert manifest.adapter is not None
    assert (manifest.adapter.base, manifest.adapter.model) == (base.sha256, "tiny@1")
    assert len(two[0].matrices(np.float32)) == 2 * 4 * FORM.layers
    assert manifest.adapter.rank == 3 * 4, "q, k and v are one layer"


def test_a_model_that_pretends_to_be_an_adapter_is_refused(two: list[Adapter], tmp_path: Path) -> None:
    folder = base_of(FORM, tmp_path).path
    described = two[0].manifest.model_copy(update={"name": "tiny", "files": {}})
    (folder / "manifest.json").unlink()
    described.model_copy(update={"files": hashes(folder)}).write(folder)
    with pytest.raises(ManifestError, match="doesn't give an adapter"):
        Adapter(ModelFolder.open(folder, "tiny", "1"))


def test_all_modules_are_known() -> None:
    assert set(MODULES) == set(lora.MODULES)
