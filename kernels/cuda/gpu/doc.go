// Package gpu is a cuda.Driver for an NVIDIA GPU, in builds with the tag cuda. It uses gorgonia.org/cu for contexts, memory, modules,
// streams and launches, and cuda.h for what that lacks. test/scripts/cuda makes what the tag needs: headers, and the compiled kernels.
//
// A program with it starts where there is no NVIDIA driver: libcuda.so.1 is loaded by the first call of Chips or Open, not before.
package gpu
