"""The target writing at large batch: one static batch from start to end, no serving around it.

A GPU writes fastest with thousands of short rows, more than the serving engine's captured step is made for; nothing is
drafted here, so this is plain decoding with keys and values in one block per layer.

Shapes: B rows, P longest prompt, C places of the cache, N packed tokens, H query heads, K key/value heads, D head size,
V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.attention.masked import fold_groups, unfold_groups
from engine.train.teacher import Teacher

PREFILL_TOKENS = 1 << 16
ROUND_TO = 64
LOOK_EVERY = 16  # steps between two looks at which rows are done: each look waits for the device
SHRINK_BELOW = 0.75  # share of rows still writing under which the others are dropped from the batch
UNLIKELY = 0.03  # sampling leaves out tokens less likely than this share of the likeliest


@dataclass(frozen=True, slots=True)
class Prompt:
    """`temperature` 0 is greedy."""

    ids: Sequence[int]
    temperature: float = 0.0


class Writer:
    """Answers prompts; the same seed gives the same text on the same device."""

    def __init__(self, teacher: Teacher, rows: int, seed: int = 0) -> None:
        """`rows` prompts are worked on at a time."""
        self.teacher = teacher
        self.rows = rows
        self._random = torch.Generator(teacher.device).manual_seed(seed)
        self._ends = torch.tensor(sorted(teacher.tokenizer.eos_ids), device=teacher.device)

    @torch.no_grad()
    def write(self, prompts: Sequence[Prompt], max_tokens: int) -> list[list[int]]:
        """What follows each prompt, its end token included where one was written. ValueError for an empty prompt."""
        if any(not prompt.ids for prompt in prompts):
            raise ValueError("an empty prompt can not be answered: give at least one token")
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place].ids))
        answers: dict[int, list[int]] = {}
        for begin in range(0, len(order), self.rows):
            places = order[begin : begin + self.rows]
            written = self._write([prompts[place] for place in places], max_tokens)
            answers |= dict(zip(places, written, strict=True))
        return [answers[place] for place in range(len(prompts))]

    def _write(self, prompts: list[Prompt], max_tokens: int) -> list[list[int]]:
        device = self.teacher.device
        lens_B = torch.tensor([len(prompt.ids) for prompt in prompts])
        room = int(lens_B.max()) + max_tokens
        state = _State.begin(self.teacher, lens_B.to(device), [prompt.temperature for prompt in prompts], room)
        written = torch.full((len(prompts), max_tokens), -1, dtype=torch.long, device=device)
        hidden_BE = self._read_prompts(prompts, state)
        for step in range(max_tokens):
            token_B = self._pick(self.teacher.decoder.logits(hidden_BE), state.temperature_B)
            token_B = torch.where(state.done_B, -1, token_B)
            written[state.row_B, step] = token_B
            state.done_B = state.done_B | torch.isin(token_B, self._ends)
            if step + 1 == max_tokens or (step % LOOK_EVERY == 0 and state.shrink() == 0):
                break
            hidden_BE = state.advance(self.teacher, written[state.row_B, step].clamp(min=0))
        return [[token for token in row if token >= 0] for row in written.tolist()]

    def _read_prompts(self, prompts: list[Prompt], state: _State) -> Tensor:
        """Fill the cache; the last token's hidden state of each prompt `[B, E]`."""
        device, hidden = self.teacher.device, []
        at_once = max(1, PREFILL_TOKENS // max(len(prompt.ids) for prompt in prompts))
        for begin in range(0, len(prompts), at_once):
            part = prompts[begin : begin + at_once]
            width = max(len(prompt.ids) for prompt in part)
            tokens_BP = torch.tensor([[*prompt.ids, *[0] * (width - len(prompt.ids))] for prompt in part])
            positions_N = torch.arange(width, device=device).repeat(len(part))
            attend = partial(state.see_prompt, begin=begin, rows=len(part))
            out_NE, _ = self.teacher.run(tokens_BP.flatten().to(device), positions_N, attend)
            last_B = torch.tensor([row * width + len(prompt.ids) - 1 for row, prompt in enumerate(part)], device=device)
            hidden.append(out_NE.index_select(0, last_B))
        return torch.cat(hidden)

    def _pick(self, logits_BV: Tensor, temperature_B: Tensor | None) -> Tensor:
        logits_BV = logits_BV.float()
        best_B = logits_BV.argmax(-1)
        if temperature_B is None:
            return best_B
        scaled_BV = logits_BV / temperature_B.clamp(min=1e-3).unsqueeze(1)
        scaled_BV -= scaled_BV.amax(-1, keepdim=True)
        weight_BV = scaled_BV.exp().masked_fill_(scaled_BV < math.log(UNLIKELY), 0.0)
        # One number a row, looked up in the sums of the weights: a number for every token would cost more than a layer.
        reached_BV = weight_BV.cumsum(-1)
        drawn_B1 = torch.rand(len(logits_BV), 1, generator=self._random, device=logits_BV.device) * reached_BV[:, -1:]
        sampled_B = torch.searchsorted(reached_BV, drawn_B1, right=True).squeeze(1).clamp(max=logits_BV.shape[1] - 1)
        return torch.where(temperature_B > 0, sampled_B, best_B)


@dataclass
class _State:
    """The rows still in the batch: which prompt each is, how long it is, its keys and values per layer.

    `longest` is known without asking the device, and at least the longest of `lens_B`. Without a row that samples,
    `temperature_B` is None.
    """

    row_B: Tensor
    lens_B: Tensor
    done_B: Tensor
    temperature_B: Tensor | None
    longest: int
    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def begin(cls, teacher: Teacher, lens_B: Tensor, temperatures: list[float], room: int) -> _State:
        config, dtype, device = teacher.config, teacher.decoder.dtype, lens_B.device
        if room > teacher.context_len:
            raise ValueError(f"prompts and answers of {room} tokens do not fit {teacher.context_len} tokens of context")
        places = -(-room // ROUND_TO) * ROUND_TO
        shape = (len(lens_B), config.num_kv_heads, places, config.head_dim)
        keys, values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)] for _ in "kv"
        )
        temperature_B = torch.tensor(temperatures, device=device) if any(temperatures) else None
        row_B = torch.arange(len(lens_B), device=device)
        done_B = torch.zeros_like(row_B, dtype=torch.bool)
        return cls(row_B, lens_B, done_B, temperature_B, int(lens_B.max()), keys, values)

    def see_prompt(self, layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, *, begin: int, rows: int) -> Tensor:
        q, k, v = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in (q_NHD, k_NKD, v_NKD))
        self.keys[layer][begin : begin + rows, :, : k.shape[2]] = k
        self.values[layer][begin : begin + rows, :, : v.shape[2]] = v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(q_NHD.shape[0], -1)

    def advance(self, teacher: Teacher, token_B: Tensor) -> Tensor:
        """Feed one token a row; its hidden state `[B, E]`."""
        reach = -(-(self.longest + 1) // ROUND_TO) * ROUND_TO
        hidden = torch.arange(reach, device=token_B.device) > self.lens_B.unsqueeze(1)
        mask = torch.zeros(hidden.shape, dtype=teacher.decoder.dtype, device=token_B.device)
        mask = mask.masked_fill(hidden, float("-inf"))[:, None, None, :]
        index_B = torch.arange(len(token_B), device=token_B.device)

        def attend(layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor) -> Tensor:
            keys, values = self.keys[layer], self.values[layer]
            keys[index_B, :, self.lens_B] = k_NKD
            values[index_B, :, self.lens_B] = v_NKD
            q = fold_groups(q_NHD.unsqueeze(1), k_NKD.shape[1])
            out = F.scaled_dot_product_attention(q, keys[:, :, :reach], values[:, :, :reach], attn_mask=mask)
            return unfold_groups(out, 1)

        hidden_BE, _ = teacher.run(token_B, self.lens_B, attend)
        self.lens_B = self.lens_B + (~self.done_B).long()
        self.longest += 1
        return hidden_BE

    def shrink(self) -> int:
        """Drop rows that are done where they are many; how many still write."""
        live_B = (~self.done_B).nonzero().squeeze(1)
        if 0 < len(live_B) < SHRINK_BELOW * len(self.done_B):
            self.row_B, self.lens_B, self.done_B = (
                x.index_select(0, live_B) for x in (self.row_B, self.lens_B, self.done_B)
            )
            self.longest = int(self.lens_B.max())
            if self.temperature_B is not None:
                self.temperature_B = self.temperature_B.index_select(0, live_B)
            for cache in (self.keys, self.values):
                for layer, tensor in enumerate(cache):
                    cache[layer] = tensor.index_select(0, live_B)
        return len(live_B)
