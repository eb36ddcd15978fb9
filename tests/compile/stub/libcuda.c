/* A CUDA driver that launches nothing and keeps what it is given: the parameters of the last launch, as bytes.

   `stub_sizes` says how many bytes each parameter has, for all kernels or (`stub_kernel`) for one. A tensor map is made of what
   it is encoded from. What is enqueued besides is told in words; a copy of 13 bytes is refused. What is enqueued on a stream that
   is being recorded becomes part of a graph, and is told when that is launched. Kernels are told with `stub_tell_kernels`; with
   `stub_captured` every stream says that it is captured. */
#include <cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  int count, sizes[256];
} kernel;

typedef struct {
  char *text; /* NULL for a kernel */
  CUDA_KERNEL_NODE_PARAMS launch;
  CUDA_MEMCPY3D copy; /* of one row */
  CUstream stream;
  unsigned char *bytes;
  void **params;
} entry;

typedef struct {
  int count;
  entry *entries[256];
} graph;

int stub_count, stub_sizes[256], stub_launches, stub_encoded, stub_updates, stub_calls, stub_tell_kernels, stub_captured;
CUdeviceptr stub_refused;
unsigned stub_grid[3], stub_block[3], stub_shared;
void *stub_stream, *stub_function;
unsigned char stub_bytes[1 << 16];
char stub_told[1 << 20];
static int a_context;
static kernel kernels[256];
static graph *recording;
static CUstream in_recording[64];
static CUevent recorded_events[64];
static int streams, events;

void stub_kernel(long function, int count, const int *sizes) {
  kernels[function].count = count;
  memcpy(kernels[function].sizes, sizes, count * sizeof *sizes);
}

static const int *sizes_of(CUfunction f, int *count) {
  const long function = (long)f;
  const int known = function < 256 && kernels[function].count;
  *count = known ? kernels[function].count : stub_count;
  return known ? kernels[function].sizes : stub_sizes;
}

static int recorded_on(CUstream stream) {
  for (int i = 0; recording && i < streams; i += 1)
    if (in_recording[i] == stream) return 1;
  return 0;
}

static entry *new_entry(CUstream stream) {
  entry *made = calloc(1, sizeof *made);
  made->stream = stream;
  return recording->entries[recording->count++] = made;
}

/* Told at once, or part of the graph that the stream is recorded for. */
static CUresult tell_on(CUstream stream, const char *format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  stub_calls += 1;
  if (recorded_on(stream))
    new_entry(stream)->text = strdup(text);
  else
    strcat(stub_told, text);
  return CUDA_SUCCESS;
}
#define TELL(...) tell_on((CUstream)-1, __VA_ARGS__)

static void keep(entry *to, void **params) {
  int count;
  const int *sizes = sizes_of(to->launch.func, &count);
  if (!to->bytes) {
    to->bytes = calloc(1, 1 << 14);
    to->params = calloc(256, sizeof(void *));
  }
  for (int i = 0, at = 0; i < count; at += sizes[i], i += 1) {
    to->params[i] = to->bytes + at;
    memcpy(to->params[i], params[i], sizes[i]);
  }
  to->launch.kernelParams = to->params;
}

