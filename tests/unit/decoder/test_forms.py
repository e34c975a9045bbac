"""What a converted graph can be besides plain: other weights, vectors in place of tokens, hidden states, windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from models.convert.gguf import convert
from models.decoder import Decoder, Sampling, Sizes, Turn
from models.decoder.network import Network, Slab
from models.decoder.proving import prefill
from models.device import Device
from models.folder import ModelFolder
from models.language import Language
from tests.gguf import FORMS, WIDTH, Form, Tiny

CPU = Device.of("cpu")
TOKENS = [int(token) for token in np.random.default_rng(9).integers(0, 60, 40)]


def network(form: Form, folder: Path, **options: Any) -> Network:
    path = Tiny(form).write(folder / "tiny.gguf")
    return Network(convert(path, folder, name="tiny", version="1", **options), CPU, 1)


def run(
    network: Network, tokens: list[int], past: dict[str, NDArray[Any]] | None = None, **given: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """One chunk by ONNX Runtime alone: what each output is. past: the outputs of the chunk before."""
    language: Language = network.language
    nothing = np.zeros((1, language.kv_heads, 0, language.head_dim), np.float32)
    before = {
        one.name: nothing if past is None else past[one.name.replace("past_key_values", "present")]
        for one in network.session.get_inputs()
        if one.name.startswith("past")
    }
    total = len(tokens) + next(iter(before.values())).shape[2]
    feeds: dict[str, Any] = {
        "input_ids": np.array([tokens], np.int64),
        "seqlens_k": np.array([total - 1], np.int32),
        "total_sequence_length": np.array([total], np.int32),
        "logits_rows": np.arange(len(tokens)),
        **before,
    }
    names = [output.name for output in network.session.get_outputs()]
    return dict(zip(names, network.session.run(names, feeds | given), strict=True))


@pytest.mark.parametrize("name", ["llama", "q8_0", "qwen2", "smollm2"])
def test_int8_is_nearer_than_int4_and_takes_the_files_own_blocks(name: str, tmp_path: Path) -> None:
    form, textbook = FORMS[name], Tiny(FORMS[name]).logits(TOKENS)
    off = {}
    weights: Literal["int4", "int8"]
    for weights in ("int4", "int8"):
        (tmp_path / weights).mkdir()
        slab = Slab(network(form, tmp_path / weights, weights=weights, accuracy=1), 1, 128)
        off[weights] = float(np.abs(prefill(slab, 0, TOKENS) - textbook).max())
    if form.kind in {"Q8_0", "Q4_1"}:
        assert off["int8"] < 1e-3
    else:
        assert off["int8"] < off["int4"] / 5


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_fp16_answers_on_the_cpu_too_within_its_rounding(name: str, tmp_path: Path) -> None:
    path = Tiny(FORMS[name]).write(tmp_path / "tiny.gguf")
    folder = convert(path, tmp_path, name="tiny", version="1", weights="fp16", adapters=True)
    slab = Slab(Network(folder, CPU, 1), 1, 128)
    textbook = Tiny(FORMS[name]).logits(TOKENS)
    assert np.abs(prefill(slab, 0, TOKENS) - textbook).max() < 0.05
    assert slab.values[0].dtype == np.float16
    whole = convert(path, tmp_path, name="tiny", version="whole")
    assert slab.token_bytes * 2 == Slab(Network(whole, CPU, 1), 1, 128).token_bytes
    assert size(folder) < 0.6 * size(whole)


async def test_a_decoder_of_fp16_keeps_and_restores_its_sessions(tmp_path: Path) -> None:
    from models.decoder import BlockFolder

    path = Tiny(FORMS["llama"]).write(tmp_path / "tiny.gguf")
    folder = convert(path, tmp_path, name="tiny", version="1", weights="fp16")
    decoder = Decoder(folder, CPU, Sizes(1, 256, threads=1), BlockFolder(tmp_path / "blocks", 1 << 30))
    try:
        context = tuple(TOKENS * 4)

        async def say(session: str, exact: bool) -> tuple[list[int], int]:
            turn = Turn(session=session, tokens=context, sampling=Sampling(max_tokens=8), exact=exact)
            generation = decoder.submit(turn)
            return generation.tokens, (await generation.result()).restored

        for exact in (False, True):
            first, _ = await say("ann", exact)
            other = Turn(session="bob", tokens=context[5:9], sampling=Sampling(max_tokens=2))
            await decoder.submit(other).result()
            assert await say("ann", exact) == (first, 128)
    finally:
        decoder.close()
        decoder.join()


@pytest.mark.parametrize("name", ["llama", "q8_0"])
def test_vectors_stand_in_place_of_tokens(name: str, tmp_path: Path) -> None:
    made = network(FORMS[name], tmp_path, embeds=True, weights="int8" if name == "q8_0" else "fp32", accuracy=1)
    table = np.asarray(Tiny(FORMS[name])._dense["token_embd.weight"], np.float32)
    plain = run(made, TOKENS)["logits"]
    vectors = np.zeros((1, len(TOKENS), WIDTH), np.float32)
    vectors[0, 5:20] = table[TOKENS[5:20]]
    mixed = [-1 if 5 <= place < 20 else token for place, token in enumerate(TOKENS)]
    assert np.abs(run(made, mixed, inputs_embeds=vectors)["logits"] - plain).max() < 1e-4
    assert np.abs(plain[-1] - Tiny(FORMS[name]).logits(TOKENS)).max() < 1e-3, "and tokens alone are as ever"


def test_a_token_is_where_it_is_said_to_be(tmp_path: Path) -> None:
    made = network(FORMS["llama"], tmp_path, embeds=True)
    plain = run(made, TOKENS)["logits"]
    usual = np.arange(len(TOKENS))[None]
    assert np.array_equal(run(made, TOKENS, position_ids=usual)["logits"], plain)
    moved = run(made, TOKENS, position_ids=usual + 100)["logits"]
    assert np.abs(moved - plain).max() < 1e-3, "rotations tell how far apart tokens are, and nothing else"
    tiny = Tiny(FORMS["llama"])
    tiny.positions = [place if place < 20 else place + 50 for place in range(len(TOKENS))]
    begun = run(made, TOKENS[:10])
    apart = run(made, TOKENS[10:], begun, position_ids=np.array([tiny.positions[10:]]))["logits"]
    assert np.abs(apart[-1] - tiny.logits(TOKENS)).max() < 2e-4
    assert np.abs(apart[-1] - plain[-1]).max() > 1e-2
    slab = Slab(made, 2, 128)
    for slot, begin in ((0, 0), (1, 7)):
        prefill(slab, slot, TOKENS[begin:])
    expected = [run(made, [*TOKENS[begin:], 3])["logits"][-1] for begin in (0, 7)]
    got = slab.run(np.full((2, 1), 3, np.int64), 0, [0, 1])
    assert np.abs(got - expected).max() < 1e-4, "in a batch of sessions of several lengths, where nothing is said"


@pytest.mark.parametrize("weights", ["fp32", "fp16"])
def test_hidden_states_are_what_the_head_makes_logits_of(weights: str, tmp_path: Path) -> None:
    made = network(FORMS["llama"], tmp_path, hidden=True, weights=weights)
    slab = Slab(made, 1, 128)
    if weights == "fp32":
        told = run(made, TOKENS)
        head = np.asarray(Tiny(FORMS["llama"])._dense["output.weight"], np.float32)
        assert told["hidden_states"].shape == (len(TOKENS), WIDTH)
        assert np.abs(told["hidden_states"] @ head.T - told["logits"]).max() < 1e-4
    assert np.abs(prefill(slab, 0, TOKENS) - Tiny(FORMS["llama"]).logits(TOKENS)).max() < 0.05


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_sliding_window_holds_for_chunks_and_for_single_tokens(family: str, tmp_path: Path) -> None:
    form = Form(family=family, window=16, pre="qwen2" if family == "qwen2" else "gpt-2")
    slab, tiny = Slab(network(form, tmp_path), 1, 256), Tiny(form)
    whole, tokens = Tiny(Form(family=family, pre=form.pre)), TOKENS * 3
    for begin, end in ((0, 50), (50, 64)):
        logits = slab.run(np.array([tokens[begin:end]]), 0, [end - begin - 1])[0]
        assert np.abs(logits - tiny.logits(tokens[:end])).max() < 2e-4
    for place in range(64, 70):
        logits = slab.run(np.array([[tokens[place]]]), 0, [0])[0]
        assert np.abs(logits - tiny.logits(tokens[: place + 1])).max() < 2e-4
        assert np.abs(logits - whole.logits(tokens[: place + 1])).max() > 1e-2, "and it is a window"


def size(folder: ModelFolder) -> int:
    return sum(file.stat().st_size for file in folder.path.glob("model.onnx*"))
