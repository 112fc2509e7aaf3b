"""OpenVINO GenAI as a program that `adaptive bench --peer-program` asks: prompt ids in, tokens and seconds out.

    .venv-peers/bin/python bench/openvino_worker.py FOLDER [--precision f32] [--lookup 10] [--threads 2]

Runs in an environment of its own and imports nothing of this project. FOLDER holds the exported model
(`bench/openvino_export.py`). What is said on the pipe is described in `adaptive/benchmark/process.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import IO, Any

MAX_NGRAM = 3  # longest match that prompt lookup tries
UNLIMITED = 1 << 30  # prompt tokens in one pass


def say(out: IO[str], record: dict[str, object]) -> None:
    out.write(json.dumps(record) + "\n")
    out.flush()


def own_output() -> IO[str]:
    """Standard output for our lines alone: whatever the library prints goes to standard error."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


class Decoder:
    """A loaded pipeline. With `precision` arithmetic and cache are that type, else the library decides."""

    def __init__(self, folder: str, precision: str | None, lookup: int, threads: int | None) -> None:
        import openvino
        import openvino_genai

        self.openvino, self.genai = openvino, openvino_genai
        self.lookup = lookup
        settings: dict[str, Any] = {}
        if precision is not None:
            settings |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        if lookup:
            settings["prompt_lookup"] = True
        self.pipeline = openvino_genai.LLMPipeline(folder, "CPU", scheduler_config=self._scheduler(), **settings)
        self.settings = settings

    def _scheduler(self) -> Any:
        """The pipeline's usual one, but without prefix caching: every repeat asks the same prompts again."""
        config = self.genai.SchedulerConfig()
        config.enable_prefix_caching = False
        config.max_num_batched_tokens = UNLIMITED
        return config

    def facts(self) -> dict[str, object]:
        core = self.openvino.Core()
        names = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
        defaults = {name: _type_name(core.get_property("CPU", name)) for name in names}
        return {"openvino": self.openvino.__version__, "defaults": defaults, "settings": self.settings}

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int, stop_ids: Sequence[int]) -> list[list[int]]:
        """Greedy, all prompts side by side, padded on the left."""
        import numpy as np

        config = self.genai.GenerationConfig()
        config.do_sample, config.max_new_tokens = False, max_tokens
        config.stop_token_ids, config.ignore_eos = set(stop_ids), not stop_ids
        if self.lookup:
            config.num_assistant_tokens, config.max_ngram_size = self.lookup, MAX_NGRAM
        longest = max(map(len, prompts))
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt, 1
        inputs = self.genai.TokenizedInputs(self.openvino.Tensor(ids), self.openvino.Tensor(mask))
        answers = self.pipeline.generate(inputs, config).tokens
        return [up_to_stop(list(map(int, answer)), stop_ids) for answer in answers]


def up_to_stop(answer: list[int], stop_ids: Sequence[int]) -> list[int]:
    place = next((place for place, token in enumerate(answer) if token in stop_ids), len(answer))
    return answer[: place + 1]


def _type_name(value: object) -> str:
    name = getattr(value, "get_type_name", None)
    return str(name() if callable(name) else value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--precision", help="f32 or bf16; as the library likes without")
    parser.add_argument("--lookup", type=int, default=0, help="tokens that prompt lookup drafts; 0 is plain decoding")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    out = own_output()
    try:
        decoder = Decoder(args.folder, args.precision, args.lookup, args.threads)
        say(out, {"ready": decoder.facts()})
        for line in sys.stdin:
            request = json.loads(line)
            start = perf_counter()
            tokens = decoder.decode(request["prompts"], request["max_tokens"], request["stop_ids"])
            say(out, {"tokens": tokens, "seconds": perf_counter() - start})
    except Exception as error:
        say(out, {"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
