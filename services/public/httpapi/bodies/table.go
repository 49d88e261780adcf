package bodies

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/services/public/ask"
)

// api is a set of APIs whose bodies ask for something.
type api uint16

const (
	chats         api = 1 << iota // OpenAI's chat completions
	completions                   // its older completions
	responses                     // its Responses
	messages                      // Anthropic's Messages
	ollamaChat                    // Ollama's /api/chat
	ollamaText                    // and /api/generate
	inOptions                     // the object options of both
	native                        // llama.cpp's /completion
	infill                        // and /infill
	other                         // bodies that do not ask for a text
	ollamaVectors                 // vectors of Ollama's API

	openAI   = chats | completions
	ollamas  = ollamaChat | ollamaText
	natives  = native | infill
	told     = chats | responses | messages | ollamas | inOptions // those that may speak to a chat template
	everyone = openAI | responses | messages | ollamas | inOptions | natives
	bodies   = everyone&^inOptions | other | ollamaVectors
)

// when says where a line of the table counts, beside its APIs.
type when uint8

const (
	always   when = iota
	mildly        // not in OpenAI's bodies if the server is strict
	strictly      // only if the server is strict
)

// reader reads one field. It never gets null, which is the same as a missing field.
type reader func(c *call, name string, s *source) error

// field is a line of the table: what a field means, by all its names, in which APIs.
type field struct {
	names  string
	in     api
	read   reader
	option string // which option it says, as tandem.Request.Validate names it; "": none
}

// table says what becomes of a field of a body. The first line with its name and API counts.
//
//  1. It has an effect, or asks for what tandem does anyway: options and what an API has of its own.
//  2. It would change what the answer means, and tandem cannot do it: foreign. Only values that ask for nothing are taken; any other is
//     Unsupported, with the field's name.
//  3. It has no line: it is ignored, whatever its value, and Limits.Ignored is told its name. Clients add dozens of fields for other
//     servers (hints about speed, caches and slots, further samplers, labels), and llama.cpp's server ignores what it does not know.
//
// With Limits.Strict a field of 3 is refused. OpenAI's bodies then know neither others' names of options nor foreign fields, and all know
// the fields of strict.
//
// The line between 2 and 3: a client that gets an answer made without the field must not take it for something it is not. An answer
// without a grammar may be no text of it; one without tools, images or a prompt's part answers another question; one without bad_words may
// hold them. An answer drawn without mirostat is one that the same model could have given.
var table = map[when][][]field{
	always:   {options, ofChats, ofCompletions, ofResponses, ofMessages, ofOllama, ofNative},
	mildly:   {aliases, foreign},
	strictly: {strict},
}

