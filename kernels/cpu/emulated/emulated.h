#include <stdint.h>
int emulate_install(void);  // 0, or -1 and errno
int emulate_remove(void);
long emulate_count(void);
enum { EMULATE_WAYS = 8 };
void emulate_each(uint8_t *v, int how);
