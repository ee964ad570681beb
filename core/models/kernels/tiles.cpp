// The gradient of a convolution's weights by units that multiply tiles of bfloat16 (AMX).
//
//     dw[o][i][j][c] = sum over images and pixels p of dy[p][o] x[p + i W + j][c]
//
// with x, and dy as well, padded by zeros to rows of W pixels, W even. What is summed over are
// pixels: a tile of dy is 16 channels of 32 pixels, one of x 16 pairs of pixels of 16 channels. Pairs
// begin at an even pixel for even j and at an odd one for odd j, so x is packed twice. Channels are
// multiples of 32. Sums are float32, in the order of the images, for any number of threads.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxbf16intrin.h>)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WITH_TILES __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl")))

namespace {

typedef const uint16_t *Pixel;  // the bits of its channels

constexpr int64_t SIDE = 16, STEP = 32;                  // channels and pixels of a tile
constexpr int64_t TILE = SIDE * STEP, SUMS = SIDE * SIDE;  // numbers of a tile, and of one of sums
constexpr int64_t ENOUGH = 288;  // pixels whose tiles, of twice 32 channels, fit the first cache

struct Sizes {
    int64_t images, height, width, inputs, groups, rows, columns, outputs, side, padding;
    int64_t wide() const { return (width + 2 * padding + 1) / 2 * 2; }  // W
    int64_t steps() const { return (rows * wide() + STEP - 1) / STEP; }
    int64_t pairs() const { return (steps() * STEP + side * wide() + STEP) / 2; }  // a tap's reach
    int64_t at_once() const { return std::max<int64_t>(1, ENOUGH / (steps() * STEP)); }
};

struct Free { void operator()(void *at) const { std::free(at); } };
template <class T> using Room = std::unique_ptr<T, Free>;

template <class T> Room<T> room(int64_t count) {  // zeros, where a vector may begin
    const int64_t bytes = (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    Room<T> found(static_cast<T *>(std::aligned_alloc(64, bytes)));
    std::memset(found.get(), 0, bytes);
    return found;
}

struct alignas(64) Config {  // of the units: eight tiles of 16 rows of 64 bytes
    uint8_t palette = 1, first = 0, none[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// 16 channels of two pixels: (a0, b0, a1, b1, ...)
WITH_TILES inline __m512i paired(Pixel a, Pixel b) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)a));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)b));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

