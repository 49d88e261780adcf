package ollama

// Success is the last status of /api/pull.
const Success = "success"

// Status is a line of /api/pull, or all of it.
type Status struct {
	Status    string `json:"status"`
	Digest    string `json:"digest,omitempty"`
	Total     int64  `json:"total,omitempty"` // bytes
	Completed int64  `json:"completed,omitempty"`
}
