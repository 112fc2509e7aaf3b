from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from engine.stop import StopText

texts = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4).map(tuple)
cut_lists = st.lists(st.integers(0, 30), max_size=10)


def batch_cut(text: str, stops: tuple[str, ...]) -> str | None:
    """The text before the stop string that is complete first; None where there is none."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else None


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@example(text="abc", stops=("abc", "b"), cuts=[])
@given(text=texts, stops=stop_lists, cuts=cut_lists)
def test_pieces_equal_the_batch_cut(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    stream = StopText(stops)
    shown = "".join([stream.push(piece) for piece in split(text, cuts)]) + stream.flush()
    cut = batch_cut(text, stops)
    assert shown == (text if cut is None else cut)
    assert stream.stopped == (cut is not None)


@given(text=texts, stops=stop_lists, cuts=cut_lists)
def test_only_what_could_become_a_stop_is_held_back(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    stream, seen, shown = StopText(stops), "", ""
    for piece in split(text, cuts):
        seen += piece
        shown += stream.push(piece)
        if stream.stopped:
            break
        tails = [seen[place:] for place in range(len(seen))]
        held = next((tail for tail in tails if any(stop.startswith(tail) for stop in stops)), "")
        assert shown + held == seen


def test_after_a_stop_nothing_is_shown() -> None:
    stream = StopText(("b",))
    assert [stream.push(piece) for piece in ("a", "b", "a")] == ["a", "", ""]
    assert stream.flush() == ""


def test_no_stops_hold_nothing_back() -> None:
    stream = StopText(())
    assert [stream.push("ab"), stream.push("c"), stream.flush()] == ["ab", "c", ""]
