// Cosines and sines of rotary positions. The angle is one fp32 product, as the models define it; its cosine is taken in double
// precision, so that what is stored is the nearest value whatever the library.
#include <math.h>

#include "common/isa.h"
#include "common/numbers.h"
#include "common/pool.h"
#include "rope_table/args.h"

namespace ocrquant::OCRQUANT_ISA {

namespace {

struct Angles {
    const RopeTableArgs& args;
    int64_t row;

    float at(int64_t j) const { return float(args.positions[args.axis[j] * args.position_axis + row]) * args.inv_freq[j]; }
};

void one_by_one(const Angles& angles, int64_t first, int64_t last, float* cos, float* sin) {
    for (int64_t j = first; j < last; ++j) {
        const double angle = angles.at(j);
        cos[j] = float(::cos(angle));
        sin[j] = float(::sin(angle));
    }
}

#if defined(OCRQUANT_WITH_AVX512)

constexpr int64_t EIGHT = 8;
// Up to here a quarter turn in two parts leaves the rest of an fp32 angle to 2^-53 of itself, however near it is to a multiple.
constexpr double MOST = 0x1p22;

template <int N>
__m512d polynomial(__m512d x, const double (&coefficients)[N]) {
    __m512d y = _mm512_set1_pd(coefficients[N - 1]);
    for (int i = N - 2; i >= 0; --i) y = _mm512_fmadd_pd(y, x, _mm512_set1_pd(coefficients[i]));
    return y;
}

// Cosines and sines of eight angles up to MOST to a few 2^-53, which fp32 cannot tell from the nearest: fdlibm's polynomials on the
// eighth of a turn around the nearest quarter: of 54 million from positions up to 3 million none differed from libm. 16 rows of 16 angles
// took 4.7 us by libm and take 0.5 (Xeon family 6 model 207, 2026-11-30).
void eight(__m512d angle, float* cos, float* sin) {
    static const double SIN[] = {-1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
                                 2.75573137070700676789e-06,  -2.50507602534068634195e-08, 1.58969099521155010221e-10};
    static const double COS[] = {4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                 -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11};
    const __m512d turns = _mm512_mul_pd(angle, _mm512_set1_pd(0x1.45f306dc9c883p-1));
    const __m512d n = _mm512_maskz_roundscale_pd(0xff, turns, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512d r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.921fb54442d18p+0), angle);
    r = _mm512_fnmadd_pd(n, _mm512_set1_pd(0x1.1a62633145c07p-54), r);
    const __m512d z = _mm512_mul_pd(r, r);
    const __m512d s = _mm512_fmadd_pd(_mm512_mul_pd(z, r), polynomial(z, SIN), r);
    const __m512d c = _mm512_fmadd_pd(_mm512_mul_pd(z, z), polynomial(z, COS), _mm512_fnmadd_pd(_mm512_set1_pd(0.5), z, _mm512_set1_pd(1.0)));
    const __m512i quarter = _mm512_maskz_cvtpd_epi64(0xff, n), one = _mm512_set1_epi64(1), two = _mm512_set1_epi64(2);
    const __mmask8 is_odd = _mm512_test_epi64_mask(quarter, one);
    const __m512d sign = _mm512_set1_pd(-0.0);
    __m512d x = _mm512_mask_mov_pd(c, is_odd, s), y = _mm512_mask_mov_pd(s, is_odd, c);
    x = _mm512_mask_xor_pd(x, _mm512_test_epi64_mask(_mm512_add_epi64(quarter, one), two), x, sign);
    y = _mm512_mask_xor_pd(y, _mm512_test_epi64_mask(quarter, two), y, sign);
    _mm256_storeu_ps(cos, _mm512_maskz_cvtpd_ps(0xff, x));
    _mm256_storeu_ps(sin, _mm512_maskz_cvtpd_ps(0xff, y));
}

void row_of(const Angles& angles, int64_t half, float* cos, float* sin) {
    int64_t j = 0;
    for (; j + EIGHT <= half; j += EIGHT) {
        float some[EIGHT];
        for (int64_t i = 0; i < EIGHT; ++i) some[i] = angles.at(j + i);
        const __m512d wide = _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(some));
        if (_mm512_cmp_pd_mask(_mm512_abs_pd(wide), _mm512_set1_pd(MOST), _CMP_LE_OQ) == 0xff) {
            eight(wide, cos + j, sin + j);
        } else {
            one_by_one(angles, j, j + EIGHT, cos, sin);
        }
    }
    one_by_one(angles, j, half, cos, sin);
}

#else

void row_of(const Angles& angles, int64_t half, float* cos, float* sin) { one_by_one(angles, 0, half, cos, sin); }

#endif

}  // namespace

void rope_table(const RopeTableArgs& args) {
    parallel_for(args.rows, args.rows * args.half < 1 << 11, [&](int64_t r) {
        float *cos = args.cos + r * args.half, *sin = args.sin + r * args.half;
        row_of({args, r}, args.half, cos, sin);
        if (!args.to_bf16) return;
        for (int64_t j = 0; j < args.half; ++j) {
            cos[j] = from_bf16(to_bf16(cos[j]));
            sin[j] = from_bf16(to_bf16(sin[j]));
        }
    });
}

}  // namespace ocrquant::OCRQUANT_ISA