static void run(const CUDA_KERNEL_NODE_PARAMS *launch, void **params, CUstream stream) {
  unsigned char *to = stub_bytes;
  int count;
  const int *sizes = sizes_of(launch->func, &count);
  stub_launches += 1;
  stub_grid[0] = launch->gridDimX, stub_grid[1] = launch->gridDimY, stub_grid[2] = launch->gridDimZ;
  stub_block[0] = launch->blockDimX, stub_block[1] = launch->blockDimY, stub_block[2] = launch->blockDimZ;
  stub_shared = launch->sharedMemBytes, stub_stream = stream, stub_function = launch->func;
  for (int i = 0; i < count; i += 1) {
    memcpy(to, params[i], sizes[i]);
    to += sizes[i];
  }
  if (!stub_tell_kernels) return;
  char *text = stub_told + strlen(stub_told);
  text += sprintf(text, "kernel %ld %u %u %u by %u +%u ", (long)launch->func, stub_grid[0], stub_grid[1], stub_grid[2],
                  stub_block[0], stub_shared);
  for (unsigned char *byte = stub_bytes; byte < to; byte += 1) text += sprintf(text, "%02x", *byte);
  sprintf(text, " on %p;", (void *)stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  entry now = {0};
  now.launch.func = f;
  now.launch.gridDimX = config->gridDimX, now.launch.gridDimY = config->gridDimY, now.launch.gridDimZ = config->gridDimZ;
  now.launch.blockDimX = config->blockDimX, now.launch.blockDimY = config->blockDimY;
  now.launch.blockDimZ = config->blockDimZ, now.launch.sharedMemBytes = config->sharedMemBytes;
  stub_calls += 1;
  if (recorded_on(config->hStream)) {
    entry *made = new_entry(config->hStream);
    made->launch = now.launch;
    keep(made, params);
  } else {
    run(&now.launch, params, config->hStream);
  }
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  cuuint64_t *words = (cuuint64_t *)map;
  stub_encoded += 1;
  memset(map, 0, sizeof *map);
  words[0] = (cuuint64_t)address, words[1] = type, words[2] = rank, words[3] = swizzle;
  for (cuuint32_t i = 0; i < rank && i < 4; i += 1) words[4 + i] = sizes[i], words[8 + i] = box[i];
  for (cuuint32_t i = 0; i + 1 < rank && i < 3; i += 1) words[12 + i] = strides[i];
  return CUDA_SUCCESS;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
  if ((cuuint64_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
  *(cuuint64_t *)map = (cuuint64_t)address;
  return CUDA_SUCCESS;
}

#define COPY "copy %llx %llx %zu on %p;"

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  if (bytes == 13) return CUDA_ERROR_INVALID_VALUE;
  tell_on(stream, COPY, to, from, bytes, (void *)stream);
  if (recorded_on(stream)) {
    CUDA_MEMCPY3D *copy = &recording->entries[recording->count - 1]->copy;
    copy->srcMemoryType = copy->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy->srcDevice = from, copy->dstDevice = to, copy->WidthInBytes = bytes, copy->Height = copy->Depth = 1;
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *copy) {
  *copy = ((entry *)node)->copy;
  return copy->WidthInBytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A source at the address `stub_refused` is not taken. */
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec made, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context) {
  entry *to = (entry *)node;
  CUDA_MEMCPY3D before = to->copy, now = *copy;
  char text[128];
  before.srcDevice = now.srcDevice = 0;
  stub_updates += 1, stub_calls += 1;
  if (memcmp(&before, &now, sizeof now) || context != (CUcontext)&a_context || copy->srcDevice == stub_refused)
    return CUDA_ERROR_INVALID_VALUE;
  to->copy = *copy;
  snprintf(text, sizeof text, COPY, copy->dstDevice, copy->srcDevice, copy->WidthInBytes, (void *)to->stream);
  free(to->text);
  to->text = strdup(text);
  return CUDA_SUCCESS;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *r, CUstream stream) {
  return tell_on(stream, "rows %d %llx +%zu %d %llx +%zu, %zu x %zu at %zu %zu %zu %zu, %p %p %p %p on %p;",
                 r->dstMemoryType, r->dstDevice, r->dstPitch, r->srcMemoryType, r->srcDevice, r->srcPitch, r->Height,
                 r->WidthInBytes, r->dstXInBytes, r->dstY, r->srcXInBytes, r->srcY, r->dstHost, (void *)r->dstArray,
                 (void *)r->srcHost, (void *)r->srcArray, (void *)stream);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
  return tell_on(stream, "hold %llx %u %u on %p;", word, value, flags, (void *)stream);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  static cuuint64_t made = 0x1234567890ab;
  *event = (CUevent)made, made += 1;
  return TELL("event %u;", flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  int at = 0;
  while (at < events && recorded_events[at] != event) at += 1;
  if (recorded_on(stream))
    recorded_events[at] = event, events += at == events;
  else if (at < events)
    recorded_events[at] = NULL;
  return tell_on(stream, "record %p on %p;", (void *)event, (void *)stream);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  for (int i = 0; recording && i < events; i += 1)
    if (recorded_events[i] == event && !recorded_on(stream)) in_recording[streams++] = stream;
  return tell_on(stream, "behind %p %u on %p;", (void *)event, flags, (void *)stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  static cuuint64_t made = 0x5000;
  *stream = (CUstream)made, made += 0x10;
  return TELL("stream %p %u %d;", (void *)*stream, flags, priority);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return *status = stub_captured, CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority) { return *priority = stream ? -3 : 0, CUDA_SUCCESS; }
CUresult cuStreamDestroy(CUstream stream) { return TELL("end %p;", (void *)stream); }

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  static CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const CUstreamCaptureMode before = now;
  now = *mode, *mode = before;
  return TELL("mode %d;", now);
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  if (recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  TELL("begin %p %d;", (void *)stream, mode);
  recording = calloc(1, sizeof *recording);
  in_recording[0] = stream, streams = 1, events = 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *made) {
  *made = (CUgraph)recording;
  recording = NULL;
  return TELL("recorded %p;", (void *)stream);
}

/* Later headers give the plain name to a later version. */
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                      const CUgraphNode **nodes, size_t *count) __asm__("cuStreamGetCaptureInfo_v2");
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                      const CUgraphNode **nodes, size_t *count) {
  static CUgraphNode last;
  last = NULL;
  for (int i = 0; recorded_on(stream) && i < recording->count; i += 1)
    if (recording->entries[i]->stream == stream) last = (CUgraphNode)recording->entries[i];
  return *status = recorded_on(stream), *graph = (CUgraph)recording, *nodes = &last, *count = 1, CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  return *made = (CUgraphExec)graph, TELL("make %llu;", flags);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
  *params = ((entry *)node)->launch;
  return ((entry *)node)->text ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec made, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
  entry *to = (entry *)node;
  CUDA_KERNEL_NODE_PARAMS before = to->launch, now = *params;
  before.kernelParams = now.kernelParams = NULL;
  stub_updates += 1, stub_calls += 1;
  if (memcmp(&before, &now, sizeof now)) return CUDA_ERROR_INVALID_VALUE;
  keep(to, params->kernelParams);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t number, size_t *offset, size_t *size) {
  int count;
  const int *sizes = sizes_of(f, &count);
  *offset = 0;
  if (number >= (size_t)count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i <= number; i += 1) {
    const size_t alignment = sizes[i] > 64 ? 64 : sizes[i];
    *offset = (*offset + alignment - 1) / alignment * alignment;
    *size = sizes[i];
    if (i < number) *offset += sizes[i];
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec made, CUstream stream) {
  const graph *all = (const graph *)made;
  TELL("launch on %p;", (void *)stream);
  for (int i = 0; i < all->count; i += 1) {
    const entry *each = all->entries[i];
    if (each->text)
      strcat(stub_told, each->text);
    else
      run(&each->launch, each->params, each->stream);
  }
  strcat(stub_told, "launched;");
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) { return TELL("drop;"); }
CUresult cuGraphUpload(CUgraphExec made, CUstream stream) { return TELL("upload on %p;", (void *)stream); }
CUresult cuGraphExecDestroy(CUgraphExec made) { return TELL("drop made;"); }
CUresult cuEventDestroy(CUevent event) { return TELL("destroy %p;", (void *)event); }
CUresult cuGetErrorName(CUresult error, const char **name) { return *name = "CUDA_ERROR_INVALID_VALUE", CUDA_SUCCESS; }

CUresult cuPointerGetAttribute(void *found, CUpointer_attribute what, CUdeviceptr address) {
  memcpy(found, &address, sizeof address);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) { return *text = "an error", CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)&a_context, CUDA_SUCCESS; }

/* What is linked, or asked for while modules are loaded, and does nothing here. */
#define NOTHING(name)                                                                                                  \
  CUresult nothing_##name(void) __asm__(#name);                                                                        \
  CUresult nothing_##name(void) { return CUDA_SUCCESS; }
NOTHING(cuInit)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetAttribute)
NOTHING(cuDeviceGetCount)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuDriverGetVersion)
NOTHING(cuFuncGetAttribute)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuModuleGetFunction)
NOTHING(cuModuleLoadData)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuTensorMapEncodeIm2col)
