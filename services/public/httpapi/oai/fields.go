package oai

import (
	"slices"
	"strings"
)

// What becomes of a field of a body:
//
//  1. It is in one of the tables of readers below (common, chatOnly, completionOnly, aliases): it takes effect, or asks for what tandem
//     does anyway.
//  2. It is in the table foreign: it would change what the answer means, and tandem cannot do it. Only values that ask for nothing are
//     taken; any other is Unsupported, with the field's name.
//  3. It is none of these: it is ignored, whatever its value, and Limits.Ignored is told its name. Clients add dozens of fields for
//     other servers (hints about speed, caches and slots, further samplers, labels), and llama.cpp's server ignores what it does not know.
//
// With Limits.Strict only the first three tables and the table strict are known, and everything else is refused.
//
// The line between 2 and 3: a client that gets an answer made without the field must not take it for something it is not. An answer
// without a grammar may be no JSON; one without tools, images or a prompt's part answers another question; one without bad_words may
// hold them. An answer drawn without mirostat is one that the same model could have given.

// reader reads one field of a body. It never gets null, which is the same as a missing field.
type reader func(c *Call, name string, s *source) error

// common are the fields of both kinds of bodies.
var common = map[string]reader{
	"model": text(func(c *Call) *string { return &c.Model }),

	"max_tokens":  readMost,
	"temperature": float(func(c *Call) *float64 { return &c.Request.Sampling.Temperature }),
	"top_p":       float(func(c *Call) *float64 { return &c.Request.Sampling.TopP }),
	"seed": func(c *Call, name string, s *source) (err error) {
		c.Request.Sampling.Seed, c.seeded, err = readSeed(name, s)
		return err
	},
	"frequency_penalty": float(func(c *Call) *float64 { return &c.Request.Sampling.FrequencyPenalty }),
	"presence_penalty":  float(func(c *Call) *float64 { return &c.Request.Sampling.PresencePenalty }),
	"logit_bias":        readBias,
	"stop":              readStop,
	"n":                 integer(func(c *Call) *int { return &c.N }),
	"stream":            boolean(func(c *Call) *bool { return &c.Stream }),
	"stream_options":    readStreamOptions,
	"response_format":   only(`{"type":"text"}`),

	// beyond OpenAI's
	"top_k": func(c *Call, name string, s *source) error {
		err := readInt(name, s, &c.Request.Sampling.TopK)
		if c.Request.Sampling.TopK == -1 { // all, in llama.cpp, vLLM and SGLang
			c.Request.Sampling.TopK = 0
		}
		return err
	},
	"min_p":          float(func(c *Call) *float64 { return &c.Request.Sampling.MinP }),
	"repeat_penalty": float(func(c *Call) *float64 { return &c.Request.Sampling.RepeatPenalty }),
	"repeat_last_n":  readWindow,
	"accept":         text(func(c *Call) *string { return (*string)(&c.Request.Sampling.Accept) }),
	"accept_epsilon": float(func(c *Call) *float64 { return &c.Request.Sampling.Epsilon }),
	"accept_delta":   float(func(c *Call) *float64 { return &c.Request.Sampling.Delta }),
	"ignore_eos":     boolean(func(c *Call) *bool { return &c.Request.IgnoreEOS }),
	"speculation":    readSpeculation,
	"cache_salt":     text(func(c *Call) *string { return &c.Request.CacheSalt }), // vLLM's
}

// chatOnly are the fields of chat bodies alone. Some accept only values that ask for nothing: client libraries send
// them by default.
var chatOnly = map[string]reader{
	"messages":              readMessages,
	"max_completion_tokens": readMost,
	"logprobs":              boolean(func(c *Call) *bool { return &c.Request.Sampling.Logprobs }),
	"top_logprobs": func(c *Call, name string, s *source) error {
		c.top = true
		return readInt(name, s, &c.Request.Sampling.TopLogprobs)
	},
	"tools":       func(c *Call, name string, s *source) error { return readTools(&c.tools)(name, s) },
	"functions":   none("[]"), // the older form of tools
	"tool_choice": readToolChoice,
	"parallel_tool_calls": func(c *Call, name string, s *source) error {
		c.says = true
		return readBool(name, s, &c.parallel)
	},
	"continue_final_message": boolean(func(c *Call) *bool { return &c.goesOn }),
	"add_generation_prompt":  boolean(func(c *Call) *bool { return &c.opens }),
	"function_call":          only(`"none"`, `"auto"`),
	"modalities":             only(`["text"]`),
	"audio":                  none(),
	"web_search_options":     none(),
}

// completionOnly are the fields of the older completions alone.
var completionOnly = map[string]reader{
	"prompt":   readPrompts,
	"logprobs": readLegacyLogprobs,
	"best_of":  integer(func(c *Call) *int { return &c.bestOf }),
	"echo":     only("false"),
	"suffix": func(c *Call, name string, s *source) (err error) {
		c.Suffix, err = readLong(name, s)
		return err
	},
	"parse_special": boolean(func(c *Call) *bool { return &c.ParseSpecial }), // llama.cpp's name, of /tokenize
}

