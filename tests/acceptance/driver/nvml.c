/* Stands in for NVIDIA's management library on a machine without GPUs: says what the file named by
   FAKE_GPUS says, one GPU a line: NAME UUID TOTAL_BYTES FREE_BYTES PERCENT CELSIUS MILLIWATTS. A line "broken" fails every question. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_FOUND = 6, UNKNOWN = 999 };
struct memory { unsigned long long total, free, used; };
struct rates { unsigned gpu, memory; };
struct gpu { char name[64], uuid[64]; struct memory memory; unsigned busy, celsius, milliwatts; };

static struct gpu gpus[16];
static unsigned count;

static int look(void) {
    const char *path = getenv("FAKE_GPUS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    count = 0;
    if (!file) return OK;
    while (count < 16 && fgets(line, sizeof line, file)) {
        struct gpu *g = &gpus[count];
        if (strncmp(line, "broken", 6) == 0) { fclose(file); return UNKNOWN; }
        if (sscanf(line, "%63s %63s %llu %llu %u %u %u", g->name, g->uuid, &g->memory.total, &g->memory.free,
                   &g->busy, &g->celsius, &g->milliwatts) == 7) {
            g->memory.used = g->memory.total - g->memory.free;
            count++;
        }
    }
    fclose(file);
    return OK;
}

static int copy(char *to, unsigned length, const char *from) { snprintf(to, length, "%s", from); return OK; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return look(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_FOUND ? "Not Found" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned length) { return copy(to, length, "580.1"); }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **handle) {
    if (index >= count) return NOT_FOUND;
    *handle = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(struct gpu *g, char *to, unsigned length) { return copy(to, length, g->name); }
int nvmlDeviceGetUUID(struct gpu *g, char *to, unsigned length) { return copy(to, length, g->uuid); }
int nvmlDeviceGetMemoryInfo(struct gpu *g, struct memory *to) { *to = g->memory; return OK; }
int nvmlDeviceGetCudaComputeCapability(struct gpu *g, int *major, int *minor) {
    (void)g; *major = 8; *minor = 0; return OK;
}
int nvmlDeviceGetUtilizationRates(struct gpu *g, struct rates *to) {
    to->gpu = g->busy; to->memory = 0; return OK;
}
int nvmlDeviceGetTemperature(struct gpu *g, int sensor, unsigned *to) { (void)sensor; *to = g->celsius; return OK; }
int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *to) { *to = g->milliwatts; return OK; }
