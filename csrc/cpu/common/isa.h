// Which instruction set a kernel file is being compiled for.
//
// Every csrc/cpu/<op>/kernel.cpp is compiled once an instruction set, with OCRQUANT_ISA set to the namespace that its
// functions go into. Kernel files use no templates of the standard library: the linker keeps one copy of those, and it may be
// the one with instructions that the processor lacks.
#pragma once

#if !defined(OCRQUANT_ISA)
#error "kernel files are compiled by csrc/CMakeLists.txt, which sets OCRQUANT_ISA"
#endif

#if defined(OCRQUANT_WITH_AVX2) || defined(OCRQUANT_WITH_AVX512)  // with AMX too
#include <immintrin.h>
#endif
