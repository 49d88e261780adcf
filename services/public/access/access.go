// Package access knows a gateway's clients by their bearer tokens, for every front end.
package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// maxToken is the length limit of a token in bytes.
const maxToken = 4096

// Keys are the tokens that let clients in. Safe for concurrent use; nil lets everybody in.
type Keys struct {
	now    func() *tokens
	report func(why error) // called when a replaced file cannot be used; may be nil
}

// tokens are what Keys are at one time.
type tokens struct {
	sums    [][sha256.Size]byte
	tenants []string
}

// New returns the keys with those tokens, nil if there are none. A token is 1 to 4,096 visible ASCII characters, so that it
// fits into a header. Errors do not show it.
func New(all []string) (*Keys, error) {
	if len(all) == 0 {
		return nil, nil
	}
	t, err := summed(all)
	if err != nil {
		return nil, err
	}
	return &Keys{now: func() *tokens { return t }}, nil
}

// Follow returns the keys with the tokens that read returns, at least one, from the file at path. The file is read again after it was
// written or replaced: its tokens count from then on, and requests in progress go on. A file that cannot be used changes nothing. Errors:
// those of read, and Invalid.
func Follow(path string, read func() ([]string, error)) (*Keys, error) {
	k := new(Keys)
	followed, err := files.Follow(func() (*tokens, error) {
		all, err := read()
		if err != nil {
			return nil, err
		}
		return summed(all)
	}, func(why error) {
		if k.report != nil {
			k.report(why)
		}
	}, path)
	if err != nil {
		return nil, err
	}
	k.now = followed.Now
	return k, nil
}

// Report makes k log and count ("keys.refused") files that cannot be used. Call it before the keys are used. Nil keys do nothing.
func (k *Keys) Report(log *slog.Logger, counters *tandem.Counters) {
	if k == nil {
		return
	}
	k.report = func(why error) {
		counters.Add("keys.refused", 1)
		log.Warn("the clients' keys stay as they were", "error", why)
	}
}

// summed hashes tokens.
func summed(all []string) (*tokens, error) {
	k := new(tokens)
	for i, t := range all {
		if t == "" || len(t) > maxToken || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, tandem.Errorf("api key", tandem.Invalid, "key %d of %d has %d bytes: want 1 to %d visible ASCII characters", i+1,
				len(all), len(t), maxToken)
		}
		sum := sha256.Sum256([]byte(t))
		k.sums, k.tenants = append(k.sums, sum), append(k.tenants, tenant(sum))
	}
	return k, nil
}

// tenant returns the name of the tenant with a token of that hash. It hashes again, because names travel to other processes.
func tenant(sum [sha256.Size]byte) string {
	name := sha256.Sum256(append([]byte("tandem tenant "), sum[:]...))
	return hex.EncodeToString(name[:16])
}

// LogName returns what logs call a tenant: 64 bits of a hash of its name, from which neither the name nor anything that it opens, such as
// its part of a prefix store, can be found. Logs have other readers than the store. "" for "".
func LogName(tenant string) string {
	if tenant == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("tandem tenant in a log " + tenant))
	return hex.EncodeToString(sum[:8])
}

// Tenants returns the tenants of all tokens there are now, each once: "" alone for nil keys.
func (k *Keys) Tenants() []string {
	if k == nil {
		return []string{""}
	}
	return slices.Compact(slices.Sorted(slices.Values(k.now().tenants)))
}

// Opens reports whether one of the keys is in the only Authorization header of a call. Nil keys open everything.
func (k *Keys) Opens(headers []string) bool {
	header := ""
	if len(headers) > 0 {
		header = headers[0]
	}
	_, ok := k.Tenant(header)
	return ok && len(headers) <= 1
}

// Tenant returns the tenant of the token in an Authorization header ("Bearer TOKEN"), and whether it is known. It takes
// as long for a wrong token as for a right one. Nil keys know every caller, as the tenant "".
func (k *Keys) Tenant(header string) (name string, ok bool) {
	if k == nil {
		return "", true
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found, now := -1, k.now()
	for i := range now.sums {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(now.sums[i][:], sum[:]), i, found)
	}
	if found < 0 {
		return "", false
	}
	return now.tenants[found], true
}
