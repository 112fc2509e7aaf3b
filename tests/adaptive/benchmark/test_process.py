from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from adaptive.benchmark import CpuMeter, PeerError, ProcessArm, PromptItem, started
from adaptive.requests import Sampling

PROGRAM = (sys.executable, str(Path(__file__).with_name("fake_program.py")))
ITEMS = [PromptItem(name, [*map(ord, name * 3)]) for name in "abc"]


def encode(item: PromptItem) -> list[int]:
    return [part for part in item.prompt if isinstance(part, int)]


def test_a_program_answers_batch_by_batch() -> None:
    with started("fake", PROGRAM) as process:
        assert process.facts == {"version": "1.0"}
        arm = ProcessArm(process, encode, stop_ids=(ord("b"),), batch=2)
        run = arm.run(ITEMS, Sampling(max_tokens=2))
        ignoring = arm.run(ITEMS, Sampling(max_tokens=2, ignore_eos=True))
    assert arm.label == "fake"
    assert run.tokens == {"a": (97, 97), "b": (98,), "c": (99, 99)}
    assert run.seconds == 0.5, "two batches, by the program's own clock"
    assert ignoring.tokens["b"] == (98, 98)


def test_what_the_program_uses_is_not_foreign() -> None:
    program = started("fake", (*PROGRAM, "--misbehave", "works"))
    with program as process, CpuMeter() as alone, CpuMeter(process.pid) as together:
        ProcessArm(process, encode, batch=3).run(ITEMS, Sampling(max_tokens=2))
    one_core = 1 / (psutil.cpu_count() or 1)
    # It works for 0.4 s on one core, or on what others leave of it.
    assert alone.foreign - together.foreign > 0.2 * one_core


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("not ready", "fake reports: there is no such model. Its last lines:\n  loading a model"),
        ("silent", "fake ended. Its last lines:\n  loading a model"),
        ("greets", "fake said something else than that it is ready"),
    ],
)
def test_a_program_that_can_not_start(kind: str, message: str) -> None:
    with pytest.raises(PeerError) as caught, started("fake", (*PROGRAM, "--misbehave", kind)):
        pass
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dies", "fake ended. Its last lines:\n  loading a model\n  out of memory"),
        ("babbles", "fake wrote 'one moment please', which is not JSON"),
        ("forgets", 'fake answered {"tokens": [[97]], "seconds": 0.25} to 2 prompts'),
    ],
)
def test_a_program_that_breaks_the_agreement(kind: str, message: str) -> None:
    with started("fake", (*PROGRAM, "--misbehave", kind)) as process, pytest.raises(PeerError) as caught:
        process.decode([[97], [98]], 4, [])
    assert str(caught.value).startswith(message)


def test_a_command_that_is_not_there() -> None:
    with (
        pytest.raises(PeerError, match=r"fake could not be started \(/no/such/program\)"),
        started("fake", ["/no/such/program"]),
    ):
        pass


def test_a_request_that_a_dead_program_never_read_is_told_as_such() -> None:
    with started("fake", (*PROGRAM, "--misbehave", "dies")) as process:
        for prompts in ([[1]], [list(range(100_000))]):
            with pytest.raises(PeerError):
                process.decode(prompts, 2, [])
