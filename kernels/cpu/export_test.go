package cpu

// SetStreams makes the kernels read weights as one stream or as several until the test ends.
var SetStreams = setStreams

// GroupBytes is the size of a group in C.
var GroupBytes = groupBytes
