// Package ask is what a client asks for, whatever API it speaks. A reader of an API begins with New, which fills in what the server takes
// for what is left out, sets what its client says, and ends with Check.
package ask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/grammar"
)

// MostChoices is how many generations one request may ask for: prompts times choices.
const MostChoices = 16

// ToTheEnd is the MaxTokens of a request whose answer may go on to the end of the context.
const ToTheEnd = 0

// Kind says what is asked for.
type Kind uint8

const (
	Chat       Kind = iota + 1 // the next turn of a conversation
	Completion                 // what follows a text, or fills a gap in it
	Embedding                  // vectors of texts
)

// Request is what a client asks for. It belongs to whoever reads it, and is not safe for concurrent use.
type Request struct {
	Kind         Kind
	Model        string // "" if the client names none
	Stream       bool
	IncludeUsage bool // a stream ends with a count of tokens
	N            int  // choices for each prompt

	tandem.Request                       // the options, without a prompt; its seed is the first choice's
	Speculation    *tandemv1.Speculation // what is said about it: Check sets Bounds, Strategy and so on by it
	Answer         *grammar.Spec         // the answers that are allowed, behind the thoughts of a chat; nil: all. See Constrain

	// of a chat
	Messages  []conversation.Message
	Tools     []Tool
	Choice    Choice
	Parallel  bool               // the answer may hold several calls
	Variables conversation.Asked // variables for the chat template
	GoesOn    bool               // the last message is said to be the beginning of the answer
	Opens     bool               // the template begins the answer; false asks the same as GoesOn

	// of a completion; Prompts also of an embedding
	Prompts      []Prompt
	Suffix       string           // the text behind what is to be filled in; "" for none
	Gap          bool             // something is to be filled in although Suffix may be ""
	Files        []tandem.Excerpt // texts that stand in front of such a prompt
	ParseSpecial bool             // control tokens written in a prompt become those tokens

	// of an embedding
	Dimensions int  // 0: not said
	Most       int  // tokens of a text; 0: the context
	Cut        bool // a text that is too long is cut

	OptionName func(option string) string // the client's name of an option that it did not say; nil: the option's own

	form *tandem.Constraint // the latest that was compiled
	said map[string]string  // the client's names of the options that it said
}

// Prompt is a text, or tokens taken as they are.
type Prompt struct {
	Text   string
	Tokens []tandem.Token // nil for a text
	Parts  []Part         // pieces of a prompt that mixes texts and tokens, which has no Text and no Tokens; nil: it does not
	Chars  int            // characters of it, for the caller to count
}

// Part is a text or, if Text is nil, a token.
type Part struct {
	Text  *string
	Token tandem.Token
}

// Tool is a function that the model may call.
type Tool struct {
	Name   string
	JSON   json.RawMessage // its description, as in conversation.Tool
	Custom bool            // its client gives it a text: see conversation.CustomTool
	Strict bool            // its arguments follow the schema in JSON, also where the model may choose whether to call it
}

// New returns a request of a kind that leaves everything out, with the defaults in d.
func New(kind Kind, d Defaults) *Request {
	return &Request{Kind: kind, N: 1, Parallel: true, Opens: true, Speculation: new(tandemv1.Speculation),
		Request: tandem.Request{MaxTokens: d.MaxTokens, Sampling: d.Sampling}}
}

// Say notes that the client has set an option, and by which name. Options are named as in errors of tandem.Request.Validate.
func (r *Request) Say(option, name string) {
	if r.said == nil {
		r.said = map[string]string{}
	}
	r.said[option] = name
}

// Said returns the name by which the client has set an option; "" if it has not.
func (r *Request) Said(option string) string { return r.said[option] }

// FillIn reports whether what stands between a prompt and Suffix is asked for.
func (r *Request) FillIn() bool { return r.Suffix != "" || r.Gap }

// Conversation returns what a chat's prompt is made of.
func (r *Request) Conversation() conversation.Conversation {
	c := conversation.Conversation{Messages: r.Messages, Variables: r.Variables.Variables(), Single: !r.Parallel, Must: r.Choice.Must,
		Answer: r.Answer, Strict: map[string]bool{}}
	var all [][]byte
	for _, t := range r.Tools {
		all = append(all, t.JSON)
		c.Strict[t.Name] = t.Strict
		if t.Custom {
			if c.Custom == nil {
				c.Custom = map[string]bool{}
			}
			c.Custom[t.Name] = true
		}
	}
	if len(all) > 0 {
		c.Tools = slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]"))
	}
	return c.Ended()
}