// options are the fields that mean the same wherever they stand.
var options = []field{
	{"model", openAI | responses | messages | natives, text(func(c *call) *string { return &c.Model }), ""},
	{"stream", everyone &^ inOptions, boolean(func(c *call) *bool { return &c.Stream }), ""},
	{"n", openAI | natives, integer(func(c *call) *int { return &c.N }), "n"},
	{"max_tokens", everyone &^ messages, readMost, "max_tokens"},
	{"max_completion_tokens", chats, readMost, "max_tokens"},
	{"temperature", everyone &^ natives, float(func(c *call) *float64 { return &c.Sampling.Temperature }), "temperature"},
	{"top_p", everyone, float(func(c *call) *float64 { return &c.Sampling.TopP }), "top_p"},
	{"top_k", everyone &^ natives, readTopK, "top_k"},
	{"min_p", everyone, float(func(c *call) *float64 { return &c.Sampling.MinP }), "min_p"},
	{"seed", everyone, readSeedOption, ""},
	{"frequency_penalty", everyone &^ messages, float(func(c *call) *float64 { return &c.Sampling.FrequencyPenalty }), "frequency_penalty"},
	{"presence_penalty", everyone &^ messages, float(func(c *call) *float64 { return &c.Sampling.PresencePenalty }), "presence_penalty"},
	{"repeat_penalty", everyone, float(func(c *call) *float64 { return &c.Sampling.RepeatPenalty }), "repeat_penalty"},
	{"repeat_last_n", everyone, readWindow, "repeat_last"},
	{"logit_bias", everyone &^ (messages | natives), readBias, "logit_bias"},
	{"stop", everyone, readStop, "stop"},
	{"accept", everyone, text(func(c *call) *string { return (*string)(&c.Sampling.Accept) }), "accept"},
	{"accept_epsilon", everyone, float(func(c *call) *float64 { return &c.Sampling.Epsilon }), "accept_epsilon"},
	{"accept_delta", everyone, float(func(c *call) *float64 { return &c.Sampling.Delta }), "accept_delta"},
	{"ignore_eos", everyone, boolean(func(c *call) *bool { return &c.IgnoreEOS }), "ignore_eos"},
	{"speculation", everyone, readSpeculation, ""},
	{"cache_salt", everyone, text(func(c *call) *string { return &c.CacheSalt }), "cache_salt"}, // vLLM's
	{"response_format", everyone, readResponseFormat, ""},
	{"stream_options", openAI, readStreamOptions, ""},
	{"return_progress", openAI | natives, boolean(func(c *call) *bool { return &c.Progress }), ""}, // llama.cpp's
	{"chat_template_kwargs", told, readKwargs, ""},
	{"enable_thinking", told, readThinking, ""},
	{"reasoning_effort", told, readEffort, ""},
}

// aliases are other servers' names of options.
var aliases = []field{
	{"max_completion_tokens n_predict max_new_tokens max_output_tokens num_predict", everyone, readMost, "max_tokens"},
	{"stop_sequences", everyone, readStop, "stop"},
	// of the whole text, where repeat_penalty has a window
	{ask.WholeText, everyone, float(func(c *call) *float64 { return &c.Sampling.RepeatPenalty }), "repeat_penalty"},
	// the form of the answer: llama.cpp's and SGLang's, vLLM's
	{"json_schema guided_json", everyone, readSchemaOption, ""},
	{"regex guided_regex", everyone, readPattern, ""},
	{"guided_choice", everyone, readAnswers, ""},
	{"guided_json_object", everyone, readAnyObject, ""},
	{"structured_outputs", everyone, readStructured, ""},
}

// ofChats are the fields of OpenAI's chats alone. Some accept only values that ask for nothing: client libraries send them by default.
var ofChats = []field{
	{"messages", chats, readMessages, "prompt"},
	{"logprobs", chats, boolean(func(c *call) *bool { return &c.Sampling.Logprobs }), ""},
	{"top_logprobs", chats, integer(func(c *call) *int { return &c.Sampling.TopLogprobs }), "top_logprobs"},
	{"tools", chats | ollamaChat, readTools, ""},
	{"tool_choice", chats, readToolChoice, ""},
	{"parallel_tool_calls", chats | responses, boolean(func(c *call) *bool { return &c.Parallel }), "parallel_tool_calls"},
	{"continue_final_message", chats, boolean(func(c *call) *bool { return &c.GoesOn }), ""},
	{"add_generation_prompt", chats, boolean(func(c *call) *bool { return &c.Opens }), ""},
	{"functions", chats, none("[]"), ""}, // the older form of tools
	{"function_call", chats, only(`"none"`, `"auto"`), ""},
	{"modalities", chats, only(`["text"]`), ""},
	{"audio web_search_options", chats, none(), ""},
}

// ofCompletions are the fields of the older completions alone.
var ofCompletions = []field{
	{"prompt", completions, readPrompts, "prompt"},
	{"logprobs", completions, readLegacyLogprobs, "top_logprobs"},
	{"best_of", completions, integer(func(c *call) *int { return &c.bestOf }), "best_of"},
	{"echo", completions, only("false"), ""},
	{"suffix", completions | ollamaText, long(func(c *call) *string { return &c.Suffix }), ""},
	{"parse_special", completions | native, boolean(func(c *call) *bool { return &c.ParseSpecial }), ""}, // llama.cpp's, of /tokenize
	{"parse_special", infill, skip, ""},                                                                  // texts of files are texts
}

