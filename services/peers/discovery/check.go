package discovery

import (
	"cmp"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	mostText       = 200 // bytes of a model's name
	mostPrint      = 64  // bytes of a fingerprint
	leastVocab     = 2
	mostVocab      = 4 << 20
	mostPage       = 1 << 20 // tokens
	mostComplaints = 256     // that are remembered
)

// check returns nil if an announcement is plausible. It takes away the socket of a verifier on another host, which must not choose a path
// here. Errors: Invalid, with the wrong value and what would be right.
func check(addr string, a *wire.Announcement) error {
	if err := checkAddress(addr); err != nil {
		return err
	}
	for _, d := range a.Drafters {
		if err := checkDrafter(d); err != nil {
			return err
		}
	}
	if v := a.Verifier; v != nil {
		if !rpc.OnThisHost(addr) {
			v.SegmentSocket = ""
		}
		if err := checkVerifier(v); err != nil {
			return err
		}
	}
	if g := a.Gateway; g != nil {
		return cmp.Or(printable("gateway's name", g.Name, 1, mostText), printable("model's name", g.Model, 1, mostText),
			printable("version", g.Version, 0, mostText), printable("HTTP address", g.HTTP, 0, mostText))
	}
	return nil
}

// checkVerifier refuses impossible verifiers.
func checkVerifier(v *wire.AnnouncedVerifier) error {
	if v.Vocab < leastVocab || v.Vocab > mostVocab || v.KVTokens < 0 || v.PageTokens < 0 || v.PageTokens > mostPage {
		return tandem.Errorf(op, tandem.Invalid, "verifier has %d tokens in its vocabulary, %d in KV memory and %d in a page of it: "+
			"want %d to %d, 0 or more, and 0 to %d", v.Vocab, v.KVTokens, v.PageTokens, leastVocab, mostVocab, mostPage)
	}
	if strings.ContainsAny(v.Queue, " .*>") {
		return tandem.Errorf(op, tandem.Invalid, "verifier's queue %.100q: want no space and none of . * >", v.Queue)
	}
	for _, name := range v.SelfDrafts {
		if err := printable("self-draft's name", name, 1, mostText); err != nil {
			return err
		}
	}
	return cmp.Or(printable("model's name", v.Model, 1, mostText), printable("version", v.Version, 0, mostText),
		printable("fingerprint", v.Fingerprint, 1, mostPrint), printable("socket", v.SegmentSocket, 0, mostText),
		printable("queue", v.Queue, 0, mostPrint))
}

// checkAddress refuses addresses that cannot be dialed.
func checkAddress(addr string) error {
	if err := rpc.CheckAddress(addr); err != nil {
		return err
	}
	if strings.HasPrefix(addr, "unix://") {
		return printable("address", addr, 1, mostText)
	}
	host, port, _ := net.SplitHostPort(addr)
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return tandem.Errorf(op, tandem.Invalid, "address %.100q: want a port from 1 to 65535", addr)
	}
	if strings.ContainsAny(host, " /\\@?#") {
		return tandem.Errorf(op, tandem.Invalid, "address %.100q: want a host's name or IP address before the port", addr)
	}
	return printable("address", addr, 1, mostText)
}

// checkDrafter refuses impossible drafters. A drafter with a vocabulary tells its size and fingerprint; one that takes any, such
// as lookup, has neither, and no model.
func checkDrafter(d wire.AnnouncedDrafter) error {
	if err := printable("drafter's name", d.Name, 1, mostText); err != nil {
		return err
	}
	if err := printable("model's name", d.Model, 0, mostText); err != nil {
		return err
	}
	if err := printable("fingerprint", d.Fingerprint, 0, mostPrint); err != nil {
		return err
	}
	any, sized := d.Vocab == 0 && d.Model == "" && d.Fingerprint == "", d.Vocab >= leastVocab && d.Vocab <= mostVocab && d.Fingerprint != ""
	if !any && !sized {
		return tandem.Errorf(op, tandem.Invalid,
			"drafter %q has model %q, %d tokens and fingerprint %q: want %d to %d tokens and a fingerprint, or none of the three",
			d.Name, d.Model, d.Vocab, d.Fingerprint, leastVocab, mostVocab)
	}
	return nil
}

// printable refuses texts that do not belong into a log or a table.
func printable(what, s string, least, most int) error {
	if len(s) < least || len(s) > most ||
		strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }) {
		return tandem.Errorf(op, tandem.Invalid, "%s %.100q: want %d to %d bytes of printable text", what, s, least, most)
	}
	return nil
}

// refuse counts a process with an impossible or unproved announcement, and logs it once.
func (t *Table) refuse(addr string, err error) {
	t.cfg.Counters.Add("announcements.refused", 1)
	said := [2]string{addr, err.Error()}
	if t.complaints[said] {
		return
	}
	if len(t.complaints) >= mostComplaints {
		clear(t.complaints) // rather log twice than grow without end
	}
	t.complaints[said] = true
	if dropped, ok := t.warnings.Allow(time.Now()); ok {
		t.cfg.Log.Warn("a "+t.cfg.Kind.name+" is not used", "address", addr, "error", err, "dropped", dropped)
	}
}
