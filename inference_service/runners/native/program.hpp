// The records that Python fills (native.py has the same, in the same order).
#pragma once

#include <sched.h>

#include <cstdint>

namespace eh {

enum Kind : int32_t {
  EMBEDDING, RMS_NORM, ADD_RMS_NORM, LINEAR, QKV_ROPE_KV, PAGED_ATTENTION, SILU_AND_MUL, ADD, SELECT_ROWS
};
enum Rows : int32_t { TOKENS, LOGITS };
enum Type : int32_t { FLOAT32, BFLOAT16 };

// One operator. Activations are float32, packed; weights and pools have the types named.
struct Op {
  int32_t kind, rows, weight_type, pool_type;
  const float *x, *y;   // inputs
  float *out, *out2;    // outputs
  const void* weight;   // linear: as `pack` made it; norms: float32
  const float* bias;
  int64_t n, k;         // columns of the output and of the input
  const float *q_norm, *k_norm, *cos, *sin;
  void *k_pool, *v_pool;
  int32_t heads, kv_heads, head_dim, rotary, block_size, window, group;  // window 0: none
  float eps, scale;
};

struct Step {
  int64_t tokens, sequences, logits_rows;
  const int32_t *token_ids, *positions, *query_start, *seq_lens, *logits, *row_of_token;
  const int32_t* const* block_tables;  // one [sequences, table_width[g]] per group
  const int64_t* table_width;
};

// Where threads wait for each other. Spins for some 50 us, as the work between two meetings is short, then yields: when
// the machine is busy the missing thread may be waiting for this one's core. (OpenMP's own spins for milliseconds.)
class Barrier {
 public:
  void meet(int size) {
    const uint32_t round = __atomic_load_n(&round_, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived_, 1, __ATOMIC_ACQ_REL) == size) {
      __atomic_store_n(&arrived_, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&round_, round + 1, __ATOMIC_RELEASE);
      return;
    }
    for (int spins = 0; __atomic_load_n(&round_, __ATOMIC_ACQUIRE) == round; spins++)
      if (spins < 1000) pause();
      else sched_yield();
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  alignas(64) int32_t arrived_ = 0;
  alignas(64) uint32_t round_ = 0;
};

// One thread of those that run an operator together.
struct Team {
  int rank, size;
  Barrier* barrier;
  void meet() const { barrier->meet(size); }
  // This thread's share [begin, end) of `count` items.
  int64_t begin(int64_t count) const { return count * rank / size; }
  int64_t end(int64_t count) const { return count * (rank + 1) / size; }
};

}  // namespace eh
