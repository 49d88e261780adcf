package cpu

// SetReading sets how the kernels read weights and returns how they did.
var SetReading = setReading

// SetPermutes says whether kernels use vpermb where the processor has it.
var SetPermutes = setPermutes

// AssumeVNNI says whether there is AVX-VNNI even where the processor lacks it.
var AssumeVNNI = assumeVNNI

var (
	MeasureReading = measureReading
	JudgeReading   = judgeReading
)

// GroupBytes is the size of a group in C.
var GroupBytes = groupBytes
