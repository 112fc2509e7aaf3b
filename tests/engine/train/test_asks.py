from __future__ import annotations

import random

import pytest

from adaptive.benchmark.prompts import built_in_prompts
from engine.train.asks.ask import Ask, Guard
from engine.train.asks.code import code_ask, source_text
from engine.train.asks.edits import edit_ask, with_typos
from engine.train.asks.snippets import Paragraph, Snippets, standard_library
from engine.train.asks.templates import Turn
from tests.engine.train.tiny_school import tiny_tokenizer


@pytest.fixture(scope="module")
def snippets() -> Snippets:
    return standard_library(seed=0, modules=25)


def many_asks(snippets: Snippets, seed: int) -> list[Ask]:
    rng = random.Random(seed)
    own = [Paragraph("The harbour was quiet. A boat came in and the keeper waved to it.", "turn")]
    makers = (
        lambda: code_ask(snippets, rng),
        lambda: source_text(snippets, rng),
        lambda: edit_ask(snippets, own, rng),
    )
    return [rng.choice(makers)() for _ in range(300)]


def test_asks_are_drawn_by_seed(snippets: Snippets) -> None:
    assert many_asks(snippets, 1) == many_asks(snippets, 1)
    assert many_asks(snippets, 1) != many_asks(snippets, 2)
    assert standard_library(0, 25) == snippets


def test_asks_are_many_and_of_all_kinds(snippets: Snippets) -> None:
    asks = many_asks(snippets, 3)
    assert {ask.task for ask in asks} == {"code", "text", "edit"}
    assert len({ask.text for ask in asks}) > 280
    assert all(ask.text.strip() for ask in asks)
    assert {ask.raw for ask in asks if ask.task == "text"} == {True}


def test_snippets_are_whole(snippets: Snippets) -> None:
    assert len(snippets.functions) > 50
    assert len(snippets.paragraphs) > 100
    for function in snippets.functions:
        compile(function.code, function.source, "exec")
    assert len(set(snippets.words)) == len(snippets.words) > 200


def test_the_guard_knows_the_prompts_that_measure() -> None:
    prompts = [str(item.prompt) for item in built_in_prompts()]
    guard = Guard(prompts)
    assert not any(guard.admits(prompt) for prompt in prompts)
    assert not guard.admits("He said: " + " ".join(prompts[-1].upper().split()[4:14]) + " and left.")
    assert guard.admits("Write a short story about a baker who finds a letter in a loaf of bread.")


def test_no_ask_holds_a_prompt_that_measures(snippets: Snippets) -> None:
    guard = Guard(str(item.prompt) for item in built_in_prompts())
    assert all(guard.admits(ask.text) for ask in many_asks(snippets, 4))


def test_typos_change_some_words_only() -> None:
    text = "Passengers should be at the gate twenty minutes before departure because the crew closes early"
    wrong = with_typos(text, random.Random(1))
    changed = [one for one, other in zip(text.split(), wrong.split(), strict=True) if one != other]
    assert 0 < len(changed) < len(text.split()) / 2


def test_a_turn_is_the_template_around_a_message() -> None:
    tokenizer = tiny_tokenizer()
    expected = tokenizer.apply_chat([{"role": "user", "content": "Hello {there}"}])
    assert Turn.of(tokenizer).around("Hello {there}") == expected
