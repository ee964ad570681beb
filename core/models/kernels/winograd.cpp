// Convolutions of 3x3 with stride 1 by minimal filtering, F(4x4, 3x3) of Lavin and Gray (CVPR 2016):
// a tile of 4x4 results takes 36 products of channel vectors in place of 144.
//
// Maps are (N, H, W, groups C), channels last, float32 or bfloat16; all between is float32. With B, G and
// A of that paper, for a tile:
//     V = B^T d B of its 6x6 inputs d,   U = G g G^T of the weights g,   M = V U,   Y = A^T M A;
// for the weights' gradient    dM = A dY A^T,   dU = sum of V^T dM,   and outside dg = G^T dU G.
// U and dU are (groups, 36, inputs, outputs). Channels are multiples of 16. No sum's order depends on
// the number of threads.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "vectors.h"

namespace {

// rows of a product that its sums are kept for in registers
constexpr int ROWS = LANES == 16 ? 12 : 6;
constexpr int TILE = 4, SIDE = 6, POINTS = SIDE * SIDE;

inline Vec load(const float *from) { return load<Vec>(from); }

struct bfloat16 { uint16_t bits; };
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

inline Vec load(const bfloat16 *from) {
    return Vec(__builtin_convertvector(*reinterpret_cast<const Halves *>(from), Bits) << 16);
}
inline void store(bfloat16 *to, Vec value) {  // to the nearest, ties to even; NaN stays NaN
    const Bits bits = Bits(value), none = Bits(value != value);
    const Bits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    *reinterpret_cast<Halves *>(to) =
        __builtin_convertvector((rounded & ~none) | (none & 0x7fc0u), Halves);
}

// B^T d: six values, `step` apart, from six
inline void input_points(const Vec *d, int step, Vec *v) {
    const Vec a = d[4 * step] - 4.f * d[2 * step], b = d[3 * step] - 4.f * d[step];
    const Vec c = d[4 * step] - d[2 * step], e = 2.f * (d[3 * step] - d[step]);
    v[0] = 4.f * d[0] - 5.f * d[2 * step] + d[4 * step];
    v[step] = a + b;
    v[2 * step] = a - b;
    v[3 * step] = c + e;
    v[4 * step] = c - e;
    v[5 * step] = 4.f * d[step] - 5.f * d[3 * step] + d[5 * step];
}

// A^T m: four values from six
inline void result_values(const Vec *m, int step, Vec *y) {
    const Vec a = m[step] + m[2 * step], b = m[step] - m[2 * step];
    const Vec c = m[3 * step] + m[4 * step], d = m[3 * step] - m[4 * step];
    y[0] = m[0] + a + c;
    y[step] = b + 2.f * d;
    y[2 * step] = a + 4.f * c;
    y[3 * step] = b + 8.f * d + m[5 * step];
}

// A y: six values from four
inline void gradient_points(const Vec *y, int step, Vec *m) {
    const Vec a = y[0] + y[2 * step], b = y[step] + y[3 * step];
    const Vec c = y[0] + 4.f * y[2 * step], d = 2.f * y[step] + 8.f * y[3 * step];
    m[0] = y[0];
    m[step] = a + b;
    m[2 * step] = a - b;
    m[3 * step] = c + d;
    m[4 * step] = c - d;
    m[5 * step] = y[3 * step];
}

struct Maps {
    int64_t images, height, width, channels, groups;  // channels of one group

    bool holds(int64_t h, int64_t w) const { return h >= 0 && h < height && w >= 0 && w < width; }
    // how far a pixel's channels of a group lie from the first value
    int64_t at(int64_t n, int64_t h, int64_t w, int64_t group) const {
        return (((n * height + h) * width + w) * groups + group) * channels;
    }
};

struct Tiles {  // of the results, numbered image by image
    int64_t down, across, all;
    struct Place { int64_t n, top, left; };

    explicit Tiles(const Maps &results)
        : down((results.height + TILE - 1) / TILE), across((results.width + TILE - 1) / TILE),
          all(results.images * down * across) {}
    Place operator[](int64_t k) const {
        const int64_t cell = k % (down * across);
        return {k / (down * across), cell / across * TILE, cell % across * TILE};
    }
};

// Some tiles at the 36 points: (36, room, C). Points are no multiple of a page apart, where their
// lines would share one place in the cache.
class TileBuffer {
    struct Free { void operator()(float *p) const { std::free(p); } };
    int64_t channels, apart;
    std::unique_ptr<float, Free> values;

