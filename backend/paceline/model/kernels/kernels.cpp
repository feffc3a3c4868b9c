// What torch has no CPU kernel for, in bfloat16 with float32 arithmetic: attention over paged K/V,
// the row operations of a decoder layer, products, and a whole layer of them. Plain C interface, no
// headers of torch, so that it builds in seconds.
//
// Work is cut at fixed positions, never by the number of threads or by what else is in the batch: a
// token's result does not depend on its company, nor on whether it was decoded alone or verified
// behind others.

#include "attention.h"
#include "products.h"
#include "rows.h"

namespace {

// One decoder layer; norms' weights are float32.
struct Layer {
  const float *attention_norm, *head_norm, *feed_forward_norm;  // head_norm may be null
  Product query_key_value, output, gate_up, down;
  int64_t hidden, num_heads, num_kv_heads, width, has_rotation, window;
  float attention_epsilon, head_epsilon, feed_forward_epsilon, scale;
};

}  // namespace

extern "C" {

int paceline_has_products() { return PACELINE_HAS_PRODUCTS; }

// Whether products are the matrix unit's, for weights that fit it.
int paceline_uses_tiles() {
#if PACELINE_HAS_TILES
  return may_use_tiles();
#else
  return 0;
#endif
}

void paceline_pick(const bf16* table, const int64_t* places, const bf16* added, int64_t num_rows,
                   int64_t width, bf16* out) {
  pick_rows(table, places, added, num_rows, width, out);
}

void paceline_put(bf16* table, const int64_t* places, const bf16* rows, const int64_t* sources,
                  int64_t num_rows, int64_t width) {
  put_rows(table, places, rows, sources, num_rows, width);
}

void paceline_norm(const bf16* rows, const bf16* added, bf16* total, const float* weight,
                   float epsilon, int64_t num_rows, int64_t width, bf16* out, int num_threads) {
  norm_rows(rows, added, total, weight, epsilon, num_rows, width, out, num_threads);
}

void paceline_rotate(bf16* heads, int64_t row_stride, const bf16* cos, const bf16* sin,
                     const float* weight, float epsilon, int64_t num_rows, int64_t num_heads,
                     int64_t width, int num_threads) {
  rotate_heads(heads, row_stride, cos, sin, weight, epsilon, num_rows, num_heads, width,
               num_threads);
}

void paceline_silu_mul(const bf16* gate_up, int64_t num_rows, int64_t width, bf16* out,
                       int num_threads) {
  silu_mul(gate_up, num_rows, width, out, num_threads);
}

void paceline_attend(const Batch* batch, const Memory* memory, const bf16* query, const bf16* key,
                     const bf16* value, int64_t query_stride, int64_t key_stride,
                     int64_t value_stride, int64_t num_heads, float scale, int64_t window,
                     bf16* out, int num_threads) {
  attend(batch, memory, query, key, value, query_stride, key_stride, value_stride, num_heads, scale,
         window, out, num_threads);
}

#if PACELINE_HAS_PRODUCTS

// rows [num_rows, inputs] -> out [num_rows, outputs], or with `is_gate` silu(gate) * value.
void paceline_product(const Product* weight, const bf16* rows, int64_t num_rows, int is_gate,
                      bf16* out, int num_threads) {
  if (is_gate)
    product<Epilogue::kGate>(*weight, rows, num_rows, nullptr, out, num_threads);
  else
    product<Epilogue::kPlain>(*weight, rows, num_rows, nullptr, out, num_threads);
}

// A layer, in place on rows [num_rows, hidden]. cos, sin: [num_rows, width]. scratch: num_rows times
// hidden + (num_heads * 2 + num_kv_heads * 2) * width + the feed-forward's width.
void paceline_layer(const Layer* layer, const Batch* batch, const Memory* memory, const bf16* cos,
                    const bf16* sin, bf16* rows, bf16* scratch, int num_threads) {
  const Layer& l = *layer;
  const int64_t num_rows = batch->num_rows, num_turned = l.num_heads + l.num_kv_heads;
  const int64_t merged = l.query_key_value.outputs;
  bf16* normed = scratch;
  bf16* heads = normed + num_rows * l.hidden;
  bf16* attended = heads + num_rows * merged;
  bf16* gated = attended + num_rows * l.num_heads * l.width;
  norm_rows(rows, nullptr, nullptr, l.attention_norm, l.attention_epsilon, num_rows, l.hidden,
            normed, num_threads);
  product<Epilogue::kPlain>(l.query_key_value, normed, num_rows, nullptr, heads, num_threads);
  if (l.has_rotation)
    rotate_heads(heads, merged, cos, sin, l.head_norm, l.head_epsilon, num_rows, num_turned,
                 l.width, num_threads);
  const bf16* key = heads + l.num_heads * l.width;
  attend(batch, memory, heads, key, key + l.num_kv_heads * l.width, merged, merged, merged,
         l.num_heads, l.scale, l.window, attended, num_threads);
  product<Epilogue::kAdd>(l.output, attended, num_rows, rows, rows, num_threads);
  norm_rows(rows, nullptr, nullptr, l.feed_forward_norm, l.feed_forward_epsilon, num_rows, l.hidden,
            normed, num_threads);
  product<Epilogue::kGate>(l.gate_up, normed, num_rows, nullptr, gated, num_threads);
  product<Epilogue::kAdd>(l.down, gated, num_rows, rows, rows, num_threads);
}

#endif

}  // extern "C"
