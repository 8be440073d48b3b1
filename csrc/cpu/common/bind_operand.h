// An operand as it comes from Python: six addresses, 0 for a form that is not wanted.
#pragma once

#include <nanobind/stl/array.h>

#include <array>

#include "common/bind.h"
#include "common/operand.h"

namespace ocrquant {

using OperandAddresses = std::array<Address, 6>;

inline OperandRows operand_rows(const OperandAddresses& a) {
    return {at<uint16_t>(a[0]), at<uint8_t>(a[1]), at<float>(a[2]),
            at<uint8_t>(a[3]),  at<uint8_t>(a[4]), at<const float>(a[5])};
}

}  // namespace ocrquant
