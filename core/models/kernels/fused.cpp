// Passes over maps (N, H, W, C), channels last, float32 or bfloat16; sums are float32.
//
// A pass does in one read what takes PyTorch a kernel each: normalise, add a shortcut, rectify,
// average 2x2 cells. Channels are the inner loop, of which the compiler makes vectors (`omp simd`), and
// sums are kept per image and channel, so that they do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bfloat16 { uint16_t bits; };

inline float load(float value) { return value; }
inline float load(bfloat16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}
inline void store(float &place, float value) { place = value; }
inline void store(bfloat16 &place, float value) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    place.bits = uint16_t(value == value ? rounded : 0x7fc0u);
}

struct Shape { int64_t images, height, width, channels; };

// sum of x - k and of (x - k)^2 per image and channel; k (C) is a value near the mean, against
// cancellation
template <class T>
void moments(const T *x, const float *pivot, float *sums, float *squares, Shape s, int threads) {
    const int64_t C = s.channels;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < s.images; ++n) {
        float *sum = sums + n * C, *square = squares + n * C;
        std::vector<float> row(2 * C);  // a row first: less rounding in large images
        for (int64_t h = 0; h < s.height; ++h) {
            std::fill(row.begin(), row.end(), 0.f);
            float *a = row.data(), *b = a + C;
            const T *from = x + (n * s.height + h) * s.width * C;
            for (int64_t w = 0; w < s.width; ++w, from += C)
#pragma omp simd
                for (int64_t c = 0; c < C; ++c) {
                    const float v = load(from[c]) - pivot[c];
                    a[c] += v;
                    b[c] += v * v;
                }
#pragma omp simd
            for (int64_t c = 0; c < C; ++c) {
                sum[c] += a[c];
                square[c] += b[c];
            }
        }
    }
}

// y = pool(f(scale x + shift + shortcut)), f(z) = z for z > 0 and slope z below
template <class T, int POOL, bool SHORTCUT>
void forward(const T *x, const T *shortcut, const float *scale, const float *shift, T *y, Shape s,
             int64_t stride, float slope, int threads) {
    const int64_t C = s.channels, rows = s.height / POOL, columns = s.width / POOL;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < s.images; ++n) {
        const float *a = scale + n * stride, *b = shift + n * stride;
        for (int64_t h = 0; h < rows; ++h)
            for (int64_t w = 0; w < columns; ++w) {
                const int64_t at = ((n * s.height + h * POOL) * s.width + w * POOL) * C;
                T *to = y + ((n * rows + h) * columns + w) * C;
#pragma omp simd
                for (int64_t c = 0; c < C; ++c) {
                    float total = 0;
                    for (int i = 0; i < POOL; ++i)
                        for (int j = 0; j < POOL; ++j) {
                            const int64_t k = at + (i * s.width + j) * C + c;
                            float z = a[c] * load(x[k]) + b[c];
                            if (SHORTCUT) z += load(shortcut[k]);
                            total += z <= 0 ? slope * z : z;
                        }
                    store(to[c], total * (1.f / (POOL * POOL)));
                }
            }
    }
}

// With dz the gradient of what enters f: per image and channel the sums of dz and of dz (x - mean).
template <class T, int POOL, bool SHORTCUT>
void sums(const T *x, const T *shortcut, const T *dy, const float *scale, const float *shift,
          const float *mean, float *plain, float *centred, Shape s, int64_t stride,
          int64_t mean_stride, float slope, int threads) {
    const int64_t C = s.channels, rows = s.height / POOL, columns = s.width / POOL;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < s.images; ++n) {
        const float *a = scale + n * stride, *b = shift + n * stride, *m = mean + n * mean_stride;
        float *p = plain + n * C, *q = centred + n * C;
        for (int64_t h = 0; h < rows; ++h)
            for (int64_t w = 0; w < columns; ++w) {
                const int64_t at = ((n * s.height + h * POOL) * s.width + w * POOL) * C;
                const T *from = dy + ((n * rows + h) * columns + w) * C;
#pragma omp simd
                for (int64_t c = 0; c < C; ++c) {
                    const float g = load(from[c]) * (1.f / (POOL * POOL));
                    float one = 0, two = 0;
                    for (int i = 0; i < POOL; ++i)
                        for (int j = 0; j < POOL; ++j) {
                            const int64_t k = at + (i * s.width + j) * C + c;
                            const float v = load(x[k]);
                            float z = a[c] * v + b[c];
                            if (SHORTCUT) z += load(shortcut[k]);
                            const float d = z <= 0 ? slope * g : g;
                            one += d;
                            two += d * (v - m[c]);
                        }
                    p[c] += one;
                    q[c] += two;
                }
            }
    }
}

