// vpdpbusd of AVX-VNNI in a handler of SIGILL: decode the instruction, compute on the saved registers, go on behind it.
#include "emulated.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { XSTATE = 512, XMM = 160, YMM_HIGH = 576, MAGIC = 464, AVX_STATE = 6 };  // offsets in the saved state, in its standard form

static struct sigaction before;
static atomic_long emulated;

// The general register n as instructions number them.
static uint64_t general(const ucontext_t *u, int n) {
    static const int reg[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)u->uc_mcontext.gregs[reg[n]];
}

static void get(const uint8_t *state, int n, uint8_t *v) {
    memcpy(v, state + XMM + 16 * n, 16);
    memcpy(v + 16, state + YMM_HIGH + 16 * n, 16);
}

// An instruction: the bytes it takes, its registers, and where its third operand lies, or the register in rm.
typedef struct {
    int bytes, reg, second, rm, wide;
    const uint8_t *memory;
} instruction;

// VEX.128 or .256.66.0F38.W0 50 /r, the only one that the kernels use.
static int decode(const ucontext_t *u, const uint8_t *p, instruction *to) {
    if (p[0] != 0xc4 || (p[1] & 31) != 2 || (p[2] & 0x83) != 1 || p[3] != 0x50) return 0;
    int r = ~p[1] >> 4 & 8, x = ~p[1] >> 3 & 8, b = ~p[1] >> 2 & 8, mod = p[4] >> 6, rm = p[4] & 7;
    *to = (instruction){.bytes = 5, .reg = r | (p[4] >> 3 & 7), .second = ~p[2] >> 3 & 15, .wide = p[2] >> 2 & 1};
    if (mod == 3) {
        to->rm = b | rm;
        return 1;
    }
    uint64_t at = 0;
    int none = mod == 0 && rm == 5;  // no base: relative to the next instruction, or with an index to nothing
    if (rm == 4) {
        int sib = p[to->bytes++], index = x | (sib >> 3 & 7);
        rm = sib & 7;
        if (index != 4) at = general(u, index) << (sib >> 6);
        none = mod == 0 && rm == 5;
        if (!none) at += general(u, b | rm);
    } else if (!none) at = general(u, b | rm);
    int32_t more = 0;
    if (mod == 1) more = (int8_t)p[to->bytes++];
    else if (mod == 2 || none) {
        memcpy(&more, p + to->bytes, 4);
        to->bytes += 4;
    }
    if (none && (p[4] & 7) == 5) at = (uint64_t)(uintptr_t)p + (uint64_t)to->bytes;
    to->memory = (const uint8_t *)(uintptr_t)(at + (uint64_t)(int64_t)more);
    return 1;
}

static int emulate(ucontext_t *u) {
    uint8_t *state = (uint8_t *)u->uc_mcontext.fpregs, a[32], b[32], c[32];
    const uint8_t *p = (const uint8_t *)(uintptr_t)u->uc_mcontext.gregs[REG_RIP];
    uint32_t magic;
    uint64_t in_use;
    instruction in;
    if (!state || !decode(u, p, &in)) return 0;
    memcpy(&magic, state + MAGIC, 4);
    if (magic != 0x46505853) return 0;  // no extended state
    memcpy(&in_use, state + XSTATE, 8);
    if (!(in_use & 2)) memset(state + XMM, 0, 256);
    if (!(in_use & 4)) memset(state + YMM_HIGH, 0, 256);
    in_use |= AVX_STATE;
    memcpy(state + XSTATE, &in_use, 8);
    get(state, in.reg, a);
    get(state, in.second, b);
    if (in.memory) memcpy(c, in.memory, in.wide ? 32 : 16);
    else get(state, in.rm, c);
    for (int i = 0; i < (in.wide ? 32 : 16); i += 4) {
        uint32_t sum;
        memcpy(&sum, a + i, 4);
        for (int j = i; j < i + 4; j++) sum += (uint32_t)(b[j] * (int8_t)c[j]);
        memcpy(a + i, &sum, 4);
    }
    if (!in.wide) memset(a + 16, 0, 16);
    memcpy(state + XMM + 16 * in.reg, a, 16);
    memcpy(state + YMM_HIGH + 16 * in.reg, a + 16, 16);
    u->uc_mcontext.gregs[REG_RIP] += in.bytes;
    atomic_fetch_add(&emulated, 1);
    return 1;
}

// What it does not know is left to the handler that was there: it is installed again, and the instruction runs once more.
static void illegal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    if (!emulate(context)) sigaction(SIGILL, &before, 0);
}

int emulate_install(void) {
    struct sigaction a = {.sa_sigaction = illegal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigfillset(&a.sa_mask);
    return sigaction(SIGILL, &a, &before);
}

int emulate_remove(void) { return sigaction(SIGILL, &before, 0); }
long emulate_count(void) { return atomic_load(&emulated); }

// Operands in registers of each half, and in memory by each way to name it. v: (4, 32): sum, unsigned, signed, result.
void emulate_each(uint8_t *v, int how) {
#define LOAD(sum, u, s) "vmovdqu (%0), %%" sum "\n vmovdqu 32(%0), %%" u "\n vmovdqu 64(%0), %%" s "\n"
#define STORE(sum) "\n vmovdqu %%" sum ", 96(%0)\n vzeroupper"
#define RUN(code)                                                                                    \
    __asm__ volatile(code : : "r"(v), "r"((uint64_t)2), "r"(v + 56)                                 \
                     : "memory", "xmm0", "xmm1", "xmm2", "xmm9", "xmm10", "xmm11", "r12", "r13")
    switch (how) {
    case 0: RUN(LOAD("ymm0", "ymm1", "ymm2") "%{vex%} vpdpbusd %%ymm2, %%ymm1, %%ymm0" STORE("ymm0")); break;
    case 1: RUN(LOAD("ymm9", "ymm10", "ymm11") "%{vex%} vpdpbusd %%ymm11, %%ymm10, %%ymm9" STORE("ymm9")); break;
    case 2: RUN(LOAD("ymm0", "ymm10", "ymm2") "%{vex%} vpdpbusd 64(%0), %%ymm10, %%ymm0" STORE("ymm0")); break;
    case 3: RUN(LOAD("ymm9", "ymm1", "ymm2") "%{vex%} vpdpbusd 8(%2), %%ymm1, %%ymm9" STORE("ymm9")); break;
    case 4: RUN(LOAD("ymm0", "ymm1", "ymm2") "%{vex%} vpdpbusd 48(%0,%1,8), %%ymm1, %%ymm0" STORE("ymm0")); break;
    case 5: RUN(LOAD("ymm0", "ymm1", "ymm2") "lea -4096(%0), %%r12\n %{vex%} vpdpbusd 4160(%%r12), %%ymm1, %%ymm0" STORE("ymm0")); break;
    case 6: RUN(LOAD("ymm0", "ymm1", "ymm2") "lea 64(%0), %%r13\n %{vex%} vpdpbusd (%%r13), %%ymm1, %%ymm0" STORE("ymm0")); break;
    case 7: RUN(LOAD("ymm0", "ymm1", "ymm2") "lea 16(,%0,1), %%r12\n %{vex%} vpdpbusd 48(,%%r12,1), %%ymm1, %%ymm0" STORE("ymm0")); break;
    }
}
