"""A program that speaks the protocol of `adaptive.benchmark.process`: it answers with the prompt, the last token first.

    python fake_program.py [--misbehave KIND]

Standard library only, as other people's programs know nothing of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--misbehave", default="")
    args = parser.parse_args()
    print("loading a model", file=sys.stderr, flush=True)
    if args.misbehave == "not ready":
        say({"error": "there is no such model"})
        return
    if args.misbehave == "silent":
        return
    say({"ready": {"version": "1.0"}} if args.misbehave != "greets" else {"hello": "there"})
    for line in sys.stdin:
        request = json.loads(line)
        if args.misbehave == "dies":
            print("out of memory", file=sys.stderr, flush=True)
            raise SystemExit(3)
        if args.misbehave == "babbles":
            print("one moment please", flush=True)
        answers = [answer(prompt, request["max_tokens"], request["stop_ids"]) for prompt in request["prompts"]]
        if args.misbehave == "forgets":
            answers.pop()
        if args.misbehave == "works":
            end = time.perf_counter() + 0.4
            while time.perf_counter() < end:
                pass
        say({"tokens": answers, "seconds": 0.25})


def answer(prompt: list[int], max_tokens: int, stop_ids: list[int]) -> list[int]:
    tokens = prompt[::-1][:max_tokens]
    place = next((place for place, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return tokens[: place + 1]


def say(record: dict[str, object]) -> None:
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
