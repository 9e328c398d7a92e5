/* A stand-in for NVIDIA's driver library, for tests of the true ctypes path.
 *
 * Built as libnvidia-ml.so.1 and found through LD_LIBRARY_PATH.  What it says is set by
 *   NVML_SHIM       number of GPUs, or: no-driver, mismatch, hang, crash, garbage, blanks, absurd, crowd
 *   NVML_SHIM_FAIL  names of functions that fail, each as name=code, separated by commas
 *   NVML_SHIM_LINKS how GPUs are linked: none (default), direct, switch
 *   NVML_SHIM_ENERGY  mJ by which a GPU's energy counter rises at each reading (default 1000)
 * Only what the program asks for is here; signatures are those of the public nvml.h.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *dev;
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, SMALL = 7, NO_DRIVER = 9, MISMATCH = 18 };

static const char *scenario(void) { const char *s = getenv("NVML_SHIM"); return s ? s : "1"; }
static int is(const char *name) { return strcmp(scenario(), name) == 0; }
static u32 num_gpus(void) { u32 n = (u32)atoi(scenario()); return n ? n : 1; }
static u32 index_of(dev d) { return (u32)((size_t)d - 1); }

static int planned(const char *function) {
    const char *list = getenv("NVML_SHIM_FAIL");
    size_t length = strlen(function);
    for (const char *at = list; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, function, length) == 0 && at[length] == '=') return atoi(at + length + 1);
    return OK;
}
#define PLAN() do { int code_ = planned(__func__); if (code_) return code_; } while (0)

/* A number: as it should be, or what a sick driver says instead. */
static u32 value(u32 sound) {
    if (is("garbage")) return 0xDEADBEEF;
    if (is("blanks")) return 0xFFFFFFFF;
    if (is("absurd")) return 0x7FFFFFFE;
    return sound;
}
static u64 wide(u64 sound) {
    if (is("garbage")) return 0xDEADBEEFDEADBEEFull;
    if (is("blanks")) return 0xFFFFFFFFFFFFFFFFull;
    if (is("absurd")) return 9200000000000000000ull;
    return sound;
}
static int words(char *out, u32 size, const char *sound) {
    if (is("garbage")) { memset(out, 0xF1, size); out[size - 1] = 0; return OK; }
    if (is("blanks")) { memset(out, 0, size); return OK; }
    if (is("absurd")) { memset(out, '\x07', size); return OK; } /* not even ended */
    snprintf(out, size, "%s", sound);
    return OK;
}
#define NUMBER(function, sound) \
    int function(dev d, u32 *out) { PLAN(); (void)d; *out = value(sound); return OK; }
#define NUMBER_OF(function, sound) \
    int function(dev d, u32 kind, u32 *out) { PLAN(); (void)d; (void)kind; *out = value(sound); return OK; }

int nvmlInitWithFlags(u32 flags) {
    PLAN(); (void)flags;
    if (is("hang")) for (;;) pause();
    if (is("crash")) abort();
    if (is("no-driver")) return NO_DRIVER;
    return is("mismatch") ? MISMATCH : OK;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "planned failure"; }
