// Convolutions of few channels with the images last in memory: x (G C, H, W, N) and y (G O, h, w, N),
// float32, with weights (G, O, C, k, k) and
//     y[o, r, s] = bias[o] + sum over c, i, j of weights[o, c, i, j] x[c, t r + i - p, t s + j - p].
//
// Vectors run over images, so that six channels are no hindrance, and nothing is copied. A group, the
// network of one client, is one thread's: no sum's order depends on the number of threads.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace {

// channels whose sums are kept in registers
constexpr int MOST = LANES == 16 ? 8 : 6;

struct Shape {
    int64_t groups, inputs, outputs, height, width, rows, columns, images, side, stride, padding;

    int64_t taps() const { return side * side; }
    int64_t weights() const { return inputs * outputs * taps(); }
    int64_t maps() const { return inputs * height * width * images; }
    int64_t results() const { return outputs * rows * columns * images; }
};

// a pixel that another one is made of, and with which of the side x side weights
struct Tap { int64_t pixel, weight; };

// to[b] = start[b] + sum over taps and a of weights[tap, a, b] from[a], at the tap's pixels
struct Sum {
    const float *from;
    int64_t from_plane, inputs;
    const float *weights, *start;
    int64_t outputs;
    float *to;
    int64_t to_plane, images;
    std::vector<Tap> taps;

    template <int OUT, int VECTORS, class V> void part(int64_t first, int64_t n) const {
        V sums[OUT][VECTORS];
        for (int b = 0; b < OUT; ++b)
            for (int v = 0; v < VECTORS; ++v) sums[b][v] = V{} + (start ? start[first + b] : 0.f);
        for (const Tap &tap : taps) {
            const float *seen = from + tap.pixel * images + n;
            const float *weight = weights + tap.weight * inputs * outputs + first;
            for (int64_t a = 0; a < inputs; ++a, seen += from_plane, weight += outputs) {
                V values[VECTORS];
                for (int v = 0; v < VECTORS; ++v) values[v] = load<V>(seen + v * WIDTH<V>);
                for (int b = 0; b < OUT; ++b)
                    for (int v = 0; v < VECTORS; ++v) sums[b][v] += weight[b] * values[v];
            }
        }
        for (int b = 0; b < OUT; ++b)
            for (int v = 0; v < VECTORS; ++v)
                store(to + (first + b) * to_plane + n + v * WIDTH<V>, sums[b][v]);
    }

    // all images of `OUT` channels from the first one on
    template <int OUT> void channels(int64_t first) const {
        int64_t n = 0;
        for (; n + 2 * LANES <= images; n += 2 * LANES) part<OUT, 2, Vec>(first, n);
        for (; n + LANES <= images; n += LANES) part<OUT, 1, Vec>(first, n);
        for (; n < images; ++n) part<OUT, 1, float>(first, n);
    }

    template <int OUT = MOST> void channels(int64_t first, int64_t count) const {
        if (count == OUT)
            channels<OUT>(first);
        else if constexpr (OUT > 1)
            channels<OUT - 1>(first, count);
    }

    // all channels, in blocks of nearly the same size
    void all() const {
        const int64_t blocks = (outputs + MOST - 1) / MOST;
        for (int64_t k = 0; k < blocks; ++k) {
            const int64_t first = k * outputs / blocks;
            channels(first, (k + 1) * outputs / blocks - first);
        }
    }
};

// weights (O, C, taps) as (taps, C, O), or with `BACK` as (taps, O, C)
template <bool BACK> std::vector<float> turned(const float *weights, const Shape &s) {
    std::vector<float> result(s.weights());
    for (int64_t o = 0; o < s.outputs; ++o)
        for (int64_t c = 0; c < s.inputs; ++c)
            for (int64_t k = 0; k < s.taps(); ++k) {
                const int64_t inside = BACK ? o * s.inputs + c : c * s.outputs + o;
                result[k * s.inputs * s.outputs + inside] = *weights++;
            }
    return result;
}

// y of one group
void results_of(const float *x, const float *weights, const float *bias, float *y, const Shape &s) {
    const auto packed = turned<false>(weights, s);
    const int64_t plane = s.height * s.width * s.images, pixels = s.rows * s.columns;
    Sum sum{x, plane, s.inputs, packed.data(), bias, s.outputs, y, pixels * s.images, s.images, {}};
    for (int64_t r = 0; r < s.rows; ++r)
        for (int64_t c = 0; c < s.columns; ++c, sum.to += s.images) {
            sum.taps.clear();
            for (int64_t i = 0; i < s.side; ++i)
                for (int64_t j = 0; j < s.side; ++j) {
                    const int64_t h = s.stride * r + i - s.padding, w = s.stride * c + j - s.padding;
                    if (h >= 0 && h < s.height && w >= 0 && w < s.width)
                        sum.taps.push_back({h * s.width + w, i * s.side + j});
                }
            sum.all();
        }
}

