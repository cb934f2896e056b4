/* A libnvidia-ml.so.1 for tests, described by the text in $NVML_STUB, one statement a line:
     init R | driver V | cuda N | gpu UUID PCI CC TOTAL_MIB USED_MIB MIG MODE RESULT NAME...
     process GPU PID MIB | p2p I J STATUS | topology I J LEVEL | hang SECONDS
   What is not said: P2P ok, NVLink none, common ancestor 30 (host bridge). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
typedef void *Device;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT = 7, MOST = 16 };

struct gpu { char uuid[80], pci[32], name[96]; int cc, mig, mode, result; u64 total, used; };
struct process { int gpu; u32 pid; u64 bytes; };
struct pair { int i, j, value; };
static struct gpu gpus[MOST];
static struct process processes[64];
static struct pair p2p[256], topology[256];
static int count, process_count, p2p_count, topology_count, init_result, cuda = 13000, hang;
static char driver[64] = "580.95.05";

static void statement(const char *line) {
  struct gpu g = {0};
  struct process p;
  struct pair t;
  u64 total, used;
  sscanf(line, "init %d", &init_result);
  sscanf(line, "driver %63s", driver);
  sscanf(line, "cuda %d", &cuda);
  sscanf(line, "hang %d", &hang);
  if (count < MOST && sscanf(line, "gpu %79s %31s %d %llu %llu %d %d %d %95[^\n]", g.uuid, g.pci, &g.cc,
                             &total, &used, &g.mig, &g.mode, &g.result, g.name) == 9) {
    g.total = total << 20, g.used = used << 20;
    gpus[count++] = g;
  }
  if (sscanf(line, "process %d %u %llu", &p.gpu, &p.pid, &used) == 3)
    p.bytes = used << 20, processes[process_count++] = p;
  if (sscanf(line, "p2p %d %d %d", &t.i, &t.j, &t.value) == 3) p2p[p2p_count++] = t;
  if (sscanf(line, "topology %d %d %d", &t.i, &t.j, &t.value) == 3) topology[topology_count++] = t;
}

static int looked_up(const struct pair *table, int n, int i, int j, int otherwise) {
  for (int k = 0; k < n; k++)
    if ((table[k].i == i && table[k].j == j) || (table[k].i == j && table[k].j == i))
      return table[k].value;
  return otherwise;
}

static int at(Device d) { return (int)(long)d - 1; }

Result nvmlInitWithFlags(u32 flags) {
  (void)flags;
  const char *text = getenv("NVML_STUB");
  char line[512];
  count = process_count = p2p_count = topology_count = 0;
  while (text && *text) {
    size_t n = strcspn(text, "\n");
    snprintf(line, sizeof line, "%.*s", (int)n, text);
    statement(line);
    text += n + (text[n] == '\n');
  }
  if (hang) sleep((u32)hang);
  return init_result;
}
Result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(Result r) {
  return r == 9 ? "Driver Not Loaded" : r == 15 ? "GPU is lost" : r == 18 ? "Driver/library version mismatch" : "Unknown Error";
}
Result nvmlSystemGetDriverVersion(char *b, u32 n) { snprintf(b, n, "%s", driver); return SUCCESS; }
Result nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = cuda; return SUCCESS; }
Result nvmlDeviceGetCount_v2(u32 *n) { *n = (u32)count; return SUCCESS; }
Result nvmlDeviceGetHandleByIndex_v2(u32 i, Device *d) {
  if ((int)i >= count) return INVALID;
  *d = (Device)(long)(i + 1);
  return gpus[i].result;
}
Result nvmlDeviceGetName(Device d, char *b, u32 n) { snprintf(b, n, "%s", gpus[at(d)].name); return SUCCESS; }
Result nvmlDeviceGetUUID(Device d, char *b, u32 n) { snprintf(b, n, "%s", gpus[at(d)].uuid); return SUCCESS; }
Result nvmlDeviceGetCudaComputeCapability(Device d, int *a, int *b) {
  *a = gpus[at(d)].cc / 10, *b = gpus[at(d)].cc % 10;
  return SUCCESS;
}
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
Result nvmlDeviceGetPciInfo_v3(Device d, struct pci *p) {
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, sizeof p->bus_id, "%s", gpus[at(d)].pci);
  return SUCCESS;
}
struct memory { u64 total, free, used; };
Result nvmlDeviceGetMemoryInfo(Device d, struct memory *m) {
  m->total = gpus[at(d)].total, m->used = gpus[at(d)].used, m->free = m->total - m->used;
  return SUCCESS;
}
Result nvmlDeviceGetMigMode(Device d, u32 *now, u32 *pending) {
  if (gpus[at(d)].mig < 0) return NOT_SUPPORTED;
  *now = *pending = (u32)gpus[at(d)].mig;
  return SUCCESS;
}
Result nvmlDeviceGetComputeMode(Device d, int *mode) { *mode = gpus[at(d)].mode; return SUCCESS; }
struct running { u32 pid; u64 bytes; u32 gi, ci; };
Result nvmlDeviceGetComputeRunningProcesses_v3(Device d, u32 *n, struct running *out) {
  u32 found = 0, room = *n;
  for (int k = 0; k < process_count; k++)
    if (processes[k].gpu == at(d)) {
      if (out && found < room) out[found].pid = processes[k].pid, out[found].bytes = processes[k].bytes;
      found++;
    }
  *n = found;
  return found > room ? INSUFFICIENT : SUCCESS;
}
Result nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int *level) {
  *level = looked_up(topology, topology_count, at(a), at(b), 30);
  return SUCCESS;
}
Result nvmlDeviceGetP2PStatus(Device a, Device b, int index, int *status) {
  *status = index == 2 ? 5 : looked_up(p2p, p2p_count, at(a), at(b), 0);
  return SUCCESS;
}