int nvmlSystemGetDriverVersion(char *out, u32 size) { PLAN(); return words(out, size, "570.86.15"); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { PLAN(); *out = (int)value(12080); return OK; }

int nvmlDeviceGetCount_v2(u32 *out) { PLAN(); *out = is("crowd") ? 0x7FFFFFFE : num_gpus(); return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, dev *out) {
    PLAN();
    if (index >= num_gpus()) return INVALID;
    *out = (dev)(size_t)(index + 1);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, dev *out) {
    PLAN();
    if (strlen(uuid) < 4) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2((u32)atoi(uuid + strlen(uuid) - 1), out);
}

int nvmlDeviceGetName(dev d, char *out, u32 size) { PLAN(); (void)d; return words(out, size, "NVIDIA GeForce RTX 4090"); }
int nvmlDeviceGetVbiosVersion(dev d, char *out, u32 size) { PLAN(); (void)d; return words(out, size, "95.02.18.80.01"); }
int nvmlDeviceGetUUID(dev d, char *out, u32 size) {
    PLAN();
    char uuid[64];
    snprintf(uuid, sizeof uuid, "GPU-0a1b2c3d-1111-2222-3333-44445555666%u", index_of(d));
    return words(out, size, uuid);
}

typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
static int pci(u32 bus, u32 id, pci_info *out) {
    memset(out, 0, sizeof *out);
    out->bus = value(bus);
    out->id = value(id);
    char address[32];
    snprintf(address, sizeof address, "00000000:%02X:00.0", bus);
    return words(out->bus_id, sizeof out->bus_id, address);
}
int nvmlDeviceGetPciInfo_v3(dev d, pci_info *out) { PLAN(); return pci(index_of(d) + 1, 0x268410DE, out); }

typedef struct { u64 total, free_, used; } memory;
int nvmlDeviceGetMemoryInfo(dev d, memory *out) {
    PLAN(); (void)d;
    out->total = wide(24564ull << 20); out->used = wide(402ull << 20); out->free_ = wide(24162ull << 20);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(dev d, int *major, int *minor) {
    PLAN(); (void)d;
    *major = (int)value(8); *minor = (int)value(9);
    return OK;
}
int nvmlDeviceGetPowerManagementLimitConstraints(dev d, u32 *least, u32 *most) {
    PLAN(); (void)d;
    *least = value(150000); *most = value(600000);
    return OK;
}
int nvmlDeviceGetEccMode(dev d, u32 *now, u32 *pending) { PLAN(); (void)d; *now = value(1); *pending = value(1); return OK; }
int nvmlDeviceGetTotalEccErrors(dev d, u32 type, u32 counter, u64 *out) {
    PLAN(); (void)d; (void)type; (void)counter;
    *out = wide(0);
    return OK;
}
int nvmlDeviceGetRetiredPages(dev d, u32 cause, u32 *count, u64 *pages) {
    PLAN(); (void)d; (void)cause; (void)pages;
    *count = 0;
    return OK;
}
int nvmlDeviceGetRemappedRows(dev d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    PLAN(); (void)d;
    *corrected = value(0); *uncorrected = value(2); *pending = value(0); *failed = value(0);
    return OK;
}
int nvmlDeviceGetMigMode(dev d, u32 *now, u32 *pending) { PLAN(); (void)d; (void)now; (void)pending; return UNSUPPORTED; }
int nvmlDeviceGetCurrentClocksThrottleReasons(dev d, u64 *out) { PLAN(); (void)d; *out = wide(0x1); return OK; }

int nvmlDeviceGetTotalEnergyConsumption(dev d, u64 *out) {
    PLAN();
    static u64 readings[64];
    const char *step = getenv("NVML_SHIM_ENERGY");
    u64 count = readings[index_of(d) % 64]++;
    *out = wide(7000000ull + count * (u64)(step ? atoi(step) : 1000)); /* since the driver was loaded */
    return OK;
}

typedef struct { u32 gpu, memory; } utilization;
int nvmlDeviceGetUtilizationRates(dev d, utilization *out) {
    PLAN(); (void)d;
    out->gpu = value(7); out->memory = value(3);
    return OK;
}
typedef struct { u32 pid; u64 used; u32 instance, compute; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(dev d, u32 *count, process *out) {
    PLAN(); (void)d;
    if (is("garbage")) { *count = 0xFFFFFFF0; return SMALL; } /* as many as no machine has */
    if (*count < 1) { *count = 1; return SMALL; }
    *count = 1;
    out[0].pid = 4242; out[0].used = wide(300ull << 20);
    return OK;
}

NUMBER(nvmlDeviceGetMemoryBusWidth, 384)
NUMBER(nvmlDeviceGetNumGpuCores, 16384)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetPowerUsage, 31250)
NUMBER(nvmlDeviceGetPowerManagementLimit, 450000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 450000)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, 0)
NUMBER(nvmlDeviceGetPersistenceMode, 1)
NUMBER(nvmlDeviceGetComputeMode, 0)
NUMBER_OF(nvmlDeviceGetTemperature, 41)
NUMBER_OF(nvmlDeviceGetClockInfo, kind == 1 ? 2520 : 10501)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, kind == 1 ? 3120 : 10501)
NUMBER_OF(nvmlDeviceGetApplicationsClock, 2520)

static int linked(const char *how) {
    const char *links = getenv("NVML_SHIM_LINKS");
    return links && strcmp(links, how) == 0;
}
int nvmlDeviceGetNvLinkState(dev d, u32 link, u32 *out) {
    PLAN(); (void)d;
    if (linked("switch") && link < 12) { *out = value(1); return OK; }
    if (linked("direct") && link < 4) { *out = value(link != 3); return OK; } /* the last is down */
    return link < 18 ? UNSUPPORTED : INVALID;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(dev d, u32 link, pci_info *out) {
    PLAN(); (void)link;
    return linked("switch") ? pci(0xC0 + link % 6, 0x1AF110DE, out) : pci(index_of(d) ? 1 : 2, 0x268410DE, out);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(dev d, u32 link, u32 *out) {
    PLAN(); (void)d; (void)link;
    *out = value(linked("switch") ? 2 : 0);
    return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(dev a, dev b, u32 *out) {
    PLAN();
    *out = value(index_of(a) / 4 == index_of(b) / 4 ? 30 : 50); /* four GPUs a socket */
    return OK;
}
int nvmlDeviceGetP2PStatus(dev a, dev b, u32 index, u32 *out) {
    PLAN(); (void)a; (void)b; (void)index;
    *out = value(linked("none") || !getenv("NVML_SHIM_LINKS") ? 5 : 0);
    return OK;
}
