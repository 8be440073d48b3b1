// A fixed pool of threads for kernels.
//
// Chunks of a job are taken from one counter, the caller takes part, and the caller waits only for workers that are inside a
// chunk: one that is still asleep, or that another process has pushed aside before it began, costs nothing. Where a worker
// was held up inside a chunk, the next jobs run on the caller alone.
#pragma once

#include <cstdint>

namespace ocrquant {

using ChunkFunction = void (*)(void* context, int64_t chunk);

// Runs function(context, 0 .. chunks - 1), each once, in no order. Called from inside a chunk it runs them in turn.
void parallel_chunks(int64_t chunks, ChunkFunction function, void* context);

// Threads that a job may use, the caller counted; at most the cores that this process may run on.
int num_threads();
void set_num_threads(int threads);
int available_cores();

// parallel_for(n, [&](int64_t i) { ... }); `serial` runs it on the caller: say so where the work is less than a few dozen
// microseconds, since waking a sleeping worker takes that long.
template <class Body>
void parallel_for(int64_t count, bool serial, Body&& body) {
    if (serial || count <= 1 || num_threads() == 1) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    parallel_chunks(count, [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

// Memory of the calling thread that grows at its first use and is then kept; 64-byte aligned. `slot` (0 to 7) tells apart
// buffers that are in use at the same time.
void* scratch(int slot, int64_t bytes);

}  // namespace ocrquant
