// Launching a kernel: at once, or into the program that is being recorded on this thread.
//
// A program is to a processor what a captured graph is to a GPU: the calls of a whole step with their addresses, replayed by
// one call. What the addresses hold may change in between; the addresses and sizes may not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ocrquant {

class Program {
  public:
    void add(const char* name, std::function<void()> call) {
        names_.emplace_back(name);
        calls_.push_back(std::move(call));
    }

    void run() const {
        for (const auto& call : calls_) call();
    }

    // Seconds of each launch of one run.
    std::vector<double> timed_run() const;

    const std::vector<std::string>& names() const { return names_; }

  private:
    std::vector<std::string> names_;
    std::vector<std::function<void()>> calls_;
};

// The program being recorded on this thread, or null.
Program*& recording();

template <class Args>
void launch(const char* name, void (*kernel)(const Args&), const Args& args) {
    if (Program* program = recording()) {
        program->add(name, [kernel, args] { kernel(args); });
    } else {
        kernel(args);
    }
}

}  // namespace ocrquant
