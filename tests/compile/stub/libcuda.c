/* A CUDA driver that launches nothing and keeps what it is given: the parameters of the last launch, as bytes.

   `stub_sizes` says how many bytes each parameter has. A tensor map is made of what it is encoded from. What is enqueued besides
   is told in words; a copy of 13 bytes is refused. */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

int stub_count, stub_sizes[256], stub_launches, stub_encoded;
unsigned stub_grid[3], stub_block[3], stub_shared;
void *stub_stream, *stub_function;
unsigned char stub_bytes[1 << 16];
static int a_context;

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  unsigned char *to = stub_bytes;
  stub_launches += 1;
  stub_grid[0] = config->gridDimX, stub_grid[1] = config->gridDimY, stub_grid[2] = config->gridDimZ;
  stub_block[0] = config->blockDimX, stub_block[1] = config->blockDimY, stub_block[2] = config->blockDimZ;
  stub_shared = config->sharedMemBytes, stub_stream = config->hStream, stub_function = f;
  for (int i = 0; i < stub_count; i += 1) {
    memcpy(to, params[i], stub_sizes[i]);
    to += stub_sizes[i];
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

char stub_told[1 << 16];
#define TELL(...) (snprintf(stub_told + strlen(stub_told), sizeof stub_told - strlen(stub_told), __VA_ARGS__), CUDA_SUCCESS)

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return bytes == 13 ? CUDA_ERROR_INVALID_VALUE : TELL("copy %llx %llx %zu on %p;", to, from, bytes, (void *)stream);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *r, CUstream stream) {
  return TELL("rows %d %llx +%zu %d %llx +%zu, %zu x %zu at %zu %zu %zu %zu, %p %p %p %p on %p;", r->dstMemoryType, r->dstDevice,
              r->dstPitch, r->srcMemoryType, r->srcDevice, r->srcPitch, r->Height, r->WidthInBytes, r->dstXInBytes, r->dstY,
              r->srcXInBytes, r->srcY, r->dstHost, (void *)r->dstArray, (void *)r->srcHost, (void *)r->srcArray, (void *)stream);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags) {
  return TELL("hold %llx %u %u on %p;", word, value, flags, (void *)stream);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) { return *event = (CUevent)0x1234567890ab, TELL("event %u;", flags); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return TELL("record %p on %p;", (void *)event, (void *)stream); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return TELL("behind %p %u on %p;", (void *)event, flags, (void *)stream);
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) { return TELL("record %p %d;", (void *)stream, mode); }
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  return *graph = (CUgraph)0xabcdef012345, TELL("recorded %p;", (void *)stream);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
  return *made = (CUgraphExec)0x5432fedcba10, TELL("make %p %llu;", (void *)graph, flags);
}
CUresult cuGraphDestroy(CUgraph graph) { return TELL("drop %p;", (void *)graph); }
CUresult cuGraphUpload(CUgraphExec made, CUstream stream) { return TELL("upload %p on %p;", (void *)made, (void *)stream); }
CUresult cuGraphLaunch(CUgraphExec made, CUstream stream) { return TELL("launch %p on %p;", (void *)made, (void *)stream); }
CUresult cuGraphExecDestroy(CUgraphExec made) { return TELL("drop made %p;", (void *)made); }

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
NOTHING(cuStreamIsCapturing)
NOTHING(cuTensorMapEncodeIm2col)
