/* A stand-in for NVIDIA's management library.
 *
 * What it says stands in a file beside it, "<library>.conf", which is read anew at each call, so that a test can change
 * a machine while it is being watched:
 *
 *   driver 550.54.15          its version
 *   init 0                    what nvmlInit gives
 *   gpu                       begins a card; its position is its index
 *   mig                       begins a part of the card before it
 *   KEY VALUE                 a value of the card or part: uuid, name, pci, util, temp, power, sm, mem_clock, ...
 *   KEY !N                    the call gives error N
 *   KEY hang                  the call never returns
 *
 * A key that is missing gives NVML_ERROR_NOT_SUPPORTED. The structures are those of nvml.h, declared anew.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10 };
enum { MOST_DEVICES = 64, MOST_KEYS = 48, KEY = 32, VALUE = 128 };

struct entry { char key[KEY], value[VALUE]; };
struct device { int part, parent, count; struct entry entries[MOST_KEYS]; };
struct machine { int count, globals; struct device devices[MOST_DEVICES]; struct entry global[MOST_KEYS]; };

static void load(struct machine *m) {
  Dl_info info;
  char path[4096], line[256];
  memset(m, 0, sizeof *m);
  if (!dladdr((void *)load, &info)) return;
  snprintf(path, sizeof path, "%s.conf", info.dli_fname);
  FILE *file = fopen(path, "r");
  if (!file) return;
  int last_card = -1;
  while (fgets(line, sizeof line, file)) {
    char key[KEY] = "", value[VALUE] = "";
    if (sscanf(line, "%31s %127[^\n]", key, value) < 1 || key[0] == '#') continue;
    int part = !strcmp(key, "mig");
    if (part || !strcmp(key, "gpu")) {
      if (m->count == MOST_DEVICES) break;
      struct device *d = &m->devices[m->count];
      d->part = part;
      d->parent = part ? last_card : -1;
      if (!part) last_card = m->count;
      m->count++;
      continue;
    }
    struct device *d = m->count ? &m->devices[m->count - 1] : NULL;
    int *count = d ? &d->count : &m->globals;
    if (*count == MOST_KEYS) continue;
    struct entry *e = (d ? d->entries : m->global) + (*count)++;
    strcpy(e->key, key);
    strcpy(e->value, value);
  }
  fclose(file);
}

static const char *find(const struct entry *entries, int count, const char *key) {
  for (int i = 0; i < count; i++)
    if (!strcmp(entries[i].key, key)) return entries[i].value;
  return NULL;
}

/* The text of a key; obeys errors and hangs. */
static int text(void *handle, const char *key, char *out, size_t size) {
  static __thread struct machine m;
  load(&m);
  long at = (long)handle - 1;
  if (at < 0 || at >= m.count) return INVALID;
  const char *value = find(m.devices[at].entries, m.devices[at].count, "all");
  if (!value) value = find(m.devices[at].entries, m.devices[at].count, key);
  if (!value) return UNSUPPORTED;
  if (value[0] == '!') return atoi(value + 1);
  if (!strcmp(value, "hang")) for (;;) pause();
  if (strlen(value) + 1 > size) return SMALL;
  strcpy(out, value);
  return SUCCESS;
}

static int number(void *handle, const char *key, unsigned long long *out) {
  char value[VALUE];
  int code = text(handle, key, value, sizeof value);
  if (code == SUCCESS) *out = strtoull(value, NULL, 0);
  return code;
}

static int small(void *handle, const char *key, unsigned *out) {
  unsigned long long wide = 0;
  int code = number(handle, key, &wide);
  if (code == SUCCESS) *out = (unsigned)wide;
  return code;
}

