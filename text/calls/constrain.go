package calls

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/text/grammar"
)

// Demand says what an output has to be.
type Demand struct {
	Answer   *grammar.Spec            // the answers that are allowed, behind the thoughts; nil: all
	Tools    Tools                    // that may be called
	Must     bool                     // at least one is called, and nothing is said beside it
	Single   bool                     // at most one is called
	Thinking bool                     // the output begins within a thought
	Template string                   // of the chats
	Mark     func(text string) string // a text with its control tokens as grammars know them: token.Vocab.Mark
}

// Loose is a tool whose arguments are not held to its schema, and why.
type Loose struct{ Tool, Why string }

// Allowed returns which outputs d allows; nil: all. Thoughts stay free. Calls are written as the model has learned it; arguments follow the
// tool's schema if a call is demanded or the tool is strict. A tool for which that cannot be is told as loose.
func (f *Format) Allowed(d Demand) (*grammar.Spec, []Loose) {
	strict := slices.ContainsFunc(d.Tools, func(t Tool) bool { return t.Strict })
	must := d.Must && len(d.Tools) > 0
	if d.Answer == nil && !must && !strict {
		return nil, nil
	}
	c := composer{Demand: d, form: f.form(d.Template)}
	if d.Answer == nil && !must && c.form.open == "" && !f.channel { // a text may begin as a call does, and nothing tells them apart
		for _, t := range d.Tools {
			if t.Strict {
				c.loosen(t, "the model's calls begin without a marker: only a forced call can be held to a schema")
			}
		}
		return nil, c.loose
	}
	out := c.whole(f, must)
	if size := 0; len(d.Tools) > 0 {
		for _, t := range d.Tools {
			size += len(t.Parameters)
		}
		if size > surelyFits {
			if _, err := grammar.Compile(out, grammar.Limits{}); err != nil {
				for _, t := range d.Tools {
					c.loosen(t, "all tools together: "+err.Error())
				}
				c.args, c.unheld = nil, true
				out = c.whole(f, must)
			}
		}
	}
	return &out, c.loose
}

// surelyFits is how many bytes of schemas fit into one grammar for certain, if each compiles: the largest list of tools that clients were
// seen to send has half of that.
const surelyFits = 64 << 10

// whole returns the grammar of an output.
func (c *composer) whole(f *Format, must bool) grammar.Spec {
	switch {
	case f.channel:
		return c.messages(must)
	case must:
		return c.behindThoughts(f, c.calls())
	case c.Answer != nil && len(c.Tools) > 0:
		return c.behindThoughts(f, grammar.Spec{Any: []grammar.Spec{c.calls(), c.answer(f)}})
	case c.Answer != nil:
		return c.behindThoughts(f, c.answer(f))
	}
	return c.behindThoughts(f, c.freely())
}

// composer makes a grammar of a demand.
type composer struct {
	Demand
	form   form
	loose  []Loose
	args   map[string]grammar.Spec // of tools, by name
	unheld bool                    // no tool is held to its schema
}

// mostThought bounds the space between a thought and what follows it, in bytes: without a bound a model may go on with it for ever.
const mostThought = 4

// behindThoughts returns body behind a thought that the template has opened, or that the model may open.
func (c *composer) behindThoughts(f *Format, body grammar.Spec) grammar.Spec {
	open := strings.TrimSpace(f.think[0])
	thought := []grammar.Spec{{Until: &grammar.Until{Markers: []string{c.Mark(f.think[1])}}},
		{Regex: fmt.Sprintf(`[ \t\r\n]{0,%d}`, mostThought)}}
	switch {
	case open == "":
		return body
	case c.Thinking:
		return sequence(append(thought, body)...)
	case strings.Contains(c.Template, open):
		return sequence(optional(sequence(slices.Insert(thought, 0, c.text(f.think[0]))...)), body)
	}
	return body
}

// answer returns the answers that are allowed, with what begins an answer that is a text.
func (c *composer) answer(f *Format) grammar.Spec {
	if f.all == "" {
		return *c.Answer
	}
	return sequence(c.text(f.all), *c.Answer)
}

// calls returns calls one after the other, and nothing else.
func (c *composer) calls() grammar.Spec {
	w, most := &c.form, 0
	if c.Single || w.single {
		most = 1
	}
	var out grammar.Spec
	if w.list {
		out = sequence(c.text(w.open+"["), c.repeated(c.call(), ", ", most), c.text("]"+w.close))
	} else {
		out = c.repeated(sequence(c.text(w.open), c.call(), c.text(w.close)), w.between, most)
	}
	return sequence(c.text(w.section[0]), c.text(w.lead), out, c.text(w.section[1]))
}