// Check refuses options that exclude each other, and sets those that were left out to the defaults in d. Each value is checked by itself by
// tandem.Request.Validate, once the prompt is tokens. ignored is called with the names of options that have no effect; it may be nil.
// Errors: Invalid, with the client's name.
func (r *Request) Check(d Defaults, ignored func(name string)) error {
	if ignored == nil {
		ignored = func(string) {}
	}
	prompts := max(len(r.Prompts), 1)
	switch {
	case r.Kind == Embedding:
		return nil
	case r.N < 1 || r.N > MostChoices:
		return wrong(r.name("n"), "%s is %d: want 1 to %d", r.name("n"), r.N, MostChoices)
	case r.N*prompts > MostChoices:
		return wrong(r.name("n"), "%s is %d for %d prompts: want at most %d choices in all", r.name("n"), r.N, prompts, MostChoices)
	case r.Suffix != "" && !r.Gap && r.ParseSpecial:
		return wrong("parse_special", "parse_special is true with a suffix: want one of them, the markers for infill are added anyway")
	case r.Suffix != "" && slices.ContainsFunc(r.Prompts, func(p Prompt) bool { return p.Tokens != nil }):
		return wrong("suffix", "suffix is there with a prompt of token ids: want a prompt that is a text")
	case r.Kind == Chat && r.Said("top_logprobs") != "" && !r.Sampling.Logprobs:
		return wrong("top_logprobs", "top_logprobs is there without logprobs: want \"logprobs\": true")
	}
	if err := r.checkChat(ignored); err != nil {
		return err
	}
	if err := r.checkAnswer(); err != nil {
		return err
	}
	if r.Said("stop") == "" {
		r.Stop = append(r.Stop, d.Stop...)
	}
	spoken := func(m conversation.Message) bool { return m.Role == "system" }
	if r.Kind == Chat && d.System != "" && !slices.ContainsFunc(r.Messages, spoken) {
		r.Messages = slices.Insert(r.Messages, 0, conversation.Message{Role: "system", Content: d.System})
	}
	r.sampling(d)
	return r.InItsWords(d.Speculate(&r.Request, r.Speculation))
}

// checkChat checks the tools, the choice among them, and whether the last message can be continued.
func (r *Request) checkChat(ignored func(name string)) (err error) {
	if len(r.Tools) == 0 && r.Said("parallel_tool_calls") != "" && !r.Parallel {
		ignored(r.name("parallel_tool_calls"))
	}
	switch r.Tools, err = r.Choice.Offer(r.Tools); {
	case err != nil:
		return err
	case !r.Opens:
		return conversation.CanContinue(r.Messages, "add_generation_prompt", false)
	case r.GoesOn:
		return conversation.CanContinue(r.Messages, "continue_final_message", true)
	}
	return nil
}

// WholeText is the name of a repeat penalty that looks at the whole text, in vLLM and transformers.
const WholeText = "repetition_penalty"

// sampling sets how tokens are drawn, and how many, where that follows from several options.
func (r *Request) sampling(d Defaults) {
	s, window := &r.Sampling, r.Said("repeat_last")
	switch {
	case window != "" && s.RepeatLast == 0: // no token is penalised
		s.RepeatPenalty = 1
	case window == "" && strings.HasSuffix(r.Said("repeat_penalty"), WholeText):
		s.RepeatLast = tandem.MaxRepeatLast
	}
	if s.TopP == 0 && r.Said("top_p") != "" { // the likeliest tokens that together have any probability: one
		s.TopP, s.TopK = 1, 1
	}
	if r.MaxTokens == ToTheEnd && !r.IgnoreEOS {
		r.Repeats = d.Repeats
	}
	if d.MaxOutput > 0 && (r.MaxTokens == ToTheEnd || r.MaxTokens > d.MaxOutput) {
		r.MaxTokens = d.MaxOutput
	}
	switch {
	case r.Said("seed") != "":
	case d.Seed != nil:
		s.Seed = *d.Seed
	default:
		s.Seed = RandomSeed()
	}
}

// Until returns the most tokens of an answer behind a prompt of so many, in a context of so many.
func (r *Request) Until(prompt, context int) int {
	if r.MaxTokens == ToTheEnd {
		return context - prompt
	}
	return r.MaxTokens
}

// wrong returns the error of a field of a request.
func wrong(field, format string, args ...any) error {
	return &tandem.Error{Kind: tandem.Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}
