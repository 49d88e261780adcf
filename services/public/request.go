package public

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/grammar"
)

// tenant returns the tenant of a call, by the token in its metadata.
func (s *server) tenant(ctx context.Context) (string, error) {
	return tenant(s.cfg.Keys, metadata.ValueFromIncomingContext(ctx, "authorization"))
}

// Admit returns the check of keys for rpc.Server.Admit, which runs before the message of a call is read. Health checks
// (grpc.health.v1) need no key. A key of metrics opens Describe too.
func Admit(keys, metrics *access.Keys) func(method string, header metadata.MD) error {
	return func(method string, header metadata.MD) error {
		if strings.HasPrefix(method, "/grpc.health.v1.") {
			return nil
		}
		if method == tandemv1.GenerationService_Describe_FullMethodName && metrics != nil && metrics.Opens(header.Get("authorization")) {
			return nil
		}
		_, err := tenant(keys, header.Get("authorization"))
		return err
	}
}

func tenant(keys *access.Keys, header []string) (string, error) {
	if len(header) > 1 {
		return "", tandem.Errorf(op, tandem.Unauthenticated, "%d authorization headers: want one", len(header))
	}
	token := ""
	if len(header) == 1 {
		token = header[0]
	}
	name, ok := keys.Tenant(token)
	switch {
	case ok:
		return name, nil
	case len(header) == 0:
		return "", tandem.Errorf(op, tandem.Unauthenticated, "no API key: want authorization: Bearer KEY in the metadata")
	}
	return "", tandem.Errorf(op, tandem.Unauthenticated,
		"the API key is not one of this gateway's: want authorization: Bearer KEY in the metadata")
}

// messages maps a field to the path of the message within GenerateRequest that holds it.
var messages = func() map[string]string {
	out := map[string]string{}
	for path, m := range map[string]protoreflect.ProtoMessage{"sampling.": &tandemv1.Sampling{}, "speculation.": &tandemv1.Speculation{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			out[string(fields.Get(i).Name())] = path
		}
	}
	return out
}()

// withPath returns err with its field, if it names one, as a path from GenerateRequest.
func withPath(err error) error {
	var e *tandem.Error
	if field := tandem.FieldOf(err); field != "" && errors.As(err, &e) {
		located := *e
		located.Field = messages[field] + field
		return &located
	}
	return err
}

// options are the options that both calls have.
type options interface {
	GetSampling() *tandemv1.Sampling
	GetSpeculation() *tandemv1.Speculation
	GetStop() []string
	GetIgnoreEos() bool
	GetFullTrace() bool
	GetReport() bool
	GetCacheSalt() string
	GetReturnProgress() bool
	GetConstraint() *tandemv1.Constraint
}

// asked returns a request with the options of a call; the generator validates the values.
func asked(kind ask.Kind, d ask.Defaults, o options, most *int32) (*ask.Request, error) {
	q := ask.New(kind, d)
	q.Stop, q.IgnoreEOS, q.CacheSalt = o.GetStop(), o.GetIgnoreEos(), o.GetCacheSalt()
	q.FullTrace, q.Report, q.Progress = o.GetFullTrace(), o.GetReport(), o.GetReturnProgress()
	switch {
	case most != nil && *most < 1:
		return nil, wrong("max_tokens", "max_tokens is %d: want at least 1", *most)
	case most != nil:
		q.MaxTokens = int(*most)
	case kind == ask.Chat:
		q.MaxTokens = ask.ToTheEnd
	}
	if s := o.GetSpeculation(); s != nil {
		q.Speculation = s
	}
	sample(q, o.GetSampling())
	q.Answer = allowed(o.GetConstraint())
	return q, nil
}

// allowed decodes which answers are allowed; nil: all.
func allowed(c *tandemv1.Constraint) *grammar.Spec {
	switch form := c.GetForm().(type) {
	case *tandemv1.Constraint_JsonSchema:
		return &grammar.Spec{Schema: json.RawMessage(form.JsonSchema)}
	case *tandemv1.Constraint_JsonObject:
		if form.JsonObject {
			return &grammar.Spec{Object: true}
		}
	case *tandemv1.Constraint_Regex:
		return &grammar.Spec{Regex: form.Regex}
	case *tandemv1.Constraint_Choices:
		return &grammar.Spec{Choices: form.Choices.GetTexts()}
	}
	return nil
}

// request decodes r; d fills in what it leaves out.
func request(d ask.Defaults, r *tandemv1.GenerateRequest) (tandem.Request, error) {
	q, err := asked(ask.Completion, d, r, r.MaxTokens)
	if err != nil {
		return tandem.Request{}, err
	}
	q.Written = r.GetWritten()
	switch p := r.GetPrompt().(type) {
	case *tandemv1.GenerateRequest_Text:
		q.Prompt = p.Text
	case *tandemv1.GenerateRequest_Tokens:
		q.Tokens = wire.ToTokens(p.Tokens.GetIds())
	}
	if err := q.Check(d, nil); err != nil {
		return tandem.Request{}, err
	}
	return q.Request, q.Constrain(conversation.Output{})
}

// sample decodes how tokens are drawn.
func sample(q *ask.Request, from *tandemv1.Sampling) {
	to := &q.Sampling
	if from == nil {
		return
	}
	for _, f := range []struct {
		from *float64
		to   *float64
	}{{from.Temperature, &to.Temperature}, {from.TopP, &to.TopP}, {from.MinP, &to.MinP}, {from.RepeatPenalty, &to.RepeatPenalty},
		{from.FrequencyPenalty, &to.FrequencyPenalty}, {from.PresencePenalty, &to.PresencePenalty},
		{from.AcceptEpsilon, &to.Epsilon}, {from.AcceptDelta, &to.Delta}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	for _, f := range []struct {
		from *int32
		to   *int
	}{{from.TopK, &to.TopK}, {from.RepeatLast, &to.RepeatLast}, {from.TopLogprobs, &to.TopLogprobs}} {
		if f.from != nil {
			*f.to = int(*f.from)
		}
	}
	if from.GetAccept() != "" {
		to.Accept = tandem.Acceptance(from.GetAccept())
	}
	if from.Logprobs != nil {
		to.Logprobs = from.GetLogprobs()
	}
	if len(from.GetLogitBias()) > 0 {
		to.Bias = nil
		for t, add := range from.GetLogitBias() {
			to.Bias = append(to.Bias, tandem.Bias{Token: tandem.Token(t), Add: add})
		}
		slices.SortFunc(to.Bias, func(a, b tandem.Bias) int { return cmp.Compare(a.Token, b.Token) })
	}
	if from.Seed != nil {
		to.Seed = from.GetSeed()
		q.Say("seed", "seed")
	}
}

const maxRequestID = 128 // bytes

// RequestID returns the client's own id of a request if it is valid, else a random one.
func RequestID(own string) string {
	sane := own != "" && len(own) <= maxRequestID
	for i := 0; i < len(own); i++ {
		sane = sane && own[i] > ' ' && own[i] < 0x7f
	}
	if sane {
		return own
	}
	var b [8]byte
	_, _ = crand.Read(b[:])
	return fmt.Sprintf("req_%x", b)
}
