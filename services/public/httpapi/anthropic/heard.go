package anthropic

import "github.com/tandem-llm/tandem/services/public/httpapi/oai"

// Names are this API's names of fields of chats.
var Names = map[string]string{"enable_thinking": "thinking.type", "reasoning_effort": "output_config.effort"}

// heard says which fields have an effect. OpenAI's penalties and biases are none of this API's: only what llama.cpp's clients add to it is.
// The signature of a thought is what it was answered with, and asks for nothing.
func heard(o Options) oai.Shape {
	type block1 struct {
		block
		Signature any
	}
	return oai.Shape{Body: request{}, Strict: o.Strict, Ignored: o.Ignored, Inner: map[string]any{"system[]": block{},
		"messages[].content[]": block1{}, "messages[].content[].content[]": block{},
		"presence_penalty": nil, "frequency_penalty": nil, "logit_bias": nil}}
}
