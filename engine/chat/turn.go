package chat

import (
	"context"
	"strings"
)

// roles are the API's roles. A template may make a marker of one ('<|' + message.role + '|>'), so they count as its own text;
// other roles count as the caller's.
var roles = map[string]bool{"system": true, "developer": true, "user": true, "assistant": true, "tool": true, "function": true}

// role returns a message's role as a template's value.
func role(name string) text {
	if roles[name] {
		return lit(name)
	}
	return caller(name)
}

// Source returns the template as it was given to Parse.
func (t *Template) Source() string { return t.source }

// said stands for what the assistant says in the conversations that AfterTurn tries.
const said = "tandem-said-this"

// AfterTurn returns what the template writes between the assistant's content and the next message's content or the end; "" if
// that cannot be found out.
func (t *Template) AfterTurn(ctx context.Context) string {
	question := Message{Role: "user", Content: "tandem-was-asked"}
	turns := []Message{question, {Role: "assistant", Content: said}, question}
	for n := len(turns); n > 1; n-- { // some templates want the assistant to be last
		out, err := t.Render(ctx, turns[:n], Options{})
		if err != nil {
			continue
		}
		if after := out.after(said); after != "" {
			return after
		}
	}
	return ""
}

// after returns what the template wrote after the last occurrence of content.
func (out Rendered) after(content string) string {
	at := strings.LastIndex(out.Text, content)
	if at < 0 {
		return ""
	}
	at += len(content)
	end := len(out.Text)
	for _, s := range out.User {
		if s.To > at {
			end = max(s.From, at)
			break
		}
	}
	return out.Text[at:end]
}
