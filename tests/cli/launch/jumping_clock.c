/* The time of day jumps by a day, back and forth, five times a second; the monotonic clock is left alone. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result == 0 && id == CLOCK_REALTIME) {
        struct timespec uptime;
        real(CLOCK_MONOTONIC, &uptime);
        now->tv_sec += uptime.tv_nsec / 200000000 % 2 ? 86400 : -86400;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
