"""How a version's template writes a conversation, message by message: what was said once is tokens once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from models.decoder.message import Message

Tokens = tuple[int, ...]


class Writer(Protocol):
    """The part of a decoder that knows its template and tokenizer."""

    def render(self, messages: Sequence[Message], *, generate: bool = True) -> Tokens:
        """A conversation in tokens."""

    def encode(self, text: str) -> Tokens:
        """A text in tokens."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class Written(NamedTuple):
    """A message, and what the template makes of it."""

    role: str
    text: str
    tokens: Tokens


ASKED = Message("user", "x")
ANSWERED = Message("assistant", "y")


class Wording:
    """Most templates write each message by itself, between marks that no text can contain. Then a conversation is the
    messages' tokens one after the other: a new message costs its own tokenizing alone, and a reply stays the very
    tokens that the model sampled, which need not be those that its text is tokenized to.

    Whether a template is of that kind is tried when this is made. One that isn't is asked for the whole conversation
    every time: `by_message` is False then, and replies are tokenized anew.
    """

    def __init__(self, writer: Writer, end_tokens: Iterable[int]) -> None:
        self._writer = writer
        self._end = frozenset(end_tokens)
        self.head: Tokens = ()
        """Begins a reply."""
        self.opening: Tokens = ()
        """Stands before a conversation that has no system message of its own."""
        self._tail: Tokens = ()
        self._before = self._write([ASKED, ANSWERED])
        self.by_message = self._learn()

    def _learn(self) -> bool:
        """Takes the parts of a short conversation apart. Whether they are what a longer one is made of."""
        alone = self._write([ASKED])
        after = self._write([ASKED, ANSWERED, ASKED])
        begun = self._writer.render([ASKED], generate=True)
        if after[: len(self._before)] != self._before or begun[: len(alone)] != alone:
            return False
        asked = after[len(self._before) :]
        self.head, answer = begun[len(alone) :], self._before[len(alone) :]
        body = self.head + self._writer.encode(ANSWERED.content)
        if self._before[: len(alone)] != alone or alone[-len(asked) :] != asked or answer[: len(body)] != body:
            return False
        self.opening, self._tail = alone[: -len(asked)], answer[len(body) :]
        longer = self._write([ASKED, ANSWERED, Message("user", "z"), Message("assistant", "a b"), ASKED])
        parts = [self.said("user", "z"), self.said("assistant", "a b")]
        return longer == self._before + parts[0].tokens + parts[1].tokens + asked

    def said(self, role: str, text: str, *, first: bool = False) -> Written:
        """What somebody else than the model has said; also a reply that is only known as a text.

        first: whether nothing stands before it. Raises TemplateError where the template doesn't know the role there.
        """
        if role == "assistant":
            return Written(role, text, self.head + self._writer.encode(text) + self._tail)
        message = Message(role, text)
        if first and role == "system":
            both, asked = self._write([message, ASKED]), self._write([ASKED])[len(self.opening) :]
            return Written(role, text, both[: len(both) - len(asked)])
        whole = self._write([ASKED, ANSWERED, message])
        if whole[: len(self._before)] != self._before:  # a template that looks ahead
            return Written(role, text, self._writer.encode(text))
        return Written(role, text, whole[len(self._before) :])

    def replied(self, text: str, sampled: Sequence[int]) -> Written:
        """What the model has said, with the tokens that it sampled where these are the text and nothing more."""
        body = tuple(sampled)
        while body and body[-1] in self._end:
            body = body[:-1]
        if self._writer.decode(body) != text:
            body = self._writer.encode(text)
        return Written("assistant", text, self.head + body + self._tail)

    def prompt(self, said: Sequence[Written]) -> Tokens:
        """All that was said, and the beginning of a reply. Raises TemplateError where the template refuses it."""
        if not self.by_message:
            return self._writer.render([Message(one.role, one.text) for one in said], generate=True)
        if said and said[0].role == "system":
            tokens = [*self.said("system", said[0].text, first=True).tokens]
            said = said[1:]
        else:
            tokens = [*self.opening]
        for one in said:
            tokens += one.tokens
        return (*tokens, *self.head)

    def _write(self, messages: Sequence[Message]) -> Tokens:
        return self._writer.render(messages, generate=False)
