from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from adaptive.benchmark import PromptItem, built_in_prompts, group_by_task, read_prompts


def test_built_in_prompts_are_balanced_and_long_enough_to_copy_from() -> None:
    items = built_in_prompts()
    assert len(items) >= 24
    assert Counter(item.task for item in items).keys() == {"free", "code-edit", "text-edit"}
    assert Counter(item.task for item in items if item.demo) == {"free": 2, "code-edit": 2, "text-edit": 2}
    for item in items:
        assert isinstance(item.prompt, str)
        if item.task == "text-edit":
            assert 80 <= len(item.prompt.split()) <= 150, item.id
        if item.task == "code-edit":
            assert 11 <= item.prompt.count("\n") <= 30, item.id


def test_a_byte_order_mark_and_blank_lines_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('\ufeff{"id": 1, "prompt": "x"}\r\n\r\n{"id": 2, "prompt": "y", "task": "t"}\r\n', encoding="utf-8")
    assert read_prompts(path) == [PromptItem("1", "x"), PromptItem("2", "y", "t")]


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no prompts in it"):
        read_prompts(path)


def test_tasks_keep_their_order() -> None:
    items = [PromptItem("1", "x", "b"), PromptItem("2", "x", "a"), PromptItem("3", "x", "b")]
    assert {task: [item.id for item in group] for task, group in group_by_task(items).items()} == {
        "b": ["1", "3"],
        "a": ["2"],
    }


def test_chat_wraps_text_once() -> None:
    chat = PromptItem("1", "hello").chat()
    assert chat.prompt == [{"role": "user", "content": "hello"}]
    assert chat.chat() == chat