WITH_TILES inline void transpose(__m512i *v) {  // 16x16 numbers of 32 bits
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) {
        const __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        const __m512i b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
        const __m512i d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c), t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d), t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
        v[i] = _mm512_shuffle_i32x4(a, c, 0x88), v[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
        v[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88), v[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// tiles of dy, (channels / 16, step, 16, 32)
WITH_TILES void pack_dy(const Pixel *pixels, uint16_t *to, int64_t channels, int64_t steps) {
    for (int64_t k = 0; k < steps; ++k, pixels += STEP)
        for (int64_t c = 0; c < channels; c += SIDE) {
            __m512i v[16];
            for (int i = 0; i < 16; ++i) v[i] = paired(pixels[2 * i] + c, pixels[2 * i + 1] + c);
            transpose(v);
            uint16_t *tile = to + (c / SIDE * steps + k) * TILE;
            for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * STEP, v[i]);
        }
}

// pairs of pixels of x, (channels / 16, pair, 16, 2): any 16 in a row are a tile
WITH_TILES void pack_x(const Pixel *pixels, uint16_t *to, int64_t channels, int64_t pairs) {
    for (int64_t c = 0; c < channels; c += SIDE)
        for (int64_t k = 0; k < pairs; ++k, to += STEP)
            _mm512_store_si512(to, paired(pixels[2 * k] + c, pixels[2 * k + 1] + c));
}

// 32x32 sums, whose second row of tiles lies `below`, += dy x for each of some images; a tile of other
// channels is `dy_apart` or `x_apart` away, the next image `dy_next` or `x_next`
WITH_TILES void multiply(float *sums, int64_t below, const uint16_t *dy, int64_t dy_apart,
                         int64_t dy_next, const uint16_t *x, int64_t x_apart, int64_t x_next,
                         int64_t steps, int64_t images) {
    _tile_loadd(0, sums, 64);
    _tile_loadd(1, sums + SUMS, 64);
    _tile_loadd(2, sums + below, 64);
    _tile_loadd(3, sums + below + SUMS, 64);
    for (int64_t n = 0; n < images; ++n) {
        const uint16_t *a = dy + n * dy_next, *b = x + n * x_next;
        for (int64_t k = 0; k < steps; ++k, a += TILE, b += TILE) {
            _tile_loadd(4, a, 64);
            _tile_loadd(5, a + dy_apart, 64);
            _tile_loadd(6, b, 64);
            _tile_loadd(7, b + x_apart, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + SUMS, 64);
    _tile_stored(2, sums + below, 64);
    _tile_stored(3, sums + below + SUMS, 64);
}

// where the pixels of an image of h rows of w, `apart` numbers each, lie in rows of `wide` pixels
void place(Pixel image, Pixel *pixels, int64_t h, int64_t w, int64_t apart, int64_t wide) {
    for (int64_t i = 0; i < h; ++i)
        for (int64_t j = 0; j < w; ++j) pixels[i * wide + j] = image + (i * w + j) * apart;
}

// dw of some of a group's outputs
void some_outputs(const uint16_t *x, const uint16_t *dy, float *dw, Sizes s, int64_t outputs) {
    const int64_t steps = s.steps(), wide = s.wide(), pairs = s.pairs(), taps = s.side * s.side;
    const int64_t most = s.at_once(), across = s.inputs / SIDE * SUMS;
    const int64_t x_apart = pairs * STEP, x_next = s.inputs / SIDE * x_apart;
    const int64_t dy_apart = steps * TILE, dy_next = outputs / SIDE * dy_apart;
    const int64_t all_inputs = s.groups * s.inputs, all_outputs = s.groups * s.outputs;
    const auto zeros = room<uint16_t>(std::max(s.inputs, outputs));
    std::vector<Pixel> of_x(2 * pairs + 1, zeros.get()), of_dy(steps * STEP, zeros.get());
    auto even = room<uint16_t>(most * x_next), odd = room<uint16_t>(most * x_next);
    auto turned = room<uint16_t>(most * dy_next);
    auto sums = room<float>(taps * outputs / SIDE * across);  // (tap, outputs', inputs' tile, 16, 16)
    for (int64_t n = 0; n < s.images; n += most) {
        const int64_t some = std::min(most, s.images - n);
        for (int64_t m = 0; m < some; ++m) {
            place(x + (n + m) * s.height * s.width * all_inputs,
                  of_x.data() + s.padding * (wide + 1), s.height, s.width, all_inputs, wide);
            pack_x(of_x.data(), even.get() + m * x_next, s.inputs, pairs);
            pack_x(of_x.data() + 1, odd.get() + m * x_next, s.inputs, pairs);
            place(dy + (n + m) * s.rows * s.columns * all_outputs, of_dy.data(), s.rows, s.columns,
                  all_outputs, wide);
            pack_dy(of_dy.data(), turned.get() + m * dy_next, outputs, steps);
        }
        for (int64_t o = 0; o < outputs / SIDE; o += 2)
            for (int64_t c = 0; c < s.inputs / SIDE; c += 2)
                for (int64_t t = 0; t < taps; ++t) {  // inside: all taps look at the same pixels
                    const int64_t at = (t / s.side * wide + t % s.side) / 2 * STEP;
                    const uint16_t *from = (t % s.side % 2 ? odd : even).get() + at;
                    multiply(sums.get() + (t * outputs / SIDE + o) * across + c * SUMS, across,
                             turned.get() + o * dy_apart, dy_apart, dy_next, from + c * x_apart,
                             x_apart, x_next, steps, some);
                }
    }
    for (int64_t o = 0; o < outputs; ++o)
        for (int64_t c = 0; c < s.inputs; ++c)
            for (int64_t t = 0; t < taps; ++t)
                dw[(o * s.inputs + c) * taps + t] =
                    sums.get()[(t * outputs / SIDE + o / SIDE) * across + c / SIDE * SUMS +
                               o % SIDE * SIDE + c % SIDE];
}

}  // namespace

// Whether this process may use the units; the system wants to be asked.
extern "C" int64_t tiles_ready() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// x (N, H, W, groups inputs), dy (N, h, w, groups outputs), dw (groups outputs, inputs, side, side).
extern "C" WITH_TILES void tiles_weights_bfloat16(const uint16_t *x, const uint16_t *dy, float *dw,
                                                  const int64_t *z, int64_t threads) {
    const Sizes s{z[0], z[1], z[2], z[3], z[4], z[5], z[6], z[7], z[8], z[9]};
    const int64_t blocks = s.outputs / (2 * SIDE);
    const int64_t parts = std::min((threads + s.groups - 1) / s.groups, blocks);  // of a group
#pragma omp parallel for num_threads(threads)
    for (int64_t item = 0; item < s.groups * parts; ++item) {
        const int64_t group = item / parts, part = item % parts;
        const int64_t first = blocks * part / parts * 2 * SIDE;
        const int64_t last = blocks * (part + 1) / parts * 2 * SIDE;
        Config before;
        const Config own;
        _tile_storeconfig(&before);  // who else multiplies tiles in this thread may count on it
        _tile_loadconfig(&own);
        const int64_t before_it = group * s.outputs + first;
        some_outputs(x + group * s.inputs, dy + before_it,
                     dw + before_it * s.inputs * s.side * s.side, s, last - first);
        _tile_loadconfig(&before);
    }
}
#else
extern "C" int64_t tiles_ready() { return 0; }
#endif
