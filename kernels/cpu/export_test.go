package cpu

// SetReading sets how the kernels read weights and returns how they did.
var SetReading = setReading

var (
	MeasureReading = measureReading
	JudgeReading   = judgeReading
)

// GroupBytes is the size of a group in C.
var GroupBytes = groupBytes
