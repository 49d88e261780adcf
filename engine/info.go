package engine

import (
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/kernels"
)

// Info says what a model file holds and what running it takes.
type Info struct {
	Config      Config
	Parameters  int64            // weights of all tensors
	FileBytes   int64            // size of the file
	Tensors     map[string]int   // number of tensors by type
	TypeBytes   map[string]int64 // bytes in the file by type
	TiedHead    bool             // the output matrix is the embedding
	WeightBytes int64            // repacked weights in memory
	KVBytes     int64            // KV cache per position, all layers
	Tokenizer   uint64           // fingerprint of the vocabulary
}

// Inspect reads and checks the model file at path as Open does, without loading its weights. Errors
// as Open's.
func Inspect(path string) (*Info, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	vocab, err := token.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	cfg, err := readConfig(f, vocab.Size())
	if err != nil {
		return nil, err
	}
	w := &weights{}
	c := &catalog{file: f, used: map[string]bool{}}
	if c.collect(w, &cfg); c.err != nil {
		return nil, c.err
	}
	info := &Info{
		Config:      cfg,
		FileBytes:   int64(f.Size()),
		Tensors:     map[string]int{},
		TypeBytes:   map[string]int64{},
		TiedHead:    f.Tensor("output.weight") == nil,
		WeightBytes: int64(c.bytes),
		KVBytes:     int64(cfg.kvShape().PageBytes() / kernels.PageRows),
		Tokenizer:   vocab.Fingerprint(),
	}
	for _, t := range f.Tensors() {
		info.Parameters += int64(t.Elements())
		info.Tensors[t.Type.String()]++
		info.TypeBytes[t.Type.String()] += int64(len(t.Data()))
	}
	return info, nil
}