// dx of one group from dy: every pixel from the results that it is in
void maps_of(const float *dy, const float *weights, float *dx, const Shape &s) {
    const auto packed = turned<true>(weights, s);
    const int64_t plane = s.height * s.width * s.images, pixels = s.rows * s.columns;
    Sum sum{dy, pixels * s.images, s.outputs, packed.data(), nullptr, s.inputs, dx, plane, s.images,
            {}};
    for (int64_t h = 0; h < s.height; ++h)
        for (int64_t w = 0; w < s.width; ++w, sum.to += s.images) {
            sum.taps.clear();
            for (int64_t i = 0; i < s.side; ++i)
                for (int64_t j = 0; j < s.side; ++j) {
                    const int64_t r = h + s.padding - i, c = w + s.padding - j;
                    if (r < 0 || c < 0 || r % s.stride || c % s.stride) continue;
                    if (r / s.stride < s.rows && c / s.stride < s.columns)
                        sum.taps.push_back(
                            {r / s.stride * s.columns + c / s.stride, i * s.side + j});
                }
            sum.all();
        }
}

// sums[o] += y[o] x over a row's pixels and images, for `OUT` results o that lie `plane` apart
template <int OUT>
void row_sums(const float *x, int64_t step, const float *y, int64_t plane, int64_t pixels,
              int64_t images, Vec *sums, float *rest) {
    Vec kept[OUT] = {};
    const int64_t whole = images / LANES * LANES;
    for (int64_t k = 0; k < pixels; ++k, x += step, y += images) {
        for (int64_t n = 0; n < whole; n += LANES) {
            const Vec seen = load<Vec>(x + n);
            for (int o = 0; o < OUT; ++o) kept[o] += seen * load<Vec>(y + o * plane + n);
        }
        for (int64_t n = whole; n < images; ++n)
            for (int o = 0; o < OUT; ++o) rest[o] += x[n] * y[o * plane + n];
    }
    for (int o = 0; o < OUT; ++o) sums[o] += kept[o];
}

template <int OUT = MOST, class... Rest> void row_sums_of(int64_t count, const Rest &...rest) {
    if (count == OUT)
        row_sums<OUT>(rest...);
    else if constexpr (OUT > 1)
        row_sums_of<OUT - 1>(count, rest...);
}

// dweights of one group from x and dy, row by row, so that a row stays in the cache for all taps
void weights_of(const float *x, const float *dy, float *dw, const Shape &s) {
    std::vector<Vec> sums(s.weights(), Vec{});  // (inputs, taps, outputs)
    std::vector<float> rest(s.weights(), 0.f);
    const int64_t plane = s.rows * s.columns * s.images;
    const int64_t blocks = (s.outputs + MOST - 1) / MOST;
    for (int64_t r = 0; r < s.rows; ++r)
        for (int64_t c = 0; c < s.inputs; ++c)
            for (int64_t i = 0; i < s.side; ++i) {
                const int64_t h = s.stride * r + i - s.padding;
                if (h < 0 || h >= s.height) continue;
                for (int64_t j = 0; j < s.side; ++j) {
                    // columns whose pixel stride column + j - padding is there
                    const int64_t off = j - s.padding;
                    if (off >= s.width) continue;
                    const int64_t first = off < 0 ? (-off + s.stride - 1) / s.stride : 0;
                    const int64_t last = std::min(s.columns, (s.width - 1 - off) / s.stride + 1);
                    const float *from =
                        x + ((c * s.height + h) * s.width + s.stride * first + off) * s.images;
                    const float *to = dy + (r * s.columns + first) * s.images;
                    const int64_t at = (c * s.taps() + i * s.side + j) * s.outputs;
                    for (int64_t k = 0; k < blocks && first < last; ++k) {
                        const int64_t o = k * s.outputs / blocks;
                        row_sums_of((k + 1) * s.outputs / blocks - o, from, s.stride * s.images,
                                    to + o * plane, plane, last - first, s.images,
                                    sums.data() + at + o, rest.data() + at + o);
                    }
                }
            }
    for (int64_t o = 0; o < s.outputs; ++o)
        for (int64_t k = 0; k < s.inputs * s.taps(); ++k) {
            float total = rest[k * s.outputs + o];
            for (int lane = 0; lane < LANES; ++lane) total += sums[k * s.outputs + o][lane];
            *dw++ = total;
        }
}

}  // namespace

extern "C" void last_results_float32(const float *x, const float *w, const float *bias, float *y,
                                     const Shape *s, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < s->groups; ++g)
        results_of(x + g * s->maps(), w + g * s->weights(),
                   bias ? bias + g * s->outputs : nullptr, y + g * s->results(), *s);
}

extern "C" void last_maps_float32(const float *w, const float *dy, float *dx, const Shape *s,
                                  int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < s->groups; ++g)
        maps_of(dy + g * s->results(), w + g * s->weights(), dx + g * s->maps(), *s);
}

extern "C" void last_weights_float32(const float *x, const float *dy, float *dw, const Shape *s,
                                     int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < s->groups; ++g)
        weights_of(x + g * s->maps(), dy + g * s->results(), dw + g * s->weights(), *s);
}
