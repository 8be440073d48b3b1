// What every bind.cpp needs. Python passes addresses and sizes, which its side has checked: no torch headers.
#pragma once

#include <nanobind/nanobind.h>

#include "common/dispatch.h"
#include "common/launch.h"

namespace nb = nanobind;

namespace ocrquant {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

inline auto release_gil() { return nb::call_guard<nb::gil_scoped_release>(); }

}  // namespace ocrquant
