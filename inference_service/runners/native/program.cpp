// Runs a whole step: the operators in order, all threads on each, in one parallel region.
#include <omp.h>

#include "layers.hpp"
#include "matmul.hpp"
#include "paged.hpp"

using namespace eh;

namespace {

void run_op(const Op& op, const Step& step, Team team, Work& work, int64_t& next) {
  const int64_t rows = op.rows == TOKENS ? step.tokens : step.logits_rows;
  const bool wide = op.weight_type == FLOAT32, wide_pool = op.pool_type == FLOAT32;
  switch (op.kind) {
    case EMBEDDING: return wide ? embedding<float>(op, step, team) : embedding<bf16>(op, step, team);
    case RMS_NORM: return rms_norm(op, rows, team);
    case ADD_RMS_NORM: return add_rms_norm(op, rows, team);
    case LINEAR: return wide ? linear<float>(op, rows, team) : linear<bf16>(op, rows, team);
    case QKV_ROPE_KV: return wide_pool ? qkv_rope_kv<float>(op, step, team) : qkv_rope_kv<bf16>(op, step, team);
    case PAGED_ATTENTION:
      return wide_pool ? paged_attention<float>(op, step, team, work, next)
                       : paged_attention<bf16>(op, step, team, work, next);
    case SILU_AND_MUL: return silu_and_mul(op, rows, team);
    case ADD: return add(op, rows, team);
    case SELECT_ROWS: return select_rows(op, step, team);
  }
}

template <class From, class To>
void pack_all(const From* w, int64_t n, int64_t k, To* out) {
  const int64_t panels = (n + PANEL - 1) / PANEL, stride = panel_elements(k, sizeof(To) == 2);
#pragma omp parallel for
  for (int64_t panel = 0; panel < panels; panel++) pack_panel(w, n, k, panel, out + panel * stride);
}

}  // namespace

extern "C" {

int64_t eh_op_size() { return sizeof(Op); }

// Elements of a packed weight [n, k].
int64_t eh_packed_elements(int64_t n, int64_t k, int32_t type) {
  return (n + PANEL - 1) / PANEL * panel_elements(k, type == BFLOAT16);
}

void eh_pack(const void* w, int32_t from, int64_t n, int64_t k, int32_t to, void* out) {
  if (from == FLOAT32 && to == FLOAT32) pack_all((const float*)w, n, k, (float*)out);
  if (from == FLOAT32 && to == BFLOAT16) pack_all((const float*)w, n, k, (bf16*)out);
  if (from == BFLOAT16 && to == FLOAT32) pack_all((const bf16*)w, n, k, (float*)out);
  if (from == BFLOAT16 && to == BFLOAT16) pack_all((const bf16*)w, n, k, (bf16*)out);
}

void eh_run(const Op* ops, int64_t count, const Step* step, int32_t threads) {
  static thread_local Work work;  // the caller's: one executor thread
  Work& shared = work;
  int64_t next = 0;
  Barrier meeting;
#pragma omp parallel num_threads(threads)
  {
    const Team team{omp_get_thread_num(), omp_get_num_threads(), &meeting};
    for (int64_t i = 0; i < count; i++) {
      run_op(ops[i], *step, team, shared, next);
      team.meet();
    }
  }
}
}
