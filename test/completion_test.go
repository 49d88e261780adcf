package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// completers complete the line $LINE with the script $SCRIPT, and print what is offered, a line each; "/" for files.
var completers = map[string]string{
	"bash": `compopt() { echo /; }
source "$SCRIPT"
COMP_LINE=$LINE COMP_POINT=${#LINE}
read -ra COMP_WORDS <<<"$LINE"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
complete -p tandem >&2
_tandem tandem
printf '%s\n' "${COMPREPLY[@]}"`,
	"zsh": `compdef() { }
compadd() { print -l -- $names }
_files() { print / }
source "$SCRIPT"
words=(${(z)LINE}) PREFIX=$words[-1]
[[ $LINE == *' ' ]] && words+=('') PREFIX=
CURRENT=$#words
_tandem || true`,
	"fish": `function __fish_complete_path; echo "$argv[1]/"; end
source $SCRIPT
complete -C $LINE | string replace -r '\t.*' '' | string replace -r '.*/$' / ; true`,
}

// TestCompletion: each shell offers commands, flags, what they take, models that are here, and files. The shells run themselves, zsh
// without its terminal.
func TestCompletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hub := t.TempDir()
	repo := filepath.Join(hub, "models--Org--Small-GGUF")
	for name, text := range map[string]string{"refs/main": "abc", "snapshots/abc/small-q4_k_m.gguf": "GGUF"} {
		path := filepath.Join(repo, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for shell, program := range completers {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("%s is not installed", shell)
			}
			script := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(script, []byte(w.ok("completion", shell).stdout), 0o600); err != nil {
				t.Fatal(err)
			}
			if said, err := exec.Command(path, "-n", script).CombinedOutput(); err != nil || len(said) > 0 {
				t.Fatalf("%s -n: %v: %s", shell, err, said)
			}
			for line, want := range map[string]string{
				"tandem pu": "pull", "tandem cache cl": "clear", "tandem run --no-dr": "--no-draft", "tandem up --log-level d": "debug",
				"tandem up --log-level=d": "--log-level=debug", "tandem run --strategy pl": "planner", "tandem launch cl": "claude",
				"tandem --config f run -m hf:": "hf:Org/Small-GGUF:Q4_K_M", "tandem run hf:Org/S": "hf:Org/Small-GGUF:Q4_K_M",
				"tandem run no/such": "/", "tandem model info ": "/", "tandem up --target=": "/", "tandem ls --jso": "--json",
				"tandem rm hf:": "", "tandem list ": "", "tandem up --sessions ": "", "tandem run --seed 'a": "",
			} {
				cmd := exec.CommandContext(t.Context(), path, "-c", program)
				cmd.Env = append(w.command(t.Context()).Env, "LINE="+line, "SCRIPT="+script, "HF_HUB_CACHE="+hub, "HOME="+hub,
					"PATH="+filepath.Dir(w.command(t.Context()).Path)+":"+os.Getenv("PATH"))
				var said strings.Builder
				cmd.Stderr = &said
				out, err := cmd.Output()
				offers := strings.Fields(string(out))
				if typed := line[strings.LastIndex(line, " ")+1:]; shell == "bash" && want != "/" { // it completes what is behind : or =
					want = strings.TrimPrefix(want, typed[:strings.LastIndexAny(typed, ":=")+1])
				}
				if err != nil || want != "" && !slices.Contains(offers, want) || want == "" && len(offers) > 0 {
					t.Errorf("%q: %q, %v: want %q; said %s", line, offers, err, want, &said)
				}
			}
		})
	}
}
