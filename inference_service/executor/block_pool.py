"""Who owns which KV block: an allocator of block ids that never touches a tensor.

Every block is in exactly one of three states:

    used      ref count > 0: in that many block tables (or pinned as the source of a copy)
    cached    ref count 0, with a key: content kept for a later hit, evicted least recently used first
    empty     ref count 0, no key

Cached and empty blocks share one free list, so `num_free` is what can be allocated. A used block may carry a key too.
Block 0 is the null block: never given out, so a padded block table points at it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from inference_service.executor.prefix import BlockKey, PackedTokens

NULL_BLOCK = 0


class CachedBlock(NamedTuple):
    """What a keyed block holds: `tokens` under `parent`'s prefix."""

    key: BlockKey
    parent: BlockKey
    tokens: PackedTokens

    @property
    def sibling_key(self) -> tuple[BlockKey, bytes]:
        """Blocks that can share a part with this one: same parent, same first token."""
        return self.parent, self.tokens[:4]


class BlockPool:
    """Allocator of one cache group. `num_blocks` counts the null block."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, f"a pool of {num_blocks} blocks has none to give: block 0 is reserved"
        self.num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        """Next to be given out first: empty blocks, then cached ones, least recently used first."""
        self._content: dict[int, CachedBlock] = {}
        self._by_key: dict[BlockKey, int] = {}
        self._siblings: dict[tuple[BlockKey, bytes], dict[int, None]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - 1 - len(self._free)

    @property
    def num_cached(self) -> int:
        """Keyed blocks, used or not."""
        return len(self._content)

    def is_free(self, block: int) -> bool:
        return self._refs[block] == 0

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each; evicts cached ones where it must. None: not that many are free."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.forget(block)
            self._refs[block] = 1
        return blocks

    def acquire(self, block: int) -> None:
        """One more reference, as on a hit."""
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less on each block of a table. A table's tail is evicted before its head, which more share."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released with no reference"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if block not in self._content:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, content: CachedBlock) -> None:
        """Makes a full, used block findable. Where the same content is cached already, the older block stays."""
        assert self._refs[block] > 0, f"block {block} published with no reference"
        if content.key in self._by_key or block in self._content:
            return
        self._content[block] = content
        self._by_key[content.key] = block
        self._siblings.setdefault(content.sibling_key, {})[block] = None

    def find(self, key: BlockKey, tokens: PackedTokens) -> int | None:
        """The block with this key; the stored tokens are compared, so a hash collision is a miss."""
        block = self._by_key.get(key)
        return block if block is not None and self._content[block].tokens == tokens else None

    def siblings(self, parent: BlockKey, tokens: PackedTokens) -> Iterator[tuple[int, PackedTokens]]:
        """Cached (block, tokens) under `parent` that begin with the first of `tokens`, newest first."""
        for block in reversed(self._siblings.get((parent, tokens[:4]), {})):
            yield block, self._content[block].tokens

    def forget(self, block: int) -> None:
        """Takes the key off a block: on eviction, or when its content cannot be trusted."""
        content = self._content.pop(block, None)
        if content is None:
            return
        del self._by_key[content.key]
        siblings = self._siblings[content.sibling_key]
        del siblings[block]
        if not siblings:
            del self._siblings[content.sibling_key]
        if block in self._free:
            self._free.move_to_end(block, last=False)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts that the reference counts are exactly those of `tables` and that every block has one state."""
        expected = Counter(block for table in tables for block in table)
        actual = {block: refs for block, refs in enumerate(self._refs) if refs}
        assert actual == dict(expected), f"reference counts {actual}, block tables {dict(expected)}"
        assert NULL_BLOCK not in self._free, "the null block is in the free list"
        free, used = set(self._free), set(actual)
        assert not free & used, f"blocks both free and used: {free & used}"
        assert len(free) + len(used) == self.num_blocks - 1, f"{len(free)} free + {len(used)} used of {self.num_blocks}"
        keyed = {content.key: block for block, content in self._content.items()}
        assert keyed == self._by_key, f"{len(keyed)} keyed blocks, {len(self._by_key)} keys"
        listed = {block for siblings in self._siblings.values() for block in siblings}
        assert listed == set(self._content), f"{len(listed)} blocks listed by parent, {len(self._content)} keyed"
