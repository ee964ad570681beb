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

// channels whose sums are kept in registers, for one tap and for three abreast
constexpr int MOST = LANES == 16 ? 8 : 6, ABREAST = LANES == 16 ? 8 : 4;

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
        constexpr int AT_ONCE = OUT <= MOST / 2 ? 4 : 2;
        int64_t n = 0;
        for (; n + AT_ONCE * LANES <= images; n += AT_ONCE * LANES)
            part<OUT, AT_ONCE, Vec>(first, n);
        for (; n + LANES <= images; n += LANES) part<OUT, 1, Vec>(first, n);
        if (n < images && images >= LANES)  // some of them once more
            part<OUT, 1, Vec>(first, images - LANES);
        else
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

// sums[t][o] += y[o] x[t] over pixels of a row and their images, for `TAPS` neighbours t of a pixel and
// `OUT` results o; a sum of neighbours lies `apart` from the next, a result's plane `plane`
template <int TAPS, int OUT>
void row_sums(const float *x, int64_t step, const float *y, int64_t plane, int64_t pixels,
              int64_t images, Vec *sums, float *rest, int64_t apart) {
    Vec kept[TAPS][OUT] = {};
    const auto add = [&](int64_t n, Vec part) {
        Vec seen[TAPS];
        for (int t = 0; t < TAPS; ++t) seen[t] = load<Vec>(x + t * images + n) * part;
        for (int o = 0; o < OUT; ++o) {
            const Vec slope = load<Vec>(y + o * plane + n);
            for (int t = 0; t < TAPS; ++t) kept[t][o] += seen[t] * slope;
        }
    };
    const int64_t whole = images / LANES * LANES;
    Vec last{};  // of the last `LANES` images those that no whole vector has
    for (int64_t lane = LANES - (images - whole); lane < LANES; ++lane) last[lane] = 1;
    for (int64_t k = 0; k < pixels; ++k, x += step, y += images) {
        for (int64_t n = 0; n < whole; n += LANES) add(n, Vec{} + 1.f);
        if (whole == images) continue;
        if (whole)
            add(images - LANES, last);
        else
            for (int64_t n = 0; n < images; ++n)
                for (int t = 0; t < TAPS; ++t)
                    for (int o = 0; o < OUT; ++o)
                        rest[t * apart + o] += x[t * images + n] * y[o * plane + n];
    }
    for (int t = 0; t < TAPS; ++t)
        for (int o = 0; o < OUT; ++o) sums[t * apart + o] += kept[t][o];
}

template <int TAPS, int OUT = TAPS == 1 ? MOST : ABREAST, class... Rest>
void row_sums_of(int64_t count, const Rest &...rest) {
    if (count == OUT)
        row_sums<TAPS, OUT>(rest...);
    else if constexpr (OUT > 1)
        row_sums_of<TAPS, OUT - 1>(count, rest...);
}

// the sums that dweights of one group is made of, (inputs, taps, outputs)
struct WeightSums {
    const float *x, *dy;
    const Shape &s;
    std::vector<Vec> sums = std::vector<Vec>(s.weights(), Vec{});
    std::vector<float> rest = std::vector<float>(s.weights(), 0.f);

    // row r of the results and input c, for the weights (i, j) to (i, j + TAPS - 1): what results
    // from column `first` to `last` give
    template <int TAPS>
    void add(int64_t r, int64_t c, int64_t i, int64_t j, int64_t first, int64_t last) {
        constexpr int64_t AT_ONCE = TAPS == 1 ? MOST : ABREAST;
        const int64_t h = s.stride * r + i - s.padding, w = s.stride * first + j - s.padding;
        const int64_t plane = s.rows * s.columns * s.images;
        const float *from = x + ((c * s.height + h) * s.width + w) * s.images;
        const float *to = dy + (r * s.columns + first) * s.images;
        const int64_t at = (c * s.taps() + i * s.side + j) * s.outputs;
        const int64_t blocks = (s.outputs + AT_ONCE - 1) / AT_ONCE;
        for (int64_t k = 0; k < blocks && first < last; ++k) {
            const int64_t o = k * s.outputs / blocks;
            row_sums_of<TAPS>((k + 1) * s.outputs / blocks - o, from, s.stride * s.images,
                              to + o * plane, plane, last - first, s.images,
                              sums.data() + at + o, rest.data() + at + o, s.outputs);
        }
    }

    // with all weights of row i of the squares: side by side where all of them see a pixel
    void row(int64_t r, int64_t c, int64_t i) {
        int64_t inside = (s.padding + s.stride - 1) / s.stride;
        int64_t outside = std::min(s.columns, (s.width - s.side + s.padding) / s.stride + 1);
        const bool abreast = s.side == 3 && inside < outside;
        if (abreast)
            add<3>(r, c, i, 0, inside, outside);
        else
            inside = outside = s.columns;
        for (int64_t j = 0; j < s.side; ++j) {
            // columns whose pixel stride column + j - padding is there
            const int64_t off = j - s.padding;
            if (off >= s.width) continue;
            const int64_t first = off < 0 ? (-off + s.stride - 1) / s.stride : 0;
            const int64_t last = std::min(s.columns, (s.width - 1 - off) / s.stride + 1);
            add<1>(r, c, i, j, first, std::min(inside, last));
            add<1>(r, c, i, j, std::max(outside, first), last);
        }
    }
};

// dweights of one group from x and dy, row by row, so that a row stays in the cache for all taps
void weights_of(const float *x, const float *dy, float *dw, const Shape &s) {
    WeightSums found{x, dy, s};
    for (int64_t r = 0; r < s.rows; ++r)
        for (int64_t c = 0; c < s.inputs; ++c)
            for (int64_t i = 0; i < s.side; ++i) {
                const int64_t h = s.stride * r + i - s.padding;
                if (h >= 0 && h < s.height) found.row(r, c, i);
            }
    for (int64_t o = 0; o < s.outputs; ++o)
        for (int64_t k = 0; k < s.inputs * s.taps(); ++k) {
            float total = found.rest[k * s.outputs + o];
            for (int lane = 0; lane < LANES; ++lane) total += found.sums[k * s.outputs + o][lane];
            *dw++ = total;
        }
}

// a matrix's values in a square of `down` rows and `across` columns, into the turned matrix
constexpr int64_t SQUARE = 16;
inline __attribute__((always_inline)) void turn(const float *from, int64_t columns, float *to,
                                                int64_t rows, int64_t down, int64_t across) {
    float square[SQUARE][SQUARE];
    for (int64_t i = 0; i < down; ++i)
        for (int64_t j = 0; j < across; ++j) square[j][i] = from[i * columns + j];
    for (int64_t j = 0; j < across; ++j) std::copy_n(square[j], down, to + j * rows);
}

}  // namespace

// matrices (R, C) as (C, R), in squares that lie in the cache; each lies so far from the next
extern "C" void last_turned_float32(const float *x, float *y, int64_t matrices, int64_t rows,
                                    int64_t columns, int64_t x_apart, int64_t y_apart,
                                    int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t k = 0; k < matrices; ++k)
        for (int64_t c = 0; c < columns; c += SQUARE)
            for (int64_t r = 0; r < rows; r += SQUARE) {
                const float *from = x + k * x_apart + r * columns + c;
                float *to = y + k * y_apart + c * rows + r;
                const int64_t down = std::min(SQUARE, rows - r);
                const int64_t across = std::min(SQUARE, columns - c);
                if (down == SQUARE && across == SQUARE)  // loops of a known length
                    turn(from, columns, to, rows, SQUARE, SQUARE);
                else
                    turn(from, columns, to, rows, down, across);
            }
}

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
