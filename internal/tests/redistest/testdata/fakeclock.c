/* Preloaded into a redis-server, this makes its wall clock do as the file $FAKECLOCK says, at once: three
 * 64-bit integers, origin_us offset_us permille. The clock shows offset_us more than the host's, and from
 * origin_us on gains permille thousandths of the time besides. The monotonic clock is left alone.
 * (libfaketime doesn't start Debian's redis-server: its own start and jemalloc's call each other.) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *setting;

static int64_t now_ns(void) {
	struct timespec t;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
	int64_t ns = t.tv_sec * 1000000000LL + t.tv_nsec;
	if (setting)
		ns += setting[1] * 1000 + (ns - setting[0] * 1000) / 1000 * setting[2];
	return ns;
}

__attribute__((constructor)) static void start(void) {
	const char *name = getenv("FAKECLOCK");
	int fd = name ? open(name, O_RDONLY) : -1;
	if (fd < 0)
		_exit(77);
	void *map = mmap(NULL, 24, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		_exit(78);
	setting = map;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
		return syscall(SYS_clock_gettime, id, t);
	int64_t ns = now_ns();
	t->tv_sec = ns / 1000000000;
	t->tv_nsec = ns % 1000000000;
	return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	(void)zone;
	int64_t ns = now_ns();
	t->tv_sec = ns / 1000000000;
	t->tv_usec = ns % 1000000000 / 1000;
	return 0;
}

time_t time(time_t *t) {
	time_t s = now_ns() / 1000000000;
	if (t)
		*t = s;
	return s;
}
