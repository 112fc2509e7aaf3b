"""The tokenizer of a Hugging Face folder: tokenizer.json, with what the files beside it say of its ends and chats."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from engine.chat import ChatTemplate
from engine.models.settings import Settings
from engine.pieces import decoder_steps
from engine.tokenizer import Tokenizer

DEFAULT_TEMPLATE = "default"  # its name where a model has several


def load_tokenizer(folder: Path) -> Tokenizer:
    """ValueError names a file that is missing or damaged, and a kind of tokenizer that is not supported."""
    backend = _read_backend(folder / "tokenizer.json")
    settings = Settings.read_optional(folder / "tokenizer_config.json")
    added = backend.get_added_tokens_decoder()
    special = frozenset(token for token, added_token in added.items() if added_token.special)
    ends, source = _end_ids(folder, backend, settings), _template_source(folder, settings)
    tokens = {key: _token_text(settings, key) for key in ("bos_token", "eos_token")}
    try:
        template = None if source is None else ChatTemplate(source, **tokens)
        first = _first_id(backend)
        return Tokenizer(backend, special_ids=special, eos_ids=ends, bos_id=first, chat_template=template)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no tokenizer.json: write one with transformers, "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} can not be read ({error}): get it again, or update `tokenizers`") from error
    if not decoder_steps(backend):
        raise ValueError(f"{path} has no decoder, so that its tokens can not be turned into text")
    backend.no_truncation()  # as trained with, perhaps; prompts are never cut or filled up
    backend.no_padding()
    return backend


def _first_id(backend: tokenizers.Tokenizer) -> int | None:
    """The token that the post-processor puts before a text; None when it adds none."""
    bare, framed = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    added = len(framed) - len(bare)
    if added == 0:
        return None
    if added > 1 or framed[1:] != bare:
        tokens = [backend.id_to_token(token) for token in framed]
        raise ValueError(f"the tokenizer turns 'a' into {tokens}: it may add one token before a text, nothing else")
    first: int = framed[0]
    return first


def _end_ids(folder: Path, backend: tokenizers.Tokenizer, settings: Settings) -> frozenset[int]:
    """All tokens that any of the files call an end: each alone often names one of two."""
    ends: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        ends.update(Settings.read_optional(folder / name).integers("eos_token_id"))
    named = backend.token_to_id(_token_text(settings, "eos_token"))
    return frozenset(ends if named is None else ends | {named})


def _token_text(settings: Settings, key: str) -> str:
    """A special token's text, written plainly or as an object with flags; empty when the model has none."""
    value = settings.values.get(key)
    return settings.section(key).text("content") if isinstance(value, dict) else settings.text(key, "")


def _template_source(folder: Path, settings: Settings) -> str | None:
    """chat_template.jinja comes first; tokenizer_config.json has one template, or several by name."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    listed = settings.values.get("chat_template")
    if not isinstance(listed, list):
        return settings.text("chat_template") if listed is not None else None
    sources = {one.get("name"): one.get("template") for one in listed if isinstance(one, dict)}
    if DEFAULT_TEMPLATE not in sources:
        raise ValueError(f"{settings.where} has chat templates {list(sources)}, none of them {DEFAULT_TEMPLATE!r}")
    return str(sources[DEFAULT_TEMPLATE])
