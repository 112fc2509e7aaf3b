"""The parts of a decode step that a tree changes: what a row's tokens are, where they go, and what becomes of a path.

A row's tokens are its root and its nodes. While they are verified, node i has its key and value in the slot i + 1
after the root's, past all that is valid; what stands moves to where the next step expects it.

Shapes: B batch bucket, N packed tokens, T nodes, W = T + 1, P = depth + 1, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention import PackedAttention, tree_mask
from engine.batch import RowState
from engine.kv import KVCache
from engine.layout import PackedLayout, lay_out
from engine.models.decoder import Decoder
from engine.tree import TreeKey, TreeState
from engine.tree_links import TreeLinks


def pack_tree(state: RowState, tree: TreeState, batch: int, shape: TreeKey, tokens: int) -> PackedLayout:
    """Lay out the root and the row's count of nodes for every live row of the first `batch`."""
    # A capture's trial run may find the counts of another step, when the tree was larger and the row shorter.
    room_B = state.capacity - state.lens_R[:batch]
    nodes_B = torch.minimum(tree.counts_R[:batch], room_B).clamp(min=0, max=shape.nodes)
    count_B = (nodes_B + 1) * state.live_R[:batch]
    return lay_out(count_B, shape.nodes + 1, tokens, state.rows)


def forward_tree(
    decoder: Decoder,
    kv: KVCache,
    state: RowState,
    tree: TreeState,
    shape: TreeKey,
    layout: PackedLayout,
    batch: int,
    context: int,
) -> Tensor:
    """The target's hidden states of the packed roots and nodes `[N, E]`."""
    links, config = tree.links(batch, shape), decoder.config
    root_N = state.lens_R.index_select(0, layout.row_N) - 1
    depth_N = links.depth_BW[layout.row_N.clamp(max=batch - 1), layout.offset_N]
    slot_N = layout.row_N * state.capacity + root_N + layout.offset_N
    slot_N = torch.where(layout.row_N < batch, slot_N, kv.trash_slot)
    mask = tree_mask(
        state.lens_R[:batch] - 1,
        layout.offset_N[layout.grid_BW],
        links,
        context,
        config.sliding_window,
        config.num_heads // config.num_kv_heads,
        decoder.dtype,
    )
    nodes_N = tree.tokens_RT[layout.row_N, (layout.offset_N - 1).clamp(min=0)]
    tokens_N = torch.where(layout.offset_N == 0, state.history_RP[layout.row_N, root_N], nodes_N)
    attention = PackedAttention(kv, slot_N, layout.grid_BW, layout.place_N, mask)
    return decoder.forward(tokens_N, (root_N + depth_N).clamp(max=state.capacity - 1), attention)


@dataclass(frozen=True, slots=True)
class Path:
    """What stands of a row's tree. Past `accepted_B` nodes the offsets are the root's and the tokens mean nothing."""

    offset_BP: Tensor  # from the root down
    accepted_B: Tensor
    emitted_BP: Tensor  # the nodes' tokens and the one after them


def take_path(node_B: Tensor, next_B: Tensor, tokens_BT: Tensor, links: TreeLinks, depth: int) -> Path:
    """The path to the last node that stands, followed by `next_B`."""
    offset_BP = links.path(node_B, depth)
    accepted_B1, next_B1 = links.depth_BW.gather(1, node_B.unsqueeze(1)), next_B.unsqueeze(1)
    nodes_BG = tokens_BT.gather(1, (offset_BP[:, 1:] - 1).clamp(min=0))
    emitted_BP = torch.cat([nodes_BG, next_B1], 1).scatter(1, accepted_B1, next_B1)
    return Path(offset_BP, accepted_B1.squeeze(1), emitted_BP)
