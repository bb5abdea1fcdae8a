/* A driver's library that is not there: the calls of nvml.h that the probe makes, with the types and units of that header. Tests set the variables. */
#include <stdint.h>
#include <string.h>

typedef struct { unsigned field, scope; long long timestamp, latency; int type, code; unsigned long long value; } field_value;

unsigned sm_clock = 1980, max_clock = 1980, temperature = 60, power_mw = 650000, limit_mw = 700000, sm_percent = 97;
unsigned pcie_tx_kb = 1000, pcie_rx_kb = 500, is_virtual = 0, has_nvlink = 1;
unsigned long long reasons = 0, nvlink_kib = 1000;
static int device;

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
  if (strcmp(uuid, "GPU-11111111-2222-3333-4444-555555555555")) return 6; /* NVML_ERROR_NOT_FOUND */
  *handle = &device;
  return 0;
}
static int told(void *handle, unsigned *out, unsigned value) {
  if (handle != &device) return 2; /* NVML_ERROR_INVALID_ARGUMENT */
  if (is_virtual) return 3;        /* NVML_ERROR_NOT_SUPPORTED */
  *out = value;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *out) { out[1] = 40; return told(handle, out, sm_percent); }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *out) { return told(handle, out, power_mw); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *out) { return told(handle, out, limit_mw); }
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *out) { return kind == 1 ? told(handle, out, sm_clock) : 2; }
int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *out) { return kind == 1 ? told(handle, out, max_clock) : 2; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) { return sensor == 0 ? told(handle, out, temperature) : 2; }
int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned *out) { return told(handle, out, counter ? pcie_rx_kb : pcie_tx_kb); }
int nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
  unsigned ignored;
  if (told(handle, &ignored, 0)) return 3;
  for (int at = 0; at < count; at++) {
    values[at].code = has_nvlink && values[at].scope == 0xFFFFFFFFu && (values[at].field == 138 || values[at].field == 139) ? 0 : 3;
    values[at].type = 3; /* NVML_VALUE_TYPE_UNSIGNED_LONG_LONG */
    values[at].value = nvlink_kib;
  }
  return 0;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *out) {
  unsigned ignored;
  int code = told(handle, &ignored, 0);
  if (!code) *out = reasons;
  return code;
}
#endif
