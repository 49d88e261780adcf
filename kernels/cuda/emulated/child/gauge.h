// What the kernels move, if they were compiled with -fsanitize=thread: the compiler then calls the functions of gauge.cpp for each access.
#pragma once
#include "emu.h"

namespace emu {

// What a kernel has done: its launches, the bytes between caches of the second level and memory, one number for each size, and those
// between the multiprocessors and the second level.
struct Moved {
    char kernel[40];
    uint64_t launches, blocks, threads, near_read, near_written;
    uint64_t mapped_read, mapped_written; // of the near ones those of memory that the processor sees too
    uint64_t read[4], written[4];
};

// gauge_begin says what memory is looked at, the sizes of the second-level caches in KiB, ended by 0, and how many blocks run side by side.
void gauge_begin(const void *memory, size_t size, const char *kib, unsigned resident);
void gauge_mapped(uintptr_t at, size_t size, bool mapped); // the processor sees this memory too, or does no longer
bool gauging(); // the blocks then run in the order of their numbers, as on a GPU
void gauge_launch(const char *kernel, uint64_t blocks, uint64_t threads);
void gauge_block(); // a block has ended
void gauge_end();   // the launch has
const Moved *gauge_all(uint32_t *n); // since gauge_clear
void gauge_clear();

} // namespace emu
