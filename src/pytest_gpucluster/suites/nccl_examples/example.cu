// One process with all visible GPUs: rank r fills element i with (7 i + 13 r) mod 31, NCCL sums, the device compares.
// Prints one line of JSON; exit status 0, 1 after an error, 7 if an element is wrong.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

static const int COUNT = 1 << 20, PERIOD = 31;

#define CUDA(call) require((call) == cudaSuccess, #call, cudaGetErrorString(cudaGetLastError()))
#define NCCL(call) check_nccl((call), #call)

static void require(bool good, const char *call, const char *why) {
  if (good) return;
  fprintf(stderr, "error: %s: %s\n", call, why);
  exit(1);
}

static void check_nccl(ncclResult_t result, const char *call) {
  require(result == ncclSuccess, call, ncclGetErrorString(result));
}

__global__ void fill(float *data, int rank) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < COUNT; i += gridDim.x * blockDim.x)
    data[i] = (7LL * i + 13 * rank) % PERIOD;
}

__global__ void compare(const float *data, int ranks, unsigned *wrong) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < COUNT; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += (7LL * i + 13 * rank) % PERIOD;
    if (data[i] != sum) atomicAdd(wrong, 1u);
  }
}

int main() {
  int count = 0, runtime = 0, version = 0;
  CUDA(cudaGetDeviceCount(&count));
  CUDA(cudaRuntimeGetVersion(&runtime));
  NCCL(ncclGetVersion(&version));
  std::vector<ncclComm_t> comms(count);
  std::vector<float *> data(count);
  std::vector<unsigned *> wrong(count);
  NCCL(ncclCommInitAll(comms.data(), count, nullptr));
  for (int rank = 0; rank < count; rank++) {
    CUDA(cudaSetDevice(rank));
    CUDA(cudaMalloc(&data[rank], COUNT * sizeof(float)));
    CUDA(cudaMalloc(&wrong[rank], sizeof(unsigned)));
    CUDA(cudaMemset(wrong[rank], 0, sizeof(unsigned)));
    fill<<<64, 256>>>(data[rank], rank);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
  }
  NCCL(ncclGroupStart());
  for (int rank = 0; rank < count; rank++) {
    CUDA(cudaSetDevice(rank));
    NCCL(ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], 0));
  }
  NCCL(ncclGroupEnd());
  unsigned all_wrong = 0;
  for (int rank = 0; rank < count; rank++) {
    unsigned own = 0;
    CUDA(cudaSetDevice(rank));
    compare<<<64, 256>>>(data[rank], count, wrong[rank]);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&own, wrong[rank], sizeof own, cudaMemcpyDeviceToHost));
    all_wrong += own;
    NCCL(ncclCommDestroy(comms[rank]));
  }
  printf("{\"devices\": %d, \"wrong\": %u, \"nccl\": %d, \"runtime\": %d}\n", count, all_wrong, version, runtime);
  return all_wrong ? 7 : 0;
}
