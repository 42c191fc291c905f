// This program shows the C interface: five tokens of one sequence go through the attention prologue (rotation, and the write of K and V
// into the pages of a cache), attention, and the output projection, which adds to the hidden states, on the CPU. Plain loops in double
// check the results.
#include <prologue.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 5, Q_HEADS = 4, KV_HEADS = 2, HEAD_DIM = 64, PAGES = 8, PAGE_SIZE = 4, MAX_PAGES = 2, MAX_POSITION = 128 };
enum { ROW = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM, WIDTH = Q_HEADS * HEAD_DIM, HIDDEN = 32 };

static float qkv[TOKENS * ROW];  // the output of the QKV GEMM
static float q[TOKENS * WIDTH], out[TOKENS * WIDTH];
static float k_cache[PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM], v_cache[PAGES * PAGE_SIZE * KV_HEADS * HEAD_DIM];
static float cos_sin[MAX_POSITION * HEAD_DIM];
static float output_weight[HIDDEN * WIDTH];
static float hidden[TOKENS * HIDDEN], before[TOKENS * HIDDEN];  // the hidden states, and a copy of what they were

// snippet: check
static void check(prologue_status status) {
  if (status == PROLOGUE_STATUS_OK) return;
  fprintf(stderr, "%s: %s\n", prologue_status_name(status), prologue_last_error_message());
  exit(1);
}
// end snippet

