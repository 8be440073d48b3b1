#include "common/dispatch.h"

#include <atomic>
#include <stdexcept>

#if defined(OCRQUANT_HAS_AVX512) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ocrquant {

namespace {

#if defined(OCRQUANT_HAS_AVX512)
// Whether this process may use tiles of bf16: the processor has them, with fp16 beside, and Linux grants their state
// (arch_prctl(2)). Elsewhere AVX-512 runs.
bool amx_granted() {
#if defined(__linux__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned BF16 = 1u << 22, FP16 = 1u << 23, TILE = 1u << 24, ALL = BF16 | FP16 | TILE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & ALL) != ALL) return false;
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}
#endif

Isa detect() {
#if defined(OCRQUANT_HAS_AVX512)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bf16"))
        return amx_granted() ? Isa::amx : Isa::avx512;
#endif
#if defined(OCRQUANT_HAS_AVX2)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return Isa::avx2;
#endif
    return Isa::plain;
}

std::atomic<int> forced{-1};

}  // namespace

Isa best_isa() {
    static const Isa isa = detect();
    return isa;
}

Isa active_isa() {
    const int isa = forced.load(std::memory_order_relaxed);
    return isa < 0 ? best_isa() : static_cast<Isa>(isa);
}

void force_isa(const std::string& name) {
    if (name == "auto") {
        forced = -1;
        return;
    }
    for (Isa isa : {Isa::plain, Isa::avx2, Isa::avx512, Isa::amx}) {
        if (name != isa_name(isa)) continue;
        if (isa > best_isa())
            throw std::invalid_argument("instruction set: expected at most " + std::string(isa_name(best_isa())) +
                                        ", which is the best one here, got " + name);
        forced = static_cast<int>(isa);
        return;
    }
    throw std::invalid_argument("instruction set: expected auto, plain, avx2, avx512 or amx, got " + name);
}

const char* isa_name(Isa isa) {
    static const char* const names[] = {"plain", "avx2", "avx512", "amx"};
    return names[static_cast<int>(isa)];
}

}  // namespace ocrquant
