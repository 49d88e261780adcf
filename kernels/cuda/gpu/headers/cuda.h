// The toolkit's cuda.h, with the driver's functions as gorgonia.org/cu 0.9.6 and symbols.h name them. Later toolkits map some of these
// names to functions with other arguments (12: _v2 of graphs and streams; 13: CUmemLocation, edges with data, parameters of contexts).
// Then cu does not compile, or does not link. The driver goes on to have the older functions, which a program of CUDA 11.8 calls as well.
// So this file, which test/scripts/cuda puts before the toolkit's headers, takes the later names back. Go files need no other workaround.
#ifndef TANDEM_CUDA_H
#define TANDEM_CUDA_H
#include_next <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

#if CUDA_VERSION >= 12000
// The later CUDA_KERNEL_NODE_PARAMS begins with the fields of the earlier one, which is all that the function reads.
#undef cuGraphAddKernelNode
CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS *kernel);
#undef cuStreamWaitValue32
CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags);
#undef cuStreamWriteValue32
CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags);
#endif

#if CUDA_VERSION >= 13000
#undef cuCtxCreate
#define cuCtxCreate cuCtxCreate_v2
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
#undef cuDeviceGetUuid
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *id, CUdevice device);
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end);
#undef cuGraphAddDependencies
CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count);
#undef cuGraphGetEdges
CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
#undef cuMemAdvise
CUresult CUDAAPI cuMemAdvise(CUdeviceptr at, size_t size, CUmem_advise advice, CUdevice device);
#undef cuMemPrefetchAsync
CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr at, size_t size, CUdevice to, CUstream stream);
#endif

#ifdef __cplusplus
}
#endif
#endif
