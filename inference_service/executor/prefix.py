"""Keys of KV blocks. A block's content depends on every token before it, so its key chains over them all.

root   = sha256(engine id, adapter, salt)          nothing is shared across these
key[i] = sha256(key[i-1], tokens of block i)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NewType

BlockKey = NewType("BlockKey", bytes)
PackedTokens = NewType("PackedTokens", bytes)
"""Token ids as native int32."""


def pack_tokens(token_ids: Sequence[int]) -> PackedTokens:
    return PackedTokens(array("i", token_ids).tobytes())


def root_key(engine_id: str, salt: str = "", adapter: str = "") -> BlockKey:
    """The key before the first block. Fields are length-prefixed, so no two triples share one."""
    digest = sha256()
    for text in (engine_id, adapter, salt):
        field = text.encode()
        digest.update(len(field).to_bytes(8, "little") + field)
    return BlockKey(digest.digest())


def child_key(parent: BlockKey, tokens: PackedTokens) -> BlockKey:
    return BlockKey(sha256(parent + tokens).digest())


def common_tokens(left: PackedTokens, right: PackedTokens) -> int:
    """Length in tokens of the longest common prefix."""
    count = 0
    for a, b in zip(memoryview(left).cast("i"), memoryview(right).cast("i"), strict=False):
        if a != b:
            break
        count += 1
    return count


class KeyChain:
    """The keys of one sequence's full blocks, each computed once."""

    __slots__ = ("_block_size", "_keys", "_tokens")

    def __init__(self, root: BlockKey, block_size: int) -> None:
        self._block_size = block_size
        self._keys = [root]
        self._tokens: list[PackedTokens] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Computes keys up to `num_blocks` full blocks of `token_ids`, whose known part never changes."""
        for index in range(len(self._tokens), num_blocks):
            tokens = pack_tokens(token_ids[index * self._block_size : (index + 1) * self._block_size])
            self._tokens.append(tokens)
            self._keys.append(child_key(self._keys[-1], tokens))

    def key(self, index: int) -> BlockKey:
        return self._keys[index + 1]

    def parent(self, index: int) -> BlockKey:
        return self._keys[index]

    def tokens(self, index: int) -> PackedTokens:
        return self._tokens[index]


def best_partial(candidates: Iterable[tuple[int, PackedTokens]], tokens: PackedTokens) -> tuple[int, int]:
    """The candidate (block, its tokens) that shares most with `tokens`: (block, tokens shared), or (0, 0)."""
    best = (0, 0)
    for block, cached in candidates:
        shared = common_tokens(cached, tokens)
        if shared > best[1]:
            best = (block, shared)
    return best
