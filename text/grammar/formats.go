package grammar

import "slices"

// Regular expressions of formats: each accepts a part of what its RFC does, so that every reader agrees.
const (
	yearDate = `([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))` +
		`|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)`
	dayTime  = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
	label    = `[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?`
	hostname = label + `(\.` + label + `){0,3}`
	octet    = `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	h16      = `[0-9A-Fa-f]{1,4}`
	atom     = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
	path     = `([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*`
)

// formats are the known formats.
var formats = map[string]string{
	"date":      yearDate,
	"time":      dayTime,
	"date-time": yearDate + "T" + dayTime,
	"duration":  `P([0-9]{1,9}W|([0-9]{1,9}D|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?)`,
	"uuid":      `[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`,
	"email":     atom + `(\.` + atom + `)*@` + label + `(\.` + label + `){0,2}\.[A-Za-z]{2,20}`,
	"hostname":  hostname,
	"ipv4":      octet + `(\.` + octet + `){3}`,
	"ipv6": `(` + h16 + `:){7}` + h16 + `|(` + h16 + `:){1,7}:|(` + h16 + `:){1,6}:` + h16 + `|(` + h16 + `:){1,5}(:` + h16 +
		`){1,2}|(` + h16 + `:){1,4}(:` + h16 + `){1,3}|(` + h16 + `:){1,3}(:` + h16 + `){1,4}|(` + h16 + `:){1,2}(:` + h16 +
		`){1,5}|` + h16 + `:(:` + h16 + `){1,6}|:(:` + h16 + `){1,7}|::`,
	"uri": `[A-Za-z][A-Za-z0-9+.-]*:(//(` + hostname + `(:[0-9]{1,5})?)?(/` + path + `)?|` + `[A-Za-z0-9]` + path + `)(\?` + path + `)?(#` + path + `)?`,
}

// others are the formats of JSON Schema that are not known; what else a schema may say there, such as int32, is for people.
var others = []string{"idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer",
	"relative-json-pointer", "regex"}

// format adds a format to f: a pattern that says the whole text.
func (f *facts) format(name string) {
	switch e, known := formats[name]; {
	case known:
		f.patterns = append(f.patterns, "^(?:"+e+")$")
		if name == "email" {
			f.patterns = append(f.patterns, "^.{1,64}@") // RFC 5321, section 4.5.3.1.1
		}
	case slices.Contains(others, name):
		panic(unsupported("the format %s", name))
	}
}
