package token

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestEnds: a generation ends with the tokens of generation_config.json's eos_token_id. Each line is a family: its markers with their
// types, the keys that its files have, what its template writes behind the assistant's content at the end and before the next
// message, and its ends.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		control, user string            // markers by type, divided by spaces
		keys          map[string]string // special ids by their texts
		last, before  string            // behind the assistant's content
		want          string
	}{
		"gpt-oss": {"<|return|> <|call|> <|end|> <|start|> <|channel|> <|message|> <|constrain|> <|endoftext|>", "",
			map[string]string{"eos": "<|return|>"}, "<|return|>", "<|end|><|start|>user<|message|>",
			"<|return|> <|call|> <|endoftext|>"},
		"gpt-oss, user-defined": {"<|endoftext|>", "<|return|> <|call|> <|end|> <|start|> <|channel|> <|message|>",
			map[string]string{"eos": "<|return|>"}, "<|return|>", "<|end|><|start|>user<|message|>",
			"<|return|> <|call|> <|endoftext|>"},
		"gpt-oss, a template without <|return|>": {"<|return|> <|call|> <|end|> <|start|> <|message|>", "",
			map[string]string{"eos": "<|return|>", "eot": "<|end|>"}, "<|end|>", "<|end|><|start|>user<|message|>",
			"<|return|> <|call|>"},
		"Solar Open": {"<|flush|> <|calls|> <|end|> <|begin|> <|content|> <|endoftext|>", "", map[string]string{"eos": "<|flush|>"},
			"<|end|>", "<|end|><|begin|>user", "<|flush|> <|calls|> <|endoftext|>"},
		"Gemma 3": {"<eos> <end_of_turn> <start_of_turn>", "</s>", map[string]string{"eos": "<eos>"},
			"<end_of_turn>", "<end_of_turn><start_of_turn>user", "<eos> <end_of_turn>"},
		"Gemma 3, an eot": {"<eos> <start_of_turn>", "<end_of_turn>", map[string]string{"eos": "<eos>", "eot": "<end_of_turn>"}, "", "",
			"<eos> <end_of_turn>"},
		"Gemma 4": {"<eos> <turn|> <|turn> <|tool_response> <tool_response|> <|channel> <channel|> </s>",
			"", map[string]string{"eos": "<eos>"},
			"<turn|>", "<turn|><|turn>user", "<eos> <turn|> <|tool_response>"},
		"GLM": {"<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>", "<think> </think>",
			map[string]string{"eos": "<|endoftext|>", "eot": "<|user|>"}, "", "<|user|>", "<|endoftext|> <|user|> <|observation|>"},
		"Granite": {"<|end_of_text|> <|start_of_role|> <|end_of_role|>", "", map[string]string{"eos": "<|end_of_text|>"},
			"<|end_of_text|>", "<|end_of_text|><|start_of_role|>user<|end_of_role|>", "<|end_of_text|>"},
		"Nemotron Nano 2": {"</s> <SPECIAL_10> <SPECIAL_11> <SPECIAL_12>", "", map[string]string{"eos": "</s>"},
			"<SPECIAL_12>", "<SPECIAL_12><SPECIAL_11>User", "</s> <SPECIAL_12>"},
		"Nemotron 3": {"</s> <|im_start|> <|im_end|>", "", map[string]string{"eos": "<|im_end|>"},
			"<|im_end|>", "<|im_end|><|im_start|>user", "</s> <|im_end|>"},
		"DeepSeek": {"<｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>", "", map[string]string{"eos": "<｜end▁of▁sentence｜>"},
			"<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜><｜User｜>", "<｜end▁of▁sentence｜>"},
		"DeepSeek Coder": {"<|EOT|> <｜end▁of▁sentence｜>", "", map[string]string{"eos": "<｜end▁of▁sentence｜>"}, "<|EOT|>", "<|EOT|>",
			"<|EOT|> <｜end▁of▁sentence｜>"},
		"Kimi": {"[BOS] [EOS] [EOT] <|im_end|> <|im_middle|> <|im_user|>", "", map[string]string{"eos": "[EOS]"},
			"<|im_end|>", "<|im_end|><|im_user|>user<|im_middle|>", "[EOS] [EOT] <|im_end|>"},
		"Qwen": {"<|endoftext|> <|im_start|> <|im_end|> <|fim_pad|>",
			"<think> </think> <tool_call>", map[string]string{"eos": "<|im_end|>"},
			"<|im_end|>", "<|im_end|><|im_start|>user", "<|endoftext|> <|im_end|>"},
		"Llama 3, an eot": {"<|end_of_text|> <|eom_id|> <|eot_id|> <|start_header_id|>", "",
			map[string]string{"eos": "<|eot_id|>", "eot": "<|eot_id|>"}, "<|eot_id|>", "<|eot_id|><|start_header_id|>user",
			"<|end_of_text|> <|eom_id|> <|eot_id|>"},
		"Llama 4": {"<|end_of_text|> <|eom|> <|eot|> <|header_start|>", "", map[string]string{"eos": "<|eot|>"},
			"<|eot|>", "<|eot|><|header_start|>user", "<|end_of_text|> <|eom|> <|eot|>"},
		"Mistral": {"</s> [INST] [/INST]", "", map[string]string{"eos": "</s>"}, "</s>", "</s>[INST]", "</s>"},
		"Phi-3": {"<|endoftext|>",
			"<|assistant|> <|placeholder1|> <|end|> <|user|> <|system|>", map[string]string{"eos": "<|endoftext|>"},
			"<|end|> <|endoftext|>", "<|end|> <|user|>", "<|endoftext|> <|assistant|> <|end|>"},
		"Phi-4-mini": {"<|endoftext|> <|assistant|> <|end|> <|user|>", "", map[string]string{"eos": "<|endoftext|>"},
			"<|end|><|endoftext|>", "<|end|><|user|>", "<|endoftext|> <|end|>"},
		"SmolLM3": {"<|end_of_text|> <|im_start|> <|im_end|>", "", map[string]string{"eos": "<|im_end|>"}, "<|im_end|>",
			"<|im_end|><|im_start|>user", "<|end_of_text|> <|im_end|>"},
		"MiniCPM": {"</s> <|im_start|> <|im_end|>", "", map[string]string{"eos": "</s>"}, "<|im_end|>", "<|im_end|><|im_start|>user",
			"</s> <|im_end|>"},
		"Command R7B": {"<|END_RESPONSE|> <|END_OF_TURN_TOKEN|> <|START_OF_TURN_TOKEN|>",
			"", map[string]string{"eos": "<|END_OF_TURN_TOKEN|>"},
			"<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|><|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>",
			"<|END_OF_TURN_TOKEN|>"},
		"Apertus": {"</s> <|assistant_start|> <|assistant_end|> <|tools_prefix|> <|tools_suffix|>",
			"", map[string]string{"eos": "</s>"},
			"<|assistant_end|>", "<|assistant_end|>", "</s> <|assistant_end|> <|tools_suffix|>"},
		"MiniMax": {"[e~[ ]~b] ]~!b[", "", map[string]string{"eos": "[e~["}, "[e~[", "[e~[]~b]user", "[e~["},

		"an unknown family": {"</s> <turn_end>", "", map[string]string{"eos": "</s>"}, "<turn_end> </s>",
			"<turn_end>", "</s> <turn_end>"},
		"the next turn's beginning": {"</s> <q>", "", map[string]string{"eos": "</s>"}, "", "<q>", "</s> <q>"},
		"only before further messages": {"</s> <next> <stop>", "", map[string]string{"eos": "</s>"}, "<stop>", "<next>",
			"</s> <stop>"},
		"no marker behind a turn":        {"</s> <|im_end|>", "", map[string]string{"eos": "</s>"}, " b", " b user", "</s> <|im_end|>"},
		"a marker of the template's":     {"</s>", "STOP:", map[string]string{"eos": "</s>"}, "STOP:", "", "</s> STOP:"},
		"a tag of HTML":                  {"<eos>", "</s> <b>", map[string]string{"eos": "<eos>"}, "", "", "<eos>"},
		"a file without special ids":     {"<|im_end|>", "<|endoftext|>", nil, "", "", "<|im_end|> <|endoftext|>"},
		"an end that no template writes": {"<|eot_id|> <fin>", "", map[string]string{"eos": "<fin>"}, "", "", "<|eot_id|> <fin>"},
	} {
		d := newDraft("a", "b", space).set("add_space_prefix", false)
		d.kinds[2] = int32(normal) // </s>
		d.pieces[2] = "</s>>"
		d.add(control, strings.Fields(c.control)...).add(userDefined, strings.Fields(c.user)...)
		for key, text := range c.keys {
			d.set(key+"_token_id", uint32(slices.Index(d.pieces, text)))
		}
		base := d.vocab(t)
		v := base.WithTemplate("{{ 'STOP:' }}", c.last, c.before)
		var got []string
		for id, piece := range d.pieces {
			if v.IsEnd(tandem.Token(id)) {
				got = append(got, piece)
			}
		}
		want := strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: ends %q: want %q", name, got, want)
		}
		if v.Fingerprint() != base.Fingerprint() {
			t.Errorf("%s: the template is in the fingerprint", name)
		}
	}
	d := newDraft("a").add(normal, "<|im_end|>")
	if v := d.vocab(t).WithTemplate("<|im_end|>", "<|im_end|>"); v.IsEnd(260) {
		t.Error("a token of text is an end")
	}
}