// dx = scale dz + slant x + offset, and dz for the shortcut
template <class T, int POOL, bool SHORTCUT, bool CENTRED>
void backward(const T *x, const T *shortcut, const T *dy, const float *scale, const float *shift,
              const float *slant, const float *offset, T *dx, T *dz, Shape s, int64_t stride,
              int64_t slant_stride, float slope, int threads) {
    const int64_t C = s.channels, rows = s.height / POOL, columns = s.width / POOL;
    const bool odd = rows * POOL != s.height || columns * POOL != s.width;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < s.images; ++n) {
        const float *a = scale + n * stride, *b = shift + n * stride;
        const float *e = CENTRED ? slant + n * slant_stride : nullptr;
        const float *f = CENTRED ? offset + n * slant_stride : nullptr;
        if (odd)  // cells at the edge that no window holds
            for (int64_t h = 0; h < s.height; ++h)
                for (int64_t w = 0; w < s.width; ++w)
                    if (h >= rows * POOL || w >= columns * POOL)
#pragma omp simd
                        for (int64_t c = 0; c < C; ++c) {
                            const int64_t k = ((n * s.height + h) * s.width + w) * C + c;
                            store(dx[k], CENTRED ? e[c] * load(x[k]) + f[c] : 0.f);
                            if (SHORTCUT) store(dz[k], 0.f);
                        }
        for (int64_t h = 0; h < rows; ++h)
            for (int64_t w = 0; w < columns; ++w) {
                const int64_t at = ((n * s.height + h * POOL) * s.width + w * POOL) * C;
                const T *from = dy + ((n * rows + h) * columns + w) * C;
                for (int i = 0; i < POOL; ++i)
                    for (int j = 0; j < POOL; ++j) {
                        const int64_t k = at + (i * s.width + j) * C;
#pragma omp simd
                        for (int64_t c = 0; c < C; ++c) {
                            const float v = load(x[k + c]);
                            const float g = load(from[c]) * (1.f / (POOL * POOL));
                            float z = a[c] * v + b[c];
                            if (SHORTCUT) z += load(shortcut[k + c]);
                            const float d = z <= 0 ? slope * g : g;
                            if (SHORTCUT) store(dz[k + c], d);
                            store(dx[k + c], CENTRED ? a[c] * d + (e[c] * v + f[c]) : a[c] * d);
                        }
                    }
            }
    }
}

template <class T, int POOL, bool SHORTCUT>
void any_backward(const T *x, const T *shortcut, const T *dy, const float *scale,
                  const float *shift, const float *slant, const float *offset, T *dx, T *dz,
                  Shape s, int64_t stride, int64_t slant_stride, float slope, int threads) {
    auto pass = slant ? backward<T, POOL, SHORTCUT, true> : backward<T, POOL, SHORTCUT, false>;
    pass(x, shortcut, dy, scale, shift, slant, offset, dx, dz, s, stride, slant_stride, slope,
         threads);
}

// A convolution's gradient for its images, from its taps (N, H, W, side, side, C): what every
// output pixel has for each of the pixels that it was made of; images are (N, h, w, C).
template <class T>
void gather(const T *taps, float *images, Shape out, int64_t height, int64_t width, int64_t side,
            int64_t padding, int threads) {
    const int64_t C = out.channels;
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < out.images; ++n)
        for (int64_t y = 0; y < height; ++y)
            for (int64_t i = 0; i < side; ++i) {
                const int64_t h = y + padding - i;
                if (h < 0 || h >= out.height) continue;
                for (int64_t x = 0; x < width; ++x) {
                    float *to = images + ((n * height + y) * width + x) * C;
                    for (int64_t j = 0; j < side; ++j) {
                        const int64_t w = x + padding - j;
                        if (w < 0 || w >= out.width) continue;
                        const int64_t at = ((n * out.height + h) * out.width + w) * side * side;
#pragma omp simd
                        for (int64_t c = 0; c < C; ++c)
                            to[c] += load(taps[(at + i * side + j) * C + c]);
                    }
                }
            }
}

// sums (groups, C) of rows (images, C) over the images of each group, or over all
std::vector<double> grouped(const float *rows, const int64_t *group, int64_t images, int64_t groups,
                            int64_t C) {
    std::vector<double> total(groups * C);
    for (int64_t n = 0; n < images; ++n) {
        double *to = total.data() + (group ? group[n] * C : 0);
        for (int64_t c = 0; c < C; ++c) to[c] += rows[n * C + c];
    }
    return total;
}

}  // namespace

