// The choice of an instruction set, made once for the processor that runs.
#pragma once

#include <string>

namespace ocrquant {

enum class Isa { plain = 0, avx2 = 1, avx512 = 2, amx = 3 };

// The best set that this build holds and this processor has. AVX2 includes FMA and F16C. AVX-512 stands for F, BW, DQ, VL,
// VNNI, VBMI and BF16 together. AMX is that, FP16, and tiles of bf16, which the operating system must grant to the process.
Isa best_isa();

// The set in use: the best one, or a lower one that `force_isa` named.
Isa active_isa();

// Throws std::invalid_argument when the name is unknown or beyond `best_isa()`.
void force_isa(const std::string& name);

const char* isa_name(Isa isa);

}  // namespace ocrquant

// The builds of a kernel, declared from its arguments. Only kernels that OCRQUANT_PICK_AMX names have one for AMX.
#define OCRQUANT_DECLARE(op, Args)                    \
    namespace ocrquant::plain { void op(const Args&); }  \
    namespace ocrquant::avx2 { void op(const Args&); }   \
    namespace ocrquant::avx512 { void op(const Args&); } \
    namespace ocrquant::amx { void op(const Args&); }

#if defined(OCRQUANT_HAS_AVX512)
#define OCRQUANT_PICK(op)                                                     \
    (::ocrquant::active_isa() >= ::ocrquant::Isa::avx512 ? ::ocrquant::avx512::op \
     : ::ocrquant::active_isa() == ::ocrquant::Isa::avx2 ? ::ocrquant::avx2::op   \
                                                         : ::ocrquant::plain::op)
#define OCRQUANT_PICK_AMX(op) \
    (::ocrquant::active_isa() == ::ocrquant::Isa::amx ? ::ocrquant::amx::op : OCRQUANT_PICK(op))
#elif defined(OCRQUANT_HAS_AVX2)
#define OCRQUANT_PICK(op) \
    (::ocrquant::active_isa() == ::ocrquant::Isa::avx2 ? ::ocrquant::avx2::op : ::ocrquant::plain::op)
#else
#define OCRQUANT_PICK(op) (::ocrquant::plain::op)
#endif

#if !defined(OCRQUANT_PICK_AMX)
#define OCRQUANT_PICK_AMX(op) OCRQUANT_PICK(op)
#endif