// aliases are other servers' names of fields that tandem has.
var aliases = map[string]reader{
	"max_completion_tokens": readMost, "n_predict": readMost, "max_new_tokens": readMost, "max_output_tokens": readMost,
	"num_predict":    readMost,
	"stop_sequences": readStop,
	"repetition_penalty": func(c *Call, name string, s *source) error { // of the whole text, where repeat_penalty has a window
		c.wholeText = true
		return readFloat(name, s, &c.Request.Sampling.RepeatPenalty)
	},
}

// strict are the fields that change nothing in the answer and that a server with Limits.Strict takes too, with these values.
var strict = map[string]reader{
	"user": label, "safety_identifier": label, "prompt_cache_key": label,
	"metadata": func(_ *Call, name string, s *source) error {
		return s.object(name, func(string) error {
			s.skip()
			return nil
		})
	},
	"store":        only("false"),
	"service_tier": only(`"auto"`, `"default"`),
	"prediction":   none(), "verbosity": none(),
}

// constraint takes a field that limits what the answer may hold, of a value that does not limit it.
var constraint = none("false", `""`, "[]")

// nothing takes a field of an empty value.
var nothing = none("false", `""`, "[]", "{}")

// foreign are fields of other servers, or of the other kind of bodies, that would change what the answer means.
var foreign = map[string]reader{
	// the form of the answer: llama.cpp's, vLLM's, SGLang's, Ollama's
	"grammar": constraint, "json_schema": constraint, "structured_outputs": constraint, "structural_tag": constraint,
	"regex": constraint, "ebnf": constraint, "format": constraint,

	// which tokens it may hold, and where it ends
	"logits_processors": constraint, "logits_processor": constraint, "custom_logit_processor": constraint,
	"bad_words": constraint, "bad_words_ids": constraint, "force_words_ids": constraint, "suppress_tokens": constraint,
	"banned_tokens": constraint, "banned_strings": constraint, "custom_token_bans": constraint,
	"allowed_token_ids": constraint, "stop_token_ids": constraint,

	// what the model reads
	"messages": nothing, "prompt": nothing, "input": nothing, "system": nothing, "instructions": nothing, "documents": nothing,
	"images": nothing, "image_data": nothing, "image_url": nothing, "audios": nothing, "videos": nothing, "multi_modal_data": nothing,
	"prompt_embeds": nothing, "input_embeds": nothing, "context": nothing, "template": nothing, "chat_template": nothing,
	"suffix": nothing, "previous_response_id": nothing, "conversation": nothing, "thread": nothing, "plugins": nothing,
	"web_search_options": nothing, "tools": nothing, "functions": nothing,
	"tool_choice": only(`"none"`, `"auto"`), "function_call": only(`"none"`, `"auto"`),
	"add_generation_prompt": only("true"), "continue_final_message": only("false"),

	// which model answers, and in which way
	"lora": nothing, "loras": nothing, "lora_request": nothing, "lora_path": nothing, "adapter": nothing, "adapter_id": nothing,
	"adapters": nothing, "use_beam_search": only("false"), "num_beams": only("1"), "modalities": only(`["text"]`), "audio": nothing,

	// what the answer's text shows
	"echo": only("false"), "skip_special_tokens": only("true"), "include_stop_str_in_output": only("false"),
	"return_tokens_as_token_ids": only("false"),
}

// guidedHints are vLLM's fields about how a text is guided. All others that begin with "guided_" say to what.
var guidedHints = []string{"guided_decoding_backend", "guided_whitespace_pattern"}

// readerOf returns the reader of a field of a body with those own fields; nil: the field is not known.
func readerOf(name string, own map[string]reader, isStrict bool) reader {
	tables := []map[string]reader{own, common, aliases, foreign}
	if isStrict {
		tables = []map[string]reader{own, common, strict}
	}
	for _, t := range tables {
		if f, ok := t[name]; ok {
			return f
		}
	}
	if !isStrict && strings.HasPrefix(name, "guided_") && !slices.Contains(guidedHints, name) {
		return constraint
	}
	return nil
}

// only returns a reader that accepts only these values, which ask for what tandem does anyway.
func only(values ...string) reader {
	return func(_ *Call, name string, s *source) error {
		raw := s.raw(maxSmall)
		if slices.Contains(values, compact(raw)) {
			return nil
		}
		return unsupported(name, "%s is %s: only %s is supported", name, show(raw), list(values))
	}
}

// none returns a reader of a field that is not supported; these of its values ask for nothing and are accepted.
func none(values ...string) reader {
	return func(_ *Call, name string, s *source) error {
		if slices.Contains(values, compact(s.raw(maxSmall))) {
			return nil
		}
		return unsupported(name, "%s is not supported: leave it out", name)
	}
}
