// What follows a convolution whose maps have the images last in memory, (C, H, W, N), float32:
//     y = f(scale x + shift),   f(z) = z above 0 and slope z below,
// by the statistics of each channel or by given ones, and the derivatives of both.
//
// A channel is one row in memory, short enough for the cache, and one thread's: no sum's order depends
// on the number of threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "vectors.h"

namespace {

// a row's place for a value at each position: of whole vectors, then of the rest
template <class Part> void along(int64_t length, Part part) {
    int64_t i = 0;
    for (; i + LANES <= length; i += LANES) part(i, Vec{});
    for (; i < length; ++i) part(i, 0.f);
}

// sums over a row, which `term` adds to: floats over a stretch of it, doubles over the stretches
template <int COUNT, class Term> std::array<double, COUNT> totals(int64_t length, Term term) {
    constexpr int64_t STRETCH = 2048;
    std::array<double, COUNT> all{};
    for (int64_t first = 0; first < length; first += STRETCH) {
        Vec sums[COUNT] = {};
        float rest[COUNT] = {};
        const int64_t last = std::min(first + STRETCH, length);
        int64_t i = first;
        for (; i + LANES <= last; i += LANES) term(i, sums);
        for (; i < last; ++i) term(i, rest);
        for (int k = 0; k < COUNT; ++k) {
            for (int lane = 0; lane < LANES; ++lane) all[k] += sums[k][lane];
            all[k] += rest[k];
        }
    }
    return all;
}

// what such sums are of: vectors or single numbers
template <class Sums> using Of = std::remove_reference_t<decltype(*std::declval<Sums>())>;

// one channel x, and what its values become
struct Row {
    const float *x;
    float scale, shift, slope;

    template <class V> V z(int64_t i) const { return load<V>(x + i) * scale + shift; }
    // f'(z) value
    template <class V> V through(int64_t i, V value) const {
        return z<V>(i) > 0.f ? value : value * slope;
    }
    void apply(float *y, int64_t length) const {
        along(length, [&](int64_t i, auto kind) {
            using V = decltype(kind);
            store(y + i, through<V>(i, z<V>(i)));
        });
    }
};

// with it the slope dy of its results, and x about the mean
struct Sloped : Row {
    const float *dy;
    float mean;

    template <class V> V dz(int64_t i) const { return through<V>(i, load<V>(dy + i)); }
    template <class V> V off(int64_t i) const { return load<V>(x + i) - mean; }
};

}  // namespace

// y, and mean, rate = (variance + eps)^-1/2, scale = weight rate and shift = bias - mean scale, (C,)
extern "C" void last_standard_float32(const float *x, const float *weight, const float *bias, float *y,
                                      float *mean, float *rate, float *scale, float *shift,
                                      int64_t channels, int64_t length, float eps, float slope,
                                      int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < channels; ++c) {
        const float *row = x + c * length;
        const float m = totals<1>(length, [&](int64_t i, auto *sums) {
            sums[0] += load<Of<decltype(sums)>>(row + i);
        })[0] / length;
        const double variance = totals<1>(length, [&](int64_t i, auto *sums) {
            const auto off = load<Of<decltype(sums)>>(row + i) - m;
            sums[0] += off * off;
        })[0] / length;
        mean[c] = m;
        rate[c] = 1 / std::sqrt(variance + eps);
        scale[c] = weight[c] * rate[c];
        shift[c] = bias[c] - m * scale[c];
        Row{row, scale[c], shift[c], slope}.apply(y + c * length, length);
    }
}

// dx, dweight and dbias from dy and from what comes in for scale and shift themselves, d_scale and
// d_shift (C,) or null. With dz = f'(z) dy, S = d_shift + sum dz and Q = d_scale - mean d_shift +
// sum dz (x - mean):
//     dx = scale dz - scale S / n - weight rate^3 Q / n (x - mean),  dweight = rate Q,  dbias = S
extern "C" void last_standard_once_float32(const float *x, const float *dy, const float *d_scale,
                                           const float *d_shift, const float *weight,
                                           const float *mean, const float *rate, const float *scale,
                                           const float *shift, float *dx, float *d_weight,
                                           float *d_bias, int64_t channels, int64_t length,
                                           float slope, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < channels; ++c) {
        const Sloped row{{x + c * length, scale[c], shift[c], slope}, dy + c * length, mean[c]};
        const float m = mean[c], r = rate[c];
        const auto [plain, centred] = totals<2>(length, [&](int64_t i, auto *sums) {
            using V = Of<decltype(sums)>;
            const V dz = row.dz<V>(i);
            sums[0] += dz;
            sums[1] += dz * row.off<V>(i);
        });
        const double s = plain + (d_shift ? d_shift[c] : 0);
        const double q = centred + (d_scale ? d_scale[c] : 0) - (d_shift ? m * d_shift[c] : 0);
        d_weight[c] = r * q;
        d_bias[c] = s;
        const float constant = -scale[c] * s / length;
        const float line = -weight[c] * std::pow(double(r), 3) * q / length;
        along(length, [&, to = dx + c * length](int64_t i, auto kind) {
            using V = decltype(kind);
            store(to + i, row.scale * row.dz<V>(i) + line * row.off<V>(i) + constant);
        });
    }
}

