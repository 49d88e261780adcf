package emulated

// Pid returns the id of the process that runs the kernels.
func (d *Driver) Pid() int { return d.process.cmd.Process.Pid }
