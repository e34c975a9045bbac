"""The tokenizer of a GGUF file as tokenizer.json."""

from __future__ import annotations

from typing import Any, Final

from core.errors import ConversionError
from models.convert.gguf.source import Source

CONTROL: Final = 3
USER: Final = 4
"""tokenizer.ggml.token_type: tokens that only templates write, and those that are found in any text."""

_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PATTERNS: Final = {
    "gpt-2": (_WORDS,),
    "smollm": (r"\p{N}", _WORDS),
    "qwen2": (rf"{_HEAD}\p{{N}}{_TAIL}",),
    "llama-bpe": (rf"{_HEAD}\p{{N}}{{1,3}}{_TAIL}",),
}
"""tokenizer.ggml.pre -> how text is cut before pairs are merged; the patterns of llama.cpp's src/llama-vocab.cpp."""
_NORMALISED: Final = {"qwen2"}
"""Those that bring text into NFC first."""
_WHOLE_WORDS: Final = {"llama-bpe"}
"""Those that take a word which is a token as it is, whatever its merges."""
ENDS: Final = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "</s>"})
"""Control tokens that end a reply whatever a file's eos_token_id is."""


def tokenizer_of(source: Source) -> Any:
    """A tokenizers.Tokenizer. Raises ConversionError for kinds that aren't known."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    kind, pre = source.get("tokenizer.ggml.model"), source.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or pre not in PATTERNS:
        raise ConversionError(
            f"{source.path.name} has the tokenizer {kind}/{pre}; known are gpt2 with {', '.join(PATTERNS)}"
        )
    texts, kinds = _texts(source), source.get("tokenizer.ggml.token_type") or []
    merges = [tuple(pair.split(" ", 1)) for pair in source.get("tokenizer.ggml.merges")]
    vocabulary = {text: token for token, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS))
    if pre in _NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[pre]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for wanted, special in ((CONTROL, True), (USER, False)):
        added = [text for text, kind in zip(texts, kinds, strict=False) if kind == wanted]
        tokens = [AddedToken(text, special=special, normalized=False) for text in added]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(tokens)
    return tokenizer


def end_tokens(source: Source) -> tuple[int, ...]:
    """Every token that ends a reply. Raises ConversionError where there is none."""
    named = {source.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")} - {None}
    kinds = source.get("tokenizer.ggml.token_type") or []
    known = {
        t for t, (text, kind) in enumerate(zip(_texts(source), kinds, strict=False)) if kind == CONTROL and text in ENDS
    }
    if not named | known:
        raise ConversionError(f"{source.path.name} names no token that ends a reply")
    return tuple(sorted(int(token) for token in named | known))


def _texts(source: Source) -> list[str]:
    texts = source.get("tokenizer.ggml.tokens")
    if not texts:
        raise ConversionError(f"{source.path.name} has no tokenizer")
    return list(texts)
