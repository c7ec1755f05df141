"""The allocator's laws."""

from __future__ import annotations

import pytest

from inference_service.executor.block_pool import NULL_BLOCK, BlockPool, CachedBlock
from inference_service.executor.prefix import BlockKey, pack_tokens


def content(name: str, tokens: list[int] | None = None, parent: str = "root") -> CachedBlock:
    return CachedBlock(BlockKey(name.encode()), BlockKey(parent.encode()), pack_tokens(tokens or [1, 2]))


def test_the_null_block_is_never_given() -> None:
    pool = BlockPool(4)
    assert pool.num_free == 3
    assert NULL_BLOCK not in (pool.allocate(3) or [])


def test_too_many_is_none_and_changes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(4) is None
    assert pool.num_free == 3


def test_a_freed_cached_block_stays_findable_until_evicted_last_used_last() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert blocks is not None
    for block, name in zip(blocks, "abc", strict=True):
        pool.publish(block, content(name, [block, block]))
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.release([block])
    assert pool.allocate(1) == [blocks[1]]
    assert pool.find(BlockKey(b"b"), pack_tokens([blocks[1]] * 2)) is None
    assert pool.find(BlockKey(b"a"), pack_tokens([blocks[0]] * 2)) == blocks[0]


def test_empty_blocks_go_before_cached_ones_and_a_tail_before_its_head() -> None:
    pool = BlockPool(5)
    table = pool.allocate(4)
    assert table is not None
    for block, name in zip(table[:3], "abc", strict=True):
        pool.publish(block, content(name))
    pool.release(table)
    assert pool.allocate(4) == [table[3], table[2], table[1], table[0]]


def test_a_key_with_other_tokens_is_a_miss() -> None:
    pool = BlockPool(3)
    block = (pool.allocate(1) or [0])[0]
    pool.publish(block, content("a", [1, 2]))
    assert pool.find(BlockKey(b"a"), pack_tokens([1, 3])) is None


def test_the_same_content_twice_keeps_the_first_block() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2) or [0, 0]
    pool.publish(first, content("a"))
    pool.publish(second, content("a"))
    pool.release([first, second])
    assert pool.find(BlockKey(b"a"), pack_tokens([1, 2])) == first
    pool.check_integrity([])
    assert pool.num_cached == 1


def test_a_block_in_use_twice_is_free_after_both() -> None:
    pool = BlockPool(3)
    block = (pool.allocate(1) or [0])[0]
    pool.acquire(block)
    pool.release([block])
    assert not pool.is_free(block)
    pool.check_integrity([[block]])
    pool.release([block])
    assert pool.is_free(block)


def test_a_lost_or_doubled_reference_is_found() -> None:
    pool = BlockPool(4)
    block = (pool.allocate(1) or [0])[0]
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([[block], [block]])
    pool.release([block])
    with pytest.raises(AssertionError, match="no reference"):
        pool.release([block])
