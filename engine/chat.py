"""Chat templates: messages to prompt text, by the Jinja template that a model file carries."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adaptive.requests import Messages


class ChatTemplate:
    """A template in Hugging Face's dialect, run in a sandbox: a model file is data, not trusted code."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self.source = source
        self.tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._template = _compile(source)

    def render(self, messages: Messages) -> str:
        """The prompt up to the place where the assistant answers. ValueError on messages the template refuses."""
        if not messages:
            raise ValueError("messages=[] is not valid: give at least one message")
        for message in messages:
            if "role" not in message or "content" not in message:
                raise ValueError(f"message {dict(message)!r} is not valid: it needs `role` and `content`")
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self.tokens)
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error


def _compile(source: str) -> Template:
    # Templates are written for exactly these whitespace rules, helpers and unescaped JSON.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"the model's chat template is not valid Jinja: {error}") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
