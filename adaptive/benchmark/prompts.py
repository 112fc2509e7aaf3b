"""Prompt files: one JSON object a line, `{"id": ..., "prompt": ..., "task"?: ...}`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from adaptive.requests import Prompt

DEFAULT_TASK = "all"


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One line of a prompt file. `task` groups prompts of one kind; `demo` marks those the demo runs."""

    id: str
    prompt: Prompt
    task: str = DEFAULT_TASK
    demo: bool = False

    def chat(self) -> PromptItem:
        """The same prompt as a user's message, for the model's chat template; messages stay as they are."""
        if not isinstance(self.prompt, str):
            return self
        return replace(self, prompt=[{"role": "user", "content": self.prompt}])


def read_prompts(path: Path) -> list[PromptItem]:
    """ValueError names file, line and field of the first malformed line; OSError where the file can not be read."""
    return parse_prompts(path.read_text(encoding="utf-8-sig").splitlines(), str(path))


def built_in_prompts() -> list[PromptItem]:
    """The prompts that ship with the package: tasks `free`, `code-edit` and `text-edit`."""
    text = (resources.files("adaptive") / "data" / "prompts.jsonl").read_text(encoding="utf-8")
    return parse_prompts(text.splitlines(), "built-in prompts")


def parse_prompts(lines: Iterable[str], source: str) -> list[PromptItem]:
    items: list[PromptItem] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        item = _parse_line(line, where)
        if item.id in seen:
            raise ValueError(f"{where}: id {item.id!r} was already used in line {seen[item.id]}; ids must differ")
        seen[item.id] = number
        items.append(item)
    if not items:
        raise ValueError(f"{source}: no prompts in it; write one JSON object with 'id' and 'prompt' a line")
    return items


def group_by_task(items: Sequence[PromptItem]) -> dict[str, list[PromptItem]]:
    """Tasks in the order in which they first appear."""
    groups: dict[str, list[PromptItem]] = {}
    for item in items:
        groups.setdefault(item.task, []).append(item)
    return groups


def _parse_line(line: str, where: str) -> PromptItem:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not valid JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(record).__name__}")
    name, task = record.get("id"), record.get("task", DEFAULT_TASK)
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise ValueError(f"{where}: field 'id' must be a string or a whole number, got {name!r}")
    if not isinstance(task, str) or not task:
        raise ValueError(f"{where}: field 'task' must be a word, got {task!r}")
    return PromptItem(str(name), _parse_prompt(record.get("prompt"), where), task, demo=record.get("demo") is True)


def _parse_prompt(value: Any, where: str) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_message(message) for message in value):
        return list(value)
    raise ValueError(
        f"{where}: field 'prompt' must be a text or a list of chat messages"
        f' (objects with "role" and "content"), got {value!r:.60}'
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
