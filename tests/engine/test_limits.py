"""Where an answer ends: budgets, stop tokens and strings, exact wherever in an accepted block they fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import tokenizers
from torch import Tensor

from adaptive import AdaptiveController
from adaptive.check import check_engine
from adaptive.requests import Completion, Request, Sampling
from engine.tokenizer import Tokenizer
from policies import EmaTiers, Fixed
from tests.engine.tiny import UNTIED, Cycling, cycle_weights, random_weights, run_all, tiny_engine, tokens_of

# Token 7 and 8 are the two bytes of one letter.
PIECES = ["a", "b", "c", "d", "ab", "bc", "Ġ", "Ã", "©", "cab", "<eos>"]
EOS = 10
ORDER = [4, 2, 6, 0, 5, 7, 8, 3, 9, 1, 10]
TEXT = "abc abcédcabb"  # of one round, <eos> left out
PROMPT = [*ORDER, *ORDER[:2]]
ANSWER = (ORDER[2:] + ORDER * 6)[:60]


def tokenizer(eos: bool = True) -> Tokenizer:
    vocab = {piece: token for token, piece in enumerate(PIECES)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.add_special_tokens(["<eos>"])
    ids = frozenset({EOS})
    return Tokenizer(backend, special_ids=ids, eos_ids=ids if eos else frozenset())


def answer(
    sampling: Sampling, gammas: Sequence[int], prompt: Sequence[int] = PROMPT, eos: bool = True
) -> tuple[Completion, list[str], Cycling]:
    """One answer of the cycle model: the whole, its streamed pieces, and the controller that saw it."""
    engine = tiny_engine(UNTIED, weights=cycle_weights(ORDER), tokenizer=tokenizer(eos))
    controller = Cycling(gammas)
    engine.attach(controller)
    outputs = run_all(engine, [Request(prompt, sampling, id="one")])["one"]
    last = outputs[-1]
    assert last.finish_reason is not None
    assert last.stats is not None
    assert all(output.stats is None and not output.finished for output in outputs[:-1])
    pieces = [output.text for output in outputs]
    tokens = tuple(tokens_of(outputs))
    assert last.stats.tokens == len(tokens)
    return Completion("one", "".join(pieces), tokens, last.finish_reason, last.stats), pieces, controller


def cut_a_block(controller: Cycling) -> bool:
    """Whether some step's accepted tokens were not all emitted, as the answer ended among them."""
    return any((report.emitted < report.accepted + 1).any() for report in controller.reports)


