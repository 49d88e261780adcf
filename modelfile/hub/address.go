package hub

import (
	"net/netip"
)

// reach says who can reach an address.
type reach int

const (
	public   reach = iota
	private        // of a network that is not the internet
	loopback       // of this machine
	local          // of the link alone: among them the address at which clouds tell secrets to their machines
	nowhere        // no address of one host
)

func (r reach) String() string {
	return [...]string{"a public", "a private", "a loopback", "a link-local", "no usable"}[r]
}

// ranges are addresses that package netip does not know: RFC 6890 and its successors.
var ranges = []struct {
	prefix netip.Prefix
	reach  reach
}{
	{netip.MustParsePrefix("0.0.0.0/8"), nowhere},
	{netip.MustParsePrefix("100.64.0.0/10"), private}, // carriers' NAT
	{netip.MustParsePrefix("192.0.0.0/24"), nowhere},
	{netip.MustParsePrefix("192.0.2.0/24"), nowhere},
	{netip.MustParsePrefix("198.18.0.0/15"), private}, // benchmarks
	{netip.MustParsePrefix("198.51.100.0/24"), nowhere},
	{netip.MustParsePrefix("203.0.113.0/24"), nowhere},
	{netip.MustParsePrefix("240.0.0.0/4"), nowhere},
	{netip.MustParsePrefix("fec0::/10"), private}, // site-local, of old
	{netip.MustParsePrefix("100::/64"), nowhere},
	{netip.MustParsePrefix("2001:db8::/32"), nowhere},
}

// embedded are prefixes of IPv6 whose addresses lead to the IPv4 address in them, which begins at that byte: NAT64 and 6to4.
var embedded = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("64:ff9b::/96"), 12},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},
	{netip.MustParsePrefix("2002::/16"), 2},
}

// reachOf says who can reach an address.
func reachOf(a netip.Addr) reach {
	a = a.WithZone("").Unmap()
	for _, e := range embedded {
		if e.prefix.Contains(a) {
			all := a.As16()
			return reachOf(netip.AddrFrom4([4]byte(all[e.at : e.at+4])))
		}
	}
	for _, r := range ranges {
		if r.prefix.Contains(a) {
			return r.reach
		}
	}
	switch {
	case a.IsLoopback():
		return loopback
	case a.IsLinkLocalUnicast():
		return local
	case a.IsPrivate():
		return private
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
		return nowhere
	}
	return public
}
