"""Messages to tokens by a version's chat template. What people write stays text, whatever it looks like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from jinja2 import TemplateSyntaxError

from core.errors import ManifestError, TemplateError
from models.decoder.message import Message
from models.decoder.sandbox import LARGEST, RefusedError, Sandbox
from models.decoder.tokenizer import Tokenizer

MARKS: Final = range(0xE000, 0xF8FF)
"""Unicode's private use area: one that neither messages nor template contain marks what people wrote."""


class ChatTemplate:
    """A version's template, compiled. For one thread at a time."""

    def __init__(self, text: str, tokenizer: Tokenizer, constants: dict[str, str], where: str) -> None:
        """constants: what the template may know beside the messages, such as bos_token. Raises ManifestError, which
        begins with `where`, for a template that can't be compiled."""
        self._tokenizer, self._constants, self._text = tokenizer, constants, text
        self._sandbox = Sandbox()
        special = sorted(tokenizer.special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special))) if special else None
        self._edges = (
            {text[:cut] for text in special for cut in range(1, len(text))},
            {text[cut:] for text in special for cut in range(1, len(text))},
        )
        try:
            self._template = self._sandbox.from_string(self._sandbox.bounded(text))
        except TemplateSyntaxError as error:
            raise ManifestError(f"{where}: line {error.lineno}: {error.message}") from None
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise ManifestError(f"{where}: it can't be compiled: {error}") from None

    def render(self, messages: Sequence[Message], *, generate: bool) -> list[int]:
        """The conversation in tokens. Raises TemplateError with the template's own words, or with what it did too much
        of."""
        mark = self._mark(messages)
        told = [
            {"role": self._marked(message.role, mark), "content": self._content(place, message, mark)}
            for place, message in enumerate(messages)
        ]
        text = self._rendered(told, generate)
        tokens: list[int] = []
        for part, special in self._cut(text):
            if special:
                tokens.append(self._tokenizer.special[part])
                continue
            for index, piece in enumerate(re.split(f"{mark}([0-9]+){mark}", part)):
                if index % 2:
                    tokens += self._reply(messages[int(piece)])
                elif piece:
                    tokens += self._tokenizer.encode(piece.replace(mark, ""))
        return tokens

    def _rendered(self, messages: list[dict[str, str]], generate: bool) -> str:
        self._sandbox.begin()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(messages=messages, add_generation_prompt=generate, **self._constants):
                parts.append(part)
                size += len(part)
                if size > LARGEST:
                    raise TemplateError(f"the chat template makes more than {LARGEST:,} characters of the messages")
        except TemplateError:
            raise
        except RefusedError as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from None
        except RecursionError:
            raise TemplateError("the chat template calls itself without end") from None
        except Exception as error:  # whatever a template's expressions raise
            raise TemplateError(f"the chat template fails: {error}") from error
        return "".join(parts)

    def _mark(self, messages: Sequence[Message]) -> str:
        taken = set(self._text).union(*(set(message.content) | set(message.role) for message in messages))
        return next(sign for sign in map(chr, MARKS) if sign not in taken)

    def _content(self, place: int, message: Message, mark: str) -> str:
        return f"{mark}{place}{mark}" if message.tokens else self._marked(message.content, mark)

    def _marked(self, text: str, mark: str) -> str:
        """The text with a mark inside everything that would be a special token, alone or with what the template may
        write beside it."""
        if self._special is None:
            return text
        text = self._special.sub(lambda found: f"{found[0][0]}{mark}{found[0][1:]}", text)
        beginnings, ends = self._edges
        bare = text.strip()
        start = text.find(bare)
        if any(bare.endswith(edge) for edge in beginnings):
            text = f"{text[: start + len(bare)]}{mark}{text[start + len(bare) :]}"
        if any(bare.startswith(edge) for edge in ends):
            text = f"{text[:start]}{mark}{text[start:]}"
        return text

    def _cut(self, text: str) -> Iterator[tuple[str, bool]]:
        """Parts of what the template made, and whether each is a special token."""
        if self._special is None:
            yield text, False
            return
        begin = 0
        for found in self._special.finditer(text):
            yield text[begin : found.start()], False
            yield found[0], True
            begin = found.end()
        yield text[begin:], False

    def _reply(self, message: Message) -> tuple[int, ...]:
        tokens = message.tokens
        while tokens and tokens[-1] in self._tokenizer.end_tokens:
            tokens = tokens[:-1]
        return tokens


def constants_of(tokenizer: Tokenizer, begin: int | None, end: int) -> dict[str, Any]:
    """bos_token and eos_token, as templates know them."""
    return {"bos_token": "" if begin is None else tokenizer.text_of(begin), "eos_token": tokenizer.text_of(end)}
