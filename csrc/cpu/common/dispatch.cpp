#include "common/dispatch.h"

#include <atomic>
#include <stdexcept>

namespace ocrquant {

namespace {

Isa detect() {
#if defined(OCRQUANT_HAS_AVX512)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bf16"))
        return Isa::avx512;
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
    for (Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
        if (name != isa_name(isa)) continue;
        if (isa > best_isa())
            throw std::invalid_argument("instruction set: expected at most " + std::string(isa_name(best_isa())) +
                                        ", which is the best one here, got " + name);
        forced = static_cast<int>(isa);
        return;
    }
    throw std::invalid_argument("instruction set: expected auto, plain, avx2 or avx512, got " + name);
}

const char* isa_name(Isa isa) {
    static const char* const names[] = {"plain", "avx2", "avx512"};
    return names[static_cast<int>(isa)];
}

}  // namespace ocrquant
