package httpapi

import "strings"

// Counters of requests and of ignored fields begin so, and end with the API and, of fields, a dot and the field.
const (
	CountedCalls   = "dialect.requests."
	countedIgnored = "dialect.ignored."
)

// countedFields are the fields without an effect that are counted by their names; all others are "other", since clients invent names. They
// are those that programs were seen to send, by the last part of their names.
var countedFields = fieldSet("user metadata store service_tier prompt_cache_key prompt_cache_retention safety_identifier prediction " +
	"verbosity stream_options cache_control cache_prompt id_slot keep_alive samplers typical_p min_keep " +
	"min_tokens n_keep n_indent n_cache_reuse t_max_predict_ms t_max_prompt_ms timings_per_token " +
	"mirostat mirostat_tau mirostat_eta dry_multiplier dry_base xtc_probability xtc_threshold " +
	"dynatemp_range top_n_sigma top_a tfs num_ctx num_thread num_gpu num_batch num_keep reasoning " +
	"reasoning_format enable_thinking reasoning_effort client_metadata include max_tool_calls truncation " +
	"format tool_reference redacted_thinking tools[].type refusal annotations provider transforms chat_format " +
	"x-anthropic-billing-header")

func fieldSet(names string) map[string]bool {
	out := map[string]bool{}
	for _, name := range strings.Fields(names) {
		out[name] = true
	}
	return out
}

// countedField returns the name by which an ignored field is counted.
func countedField(name string) string {
	name, _, _ = strings.Cut(name, "=") // the kind of a tool that was left out
	for _, name := range []string{name, name[strings.LastIndex(name, ".")+1:]} {
		if countedFields[name] {
			return name
		}
	}
	return "other"
}