int nvmlInit_v2(void) {
  static __thread struct machine m;
  load(&m);
  const char *value = find(m.global, m.globals, "init");
  if (value && !strcmp(value, "hang")) for (;;) pause();
  return value ? atoi(value) : SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
  static __thread struct machine m;
  load(&m);
  const char *value = find(m.global, m.globals, "driver");
  snprintf(out, size, "%s", value ? value : "550.54.15");
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  static __thread struct machine m;
  load(&m);
  *count = 0;
  for (int i = 0; i < m.count; i++) *count += !m.devices[i].part;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  static __thread struct machine m;
  load(&m);
  for (int i = 0; i < m.count; i++) {
    if (m.devices[i].part || index--) continue;
    *handle = (void *)(long)(i + 1);
    const char *value = find(m.devices[i].entries, m.devices[i].count, "handle");
    return value && value[0] == '!' ? atoi(value + 1) : SUCCESS;
  }
  return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  static __thread struct machine m;
  load(&m);
  for (int i = 0; i < m.count; i++) {
    const char *value = find(m.devices[i].entries, m.devices[i].count, "uuid");
    if (!value || strcmp(value, uuid)) continue;
    *handle = (void *)(long)(i + 1);
    value = find(m.devices[i].entries, m.devices[i].count, "handle");
    return value && value[0] == '!' ? atoi(value + 1) : SUCCESS;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { return text(d, "uuid", out, size); }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { return text(d, "name", out, size); }

struct memory { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(void *d, struct memory *out) {
  int code = number(d, "memory.total", &out->total);
  if (code != SUCCESS) return code;
  code = number(d, "memory.used", &out->used);
  out->free = out->total - out->used;
  return code;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

int nvmlDeviceGetPciInfo_v3(void *d, struct pci *out) {
  memset(out, 0, sizeof *out);
  return text(d, "pci", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMigMode(void *d, unsigned *current, unsigned *pending) {
  int code = small(d, "mig_mode", current);
  *pending = *current;
  return code;
}

int nvmlDeviceGetMaxMigDeviceCount(void *d, unsigned *count) {
  static __thread struct machine m;
  load(&m);
  *count = 0;
  for (int i = 0; i < m.count; i++) *count += m.devices[i].parent == (long)d - 1;
  return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *d, unsigned index, void **handle) {
  static __thread struct machine m;
  load(&m);
  for (int i = 0; i < m.count; i++) {
    if (m.devices[i].parent != (long)d - 1 || index--) continue;
    *handle = (void *)(long)(i + 1);
    return SUCCESS;
  }
  return NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(void *d, unsigned *rates) {
  rates[1] = 0;
  return small(d, "util", &rates[0]);
}

int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) { (void)sensor; return small(d, "temp", out); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *out) { return small(d, "power", out); }
int nvmlDeviceGetClockInfo(void *d, int type, unsigned *out) { return small(d, type == 2 ? "mem_clock" : "sm", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out) { return number(d, "throttle", out); }

int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *out) {
  (void)counter;
  return number(d, kind == 0 ? "ecc.corrected" : "ecc.uncorrected", out);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, void *infos) {
  (void)infos;
  unsigned have = 0;
  int code = small(d, "processes", &have);
  if (code != SUCCESS) return code;
  *count = have;
  return have ? SMALL : SUCCESS;
}

struct field { unsigned id, scope; long long time, latency; int type, code; unsigned long long value; };

int nvmlDeviceGetFieldValues(void *d, int count, struct field *fields) {
  for (int i = 0; i < count; i++) {
    struct field *f = &fields[i];
    const char *key;
    switch (f->id) {
      case 142: key = "remap.corrected"; break;
      case 143: key = "remap.uncorrected"; break;
      case 144: key = "remap.pending"; break;
      case 145: key = "remap.failed"; break;
      default: key = "link";
    }
    f->type = 3; /* unsigned long long */
    f->value = 0;
    f->code = number(d, key, &f->value);
  }
  return SUCCESS;
}

/* One event at a time: `xid N` is told once for each change of `xid_seq`. */
struct set { void *device; char seen[VALUE]; };
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };

int nvmlEventSetCreate(struct set **set) {
  *set = calloc(1, sizeof **set);
  return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *d, unsigned long long types, struct set *set) {
  char value[VALUE];
  (void)types;
  int code = text(d, "events", value, sizeof value);
  set->device = d;
  return code;
}

int nvmlEventSetWait_v2(struct set *set, struct event *out, unsigned timeout) {
  char seq[VALUE];
  (void)timeout;
  memset(out, 0, sizeof *out);
  if (text(set->device, "xid_seq", seq, sizeof seq) != SUCCESS || !strcmp(seq, set->seen)) return TIMEOUT;
  strcpy(set->seen, seq);
  out->device = set->device;
  out->type = 8; /* critical Xid */
  return number(set->device, "xid", &out->data);
}

int nvmlEventSetFree(struct set *set) {
  free(set);
  return SUCCESS;
}