// the derivatives of <g, dx> + g_weight dweight + g_bias dbias for dy, x and weight, where nothing came
// in for scale and shift. With h = (x - mean) rate, P(v) = v - mean(v) - h mean(v h), a = mean(g h),
// b = mean(dz h) and s = mean(g P(dz)):
//     for dz      weight rate P(g) + g_weight h + g_bias
//     for weight  n rate s
//     for x       -weight rate (b rate P(g) + a rate P(dz) + s rate h) + g_weight rate P(dz)
extern "C" void last_standard_twice_float32(const float *x, const float *dy, const float *g,
                                            const float *g_weight, const float *g_bias,
                                            const float *weight, const float *mean,
                                            const float *rate, const float *scale,
                                            const float *shift, float *for_dy, float *for_x,
                                            float *for_weight, int64_t channels, int64_t length,
                                            float slope, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < channels; ++c) {
        const Sloped row{{x + c * length, scale[c], shift[c], slope}, dy + c * length, mean[c]};
        const float *over = g + c * length, r = rate[c];
        auto sums = totals<5>(length, [&](int64_t i, auto *sums) {
            using V = Of<decltype(sums)>;
            const V off = row.off<V>(i), dz = row.dz<V>(i), v = load<V>(over + i);
            sums[0] += v;
            sums[1] += v * off;
            sums[2] += dz;
            sums[3] += dz * off;
            sums[4] += v * dz;
        });
        for (double &each : sums) each /= length;
        const double mean_g = sums[0], a = r * sums[1], mean_dz = sums[2], b = r * sums[3];
        const double s = sums[4] - mean_g * mean_dz - a * b;
        for_weight[c] = length * r * s;
        // factors of g, dz and x - mean, and a constant
        const double wrr = weight[c] * double(r) * r;
        const float of_g = -wrr * b, of_dz = g_weight[c] * r - wrr * a;
        const float of_x = -r * (of_g * a + of_dz * b) - wrr * r * s;
        const float constant = -of_g * mean_g - of_dz * mean_dz;
        const float line = (g_weight[c] - row.scale * a) * r, level = g_bias[c] - row.scale * mean_g;
        along(length, [&, to_dy = for_dy + c * length, to_x = for_x + c * length](int64_t i, auto kind) {
            using V = decltype(kind);
            const V off = row.off<V>(i), v = load<V>(over + i);
            store(to_x + i, of_g * v + of_dz * row.dz<V>(i) + of_x * off + constant);
            store(to_dy + i, row.through<V>(i, row.scale * v + line * off + level));
        });
    }
}

// f(scale x + shift) with given scale and shift (C,)
extern "C" void last_affine_float32(const float *x, const float *scale, const float *shift, float *y,
                                    int64_t channels, int64_t length, float slope, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < channels; ++c)
        Row{x + c * length, scale[c], shift[c], slope}.apply(y + c * length, length);
}

// its derivatives: dx = scale dz, d_scale = sum dz x, d_shift = sum dz
extern "C" void last_affine_once_float32(const float *x, const float *dy, const float *scale,
                                         const float *shift, float *dx, float *d_scale,
                                         float *d_shift, int64_t channels, int64_t length,
                                         float slope, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t c = 0; c < channels; ++c) {
        const Sloped row{{x + c * length, scale[c], shift[c], slope}, dy + c * length, 0};
        const auto sums = totals<2>(length, [&, to = dx + c * length](int64_t i, auto *sums) {
            using V = Of<decltype(sums)>;
            const V dz = row.dz<V>(i);
            store(to + i, row.scale * dz);
            sums[0] += dz * row.off<V>(i);
            sums[1] += dz;
        });
        d_scale[c] = sums[0];
        d_shift[c] = sums[1];
    }
}
