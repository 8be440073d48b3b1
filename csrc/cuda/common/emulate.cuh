// The words of device.cuh on a processor: a block's threads are fibres of one thread of the host.
//
// A fibre runs until it meets a barrier, then the next one does; a barrier opens when all threads that still run have come to
// it. Nothing runs at the same time, so results are the same every time; run with the fibres in the opposite order
// (`ocrquant_emulate`), a kernel that forgot a barrier gives other results. Shared memory begins every block full of
// NaN. A barrier that not all threads reach ends the process with a word about it, where a GPU would hang.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define __global__
#define __launch_bounds__(...)
#define OCRQUANT_BOTH inline
#define OCRQUANT_DEVICE inline
#define OCRQUANT_SHARED(Type, name)                                                       \
    static_assert(sizeof(Type) <= 48 * 1024, "more shared memory than needs no asking"); \
    Type& name = *reinterpret_cast<Type*>(::ocrquant::emulated::shared())
#define OCRQUANT_DYNAMIC_SHARED(name) unsigned char* const name = ::ocrquant::emulated::shared()

struct uint4 {
    uint32_t x, y, z, w;
};
struct uint2 {
    uint32_t x, y;
};
struct float4 {
    float x, y, z, w;
};
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1;

namespace ocrquant::emulated {

constexpr size_t STACK_BYTES = 128 * 1024, SHARED_BYTES = 227 * 1024;
constexpr int WARP = 32;

enum class Wait { none, warp, block, forever };

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    Wait wait = Wait::none;
    alignas(16) uint32_t post[8];  // what the other lanes of the warp may read
};

struct Machine {
    std::vector<Fibre> fibres;
    ucontext_t scheduler;
    std::unique_ptr<uint64_t[]> shared{new uint64_t[SHARED_BYTES / 8]};
    dim3 block;
    int threads = 0, current = 0;
    bool is_backwards = false, ignores_barriers = false;
    const std::function<void()>* kernel = nullptr;
};

inline Machine& machine() {
    static Machine one;
    return one;
}

inline unsigned char* shared() { return reinterpret_cast<unsigned char*>(machine().shared.get()); }

inline void wait(Wait what) {
    Machine& m = machine();
    Fibre& fibre = m.fibres[size_t(m.current)];
    fibre.wait = what;
    swapcontext(&fibre.context, &m.scheduler);
}

inline void run_fibre() {
    Machine& m = machine();
    (*m.kernel)();
    wait(Wait::forever);
}

// Opens the barrier that `count` fibres from `first` on have all come to; whether there was one.
inline bool open(int first, int count, Wait what) {
    Machine& m = machine();
    bool some = false;
    for (int i = first; i < first + count; ++i) {
        const Wait w = m.fibres[size_t(i)].wait;
        if (w != what && w != Wait::forever) return false;
        some = some || w == what;
    }
    for (int i = first; i < first + count; ++i) {
        if (m.fibres[size_t(i)].wait == what) m.fibres[size_t(i)].wait = Wait::none;
    }
    return some;
}

inline bool open_some() {
    Machine& m = machine();
    bool some = false;
    for (int i = 0; i < m.threads; i += WARP) some = open(i, std::min(WARP, m.threads - i), Wait::warp) || some;
    return open(0, m.threads, Wait::block) || some;
}

inline void run_block() {
    Machine& m = machine();
    std::memset(shared(), 0xff, SHARED_BYTES);
    for (int i = 0; i < m.threads; ++i) {
        Fibre& fibre = m.fibres[size_t(i)];
        fibre.wait = Wait::none;
#if defined(__SANITIZE_ADDRESS__)
        // The last block's frames were left, not returned from, and their marks lie on the stack still.
        __asan_unpoison_memory_region(fibre.stack.get(), STACK_BYTES);
#endif
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.get();
        fibre.context.uc_stack.ss_size = STACK_BYTES;
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, run_fibre, 0);
    }
    do {
        for (int n = 0; n < m.threads; ++n) {
            m.current = m.is_backwards ? m.threads - 1 - n : n;
            Fibre& fibre = m.fibres[size_t(m.current)];
            if (fibre.wait == Wait::none) swapcontext(&m.scheduler, &fibre.context);
        }
    } while (open_some());
    for (int i = 0; i < m.threads; ++i) {
        if (m.fibres[size_t(i)].wait != Wait::forever) {
            std::fprintf(stderr, "block (%u, %u, %u): a barrier that thread %d waits at is not reached by all\n", m.block.x,
                         m.block.y, m.block.z, i);
            std::abort();
        }
    }
}

inline uint32_t (&post(int thread))[8] { return machine().fibres[size_t(thread)].post; }

struct ThreadIndex {
    operator int() const { return machine().current; }
};

}  // namespace ocrquant::emulated

struct {
    ocrquant::emulated::ThreadIndex x;
} static threadIdx;
#define blockIdx (::ocrquant::emulated::machine().block)

namespace ocrquant {

inline void barrier() {
    if (!emulated::machine().ignores_barriers) emulated::wait(emulated::Wait::block);
}
inline void warp_barrier() { emulated::wait(emulated::Wait::warp); }

template <class T>
inline T shuffle_xor(T value, int lanes) {
    static_assert(sizeof(T) == 4, "one register");
    const int thread = threadIdx.x;
    std::memcpy(emulated::post(thread), &value, 4);
    warp_barrier();
    std::memcpy(&value, emulated::post(thread ^ lanes), 4);
    warp_barrier();
    return value;
}

inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}

inline uint4 load_once(const void* from) {
    uint4 x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

inline float4 load_state(const float* from) {
    float4 x;
    std::memcpy(&x, from, sizeof(x));
    return x;
}

// The element `k` of a fragment's pair of bf16.
inline float half_of(uint32_t pair, int k) {
    const uint32_t bits = k ? pair & 0xffff0000u : pair << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    const int thread = threadIdx.x, lane = thread % emulated::WARP, first = thread - lane;
    uint32_t(&own)[8] = emulated::post(thread);
    std::memcpy(own, a, sizeof(a));
    std::memcpy(own + 4, b, sizeof(b));
    warp_barrier();
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const int quad = k % 8 / 2, upper = k / 8;
            const float x = half_of(emulated::post(first + row % 8 * 4 + quad)[row / 8 + 2 * upper], k % 2);
            const float y = half_of(emulated::post(first + column * 4 + quad)[4 + upper], k % 2);
            c[i] = fmaf(x, y, c[i]);
        }
    }
    warp_barrier();
}

template <class... Parameters, class... Arguments>
inline cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t,
                          Arguments... arguments) {
    emulated::Machine& m = emulated::machine();
    if (threads % emulated::WARP != 0 || threads > 1024 || shared_bytes > emulated::SHARED_BYTES) return cudaErrorInvalidValue;
    while (int(m.fibres.size()) < threads) m.fibres.emplace_back();
    m.threads = threads;
    const std::function<void()> body = [&] { kernel(Parameters(arguments)...); };
    m.kernel = &body;
    for (m.block.z = 0; m.block.z < grid.z; ++m.block.z) {
        for (m.block.y = 0; m.block.y < grid.y; ++m.block.y) {
            for (m.block.x = 0; m.block.x < grid.x; ++m.block.x) emulated::run_block();
        }
    }
    return cudaSuccess;
}

}  // namespace ocrquant
