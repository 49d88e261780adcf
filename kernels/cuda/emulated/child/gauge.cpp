// A model of a GPU's caches. Both levels have lines of 128 bytes whose sectors of 32 are filled one by one, as on all GPUs that the kernels
// are compiled for. Each block of threads has a first level of its own, 64 KiB and 4 ways. What misses it goes to the second
// level, which has 16 ways and forgets what was used longest ago. Blocks that run side by side take turns at it, 32 sectors at a time.
#include "gauge.h"
#include "threads.h"

#include <stdlib.h>
#include <string.h>

#include <map>
#include <vector>

namespace emu {

enum { SECTOR = 32, LINE = 128, NEAR = 128, NEAR_WAYS = 4, WAYS = 16, TURN = 32 };

static uintptr_t from, size;  // of the memory
static unsigned resident;
static std::vector<Moved> all;
static Moved *now;

struct Near {
    uintptr_t line;
    unsigned char read, written;  // bits of sectors
};
static Near near[NEAR][NEAR_WAYS];  // what was used last comes first

struct Sector {
    unsigned line;
    unsigned char bit, write;
};
static std::vector<std::vector<Sector>> blocks;  // what the blocks of this turn want of the second level
static unsigned ended;

struct Line {
    unsigned line, used;
    unsigned char valid, dirty;
};

struct Far {
    std::vector<Line> lines;
    unsigned clock;
};
static std::vector<Far> far;
static std::map<uintptr_t, size_t> mapped;  // by where they end: where they begin

static void ask(size_t i, const Sector &s) {
    Far &f = far[i];
    size_t sets = f.lines.size() / WAYS;
    Line *set = &f.lines[(s.line * 0x9e3779b97f4a7c15ull >> 20) % sets * WAYS], *l = set;
    int w = 0;
    while (w < WAYS && !(set[w].valid && set[w].line == s.line)) w++;
    if (w < WAYS) {
        l = set + w;
    } else {
        for (w = 1; w < WAYS; w++)
            if (!set[w].valid || (l->valid && set[w].used < l->used)) l = set + w;
        now->written[i] += SECTOR * __builtin_popcount(l->dirty);
        *l = {s.line, 0, 0, 0};
    }
    l->used = ++f.clock;
    if (!s.write && !(l->valid & s.bit)) now->read[i] += SECTOR;
    l->valid |= s.bit;
    if (s.write) l->dirty |= s.bit;
}

static void take_turns() {
    size_t most = 0;
    for (unsigned b = 0; b < ended; b++)
        if (blocks[b].size() > most) most = blocks[b].size();
    for (size_t at = 0; at < most; at += TURN)
        for (unsigned b = 0; b < ended; b++)
            for (size_t k = at; k < at + TURN && k < blocks[b].size(); k++)
                for (size_t i = 0; i < far.size(); i++) ask(i, blocks[b][k]);
    for (unsigned b = 0; b < ended; b++) blocks[b].clear();
    ended = 0;
}

static inline void touch(uintptr_t at, size_t n, bool write) {
    at -= from;
    if (at >= size || !now) return;
    if (!begun()) fail("an access to memory before a grid_begin");
    for (uintptr_t s = at / SECTOR; s <= (at + n - 1) / SECTOR; s++) {
        uintptr_t line = s / (LINE / SECTOR);
        unsigned char bit = (unsigned char)(1u << s % (LINE / SECTOR));
        Near *set = near[line * 0x9e3779b97f4a7c15ull >> 57], &p = *set;  // one of NEAR
        if (p.line != line) {
            int w = 1;
            while (w < NEAR_WAYS - 1 && set[w].line != line) w++;
            Near found = set[w].line == line ? set[w] : Near{line, 0, 0};
            for (; w > 0; w--) set[w] = set[w - 1];
            p = found;
        }
        if (write ? p.written & bit : (p.read | p.written) & bit) continue;
        (write ? p.written : p.read) |= bit;
        (write ? now->near_written : now->near_read) += SECTOR;
        auto piece = mapped.upper_bound(from + s * SECTOR);
        if (piece != mapped.end() && from + s * SECTOR >= piece->second) (write ? now->mapped_written : now->mapped_read) += SECTOR;
        blocks[ended].push_back({(unsigned)line, bit, write});
    }
}

void gauge_begin(const void *memory, size_t bytes, const char *kib, unsigned n) {
    from = (uintptr_t)memory, size = bytes, resident = n;
    for (char *end; unsigned long k = strtoul(kib, &end, 10); kib = *end ? end + 1 : end) {
        far.push_back({std::vector<Line>(k * 1024 / LINE), 0});
    }
    blocks.resize(n);
}

void gauge_mapped(uintptr_t at, size_t n, bool on) {
    if (on) mapped[at + n] = at;
    else mapped.erase(at + n);
}

bool gauging() { return !far.empty(); }

void gauge_launch(const char *kernel, uint64_t n, uint64_t threads) {
    if (!gauging()) return;
    now = nullptr;
    for (Moved &m : all)
        if (!strncmp(m.kernel, kernel, sizeof m.kernel - 1)) now = &m;
    if (!now) {
        all.push_back({});
        now = &all.back();
        strncpy(now->kernel, kernel, sizeof now->kernel - 1);
    }
    now->launches++, now->blocks += n, now->threads += n * threads;
    memset(near, 0xff, sizeof near);
}

void gauge_block() {
    if (!now) return;
    memset(near, 0xff, sizeof near);
    if (++ended == resident) take_turns();
}

void gauge_end() {
    if (!now) return;
    take_turns();
    now = nullptr;
}

const Moved *gauge_all(uint32_t *n) {
    *n = (uint32_t)all.size();
    return all.data();
}

void gauge_clear() { all.clear(); }

} // namespace emu

// What g++ calls with -fsanitize=thread.
#define ACCESS(n)                                                                       \
    void __tsan_read##n(void *p) { emu::touch((uintptr_t)p, n, false); }                \
    void __tsan_write##n(void *p) { emu::touch((uintptr_t)p, n, true); }                \
    void __tsan_unaligned_read##n(void *p) { emu::touch((uintptr_t)p, n, false); }      \
    void __tsan_unaligned_write##n(void *p) { emu::touch((uintptr_t)p, n, true); }
extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *p, size_t n) { emu::touch((uintptr_t)p, n, false); }
void __tsan_write_range(void *p, size_t n) { emu::touch((uintptr_t)p, n, true); }
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}
