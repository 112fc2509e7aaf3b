"""A model's chat template as the tokens around a user's message."""

from __future__ import annotations

from dataclasses import dataclass

from engine.tokenizer import Tokenizer

MARK = "\u241fmessage\u241f"  # occurs in no template and no message


@dataclass(frozen=True, slots=True)
class Turn:
    """Text before and after a user's message. `before` ends where the user begins to speak."""

    before: str
    after: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Turn:
        """ValueError for a model without a chat template."""
        before, mark, after = tokenizer.apply_chat([{"role": "user", "content": MARK}]).partition(MARK)
        if not mark:
            raise ValueError("the model's chat template does not repeat a user's message: give text with --data FOLDER")
        return cls(before, after)

    def around(self, message: str) -> str:
        return self.before + message + self.after
