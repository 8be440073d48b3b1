// Launching a kernel: at once, or into the program that is being recorded on this thread.
//
// A program is to a processor what a captured graph is to a GPU: the calls of a whole step with their addresses, replayed by
// one call. What the addresses hold may change in between; the addresses may not. Rows may be fewer than were recorded where
// all launches go row by row, or by whole segments of rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ocrquant {

// How much of what was recorded a run takes: so many rows out of so many, and segments. No rows: everything.
struct Share {
    int64_t rows = 0, of_rows = 0, segments = 0;
};

class Program {
  public:
    using Call = std::function<void(const Share&)>;

    // `is_shared`: whether the call can take a share of its rows.
    void add(const char* name, bool is_shared, Call call) {
        if (!is_shared && whole_only_.empty()) whole_only_ = name;
        names_.emplace_back(name);
        calls_.push_back(std::move(call));
    }

    void run() const { run_all({}); }

    // For programs without a call that takes all of its rows or none.
    void run_share(const Share& share) const { run_all(share); }

    // The first call that cannot take a share; empty where all can.
    const std::string& whole_only() const { return whole_only_; }

    // Seconds of each launch of one run.
    std::vector<double> timed_run() const;

    const std::vector<std::string>& names() const { return names_; }

  private:
    void run_all(const Share& share) const {
        for (const auto& call : calls_) call(share);
    }

    std::vector<std::string> names_;
    std::vector<Call> calls_;
    std::string whole_only_;
};

// The program being recorded on this thread, or null.
Program*& recording();

template <class Args, class = void>
struct HasSegments : std::false_type {};
template <class Args>
struct HasSegments<Args, std::void_t<decltype(std::declval<Args&>().segments)>> : std::true_type {};

// Whether `rows` is a number of rows.
template <class Args, class = void>
struct HasRows : std::false_type {};
template <class Args>
struct HasRows<Args, std::void_t<decltype(std::declval<Args&>().rows)>> : std::is_same<decltype(Args::rows), int64_t> {};

// The arguments for a share of the rows; a launch over a fraction of them keeps the fraction.
template <class Args>
Args share_of(Args args, const Share& share) {
    if constexpr (HasSegments<Args>::value) {
        args.segments = share.segments;
    } else if constexpr (HasRows<Args>::value) {
        args.rows = args.rows * share.rows / share.of_rows;
    }
    return args;
}

template <class Args>
void launch(const char* name, void (*kernel)(const Args&), const Args& args) {
    if (Program* program = recording()) {
        program->add(name, HasSegments<Args>::value || HasRows<Args>::value,
                     [kernel, args](const Share& share) { kernel(share.of_rows > 0 ? share_of(args, share) : args); });
    } else {
        kernel(args);
    }
}

}  // namespace ocrquant
