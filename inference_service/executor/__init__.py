"""The executor: in-flight batching over a paged KV cache. Torch-free; only a runner computes.

executor.py     step(): schedule, forward, sample, apply, emit
scheduler.py    who computes how many tokens in a step      capacity.py    who may hold KV blocks
kv_cache.py     blocks of sequences, prefix hits            block_pool.py  block ids, reference counts, eviction
prefix.py       keys of blocks                              packing.py     the packed arrays of a step
request.py      one sequence's state                        thread.py      the thread and its inbox
messages.py     what crosses to the frontend
"""
