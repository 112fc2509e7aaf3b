"""Every list that is typed is read, and refused, alike."""

from __future__ import annotations

import re

import pytest

from adaptive.lists import numbers, whole_numbers, words


def test_words_are_what_commas_outside_brackets_separate() -> None:
    assert words([" fixed:0 , schedule:[[1,4,5],[5,9,2]],ema ,"]) == ["fixed:0", "schedule:[[1,4,5],[5,9,2]]", "ema"]
    assert words(["a]", "b,c"]) == ["a]", "b", "c"], "one value's brackets are its own"
    assert words(["", " , "]) == []


def test_whole_numbers_ascend_and_come_once() -> None:
    assert whole_numbers("--batches", " 8,1, 8,0") == (0, 1, 8)
    assert numbers("--rates", "0.5, 0.9,0.5") == (0.5, 0.9, 0.5)


@pytest.mark.parametrize("text", ["", "two", "1,", "1;2", "1.5", "0,2", "-1"])
def test_one_message_says_what_is_wrong_and_how_to_write_it(text: str) -> None:
    message = f"--batches: {text!r} is not a list of whole numbers from 1: write it as 1,2,4"
    with pytest.raises(ValueError, match=re.escape(message)):
        whole_numbers("--batches", text, least=1)


def test_numbers_are_refused_in_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"--rates: '0.9;0.5' is not a list of numbers: write it as 0.9,0.5,0.2"):
        numbers("--rates", "0.9;0.5")
