package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Check refuses values in *v, a struct of settings, that their tags or the Check methods of its parts refuse. Error: Invalid, naming
// the flag.
//
// A tag is a list of alternatives, as in check:"f16|q8_0", or bounds that all hold, then a unit, as in check:">=1 <=64 MiB". A nil pointer
// is always right.
func Check(v any) (err error) {
	each(reflect.ValueOf(v).Elem(), "", func(s Setting, v reflect.Value) {
		rule := s.tag.Get("check")
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if err != nil || rule == "" || !v.IsValid() {
			return
		}
		if want := broken(rule, v); want != "" {
			err = tandem.Errorf("", tandem.Invalid, "--%s is %v: want %s", s.Name, v, want)
		}
	})
	if err == nil {
		err = parts(reflect.ValueOf(v).Elem())
	}
	return err
}

// parts calls the Check methods of the structs that v embeds.
func parts(v reflect.Value) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.Anonymous || field.Type.Kind() != reflect.Struct {
			continue
		}
		if field.IsExported() {
			if c, ok := v.Field(i).Interface().(interface{ Check() error }); ok {
				if err := c.Check(); err != nil {
					return err
				}
			}
		}
		if err := parts(v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

// broken says what a rule wants, "" if v keeps it.
func broken(rule string, v reflect.Value) (want string) {
	if words := strings.Split(rule, "|"); len(words) > 1 {
		if slices.Contains(words, v.String()) {
			return ""
		}
		return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	}
	var wants []string
	kept, unit := true, ""
	for _, word := range strings.Fields(rule) {
		number := strings.TrimLeft(word, "<>=")
		bound, err := strconv.ParseFloat(number, 64)
		n := v.Convert(reflect.TypeFor[float64]()).Float()
		switch strings.TrimSuffix(word, number) {
		case ">=":
			kept, wants = kept && n >= bound, append(wants, number+" or more")
		case ">":
			kept, wants = kept && n > bound, append(wants, "more than "+number)
		case "<=":
			kept, wants = kept && n <= bound, append(wants, "at most "+number)
		case "<":
			kept, wants = kept && n < bound, append(wants, "less than "+number)
		default:
			unit, err = " "+word, nil
		}
		if err != nil {
			panic(fmt.Sprintf("settings: check tag %q: %v", rule, err))
		}
	}
	if kept {
		return ""
	}
	return strings.Join(wants, " and ") + unit
}
