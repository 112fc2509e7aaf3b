"""How packed tokens see the key/value cache."""

from engine.attention.masked import Attention, ChunkAttention, PackedAttention, causal_mask
from engine.attention.tree_mask import tree_mask

__all__ = ["Attention", "ChunkAttention", "PackedAttention", "causal_mask", "tree_mask"]