// freely returns any text in which each call, from its marker on, is one of the tools'.
func (c *composer) freely() grammar.Spec {
	w := &c.form
	then := sequence(c.call(), c.text(w.close))
	if w.list {
		then = sequence(c.text("["), c.repeated(c.call(), ", ", 0), c.text("]"+w.close))
	}
	return grammar.Spec{Until: &grammar.Until{Markers: []string{c.Mark(w.open)}, Then: []grammar.Spec{then}, End: true, Again: !c.Single}}
}

// call returns a call of any of the tools, between the marks of one.
func (c *composer) call() grammar.Spec {
	var all []grammar.Spec
	for _, t := range c.Tools {
		all = append(all, c.form.write(c, t))
	}
	return either(all...)
}

// arguments returns what a tool's arguments may be in JSON.
func (c *composer) arguments(t Tool) grammar.Spec {
	if a, ok := c.args[t.Name]; ok {
		return a
	}
	a := grammar.Spec{Object: true}
	if c.held(t) && len(t.Parameters) > 0 {
		a = grammar.Spec{Schema: t.Parameters}
		if _, err := grammar.Compile(a, grammar.Limits{}); err != nil {
			c.loosen(t, err.Error())
			a = grammar.Spec{Object: true}
		}
	}
	if c.args == nil {
		c.args = map[string]grammar.Spec{}
	}
	c.args[t.Name] = a
	return a
}

// held reports whether a tool's arguments are to follow its schema.
func (c *composer) held(t Tool) bool { return !c.unheld && (c.Must || t.Strict) }

// loosen notes that a tool is not held to its schema.
func (c *composer) loosen(t Tool, why string) {
	if !slices.ContainsFunc(c.loose, func(l Loose) bool { return l.Tool == t.Name }) {
		c.loose = append(c.loose, Loose{t.Name, why})
	}
}

// text returns exactly a text, which the model may write with control tokens.
func (c *composer) text(s string) grammar.Spec { return grammar.Spec{Text: c.Mark(s)} }

func (c *composer) repeated(of grammar.Spec, between string, most int) grammar.Spec {
	if most == 1 {
		return of
	}
	return grammar.Spec{Repeat: &grammar.Repeat{Of: of, Separator: c.Mark(between), Min: 1, Max: most}}
}

// sequence returns specs one after the other, without those of no text.
func sequence(all ...grammar.Spec) grammar.Spec {
	var out []grammar.Spec
	for _, s := range all {
		if !isEmpty(s) {
			out = append(out, s)
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	return grammar.Spec{Seq: out}
}

// isEmpty reports whether s is the empty text.
func isEmpty(s grammar.Spec) bool {
	raw, err := json.Marshal(s)
	return err == nil && string(raw) == "{}"
}

func either(all ...grammar.Spec) grammar.Spec {
	if len(all) == 1 {
		return all[0]
	}
	return grammar.Spec{Any: all}
}

func optional(s grammar.Spec) grammar.Spec {
	return grammar.Spec{Repeat: &grammar.Repeat{Of: s, Min: 0, Max: 1}}
}

// mostMessages bounds gpt-oss' messages before the last.
const mostMessages = 16

// messages returns the messages of gpt-oss: thoughts and remarks as it likes, then a call or an answer.
func (c *composer) messages(must bool) grammar.Spec {
	const constrain, message = " <|constrain|>json", "<|message|>"
	said := []string{"analysis", "commentary"}
	if must {
		said = said[:1]
	}
	between := grammar.Spec{Repeat: &grammar.Repeat{Min: 0, Max: mostMessages, Of: sequence(c.text(channelMark),
		grammar.Spec{Choices: said}, c.text(message),
		grammar.Spec{Until: &grammar.Until{Markers: []string{c.Mark(ends[0])}}}, c.text(startMark+"assistant"))}}
	var last []grammar.Spec
	for _, t := range c.Tools {
		to := " to=" + functions + t.Name
		last = append(last, sequence(either(c.text(channelMark+"commentary"+to), c.text(to+channelMark+"commentary")),
			optional(c.text(constrain)), c.text(message), c.arguments(t)))
	}
	switch {
	case must:
	case c.Answer != nil:
		last = append(last, sequence(c.text(channelMark+"final"), optional(c.text(constrain)), c.text(message), *c.Answer))
	default:
		last = append(last, sequence(c.text(channelMark+"final"+message), grammar.Spec{Until: &grammar.Until{End: true}}))
	}
	return sequence(between, either(last...))
}
