package chat

import (
	"context"
	"errors"
	"slices"
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

// said is the assistant's content in the conversations that AfterTurn renders.
const said = "tandem-said-this"

// AfterTurn returns the texts that the template writes behind the assistant's content: at the end of a conversation, and before the next
// message. The first is the better evidence of what ends a turn: gpt-oss' template writes <|return|> there, and <|end|> only before further
// messages. Empty texts are left out, and so is a text whose conversation the template refuses. The error is that of a template that takes
// more than such a short conversation may take, nil for all others.
func (t *Template) AfterTurn(ctx context.Context) (texts []string, slow error) {
	question := Message{Role: "user", Content: "tandem-was-asked"}
	turns := []Message{question, {Role: "assistant", Content: said}, question}
	for n := 2; n <= len(turns); n++ {
		out, err := t.render(ctx, turns[:n], Options{}, false, trial)
		if errors.Is(err, errLimit) {
			slow = err
		}
		if err != nil {
			continue
		}
		if after := out.after(said); after != "" {
			texts = append(texts, after)
		}
	}
	return texts, slow
}

// UpTo returns the rendering up to the end of the last occurrence of content, which the model continues then. Templates that trim contents
// leave out the space at its ends.
func (out Rendered) UpTo(content string) Rendered {
	trimmed := strings.TrimSpace(content)
	at := strings.LastIndex(out.Text, trimmed)
	if at < 0 {
		return out
	}
	end := at + len(trimmed)
	if space := content[strings.LastIndex(content, trimmed)+len(trimmed):]; strings.HasPrefix(out.Text[end:], space) {
		end += len(space)
	}
	out.Text = out.Text[:end]
	for i, s := range out.User {
		if s.To > end {
			out.User = slices.Clone(out.User[:i+1])
			out.User[i].To = max(end, s.From)
			break
		}
	}
	return out
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
