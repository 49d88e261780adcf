package kernels

// SetWidthDependent makes a program, before Seal, use the broken kernel of docs/kernels.md.
func SetWidthDependent(p *Program) { p.widthDependent = true }

// SetStreams makes the kernels read weights as processors of the one or the other kind want it, for as long as a test runs.
var SetStreams = setStreams
