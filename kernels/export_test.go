package kernels

// SetWidthDependent makes a program, before Seal, use the broken kernel of docs/kernels.md.
func SetWidthDependent(p *Program) { p.widthDependent = true }