// Computes attention of one token and head, over what the prologue left in q and in the cache.
static void reference(const int32_t* pages, int64_t token, int64_t head, double* result) {
  double weights[TOKENS], sum = 0;
  const float* query = q + (token * Q_HEADS + head) * HEAD_DIM;
  const int64_t kv_head = head / (Q_HEADS / KV_HEADS);
  for (int64_t d = 0; d < HEAD_DIM; ++d) result[d] = 0;
  for (int64_t p = 0; p <= token; ++p) {
    const int64_t row = ((pages[p / PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE) * KV_HEADS + kv_head) * HEAD_DIM;
    double score = 0;
    for (int64_t d = 0; d < HEAD_DIM; ++d) score += (double)query[d] * (double)k_cache[row + d];
    sum += weights[p] = exp(score / sqrt(HEAD_DIM));
    for (int64_t d = 0; d < HEAD_DIM; ++d) result[d] += weights[p] * (double)v_cache[row + d];
  }
  for (int64_t d = 0; d < HEAD_DIM; ++d) result[d] /= sum;
}

int main(void) {
  for (int i = 0; i < TOKENS * ROW; ++i) qkv[i] = (float)((i * 7919) % 2001 - 1000) / 1000.0f;
  for (int i = 0; i < HIDDEN * WIDTH; ++i) output_weight[i] = (float)((i * 104729) % 301 - 150) / 150.0f;
  for (int i = 0; i < TOKENS * HIDDEN; ++i) before[i] = hidden[i] = (float)(i % 17) / 8.0f;
  const int32_t pages[MAX_PAGES] = {6, 1};  // of the sequence; slots and positions follow from them and from its length
  const int32_t cu_seqlens_q[2] = {0, TOKENS}, seq_lens[1] = {TOKENS};
  prologue_fault_record faults;
  prologue_fault_record_init(&faults);

  // snippet: table
  prologue_rope_table_params table;
  prologue_rope_table_params_init(&table);
  table.rotary_dim = HEAD_DIM;
  table.theta = 10000.0;
  check(prologue_rope_cos_sin(&table, MAX_POSITION, cos_sin));
  // end snippet

  // snippet: prologue
  prologue_execution execution;
  prologue_execution_init(&execution);  // the CPU and one thread; or PROLOGUE_DEVICE_CUDA and a cudaStream_t
  execution.num_threads = 2;

  prologue_attention_prologue_params p;
  prologue_attention_prologue_params_init(&p);
  p.num_tokens = TOKENS, p.num_q_heads = Q_HEADS, p.num_kv_heads = KV_HEADS, p.head_dim = HEAD_DIM;
  p.dtype = PROLOGUE_DTYPE_F32;
  check(prologue_set_packed_qkv(&p, qkv, ROW));
  p.rope.rotary_dim = HEAD_DIM;
  check(prologue_set_cos_sin_table(&p.rope, cos_sin, PROLOGUE_DTYPE_F32, MAX_POSITION));
  p.places.num_seqs = 1;
  p.places.cu_seqlens_q = cu_seqlens_q;
  p.places.seq_lens = seq_lens;
  p.places.page_table.block_table = pages;
  p.places.page_table.block_table_stride = p.places.page_table.max_pages_per_seq = MAX_PAGES;
  p.faults = &faults;
  p.q_out.data = q, p.q_out.token_stride = WIDTH, p.q_out.head_stride = HEAD_DIM;
  p.cache.k.data = k_cache, p.cache.v.data = v_cache;
  p.cache.num_pages = PAGES, p.cache.page_size = PAGE_SIZE, p.cache.num_kv_heads = KV_HEADS, p.cache.k.head_dim = HEAD_DIM;
  p.cache.k.strides = p.cache.v.strides = prologue_nhd_strides(PAGE_SIZE, KV_HEADS, HEAD_DIM);
  check(prologue_attention_prologue(&p, &execution));
  // end snippet

  prologue_paged_attention_params a;
  prologue_paged_attention_params_init(&a);
  a.num_tokens = TOKENS, a.num_seqs = 1, a.num_q_heads = Q_HEADS, a.head_dim = HEAD_DIM;
  a.dtype = PROLOGUE_DTYPE_F32;
  a.scale = 0.125f;  // 1 / sqrt(HEAD_DIM)
  a.q.data = q, a.q.token_stride = WIDTH, a.q.head_stride = HEAD_DIM;
  a.kv = p.cache;
  a.page_table = p.places.page_table;
  a.cu_seqlens_q = cu_seqlens_q, a.seq_lens = seq_lens;
  a.max_seqlen_q = a.max_seq_len = TOKENS;
  a.out.data = out, a.out.token_stride = WIDTH, a.out.head_stride = HEAD_DIM;
  a.faults = &faults;
  check(prologue_paged_attention(&a, &execution));

  // snippet: projection
  prologue_gemm_context* context = NULL;  // one for each thread that runs projections; keep it
  check(prologue_gemm_context_create(PROLOGUE_DEVICE_CPU, &context));

  prologue_projection_params o;
  prologue_projection_params_init(&o);
  o.num_tokens = TOKENS, o.n = HIDDEN, o.k = WIDTH, o.dtype = PROLOGUE_DTYPE_F32;
  o.x = out, o.x_stride = WIDTH, o.weight = output_weight;
  o.y = hidden, o.y_stride = HIDDEN, o.adds = 1;  // hidden += out output_weight^T
  check(prologue_projection_workspace_bytes(&o, &o.workspace_bytes));
  o.workspace = malloc((size_t)o.workspace_bytes);
  check(prologue_projection(&o, context, &execution));
  // end snippet
  free(o.workspace);
  prologue_gemm_context_destroy(context);

  double largest = 0;
  for (int64_t token = 0; token < TOKENS; ++token) {
    for (int64_t head = 0; head < Q_HEADS; ++head) {
      double want[HEAD_DIM];
      reference(pages, token, head, want);
      for (int64_t d = 0; d < HEAD_DIM; ++d) {
        const double difference = fabs((double)out[(token * Q_HEADS + head) * HEAD_DIM + d] - want[d]);
        if (difference > largest || isnan(difference)) largest = difference;
      }
    }
  }
  for (int t = 0; t < TOKENS; ++t) {
    for (int i = 0; i < HIDDEN; ++i) {
      double want = (double)before[t * HIDDEN + i];
      for (int d = 0; d < WIDTH; ++d) want += (double)out[t * WIDTH + d] * (double)output_weight[i * WIDTH + d];
      const double difference = fabs((double)hidden[t * HIDDEN + i] - want);
      if (difference > largest || isnan(difference)) largest = difference;
    }
  }
  prologue_fault fault;
  check(prologue_decode_fault(&faults, &fault));
  printf("prologue %d, %d tokens, largest difference from double: %g, skipped tokens: %d\n", (int)prologue_version(), TOKENS,
         largest, (int)fault.count);
  return largest < 1e-5 && fault.code == PROLOGUE_FAULT_CODE_NONE ? 0 : 1;
}