  public:
    TileBuffer(int64_t room, int64_t channels)
        : channels(channels), apart(room * channels + 16),
          values(static_cast<float *>(std::aligned_alloc(64, POINTS * apart * sizeof(float)))) {}
    float *at(int64_t point, int64_t tile = 0) const {
        return values.get() + point * apart + tile * channels;
    }
};

// V of `count` tiles from the one numbered `first`, as tiles from `to` on
template <class T>
void transform_inputs(const T *x, const Maps &in, const Tiles &tiles, int64_t group, int64_t padding,
                      int64_t first, int64_t count, const TileBuffer &v, int64_t to) {
    for (int64_t k = 0; k < count; ++k) {
        const auto place = tiles[first + k];
        const int64_t top = place.top - padding, left = place.left - padding;
        for (int64_t c = 0; c < in.channels; c += LANES) {
            Vec d[POINTS], half[POINTS];
            for (int i = 0; i < SIDE; ++i)
                for (int j = 0; j < SIDE; ++j)
                    d[SIDE * i + j] = in.holds(top + i, left + j)
                                          ? load(x + in.at(place.n, top + i, left + j, group) + c)
                                          : Vec{};
            for (int j = 0; j < SIDE; ++j) input_points(d + j, SIDE, half + j);
            for (int i = 0; i < SIDE; ++i) input_points(half + SIDE * i, 1, d + SIDE * i);
            for (int p = 0; p < POINTS; ++p) store(v.at(p, to + k) + c, d[p]);
        }
    }
}

// dM of some tiles
template <class T>
void transform_gradients(const T *dy, const Maps &out, const Tiles &tiles, int64_t group, int64_t first,
                         int64_t count, const TileBuffer &m, int64_t to) {
    for (int64_t k = 0; k < count; ++k) {
        const auto [n, top, left] = tiles[first + k];
        for (int64_t c = 0; c < out.channels; c += LANES) {
            Vec d[POINTS], half[POINTS];  // of 6x6, the last two rows and columns of d are not used
            for (int i = 0; i < TILE; ++i)
                for (int j = 0; j < TILE; ++j)
                    d[SIDE * i + j] = out.holds(top + i, left + j)
                                          ? load(dy + out.at(n, top + i, left + j, group) + c)
                                          : Vec{};
            for (int j = 0; j < TILE; ++j) gradient_points(d + j, SIDE, half + j);
            for (int i = 0; i < SIDE; ++i) gradient_points(half + SIDE * i, 1, d + SIDE * i);
            for (int p = 0; p < POINTS; ++p) store(m.at(p, to + k) + c, d[p]);
        }
    }
}

// Y + bias of some tiles, written where it lies inside the maps
template <class T>
void transform_results(const TileBuffer &m, const float *bias, const Maps &out, const Tiles &tiles,
                       int64_t group, int64_t first, int64_t count, T *y) {
    for (int64_t k = 0; k < count; ++k) {
        const auto [n, top, left] = tiles[first + k];
        for (int64_t c = 0; c < out.channels; c += LANES) {
            Vec d[POINTS], half[POINTS];
            for (int p = 0; p < POINTS; ++p) d[p] = load(m.at(p, k) + c);
            for (int j = 0; j < SIDE; ++j) result_values(d + j, SIDE, half + j);
            for (int i = 0; i < TILE; ++i) result_values(half + SIDE * i, 1, d + SIDE * i);
            const Vec b = bias ? load(bias + group * out.channels + c) : Vec{};
            for (int i = 0; i < TILE; ++i)
                for (int j = 0; j < TILE; ++j)
                    if (out.holds(top + i, left + j))
                        store(y + out.at(n, top + i, left + j, group) + c, d[SIDE * i + j] + b);
        }
    }
}

// A matrix (m, depth), whose rows and columns lie at strides
struct Left {
    const float *values;
    int64_t row, column;
};

// c (R, COLUMNS LANES), of rows `ld` apart, = or += a b
template <int R, int COLUMNS, bool ADD>
inline void block(Left a, const float *b, float *c, int64_t ld, int64_t depth) {
    Vec sum[R][COLUMNS];
    for (int r = 0; r < R; ++r)
        for (int q = 0; q < COLUMNS; ++q) sum[r][q] = Vec{};
    for (int64_t k = 0; k < depth; ++k) {
        Vec right[COLUMNS];
        for (int q = 0; q < COLUMNS; ++q) right[q] = load(b + k * ld + q * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            for (int q = 0; q < COLUMNS; ++q)
                sum[r][q] += a.values[r * a.row + k * a.column] * right[q];
    }
    for (int r = 0; r < R; ++r)
        for (int q = 0; q < COLUMNS; ++q) {  // sums of blocks are added: less rounding than one sum
            float *to = c + r * ld + q * LANES;
            store(to, ADD ? load(to) + sum[r][q] : sum[r][q]);
        }
}

// the same for m rows
template <int COLUMNS, bool ADD>
void panel(Left a, const float *b, float *c, int64_t m, int64_t ld, int64_t depth) {
    const auto from = [&](int64_t r) { return Left{a.values + r * a.row, a.row, a.column}; };
    int64_t r = 0;
    for (; r + ROWS <= m; r += ROWS) block<ROWS, COLUMNS, ADD>(from(r), b, c + r * ld, ld, depth);
    for (; r + 4 <= m; r += 4) block<4, COLUMNS, ADD>(from(r), b, c + r * ld, ld, depth);
    for (; r < m; ++r) block<1, COLUMNS, ADD>(from(r), b, c + r * ld, ld, depth);
}

// c (m, columns), of rows `ld` apart, = or += a b
template <bool ADD>
void product(Left a, const float *b, float *c, int64_t m, int64_t columns, int64_t ld,
             int64_t depth) {
    int64_t n = 0;
    for (; n + 2 * LANES <= columns; n += 2 * LANES)
        panel<2, ADD>(a, b + n, c + n, m, ld, depth);
    for (; n < columns; n += LANES) panel<1, ADD>(a, b + n, c + n, m, ld, depth);
}

// y (N, h, w, groups outputs) = x * g + bias, from U; `size` is that of x
template <class T>
void winograd(const T *x, const float *u, const float *bias, T *y, const int64_t *size, int64_t height,
              int64_t width, int64_t outputs, int64_t padding, int64_t threads) {
    const Maps in{size[0], size[1], size[2], size[3], size[4]};
    const Maps out{size[0], height, width, outputs, size[4]};
    const Tiles tiles(out);
    // tiles at once: at most 48, of which a core's cache holds V and M; fewer where threads wait
    const int64_t share = tiles.all * in.groups / threads / ROWS * ROWS;
    const int64_t room = std::clamp<int64_t>(share, ROWS, 48);
#pragma omp parallel num_threads(threads)
    {
        const TileBuffer v(room, in.channels), m(room, outputs);
#pragma omp for collapse(2)
        for (int64_t first = 0; first < tiles.all; first += room)
            for (int64_t group = 0; group < in.groups; ++group) {
                const int64_t count = std::min(room, tiles.all - first);
                const float *weights = u + group * POINTS * in.channels * outputs;
                transform_inputs(x, in, tiles, group, padding, first, count, v, 0);
                for (int64_t p = 0; p < POINTS; ++p)
                    product<false>({v.at(p), in.channels, 1}, weights + p * in.channels * outputs,
                                   m.at(p), count, outputs, outputs, in.channels);
                transform_results(m, bias, out, tiles, group, first, count, y);
            }
    }
}

// dU, which is zero before, from x and dY (N, h, w, groups outputs)
template <class T>
void winograd_weights(const T *x, const T *dy, float *du, const int64_t *size, int64_t height,
                      int64_t width, int64_t outputs, int64_t padding, int64_t threads) {
    constexpr int64_t room = 96, part = 8;
    const Maps in{size[0], size[1], size[2], size[3], size[4]};
    const Maps out{size[0], height, width, outputs, size[4]};
    const Tiles tiles(out);
    const TileBuffer v(room, in.channels), m(room, outputs);
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < tiles.all; first += room)
        for (int64_t group = 0; group < in.groups; ++group) {
            const int64_t count = std::min(room, tiles.all - first);
#pragma omp for
            for (int64_t k = 0; k < count; k += part) {
                const int64_t some = std::min(part, count - k);
                transform_inputs(x, in, tiles, group, padding, first + k, some, v, k);
                transform_gradients(dy, out, tiles, group, first + k, some, m, k);
            }
            float *sums = du + group * POINTS * in.channels * outputs;
#pragma omp for
            for (int64_t p = 0; p < POINTS; ++p)
                product<true>({v.at(p), 1, in.channels}, m.at(p), sums + p * in.channels * outputs,
                              in.channels, outputs, outputs, count);
        }
}

}  // namespace

