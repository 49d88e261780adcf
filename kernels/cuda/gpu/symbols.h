// What gorgonia.org/cu and this package call in NVIDIA's driver, apart from cuInit. A name that is missing here is an undefined reference
// when the program is linked: headers of a CUDA later than 13 may map a function to another name, which headers/cuda.h has to take back.
#define SYMBOLS(S) \
    S(cuArray3DCreate_v2) S(cuArray3DGetDescriptor_v2) S(cuArrayCreate_v2) S(cuArrayDestroy) S(cuArrayGetDescriptor_v2) \
    S(cuCtxCreate_v2) S(cuCtxDestroy_v2) S(cuCtxDisablePeerAccess) S(cuCtxEnablePeerAccess) S(cuCtxGetApiVersion) S(cuCtxGetCacheConfig) \
    S(cuCtxGetCurrent) S(cuCtxGetDevice) S(cuCtxGetFlags) S(cuCtxGetLimit) S(cuCtxGetSharedMemConfig) S(cuCtxGetStreamPriorityRange) \
    S(cuCtxPopCurrent_v2) S(cuCtxPushCurrent_v2) S(cuCtxResetPersistingL2Cache) S(cuCtxSetCacheConfig) S(cuCtxSetCurrent) \
    S(cuCtxSetLimit) S(cuCtxSetSharedMemConfig) S(cuCtxSynchronize) S(cuDeviceCanAccessPeer) S(cuDeviceGet) S(cuDeviceGetAttribute) \
    S(cuDeviceGetCount) S(cuDeviceGetName) S(cuDeviceGetP2PAttribute) S(cuDeviceGetUuid) S(cuDevicePrimaryCtxGetState) \
    S(cuDevicePrimaryCtxRelease_v2) S(cuDevicePrimaryCtxReset_v2) S(cuDevicePrimaryCtxRetain) S(cuDevicePrimaryCtxSetFlags_v2) \
    S(cuDeviceTotalMem_v2) S(cuDriverGetVersion) S(cuEventCreate) S(cuEventDestroy_v2) S(cuEventElapsedTime) S(cuEventQuery) \
    S(cuEventRecord) S(cuEventSynchronize) S(cuFuncGetAttribute) S(cuFuncSetAttribute) S(cuFuncSetCacheConfig) \
    S(cuFuncSetSharedMemConfig) S(cuGetErrorString) S(cuGraphAddChildGraphNode) S(cuGraphAddDependencies) S(cuGraphAddEmptyNode) \
    S(cuGraphAddHostNode) S(cuGraphAddKernelNode) S(cuGraphAddMemcpyNode) S(cuGraphAddMemsetNode) S(cuGraphClone) S(cuGraphCreate) \
    S(cuGraphDestroy) S(cuGraphDestroyNode) S(cuGraphExecDestroy) S(cuGraphGetEdges) S(cuGraphInstantiateWithFlags) S(cuGraphLaunch) \
    S(cuLaunchKernel) S(cuLaunchKernelEx) \
    S(cuLinkAddData_v2) S(cuLinkAddFile_v2) S(cuLinkComplete) S(cuLinkCreate_v2) S(cuLinkDestroy) S(cuMemAdvise) \
    S(cuMemAllocManaged) S(cuMemAllocPitch_v2) S(cuMemAlloc_v2) S(cuMemFreeHost) S(cuMemFree_v2) S(cuMemGetAddressRange_v2) \
    S(cuMemGetInfo_v2) S(cuMemHostAlloc) S(cuMemHostGetDevicePointer_v2) S(cuMemHostRegister_v2) S(cuMemHostUnregister) \
    S(cuMemPrefetchAsync) S(cuMemcpy) S(cuMemcpy2DAsync_v2) \
    S(cuMemcpy2DUnaligned_v2) S(cuMemcpy2D_v2) S(cuMemcpy3DAsync_v2) S(cuMemcpy3DPeer) S(cuMemcpy3DPeerAsync) S(cuMemcpy3D_v2) \
    S(cuMemcpyAsync) S(cuMemcpyAtoA_v2) S(cuMemcpyAtoD_v2) S(cuMemcpyAtoHAsync_v2) S(cuMemcpyAtoH_v2) S(cuMemcpyDtoA_v2) \
    S(cuMemcpyDtoDAsync_v2) S(cuMemcpyDtoD_v2) S(cuMemcpyDtoHAsync_v2) S(cuMemcpyDtoH_v2) S(cuMemcpyHtoAAsync_v2) S(cuMemcpyHtoA_v2) \
    S(cuMemcpyHtoDAsync_v2) S(cuMemcpyHtoD_v2) S(cuMemcpyPeer) S(cuMemcpyPeerAsync) S(cuMemsetD16Async) S(cuMemsetD16_v2) \
    S(cuMemsetD2D16Async) S(cuMemsetD2D16_v2) S(cuMemsetD2D32Async) S(cuMemsetD2D32_v2) S(cuMemsetD2D8Async) S(cuMemsetD2D8_v2) \
    S(cuMemsetD32Async) S(cuMemsetD32_v2) S(cuMemsetD8Async) S(cuMemsetD8_v2) S(cuModuleGetFunction) S(cuModuleGetGlobal_v2) \
    S(cuModuleGetSurfRef) S(cuModuleGetTexRef) S(cuModuleLoad) S(cuModuleLoadData) S(cuModuleLoadDataEx) S(cuModuleLoadFatBinary) \
    S(cuModuleUnload) S(cuOccupancyMaxActiveBlocksPerMultiprocessor) S(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
    S(cuPointerGetAttribute) S(cuPointerSetAttribute) S(cuStreamAttachMemAsync) S(cuStreamBeginCapture_v2) S(cuStreamCreate) \
    S(cuStreamCreateWithPriority) S(cuStreamDestroy_v2) S(cuStreamEndCapture) S(cuStreamGetFlags) S(cuStreamGetPriority) \
    S(cuStreamQuery) S(cuStreamSynchronize) S(cuStreamWaitEvent) S(cuStreamWaitValue32) S(cuStreamWriteValue32) S(cuSurfRefGetArray) \
    S(cuSurfRefSetArray) S(cuTexRefGetAddressMode) S(cuTexRefGetAddress_v2) S(cuTexRefGetArray) S(cuTexRefGetBorderColor) \
    S(cuTexRefGetFilterMode) S(cuTexRefGetFlags) S(cuTexRefGetFormat) S(cuTexRefGetMaxAnisotropy) S(cuTexRefSetAddress2D_v3) \
    S(cuTexRefSetAddressMode) S(cuTexRefSetAddress_v2) S(cuTexRefSetArray) S(cuTexRefSetBorderColor) S(cuTexRefSetFilterMode) \
    S(cuTexRefSetFlags) S(cuTexRefSetFormat) S(cuTexRefSetMaxAnisotropy) S(cuTexRefSetMipmapFilterMode) S(cuTexRefSetMipmapLevelBias) \
    S(cuTexRefSetMipmapLevelClamp)
