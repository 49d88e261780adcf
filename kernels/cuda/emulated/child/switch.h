// Fibers: stacks and the switch between them. Included by threads.cpp alone.
#pragma once
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

// emu_switch saves the registers that a call keeps on the stack and the stack's place in *from, and goes on where to was saved.
extern "C" void emu_switch(void **from, void *to);
extern "C" void emu_start();

#if defined(__x86_64__)
asm(R"(
    .text
    .globl emu_switch
    .type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch, .-emu_switch
    .globl emu_start
    .type emu_start, @function
emu_start:
    callq *%rbx
    ud2
    .size emu_start, .-emu_start
    .section .note.GNU-stack,"",@progbits
    .text
)");
static const int FRAME = 9, FRAME_BODY = 4, FRAME_START = 6; // words: all, the body's place (rbx), the return address
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl emu_switch
    .type emu_switch, %function
emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size emu_switch, .-emu_switch
    .globl emu_start
    .type emu_start, %function
emu_start:
    blr x19
    brk #1
    .size emu_start, .-emu_start
    .section .note.GNU-stack,"",%progbits
    .text
)");
static const int FRAME = 20, FRAME_BODY = 0, FRAME_START = 11;
#else
#error "emulated: the switch between fibers is written for x86-64 and aarch64"
#endif

namespace emu {

#ifdef __SANITIZE_ADDRESS__
static const size_t STACK = 128 << 10; // the sanitizer's frames are larger
#else
static const size_t STACK = 32 << 10;
#endif
static const size_t GUARD = 64 << 10; // no access below a stack: at least a page of any system

struct Fiber {
    void *sp;
    unsigned char *bottom; // of its stack
};

// map_guarded returns n bytes of new memory, before and behind which there is no access.
static unsigned char *map_guarded(size_t n) {
    size_t all = n + 2 * GUARD;
    unsigned char *p = (unsigned char *)mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p + GUARD, n, PROT_READ | PROT_WRITE)) fail("memory for stacks: %s", strerror(errno));
    return p + GUARD;
}

static bool in_guard(const Fiber *f, const void *at) {
    const unsigned char *p = (const unsigned char *)at;
    return p < f->bottom && p >= f->bottom - GUARD;
}

// switch_fiber goes on with to until another fiber goes on with from. The address sanitizer is not told: it would take longer than the
// switch, and needs it only for exceptions and for stacks that outlive their function.
static inline void switch_fiber(Fiber *from, Fiber *to) { emu_switch(&from->sp, to->sp); }

static Fiber home; // what runs the blocks
static void run_threads();

static Fiber *new_fiber() {
    Fiber *f = new Fiber();
    f->bottom = map_guarded(STACK);
    void **frame = (void **)(f->bottom + STACK) - FRAME;
    frame[FRAME_START] = (void *)emu_start;
    frame[FRAME_BODY] = (void *)run_threads;
    f->sp = frame;
    return f;
}

} // namespace emu
