#include "common/pool.h"

#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace ocrquant {

namespace {

using Clock = std::chrono::steady_clock;

// How long an idle worker looks for the next job before it sleeps: longer than the serial stretches between two large
// products of one step, short enough not to matter to others.
constexpr auto SPIN = std::chrono::microseconds(60);
// A worker that keeps the caller waiting this long, and for several chunks' worth of time, was not running. Then the caller goes
// on alone for a multiple of what it has waited, so that waiting costs at most a part in so many. It was a number of jobs
// before, which is seconds where a job is a large product: one thread did the work of two (Xeon family 6 model 207, 2026-11-30).
constexpr auto HELD_UP = std::chrono::microseconds(300);
constexpr int CHUNKS_HELD_UP = 3;
constexpr int TIMES_ALONE = 16;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
  public:
    void run(int64_t chunks, ChunkFunction function, void* context) {
        if (inside_ || workers_wanted() == 0 || getpid() != owner_ || !jobs_.try_lock()) {
            for (int64_t i = 0; i < chunks; ++i) function(context, i);
            return;
        }
        std::lock_guard<std::mutex> one_at_a_time(jobs_, std::adopt_lock);
        if (alone_until_ != Clock::time_point() && Clock::now() < alone_until_) {
            for (int64_t i = 0; i < chunks; ++i) function(context, i);
            return;
        }
        start_workers();
        function_ = function;
        context_ = context;
        chunks_ = chunks;
        next_.store(0, std::memory_order_relaxed);
        state_.store((++generation_ << 1) | 1, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        inside_ = true;
        const auto begin = Clock::now();
        const int64_t taken = take_chunks();
        const auto end = Clock::now();
        inside_ = false;
        state_.store(generation_ << 1, std::memory_order_seq_cst);
        wait_for_workers(end, taken > 0 ? (end - begin) / taken : Clock::duration::zero());
    }

    int threads() const { return threads_.load(std::memory_order_relaxed); }

    void set_threads(int threads) { threads_ = std::clamp(threads, 1, available_cores()); }

  private:
    int workers_wanted() const { return threads() - 1; }

    void start_workers() {
        for (; started_ < workers_wanted(); ++started_) std::thread([this, index = started_] { work(index); }).detach();
    }

    // Returns how many there were.
    int64_t take_chunks() {
        int64_t taken = 0;
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_; ++taken) function_(context_, i);
        return taken;
    }

    void wait_for_workers(Clock::time_point begin, Clock::duration chunk) {
        if (active_.load(std::memory_order_seq_cst) == 0) return;
        for (int spins = 0; active_.load(std::memory_order_seq_cst) != 0; ++spins) {
            relax();
            if (spins % 1024 == 1023) std::this_thread::yield();
        }
        const auto end = Clock::now();
        if (end - begin > HELD_UP && end - begin > CHUNKS_HELD_UP * chunk) alone_until_ = end + TIMES_ALONE * (end - begin);
    }

    void work(int index) {
        inside_ = true;
        uint64_t seen = 0;
        for (;;) {
            const uint64_t state = wait_for_job(seen);
            seen = state;
            if (index >= workers_wanted()) continue;
            active_.fetch_add(1, std::memory_order_seq_cst);
            // The caller closes a job before it looks at active_, so a worker that still finds it open is waited for.
            if (state_.load(std::memory_order_seq_cst) == state) take_chunks();
            active_.fetch_sub(1, std::memory_order_seq_cst);
        }
    }

    uint64_t wait_for_job(uint64_t seen) {
        const auto is_new = [&](uint64_t state) { return (state & 1) != 0 && state != seen; };
        const auto end = Clock::now() + SPIN;
        for (int spins = 0;; ++spins) {
            const uint64_t state = state_.load(std::memory_order_seq_cst);
            if (is_new(state)) return state;
            relax();
            if (spins % 64 == 63 && Clock::now() > end) break;
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        uint64_t state = 0;
        wake_.wait(lock, [&] { return is_new(state = state_.load(std::memory_order_seq_cst)); });
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        return state;
    }

    static thread_local bool inside_;

    std::mutex jobs_;
    ChunkFunction function_ = nullptr;
    void* context_ = nullptr;
    int64_t chunks_ = 0;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<uint64_t> state_{0};  // generation << 1 | open
    alignas(64) std::atomic<int> active_{0};
    uint64_t generation_ = 0;
    Clock::time_point alone_until_{};
    int started_ = 0;
    pid_t owner_ = getpid();
    std::atomic<int> threads_{available_cores()};
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int> sleepers_{0};
};

thread_local bool Pool::inside_ = false;

// Never destroyed: workers may still look at it while the process ends.
Pool& pool() {
    static Pool* const instance = new Pool;
    return *instance;
}

struct Buffer {
    void* data = nullptr;
    int64_t bytes = 0;
    ~Buffer() { std::free(data); }
};

thread_local Buffer buffers[8];

}  // namespace

void parallel_chunks(int64_t chunks, ChunkFunction function, void* context) { pool().run(chunks, function, context); }

int num_threads() { return pool().threads(); }

void set_num_threads(int threads) { pool().set_threads(threads); }

int available_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

void* scratch(int slot, int64_t bytes) {
    Buffer& buffer = buffers[slot];
    if (buffer.bytes < bytes) {
        const int64_t rounded = (bytes + 4095) / 4096 * 4096;
        void* const data = std::aligned_alloc(64, static_cast<size_t>(rounded));
        if (data == nullptr) throw std::bad_alloc();
        std::free(buffer.data);
        buffer.data = data;
        buffer.bytes = rounded;
    }
    return buffer.data;
}

}  // namespace ocrquant
