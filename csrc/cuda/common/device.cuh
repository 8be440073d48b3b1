// What the kernels say to the machine: threads, barriers, shuffles, wide loads, matrix products, launches.
//
// With OCRQUANT_EMULATED the same words are host functions (emulate.cuh), so that the kernels' own source runs on a processor,
// block by block, and is tested there. Nothing outside these two files knows which machine it is on, save the conversions of
// numbers.cuh.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(OCRQUANT_EMULATED)

#include "common/emulate.cuh"

#else

#include <cuda_runtime.h>

// A function of both sides, and a kernel's one object in shared memory.
#define OCRQUANT_BOTH __host__ __device__ __forceinline__
#define OCRQUANT_DEVICE __device__ __forceinline__
#define OCRQUANT_SHARED(Type, name) __shared__ Type name
#define OCRQUANT_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

namespace ocrquant {

constexpr unsigned EVERY_LANE = 0xffffffffu;

OCRQUANT_DEVICE void barrier() { __syncthreads(); }
OCRQUANT_DEVICE void warp_barrier() { __syncwarp(); }

template <class T>
OCRQUANT_DEVICE T shuffle_xor(T value, int lanes) {
    return __shfl_xor_sync(EVERY_LANE, value, lanes);
}

// Larger of two pairs of 16 bits, unsigned.
OCRQUANT_DEVICE uint32_t larger_halves(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

// Sixteen bytes that no later instruction of the kernel reads again.
OCRQUANT_DEVICE uint4 load_once(const void* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// Sixteen bytes that the kernel may write later.
OCRQUANT_DEVICE float4 load_state(const float* from) {
    float4 x;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

// c += a b: a [16, 16] by rows, b [16, 8] by columns, bf16; c [16, 8] fp32. Fragments as in the PTX manual's m16n8k16.
OCRQUANT_DEVICE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Kernels whose shared memory is dynamic may need more than the 48 KiB that need no asking.
template <class... Parameters, class... Arguments>
inline cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                          Arguments... arguments) {
    if (shared_bytes > 48 * 1024) {
        const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
        if (error != cudaSuccess) return error;
    }
    kernel<<<grid, threads, shared_bytes, stream>>>(Parameters(arguments)...);
    return cudaGetLastError();
}

}  // namespace ocrquant

#endif

namespace ocrquant {

// Highest grid index of the second and third dimension.
constexpr int64_t MOST_PARTS = 65535;

OCRQUANT_BOTH int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

OCRQUANT_BOTH bool is_aligned(const void* pointer, int64_t row_bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && row_bytes % 16 == 0;
}

}  // namespace ocrquant
