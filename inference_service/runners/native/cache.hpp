// The layout of a KV block in the pools, for one key head of `head_dim` numbers and `block_size` tokens.
//
// float32:  keys [head_dim][block_size], values [block_size][head_dim]
// bfloat16: keys [head_dim/2][block_size][2], values [block_size/2][head_dim][2]
//
// Keys are transposed so that one load takes the same dimension of 16 keys; bfloat16 stands in pairs along the dimension
// that is summed over, as the matrix unit and the unpacking of two numbers from one load want it. A block is moved as a
// whole, so nobody else sees the layout.
#pragma once

#include "program.hpp"
#include "vec.hpp"

namespace eh {

inline int64_t key_at(float, int d, int token, int size) { return int64_t(d) * size + token; }
inline int64_t key_at(bf16, int d, int token, int size) { return (int64_t(d / 2) * size + token) * 2 + d % 2; }
inline int64_t value_at(float, int d, int token, int dim) { return int64_t(token) * dim + d; }
inline int64_t value_at(bf16, int d, int token, int dim) { return (int64_t(token / 2) * dim + d) * 2 + token % 2; }

// Numbers of one head in one block, and of a whole block.
inline int64_t head_elements(const Op& op) { return int64_t(op.block_size) * op.head_dim; }
inline int64_t block_elements(const Op& op) { return head_elements(op) * op.kv_heads; }

}  // namespace eh