// ofResponses are the fields of OpenAI's Responses.
var ofResponses = []field{
	{"input", responses, readInput, ""},
	{"instructions", responses, readInstructions, ""},
	{"tools", responses, readOffered, ""},
	{"tool_choice", responses, readOfferedChoice, ""},
	{"previous_response_id conversation prompt", responses, remembers, ""},
	{"background", responses, only("false"), ""},
	{"reasoning", responses, readReasoning, ""},
	{"text", responses, readTextFormat, ""},
	{"metadata", responses, readMetadata, ""},
	{"store", responses, readStore, ""},
	{"truncation", responses, readTruncation, ""},
}

// ofMessages are the fields of Anthropic's Messages.
var ofMessages = []field{
	{"messages", messages, readClaudeMessages, ""},
	{"max_tokens", messages, readClaudeMost, "max_tokens"},
	{"system", messages, readSystem, ""},
	{"tools", messages, readClaudeTools, ""},
	{"tool_choice", messages, readClaudeChoice, ""},
	{"thinking", messages, readClaudeThinking, ""},
	{"output_config", messages, readOutputConfig, ""},
	{"output_format", messages, readOutputFormat, ""},
	{"thread", messages, readThread, ""},
	{"container mcp_servers", messages, nothing, ""},
}

// ofOllama are the fields of Ollama's /api/chat and /api/generate.
var ofOllama = []field{
	{"model", ollamas, readOllamaModel, ""},
	{"messages", ollamaChat, readOllamaMessages, ""},
	{"prompt", ollamaText, long(func(c *call) *string { return &c.ollama.prompt }), "prompt"},
	{"system", ollamaText, long(func(c *call) *string { return &c.ollama.system }), ""},
	{"template", ollamaText, readOllamaTemplate, ""},
	{"context", ollamaText, readOllamaContext, ""},
	{"raw", ollamaText, boolean(func(c *call) *bool { return &c.ollama.raw }), ""},
	{"images", ollamaText, nothing, ""},
	{"format", ollamas, readOllamaFormat, ""},
	{"options", ollamas, readOllamaOptions, ""},
	{"think", ollamas, readOllamaThink, ""},
	{"keep_alive", ollamas, readKeepAlive, ""},
	{"num_ctx", inOptions, readOllamaWindow, ""},
	{"num_predict", inOptions, readOllamaMost, ""},
}

// ofNative are the fields of llama.cpp's /completion and /infill.
var ofNative = []field{
	{"prompt", native, readNativePrompt, "prompt"},
	{"prompt", infill, long(func(c *call) *string { return &c.native.prompt }), ""},
	{"input_prefix", infill, readGapSide(func(c *call) *string { return &c.native.prefix }), "input_prefix"},
	{"input_suffix", infill, readGapSide(func(c *call) *string { return &c.Suffix }), "input_suffix"},
	{"input_extra", infill, readFiles, ""},
	{"input_prefix input_suffix input_extra suffix", native, infillOnly, ""},
	{"echo", natives, only("false"), ""},
	{"temperature", natives, notBelow(float(func(c *call) *float64 { return &c.Sampling.Temperature })), "temperature"},
	{"top_k", natives, readNativeTopK, "top_k"},
	{"n_predict", natives, readPredict, "max_tokens"},
	{"n_cmpl", natives, integer(func(c *call) *int { return &c.native.choices }), "n"},
	{"logit_bias", natives, readNativeBias, "logit_bias"},
	{"n_probs", natives, readProbs, "top_logprobs"},
	{"post_sampling_probs", natives, boolean(func(c *call) *bool { return &c.native.post }), ""},
	{"return_tokens", natives, boolean(func(c *call) *bool { return &c.native.Tokens }), ""},
	{"timings_per_token", natives, boolean(func(c *call) *bool { return &c.native.Times }), ""},
	{"response_fields", natives, readFieldNames, ""},
}

