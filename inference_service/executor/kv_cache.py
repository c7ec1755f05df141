"""KV blocks of sequences: prefix hits, allocation, publication of full blocks, release.

All groups page alike (same block size), so a sequence holds equally many blocks in each: what differs is the pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from inference_service.executor.block_pool import BlockPool, CachedBlock
from inference_service.executor.prefix import BlockKey, KeyChain, best_partial, pack_tokens, root_key
from inference_service.executor.request import Request
from inference_service.runners.base import BlockCopy

_MAX_PARTIAL_CANDIDATES = 16
"""Bounds the search where many sequences part within one block."""


class PrefixMatch(NamedTuple):
    """What the cache already holds of a sequence, at this moment: nothing is reserved yet.

    Per group: `blocks`, shared as they are; `sources`, a block whose first `num_partial` tokens are copied.
    """

    blocks: tuple[list[int], ...]
    sources: tuple[int, ...]
    num_partial: int

    @property
    def num_full(self) -> int:
        return len(self.blocks[0])

    def without_partial(self) -> PrefixMatch:
        return PrefixMatch(self.blocks, (), 0)


class KvCache:
    """`num_blocks`: one count per cache group, each with its null block. `reuse` off: nothing is ever cached."""

    def __init__(
        self, num_blocks: Sequence[int], block_size: int, engine_id: str, *, reuse: bool = True, partial: bool = True
    ) -> None:
        self.block_size = block_size
        self.pools = tuple(BlockPool(count) for count in num_blocks)
        self.num_reused_blocks = 0
        self.num_missed_blocks = 0
        self._engine_id = engine_id
        self._reuse = reuse
        self._partial = partial and reuse
        self._pinned: list[tuple[BlockPool, int]] = []

    @property
    def num_free(self) -> int:
        """Blocks that every group can give."""
        return min(pool.num_free for pool in self.pools)

    @property
    def max_tokens(self) -> int:
        """Tokens that one sequence alone can hold."""
        return min(pool.num_blocks - 1 for pool in self.pools) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def new_chain(self, salt: str) -> KeyChain:
        return KeyChain(root_key(self._engine_id, salt), self.block_size)

    def match(self, request: Request) -> PrefixMatch:
        """The longest cached prefix, at most all but one token: a step needs a token to draw the next one from."""
        if not self._reuse:
            return PrefixMatch(tuple([] for _ in self.pools), (), 0)
        limit = (request.num_tokens - 1) // self.block_size
        request.chain.extend(request.token_ids, limit)
        found = [self._match_full(pool, request.chain, limit) for pool in self.pools]
        num_full = min(len(blocks) for blocks in found)
        blocks = tuple(group[:num_full] for group in found)
        return self._match_partial(request, PrefixMatch(blocks, (), 0))

    def _match_full(self, pool: BlockPool, chain: KeyChain, limit: int) -> list[int]:
        blocks: list[int] = []
        for index in range(limit):
            block = pool.find(chain.key(index), chain.tokens(index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _match_partial(self, request: Request, match: PrefixMatch) -> PrefixMatch:
        start = match.num_full * self.block_size
        rest = pack_tokens(request.token_ids[start : min(start + self.block_size, request.num_tokens - 1)])
        if not self._partial or not rest:
            return match
        parent = request.chain.parent(match.num_full)
        found = [
            best_partial(islice(pool.siblings(parent, rest), _MAX_PARTIAL_CANDIDATES), rest) for pool in self.pools
        ]
        shared = min(count for _, count in found)
        return PrefixMatch(match.blocks, tuple(block for block, _ in found), shared) if shared else match

    def missing_key(self, request: Request, match: PrefixMatch) -> BlockKey | None:
        """The key of the first full block that `match` lacks, if a hit on it could be used."""
        usable = (request.num_tokens - 1) // self.block_size
        return request.chain.key(match.num_full) if self._reuse and match.num_full < usable else None

    def full_keys(self, request: Request, count: int) -> Iterator[BlockKey]:
        """The keys of the blocks that computing `count` more tokens fills."""
        num_full = (request.num_computed + count) // self.block_size
        if self._reuse:
            request.chain.extend(request.token_ids, num_full)
            yield from (request.chain.key(index) for index in range(request.num_computed // self.block_size, num_full))

    def num_needed(self, match: PrefixMatch, num_tokens: int) -> int:
        """Free blocks, in the group that needs most, that a sequence of `num_tokens` takes with this match.

        A hit on a block in use costs nothing, a hit on a cached one takes it from the free list, and so does pinning
        the source of a copy.
        """
        fresh = self.blocks_for(num_tokens) - match.num_full
        taken = max(
            sum(pool.is_free(block) for block in (*blocks, *match.sources[group : group + 1]))
            for group, (pool, blocks) in enumerate(zip(self.pools, match.blocks, strict=True))
        )
        return fresh + taken

    def admit(self, request: Request, match: PrefixMatch) -> list[BlockCopy]:
        """Gives a sequence without blocks those for all its tokens, with `match` as the start of it.

        The caller has checked `num_needed`. The source of a copy stays pinned until `end_step`, so no block of a step
        is both source and destination of copies, and copies may run in any order.
        """
        assert not any(request.blocks), f"request {request.id} already holds blocks {request.blocks}"
        copies: list[BlockCopy] = []
        num_fresh = self.blocks_for(request.num_tokens) - match.num_full
        for pool, hits in zip(self.pools, match.blocks, strict=True):
            for block in hits:
                pool.acquire(block)
        for group, source in enumerate(match.sources):
            self.pools[group].acquire(source)
            self._pinned.append((self.pools[group], source))
        for group, (pool, table, hits) in enumerate(zip(self.pools, request.blocks, match.blocks, strict=True)):
            fresh = pool.allocate(num_fresh)
            assert fresh is not None, f"request {request.id}: {num_fresh} blocks wanted, {pool.num_free} free"
            table += hits + fresh
            if match.sources:
                copies.append(BlockCopy(group, match.sources[group], fresh[0]))
        request.num_computed = match.num_full * self.block_size + match.num_partial
        request.num_published = match.num_full
        self._count(request, match.num_full + bool(match.sources), num_fresh)
        return copies

    def _count(self, request: Request, reused: int, fresh: int) -> None:
        request.reused_blocks += reused
        request.allocated_blocks += fresh
        self.num_reused_blocks += reused
        self.num_missed_blocks += self.blocks_for(request.num_tokens) - reused

    def grow(self, request: Request) -> bool:
        """Blocks for all tokens of a running sequence. False: does not fit, nothing changed."""
        missing = self.blocks_for(request.num_tokens) - len(request.blocks[0])
        if missing <= 0:
            return True
        if missing > self.num_free:
            return False
        for pool, table in zip(self.pools, request.blocks, strict=True):
            table += pool.allocate(missing) or []
        request.allocated_blocks += missing
        return True

    def publish(self, request: Request) -> None:
        """Caches the blocks that are now full of computed tokens, generated ones too. Call only after the step ran."""
        num_full = request.num_computed // self.block_size
        if not self._reuse or num_full <= request.num_published:
            return
        chain = request.chain
        chain.extend(request.token_ids, num_full)
        for index in range(request.num_published, num_full):
            content = CachedBlock(chain.key(index), chain.parent(index), chain.tokens(index))
            for pool, table in zip(self.pools, request.blocks, strict=True):
                pool.publish(table[index], content)
        request.num_published = num_full

    def free(self, request: Request, *, trusted: bool = True) -> None:
        """Returns all blocks. Cached content stays for later hits, unless it is not `trusted` (NaN, a failed step)."""
        for pool, table in zip(self.pools, request.blocks, strict=True):
            if not trusted:
                for block in table:
                    pool.forget(block)
            pool.release(table)
            table.clear()
        request.num_computed = request.num_published = 0

    def end_step(self) -> None:
        """The step's copies have run, or never will: their sources may be evicted again."""
        for pool, block in self._pinned:
            pool.release([block])
        self._pinned.clear()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Asserts that block tables and pins account for every reference. O(blocks): for idle moments and tests."""
        live = list(requests)
        for group, pool in enumerate(self.pools):
            pinned = [block for owner, block in self._pinned if owner is pool]
            pool.check_integrity([*(request.blocks[group] for request in live), pinned])
