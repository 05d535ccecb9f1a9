/* Stands in for CUDA on a machine without GPUs: one GPU a line of the file named by FAKE_CUDA, UUID BYTE (two hex
   digits, sixteen times the same) and the code that using it fails with; a line "init CODE" fails cuInit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct { unsigned byte; int code; } gpus[16];
static int count;

int cuInit(unsigned flags) {
    FILE *file = fopen(getenv("FAKE_CUDA"), "r");
    char line[256];
    int code = 0;
    (void)flags;
    count = 0;
    while (file && count < 16 && fgets(line, sizeof line, file)) {
        if (sscanf(line, "init %d", &code) == 1) break;
        if (sscanf(line, "%x %d", &gpus[count].byte, &gpus[count].code) == 2) count++;
    }
    if (file) fclose(file);
    return code;
}
int cuGetErrorString(int code, const char **to) { (void)code; *to = "as the file says"; return 0; }
int cuDeviceGetCount(int *to) { *to = count; return 0; }
int cuDeviceGet(int *to, int index) { *to = index; return 0; }
int cuDeviceGetUuid(unsigned char *to, int device) { memset(to, (int)gpus[device].byte, 16); return 0; }
int cuDevicePrimaryCtxRetain(void **to, int device) { *to = &gpus[device]; return gpus[device].code; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long *to, size_t size) { *to = size; return 0; }
int cuMemFree_v2(unsigned long long pointer) { (void)pointer; return 0; }