# --- budget ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", range(6))
def test_the_budget_is_exact(gamma: int) -> None:
    for budget in range(1, 15):
        done, _, controller = answer(Sampling(max_tokens=budget, ignore_eos=True), (gamma,))
        assert done.tokens == tuple(ANSWER[:budget])
        assert done.finish_reason == "length"
        assert not cut_a_block(controller), "the device itself keeps to the budget"
        if gamma:
            assert len(controller.reports) == -(-budget // (gamma + 1)), "every draft token was accepted"


@pytest.mark.parametrize("gamma", [0, 5])
def test_a_full_context_shortens_the_budget(gamma: int) -> None:
    prompt = (ORDER * 8)[:88]
    done, _, _ = answer(Sampling(max_tokens=50, ignore_eos=True), (gamma,), prompt)
    assert done.tokens == tuple((ORDER * 9)[88:96])
    assert done.finish_reason == "length"


# --- stop tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gammas", [(1,), (2,), (5,), (0, 3, 1, 4)], ids=str)
def test_a_stop_token_ends_the_answer_wherever_it_falls(gammas: tuple[int, ...]) -> None:
    blocks_cut = 0
    for place in range(len(ORDER)):
        sampling = Sampling(max_tokens=30, stop_token_ids=(ANSWER[place],), ignore_eos=True)
        plain, _, _ = answer(sampling, (0,))
        done, _, controller = answer(sampling, gammas)
        assert done.tokens == plain.tokens == tuple(ANSWER[: place + 1])
        assert done.text == plain.text
        assert done.finish_reason == plain.finish_reason == "stop"
        blocks_cut += cut_a_block(controller)
    assert blocks_cut >= 3


@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_eos_ends_the_answer_and_has_no_text(gamma: int) -> None:
    until_eos = ANSWER.index(EOS) + 1
    done, _, _ = answer(Sampling(max_tokens=30), (gamma,))
    assert done.tokens == tuple(ANSWER[:until_eos])
    assert done.finish_reason == "stop"
    assert done.text == TEXT[3:]
    unaware, _, _ = answer(Sampling(max_tokens=30), (gamma,), eos=False)
    assert len(unaware.tokens) == 30


@pytest.mark.parametrize("gamma", [0, 5])
def test_ignore_eos_goes_on_but_stop_tokens_still_stop(gamma: int) -> None:
    done, _, _ = answer(Sampling(max_tokens=20, ignore_eos=True), (gamma,))
    assert done.tokens == tuple(ANSWER[:20])
    assert EOS in done.tokens[:-1]
    asked, _, _ = answer(Sampling(max_tokens=20, ignore_eos=True, stop_token_ids=(EOS,)), (gamma,))
    assert asked.tokens[-1] == EOS
    assert asked.finish_reason == "stop"


@pytest.mark.parametrize("gamma", [0, 5])
def test_a_stop_token_on_the_last_of_the_budget_counts_as_stop(gamma: int) -> None:
    place = 7
    done, _, _ = answer(Sampling(max_tokens=place + 1, stop_token_ids=(ANSWER[place],)), (gamma,))
    assert done.finish_reason == "stop"
    assert len(done.tokens) == place + 1


# --- stop strings ----------------------------------------------------------------------------------------------------

SHOWN = (TEXT[3:] + TEXT * 4)[:60]
STOPS = [" ", " a", "abc", "é", "bcéd", "dca", "cabb", "bab", "babc abc", "not there", "abb", "édcabbabc"]


@pytest.mark.parametrize("gammas", [(0,), (1,), (5,), (3, 0, 2)], ids=str)
@pytest.mark.parametrize("stop", STOPS)
def test_text_is_cut_before_a_stop_string(stop: str, gammas: tuple[int, ...]) -> None:
    done, pieces, _ = answer(Sampling(max_tokens=40, stop=(stop,), ignore_eos=True), gammas)
    whole, _, _ = answer(Sampling(max_tokens=40, ignore_eos=True), (0,))
    assert whole.text == SHOWN[: len(whole.text)]
    place = whole.text.find(stop)
    assert done.text == (whole.text if place < 0 else whole.text[:place])
    assert done.finish_reason == ("length" if place < 0 else "stop")
    assert "".join(pieces) == done.text
    if place >= 0:  # the last token is the one that completed the stop string
        text = tokenizer()
        assert stop in text.decode(done.tokens)
        assert stop not in text.decode(done.tokens[:-1])


def test_the_first_of_several_stop_strings_counts() -> None:
    done, _, _ = answer(Sampling(max_tokens=40, stop=("cabb", "éd", "never"), ignore_eos=True), (5,))
    assert done.text == SHOWN[: SHOWN.index("éd")]


def test_a_tail_that_only_resembles_a_stop_string_is_shown_at_the_end() -> None:
    done, pieces, _ = answer(Sampling(max_tokens=3, stop=("abc!",), ignore_eos=True), (0,))
    assert (done.text, pieces) == (" abc", [" ", "", "abc"])


def test_half_a_letter_at_the_end_is_a_replacement_character() -> None:
    done, pieces, _ = answer(Sampling(max_tokens=4, ignore_eos=True), (0,))
    assert (done.text, pieces) == (" abc\ufffd", [" ", "a", "bc", "\ufffd"])


# --- rows of one batch -----------------------------------------------------------------------------------------------


def test_rows_that_opt_out_never_draft_while_neighbours_do() -> None:
    engine = tiny_engine(UNTIED, weights=cycle_weights(ORDER))
    controller = Cycling((5, 2))
    engine.attach(controller)
    requests = [
        Request(PROMPT, Sampling(max_tokens=18), id=str(place), speculation=place % 2 == 0) for place in range(4)
    ]
    outputs = run_all(engine, requests)
    for place in range(4):
        stats = outputs[str(place)][-1].stats
        assert stats is not None
        assert tokens_of(outputs[str(place)]) == ANSWER[:18]
        assert (stats.drafted > 0) == (place % 2 == 0)
        assert stats.steps == 18 or place % 2 == 0
    assert not any(report.verified[report.rows % 2 == 1].any() for report in controller.reports)


def test_a_greedy_row_beside_sampled_ones_gives_its_plain_tokens() -> None:
    sampled = [
        Sampling(max_tokens=25, temperature=1.5, seed=1),
        Sampling(max_tokens=25, temperature=0.7, top_k=3, seed=2),
        Sampling(max_tokens=25, temperature=1.0, top_p=0.8, seed=3),
    ]
    greedy = Request([1, 2, 3, 1, 2], Sampling(max_tokens=25), id="greedy")
    for gammas in [(0,), (3,), (1, 5, 0)]:
        answers = []
        for neighbours in ([], sampled):
            engine = tiny_engine()
            engine.attach(Cycling(gammas))
            requests = [Request([4, 4, 5], sampling, id=f"{place}") for place, sampling in enumerate(neighbours)]
            answers.append(tokens_of(run_all(engine, [*requests, greedy])["greedy"]))
        assert answers[0] == answers[1]


@pytest.mark.parametrize("gamma", [0, 3])
def test_a_sampled_row_does_not_depend_on_its_neighbours(gamma: int) -> None:
    mine = Request([1, 2, 3], Sampling(max_tokens=20, temperature=0.9, seed=7), id="mine")
    others = [
        Request([4, 4, 5], Sampling(max_tokens=9, temperature=2.0, top_k=5, seed=8)),
        Request([6], Sampling(max_tokens=30)),
        Request([1, 2, 3], Sampling(max_tokens=20, temperature=0.9, seed=9), id="same but for the seed"),
    ]
    answers = []
    for requests in ([mine], [*others, mine]):
        engine = tiny_engine()
        engine.attach(Cycling((gamma,)))
        outputs = run_all(engine, requests)
        answers.append(tokens_of(outputs["mine"]))
    assert answers[0] == answers[1]
    assert answers[1] != tokens_of(outputs["same but for the seed"])


@pytest.mark.parametrize("gammas", [(0,), (4,), (2, 0, 5)], ids=str)
def test_the_same_seed_and_course_give_the_same_text(gammas: tuple[int, ...]) -> None:
    def sampled(seed: int | None) -> list[int]:
        engine = tiny_engine()
        engine.attach(Cycling(gammas))
        sampling = Sampling(max_tokens=30, temperature=1.3, seed=seed)
        return tokens_of(run_all(engine, [Request([1, 2, 1], sampling, id="one")])["one"])

    assert sampled(11) == sampled(11)
    assert sampled(11) != sampled(12)
    assert sampled(None) != sampled(None)


def test_a_row_is_reused_without_a_trace() -> None:
    engine = tiny_engine(max_batch=1)
    controller = Cycling((5, 0, 2))
    engine.attach(controller)
    long = Request([3, 1] * 40, Sampling(max_tokens=10, temperature=2.0, top_k=3, seed=1))
    short = Request([1, 2, 3, 1, 2], Sampling(max_tokens=30))
    fresh = tokens_of(run_all(engine, [replace(short, id="fresh")])["fresh"])
    run_all(engine, [long])
    again = run_all(engine, [replace(short, id="again")])
    assert tokens_of(again["again"]) == fresh
    assert controller.forgotten == [0, 0, 0]


@pytest.mark.parametrize("length", [66, 80])
def test_a_row_longer_than_the_context_bucket_does_no_harm(length: int) -> None:
    """A finished row, and one whose long prompt is still being read, stand beside a short one that drafts."""
    engine = tiny_engine(max_batch=2)
    engine.attach(Cycling((3,)))
    alone = tokens_of(run_all(engine, [Request([1, 2, 1], Sampling(max_tokens=25), id="alone")])["alone"])
    long = Request([1, 2] * (length // 2), Sampling(max_tokens=2))
    outputs = run_all(engine, [long, Request([1, 2, 1], Sampling(max_tokens=25), id="beside")])
    assert tokens_of(outputs["beside"]) == alone


# --- mistakes and cancelling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([]), "0 tokens and must have 1 to 95 .* give at least one token"),
        (Request([1] * 96), "96 tokens and must have 1 to 95 .* shorten it or raise context_len"),
        (Request([1, 11]), "token id 11 is outside the vocabulary of 11"),
        (Request([-1]), "token id -1 is outside the vocabulary"),
        (Request([1], Sampling(stop=("x",))), "needs a tokenizer: use stop_token_ids"),
        (Request("text"), "without a tokenizer: give prompts as token ids"),
    ],
    ids=["empty", "too long", "too large id", "negative id", "stop", "text"],
)
def test_mistakes_are_named(request_: Request, message: str) -> None:
    engine = tiny_engine()
    with pytest.raises(ValueError, match=message):
        engine.submit(request_)
    assert engine.scheduler.idle


def test_the_longest_prompt_still_gets_one_token() -> None:
    engine = tiny_engine()
    engine.attach(Cycling((5,)))
    outputs = run_all(engine, [Request([1, 2, 3] * 31 + [1, 2], id="full")])["full"]
    assert len(tokens_of(outputs)) == 1
    assert outputs[-1].finish_reason == "length"


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = tiny_engine()
    engine.attach(Cycling((0,)))
    mine = Request([1], Sampling(max_tokens=2), id="mine")
    engine.submit(mine)
    with pytest.raises(ValueError, match="id='mine' is already in use"):
        engine.submit(mine)
    assert len(run_all(engine, [])) == 0
    while not engine.scheduler.idle:
        engine.step()
    assert engine.submit(mine) == "mine"


def test_a_name_given_by_the_engine_avoids_those_in_use() -> None:
    engine = tiny_engine()
    engine.submit(Request([1], id="request-1"))
    assert engine.submit(Request([1])) not in ("request-1", engine.submit(Request([1])))


def test_stepping_without_a_controller_is_refused() -> None:
    with pytest.raises(ValueError, match="no controller is attached"):
        tiny_engine().step()


def test_cancelling() -> None:
    engine = tiny_engine(max_batch=1)
    controller = Cycling((2,))
    engine.attach(controller)
    for name in ("running", "waiting", "last"):
        engine.submit(Request([1, 2, 1], Sampling(max_tokens=8), id=name))
    begun = list(engine.step())
    assert [output.request_id for output in begun] == ["running"]
    engine.cancel("waiting")
    engine.cancel("running")
    engine.cancel("running")
    engine.cancel("unknown")
    outputs: dict[str, list[tuple[int, str | None]]] = {}
    while not engine.scheduler.idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append((len(output.tokens), output.finish_reason))
    assert outputs["waiting"] == outputs["running"] == [(0, "cancelled")]
    assert sum(count for count, _ in outputs["last"]) == 8
    assert outputs["last"][-1][1] == "length"
    assert controller.forgotten == [0, 0], "the waiting request never had a row"


def test_cancelling_while_the_prompt_is_read() -> None:
    engine = tiny_engine(max_batch=1, prefill_chunk=4)
    engine.attach(Cycling((0,)))
    engine.submit(Request([1] * 30, id="long"))
    assert engine.step() == []
    engine.cancel("long")
    (output,) = engine.step()
    assert (output.finish_reason, output.tokens) == ("cancelled", ())
    assert engine.scheduler.idle


def test_the_text_held_back_is_shown_on_cancelling() -> None:
    engine = tiny_engine(UNTIED, weights=cycle_weights(ORDER), tokenizer=tokenizer())
    engine.attach(Cycling((0,)))
    engine.submit(Request(PROMPT, Sampling(stop=("abc!",), ignore_eos=True), id="one"))
    pieces = [output.text for _ in range(3) for output in engine.step()]
    engine.cancel("one")
    assert [*pieces, engine.step()[0].text] == [" ", "", "a"]


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [random_weights(UNTIED), cycle_weights(ORDER)], ids=["random", "cycle"])
def test_the_engine_conforms(weights: dict[str, Tensor]) -> None:
    assert len(check_engine(lambda: tiny_engine(UNTIED, weights=weights))) > 8


def test_the_engine_without_a_drafter_offers_plain_decode_only() -> None:
    engine = tiny_engine(draft=False)
    assert engine.capabilities().gammas == (0,)
    assert not engine.capabilities().drafters
    done = AdaptiveController(engine, policy=EmaTiers()).generate([[1, 2, 3]], Sampling(max_tokens=9))
    plain = AdaptiveController(tiny_engine(), policy=Fixed(0)).generate([[1, 2, 3]], Sampling(max_tokens=9))
    assert done[0].tokens == plain[0].tokens
