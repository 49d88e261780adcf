package states

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/tandem-llm/tandem/modelfile/files"
)

// readText returns the text of a file, unpacked if it is called *.gz, as manual pages are.
func readText(name string) ([]byte, error) {
	b, err := files.ReadFile(name, mostText)
	if err != nil || !strings.HasSuffix(name, ".gz") {
		return b, err
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	b, err = io.ReadAll(io.LimitReader(z, mostText+1))
	if err == nil && len(b) > mostText {
		err = fmt.Errorf("%s has more than %d bytes when it is unpacked", name, mostText)
	}
	return b, err
}

// language is how commented functions look in the files of one kind: groups comment and code.
type language struct {
	name      string
	functions *regexp.Regexp
}

var (
	braces = regexp.MustCompile(`(?m)(?P<comment>(?:^[ \t]*//.*\n)+|^[ \t]*/\*(?:[^*]|\*[^/])*\*/[ \t]*\n)(?P<code>^[ \t]*[A-Za-z][^\n;{]*\([^\n;{]*)\{`)
	hashes = regexp.MustCompile(`(?m)(?P<comment>(?:^[ \t]*#.*\n)+)(?P<code>^[ \t]*(?:function +)?[\w-]+ *\(\)) *\{`)

	languages = map[string]language{
		".go": {"Go", braces}, ".c": {"C", braces}, ".h": {"C", braces}, ".cc": {"C++", braces}, ".cpp": {"C++", braces},
		".java": {"Java", braces}, ".js": {"JavaScript", braces}, ".ts": {"TypeScript", braces}, ".rs": {"Rust", braces},
		".sh": {"Bash", hashes},
		".py": {"Python", regexp.MustCompile(`(?m)(?P<code>^[ \t]*(?:async )?def \w+\([^\n]*:\n)(?P<comment>[ \t]*"""[^"]+""")`)},
	}

	statement = regexp.MustCompile(`^\s*(if|for|while|switch|select|catch|return|do|else|go|defer)\b`) // no function

	heading = regexp.MustCompile(`(?m)^#{1,4} +(.+?)[ #]*$`)
	manName = regexp.MustCompile(`(?m)^\.SH "?NAME"?\n(?:\.[^\n]*\n)*(.+?) \\?- (.+)$`)
	manPart = regexp.MustCompile(`(?m)^\.S[HS] "?([^"\n]+?)"?$`)
	manFile = regexp.MustCompile(`\.[1-9][a-z]*$`)
)

// What is asked about a commented function, and about a part of a document or manual page.
var (
	aboutCode = []string{
		"Write this function in %s. Its comment says what it does:\n\n```\n%s\n```",
		"Write tests in %s for the function with this comment and signature:\n\n```\n%s\n```",
		"Here are the comment and the signature of a %s function. Explain how you would implement it, and show how it is used:" +
			"\n\n```\n%s\n```",
	}
	aboutPart = []string{"Explain %q to someone who reads about %s.", "Write the section %q of a document on %s.",
		"Which questions does the section %[1]q of a document on %[2]s answer? Answer the most important ones."}
	aboutPage = []string{"What is %s (%s) for? Show three examples with explanations.",
		"Write a short tutorial on %s (%s).", "Explain to a beginner how to use %s: %s."}
)

const (
	leastComment = 24   // bytes of a comment that says anything
	mostAsked    = 3000 // bytes of an instruction
)

// instructions makes prompts of a file: of functions with their comments, headings of Markdown, and manual pages. The same file always
// gives the same ones.
func instructions(name, text string) (all []string) {
	name = strings.TrimSuffix(path.Base(name), ".gz")
	ask := func(ways []string, about ...string) {
		sum := sha256.Sum256([]byte(strings.Join(about, "\n")))
		said := make([]any, len(about))
		for i, a := range about {
			said[i] = a
		}
		if p := fmt.Sprintf(ways[int(sum[0])%len(ways)], said...); len(p) <= mostAsked {
			all = append(all, p)
		}
	}
	if l, known := languages[path.Ext(name)]; known {
		comment, code := l.functions.SubexpIndex("comment"), l.functions.SubexpIndex("code")
		for _, m := range l.functions.FindAllStringSubmatch(text, -1) {
			if len(strings.TrimSpace(m[comment])) >= leastComment && !statement.MatchString(m[code]) {
				ask(aboutCode, l.name, strings.Trim(m[min(comment, code)]+m[max(comment, code)], " \n"))
			}
		}
		return all
	}
	switch {
	case path.Ext(name) == ".md":
		parts := heading.FindAllStringSubmatch(text, -1)
		for _, part := range parts[min(1, len(parts)):] {
			ask(aboutPart, part[1], fmt.Sprintf("%q", parts[0][1]))
		}
	case manFile.MatchString(name):
		m := manName.FindStringSubmatch(text)
		if m == nil {
			return nil
		}
		ask(aboutPage, m[1], m[2])
		for _, part := range manPart.FindAllStringSubmatch(text, -1) {
			if part[1] != "NAME" {
				ask(aboutPart, part[1], fmt.Sprintf("%s (%s)", m[1], m[2]))
			}
		}
	}
	return all
}