// whether it takes as many threads as it is told
extern "C" int64_t threaded() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

// combined (groups, rows, n) = matrix (rows, depth) times values (groups, depth, n), n a multiple of 16
extern "C" void combined_float32(const float *matrix, const float *values, float *result,
                                 int64_t groups, int64_t rows, int64_t depth, int64_t n,
                                 int64_t threads) {
    constexpr int64_t part = 2 * LANES;
#pragma omp parallel for collapse(2) num_threads(threads)
    for (int64_t group = 0; group < groups; ++group)
        for (int64_t first = 0; first < n; first += part)
            product<false>({matrix, depth, 1}, values + group * depth * n + first,
                           result + group * rows * n + first, rows, std::min(part, n - first), n,
                           depth);
}

#define CONVOLUTIONS(T, name) \
    extern "C" void winograd_##name(const T *x, const float *u, const float *bias, T *y, \
                                    const int64_t *size, int64_t height, int64_t width, \
                                    int64_t outputs, int64_t padding, int64_t threads) { \
        winograd<T>(x, u, bias, y, size, height, width, outputs, padding, threads); \
    } \
    extern "C" void winograd_weights_##name(const T *x, const T *dy, float *du, \
                                            const int64_t *size, int64_t height, int64_t width, \
                                            int64_t outputs, int64_t padding, int64_t threads) { \
        winograd_weights<T>(x, dy, du, size, height, width, outputs, padding, threads); \
    }
CONVOLUTIONS(float, float32)
CONVOLUTIONS(bfloat16, bfloat16)
