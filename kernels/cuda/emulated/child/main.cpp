// The emulated GPU: a process that takes commands from standard input and runs the kernels it is linked with. Its memory is the file
// of descriptor 3, which the Driver has mapped too. Anything wrong is told on standard error and ends the process.
#include "gauge.h"
#include "threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace emu {

// What the Driver sends: a command, then its payload.
struct Command {
    uint32_t kind, count;
};
enum : uint32_t { FIND, RUN, WAIT, ALLOCATED, RELEASED, MOVED, REGISTERED, MAPPED };

struct Launch {
    uint32_t kernel, fail;
    uint32_t grid[3], block[3];
    uint64_t shared, op, pass;
};

struct Piece {
    uint64_t at, size;
};

static std::vector<std::pair<std::string, Kernel>> kernels;
static unsigned char *memory;
static size_t memory_size, opened; // memory from opened on has never been allocated: no access
static std::vector<std::pair<uint64_t, uint64_t>> lent; // pieces of the processor's memory, behind all that, ascending

static bool read_all(void *to, size_t n) {
    for (size_t got = 0; got < n;) {
        ssize_t k = read(0, (char *)to + got, n - got);
        if (k <= 0) return false;
        got += (size_t)k;
    }
    return true;
}

template <class T>
static std::vector<T> payload(uint32_t count) {
    std::vector<T> v(count);
    if (!read_all(v.data(), count * sizeof(T))) _exit(0);
    return v;
}

template <class T>
static void reply(T v) {
    if (write(1, &v, sizeof v) != (ssize_t)sizeof v) _exit(0);
}

// find replies with the number of a kernel by name, or -1. A function of a library is no kernel.
static void find(uint32_t length) {
    std::vector<char> chars = payload<char>(length);
    std::string name(chars.begin(), chars.end());
    void *f = dlsym(RTLD_DEFAULT, name.c_str());
    Dl_info here, there;
    bool ours = f && dladdr(f, &there) && dladdr((void *)&begin_launch, &here) && here.dli_fbase == there.dli_fbase;
    if (!ours) return reply<uint32_t>(0xffffffffu);
    kernels.emplace_back(name, (Kernel)f);
    reply<uint32_t>((uint32_t)kernels.size() - 1);
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

// run runs the blocks of a launch, in an order of its own each time.
static void run(const Launch &l) {
    const auto &k = kernels.at(l.kernel);
    begin_launch(k.first.c_str(), k.second, l.op, l.pass, l.grid, l.block, l.shared);
    if (l.fail) fail("the launch failed, as the test asked for");
    uint64_t n = (uint64_t)l.grid[0] * l.grid[1] * l.grid[2], step = random_below((uint32_t)n) + 1, b = random_below((uint32_t)n);
    while (gcd(step, n) != 1) step++;
    if (gauging()) step = 1, b = 0;
    gauge_launch(k.first.c_str(), n, (uint64_t)l.block[0] * l.block[1] * l.block[2]);
    for (uint64_t i = 0; i < n; i++, b = (b + step) % n) {
        run_block((uint32_t)(b % l.grid[0]), (uint32_t)(b / l.grid[0] % l.grid[1]), (uint32_t)(b / l.grid[0] / l.grid[1]));
        gauge_block();
    }
    gauge_end();
    end_launch();
}

// allocated opens memory as far as a piece and the gap behind it go.
static void allocated(Piece p) {
    size_t end = (p.at - (uint64_t)memory + p.size + 256 + 0xfffff) & ~(size_t)0xfffff;
    if (end > memory_size) end = memory_size;
    if (end > opened) {
        if (mprotect(memory + opened, end - opened, PROT_READ | PROT_WRITE)) fail("mprotect: %s", strerror(errno));
        POISON(memory + opened, end - opened);
        opened = end;
    }
    UNPOISON((void *)p.at, p.size);
}

// released takes a piece back.
static void released(Piece p) {
    gauge_mapped(p.at, p.size, false);
    for (size_t i = 0; i < lent.size(); i++)
        if (lent[i].first == p.at) {
            if (mmap((void *)p.at, p.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
                fail("mmap: %s", strerror(errno));
            lent.erase(lent.begin() + i);
            return;
        }
    POISON((void *)p.at, p.size);
}

// registered maps a piece of a file, whose name has so many bytes, and replies with its address.
static void registered(uint32_t length) {
    uint64_t offset = payload<uint64_t>(1)[0], size = payload<uint64_t>(1)[0], at = (uint64_t)memory + memory_size;
    std::vector<char> name = payload<char>(length);
    name.push_back(0);
    size_t i = 0;
    uint64_t room = (size + 0xfff) & ~(uint64_t)0xfff;
    for (; i < lent.size() && lent[i].first - at < room; i++) at = lent[i].first + ((lent[i].second + 0xfff) & ~(uint64_t)0xfff);
    if (at + room > (uint64_t)memory + 2 * memory_size) fail("no addresses for %zu registered bytes", (size_t)size);
    int file = open(name.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0 || mmap((void *)at, size, PROT_READ, MAP_SHARED | MAP_FIXED, file, (off_t)offset) == MAP_FAILED)
        fail("mapping %zu bytes at %zu of %s: %s", (size_t)size, (size_t)offset, name.data(), strerror(errno));
    close(file);
    lent.insert(lent.begin() + i, {at, size});
    gauge_mapped(at, size, true);
    reply(at);
}

// open_memory maps the memory, keeps as many addresses behind it for registered memory, and replies with its address.
static void open_memory(size_t size) {
    memory_size = size;
    void *at = mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) at = mmap(at, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, 3, 0);
    if (at == MAP_FAILED) fail("mmap of %zu bytes: %s", size, strerror(errno));
    memory = (unsigned char *)at;
    reply((uint64_t)at);
}

// moved replies with what was moved since the last time.
static void moved() {
    uint32_t n;
    const Moved *all = gauge_all(&n);
    reply(n);
    for (uint32_t i = 0; i < n; i++) reply(all[i]);
    gauge_clear();
}

static void serve() {
    Command c;
    while (read_all(&c, sizeof c)) {
        switch (c.kind) {
        case FIND: find(c.count); break;
        case RUN:
            for (const Launch &l : payload<Launch>(c.count)) run(l);
            break;
        case WAIT: reply<uint32_t>(0); break;
        case ALLOCATED:
            for (Piece p : payload<Piece>(c.count)) allocated(p);
            break;
        case RELEASED:
            for (Piece p : payload<Piece>(c.count)) released(p);
            break;
        case MOVED: moved(); break;
        case REGISTERED: registered(c.count); break;
        case MAPPED:
            for (Piece p : payload<Piece>(c.count)) gauge_mapped(p.at, p.size, true);
            break;
        default: fail("unknown command %u", c.kind);
        }
    }
}

} // namespace emu

// Arguments: bytes of memory, seed, seconds that a launch may take, the file and line of a barrier to leave out, or "" 0, and the sizes of
// the gauge's caches and the number of blocks side by side, or "" 0.
int main(int argc, char **argv) {
    using namespace emu;
    if (argc != 8) fail("7 arguments are needed, not %d", argc - 1);
    begin(strtoull(argv[2], nullptr, 10), atoi(argv[3]), argv[4], atoi(argv[5]));
    open_memory(strtoull(argv[1], nullptr, 10));
    gauge_begin(memory, 2 * memory_size, argv[6], (unsigned)atoi(argv[7]));
    serve();
    _exit(0);
}
