// The extension module ocrquant._native: threads, instruction sets, programs, and every op under csrc/cpu.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "common/bind.h"
#include "common/pool.h"
// OCRQUANT_SOURCES, written by csrc/stamp.cmake.
#include "sources.inc"

// OCRQUANT_OP(name) for every folder of csrc/cpu that has a bind.cpp; written by csrc/CMakeLists.txt.
#define OCRQUANT_OP(name) \
    namespace ocrquant {  \
    void bind_##name(nb::module_&); \
    }
#include "ops.inc"
#undef OCRQUANT_OP

NB_MODULE(_native, m) {
    using namespace ocrquant;

    m.def("sources", [] { return std::string(OCRQUANT_SOURCES); });
    m.def("num_threads", &num_threads);
    m.def("set_num_threads", &set_num_threads);
    m.def("available_cores", &available_cores);
    m.def("isa", [] { return std::string(isa_name(active_isa())); });
    m.def("best_isa", [] { return std::string(isa_name(best_isa())); });
    m.def("force_isa", &force_isa);

    nb::class_<Program>(m, "Program")
        .def(nb::init<>())
        .def("run", &Program::run, release_gil())
        .def(
            "run_share",
            [](const Program& program, int64_t rows, int64_t of_rows, int64_t segments) {
                program.run_share({rows, of_rows, segments});
            },
            release_gil())
        .def("whole_only", &Program::whole_only)
        .def("timed_run", &Program::timed_run, release_gil())
        .def("names", &Program::names);
    m.def("record", [](Program* program) { recording() = program; }, nb::arg("program").none());
    m.def("is_recording", [] { return recording() != nullptr; });

#define OCRQUANT_OP(name) bind_##name(m);
#include "ops.inc"
#undef OCRQUANT_OP
}