// What a normalisation needs of the sums that `moments` gives, per group and channel: mean m, variance
// v, r = (v + eps)^-1/2, scale a = w r and shift b = bias - m a. `values` is how many pixels a group
// has, m and v are 0 where there are none.
extern "C" void statistics_float32(const float *plain, const float *square, const float *pivot,
                                   const float *weight, const float *bias, const int64_t *group,
                                   const double *values, float *mean, float *variance, float *rate,
                                   float *scale, float *shift, int64_t images, int64_t groups,
                                   int64_t C, float eps, int64_t) {
    const auto first = grouped(plain, group, images, groups, C);
    const auto second = grouped(square, group, images, groups, C);
    for (int64_t k = 0; k < groups * C; ++k) {
        const int64_t g = k / C, c = k % C;
        const double n = std::max(values[g], 1.), m = first[k] / n;
        mean[k] = float(values[g] > 0 ? pivot[c] + m : 0.);
        variance[k] = float(std::max(second[k] / n - m * m, 0.));
        rate[k] = 1 / std::sqrt(variance[k] + eps);
        scale[k] = weight[c] * rate[k];
        shift[k] = bias[c] - mean[k] * scale[k];
    }
}

// From the sums of dz and of dz (x - m), and what comes in for m and v themselves (or null): `slant` and
// `offset` with which dx = a dz + slant x + offset, per group and channel; dw and dbias, zero before.
extern "C" void slopes_float32(const float *plain, const float *centred, const float *weight,
                               const int64_t *group, const double *values, const float *mean,
                               const float *rate, const float *d_mean, const float *d_variance,
                               float *slant, float *offset, float *d_weight, float *d_bias,
                               int64_t images, int64_t groups, int64_t C, int64_t) {
    const auto p = grouped(plain, group, images, groups, C);
    const auto q = grouped(centred, group, images, groups, C);
    for (int64_t k = 0; k < groups * C; ++k) {
        const int64_t g = k / C, c = k % C;
        const double n = std::max(values[g], 1.), w = weight[c], r = rate[k];
        // dv = -1/2 w r^3 sum dz (x - m), dm = -w r sum dz
        const double dv = -0.5 * w * r * r * r * q[k] + (d_variance ? d_variance[k] : 0.f);
        const double dm = -w * r * p[k] + (d_mean ? d_mean[k] : 0.f);
        // dx = a dz + 2 dv / n (x - m) + dm / n
        slant[k] = float(2 * dv / n);
        offset[k] = float(dm / n - 2 * dv / n * mean[k]);
        // dw = r sum dz (x - m), dbias = sum dz
        d_weight[c] += float(r * q[k]);
        d_bias[c] += float(p[k]);
    }
}

// the passes for a type, without and with pooling, without and with a shortcut
#define CHOOSE(pass, T) \
    (pool == 2 ? (shortcut ? pass<T, 2, true> : pass<T, 2, false>) \
               : (shortcut ? pass<T, 1, true> : pass<T, 1, false>))
#define PASSES(T, name) \
    extern "C" void moments_##name(const T *x, const float *pivot, float *sum, float *square, \
                                   const int64_t *s, int64_t threads) { \
        moments<T>(x, pivot, sum, square, Shape{s[0], s[1], s[2], s[3]}, threads); \
    } \
    extern "C" void forward_##name(const T *x, const T *shortcut, const float *scale, \
                                   const float *shift, T *y, const int64_t *s, int64_t stride, \
                                   float slope, int64_t pool, int64_t threads) { \
        CHOOSE(forward, T)(x, shortcut, scale, shift, y, Shape{s[0], s[1], s[2], s[3]}, stride, \
                           slope, threads); \
    } \
    extern "C" void sums_##name(const T *x, const T *shortcut, const T *dy, const float *scale, \
                                const float *shift, const float *mean, float *plain, \
                                float *centred, const int64_t *s, int64_t stride, \
                                int64_t mean_stride, float slope, int64_t pool, int64_t threads) { \
        CHOOSE(sums, T)(x, shortcut, dy, scale, shift, mean, plain, centred, \
                        Shape{s[0], s[1], s[2], s[3]}, stride, mean_stride, slope, threads); \
    } \
    extern "C" void backward_##name(const T *x, const T *shortcut, const T *dy, \
                                    const float *scale, const float *shift, const float *slant, \
                                    const float *offset, T *dx, T *dz, const int64_t *s, \
                                    int64_t stride, int64_t slant_stride, float slope, int64_t pool, \
                                    int64_t threads) { \
        CHOOSE(any_backward, T)(x, shortcut, dy, scale, shift, slant, offset, dx, dz, \
                                Shape{s[0], s[1], s[2], s[3]}, stride, slant_stride, slope, \
                                threads); \
    } \
    extern "C" void gather_##name(const T *taps, float *images, const int64_t *s, int64_t height, \
                                  int64_t width, int64_t side, int64_t padding, int64_t threads) { \
        gather<T>(taps, images, Shape{s[0], s[1], s[2], s[3]}, height, width, side, padding, \
                  threads); \
    }
PASSES(float, float32)
PASSES(bfloat16, bfloat16)
