#include "common/launch.h"

#include <chrono>

namespace ocrquant {

std::vector<double> Program::timed_run() const {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    seconds.reserve(calls_.size());
    for (const auto& call : calls_) {
        const auto begin = Clock::now();
        call({});
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return seconds;
}

Program*& recording() {
    static thread_local Program* program = nullptr;
    return program;
}

}  // namespace ocrquant