// strict are the fields that change nothing in the answer and that a server with Limits.Strict takes too, with these values.
var strict = []field{
	{"user safety_identifier prompt_cache_key", bodies, label, ""},
	{"metadata", bodies &^ other, func(_ *call, name string, s *source) error {
		return s.object(name, func(string) error {
			s.skip()
			return nil
		})
	}, ""},
	{"store", bodies &^ other, only("false"), ""},
	{"service_tier", bodies &^ other, only(`"auto"`, `"default"`), ""},
	{"prediction verbosity", bodies &^ other, none(), ""},
}

// constraint takes a field that limits what the answer may hold, of a value that does not limit it.
var constraint = none("false", `""`, "[]")

// nothing takes a field of an empty value.
var nothing = none("false", `""`, "[]", "{}")

// foreign are fields of other servers, or of the other kind of bodies, that would change what the answer means.
var foreign = []field{
	// the form of the answer: llama.cpp's, vLLM's, SGLang's, Ollama's; which tokens it may hold, and where it ends
	{"grammar structural_tag json_schema regex structured_outputs ebnf format logits_processors logits_processor custom_logit_processor " +
		"bad_words bad_words_ids force_words_ids suppress_tokens banned_tokens banned_strings custom_token_bans allowed_token_ids " +
		"stop_token_ids", bodies, constraint, ""},
	// what the model reads, which model answers, and in which way
	{"messages prompt input system instructions documents images image_data image_url audios videos multi_modal_data prompt_embeds " +
		"input_embeds context template chat_template suffix previous_response_id conversation thread plugins web_search_options tools " +
		"functions lora loras lora_request lora_path adapter adapter_id adapters audio", bodies, nothing, ""},
	{"tool_choice function_call", bodies, only(`"none"`, `"auto"`), ""},
	{"num_beams", bodies, only("1"), ""},
	{"modalities", bodies, only(`["text"]`), ""},
	// what the answer's text shows
	{"add_generation_prompt skip_special_tokens", bodies, only("true"), ""},
	{"continue_final_message use_beam_search echo include_stop_str_in_output return_tokens_as_token_ids", bodies, only("false"), ""},
}

// guidedHints are vLLM's fields about how a text is guided. All others that begin with "guided_" say to what.
var guidedHints = []string{"guided_decoding_backend", "guided_whitespace_pattern"}

// line is a field's line in the table, and when it counts.
type line struct {
	*field
	when when
}

// lines are the first lines of each API's fields, and of those that count on strict servers.
var lines map[api]map[string]line

func init() { // readers refer to the table by way of fields within fields
	lines = map[api]map[string]line{}
	for of := chats; of <= ollamaVectors; of <<= 1 {
		lines[of] = map[string]line{}
		for _, when := range []when{always, mildly, strictly} {
			for _, part := range table[when] {
				for i := range part {
					for _, name := range strings.Fields(part[i].names) {
						if _, there := lines[of][name]; !there && part[i].in&of != 0 {
							lines[of][name] = line{&part[i], when}
						}
					}
				}
			}
		}
	}
}

// lineOf returns the line of a field in an API; nil: it is not known.
func lineOf(of api, name string, isStrict bool) *field {
	l, there := lines[of][name]
	openAIs := of&(openAI|other) != 0
	switch {
	case there && (l.when == always || l.when == mildly && !(isStrict && openAIs) || l.when == strictly && isStrict):
		return l.field
	case !there && of != inOptions && !(isStrict && openAIs) && strings.HasPrefix(name, "guided_") && !slices.Contains(guidedHints, name):
		return &field{read: constraint}
	}
	return nil
}
